/* The shapes are those of the models' config.json on Hugging Face; names as llama.cpp's converter writes
 * them. */
#include "support/arch_models.h"

#include <stdio.h>
#include <string.h>

#define KEYS    (const struct arch_key[])
#define TENSORS (const struct arch_tensor[])

#define NORM(name, n)             \
    {                             \
        name ".weight", {n}, true \
    }
#define WHOLE(name, columns, rows)            \
    {                                         \
        name ".weight", {columns, rows}, true \
    }
#define MATRIX(name, columns, rows) \
    {                               \
        name ".weight",             \
        {                           \
            columns, rows           \
        }                           \
    }
#define EXPERTS(name, columns, rows, n) \
    {                                   \
        name ".weight",                 \
        {                               \
            columns, rows, n            \
        }                               \
    }

/* token embedding, last norm and, untied, the output */
#define ENDS_TIED(n_embd, n_vocab) MATRIX("token_embd", n_embd, n_vocab), NORM("output_norm", n_embd)
#define ENDS(n_embd, n_vocab)      ENDS_TIED(n_embd, n_vocab), MATRIX("output", n_embd, n_vocab)

#define ATTENTION(n_embd, n_q, n_kv)                                                  \
    NORM("blk.%d.attn_norm", n_embd), MATRIX("blk.%d.attn_q", n_embd, n_q),           \
        MATRIX("blk.%d.attn_k", n_embd, n_kv), MATRIX("blk.%d.attn_v", n_embd, n_kv), \
        MATRIX("blk.%d.attn_output", n_q, n_embd)
#define HEAD_NORMS(n) NORM("blk.%d.attn_q_norm", n), NORM("blk.%d.attn_k_norm", n)
#define FFN(n_embd, n_ff)                                                     \
    NORM("blk.%d.ffn_norm", n_embd), MATRIX("blk.%d.ffn_gate", n_embd, n_ff), \
        MATRIX("blk.%d.ffn_up", n_embd, n_ff), MATRIX("blk.%d.ffn_down", n_ff, n_embd)
#define MOE(n_embd, n_ff, n)                                                                              \
    NORM("blk.%d.ffn_norm", n_embd), WHOLE("blk.%d.ffn_gate_inp", n_embd, n),                             \
        EXPERTS("blk.%d.ffn_gate_exps", n_embd, n_ff, n), EXPERTS("blk.%d.ffn_up_exps", n_embd, n_ff, n), \
        EXPERTS("blk.%d.ffn_down_exps", n_ff, n_embd, n)
/* An FFN in the first layer, and in those behind it a mixture with experts that every token uses. */
#define DENSE_FIRST(n_embd, n_ff)                                                             \
    NORM("blk.%d.ffn_norm", n_embd), {"blk.%d.ffn_gate.weight", {n_embd, n_ff}, false, 0, 1}, \
        {"blk.%d.ffn_up.weight", {n_embd, n_ff}, false, 0, 1},                                \
    {                                                                                         \
        "blk.%d.ffn_down.weight", {n_ff, n_embd}, false, 0, 1                                 \
    }
#define MOE_BEHIND_IT(n_embd, n_ff, n, n_ff_shared)                        \
    {"blk.%d.ffn_gate_inp.weight", {n_embd, n}, true, 1},                  \
        {"blk.%d.ffn_gate_exps.weight", {n_embd, n_ff, n}, false, 1},      \
        {"blk.%d.ffn_up_exps.weight", {n_embd, n_ff, n}, false, 1},        \
        {"blk.%d.ffn_down_exps.weight", {n_ff, n_embd, n}, false, 1},      \
        {"blk.%d.ffn_gate_shexp.weight", {n_embd, n_ff_shared}, false, 1}, \
        {"blk.%d.ffn_up_shexp.weight", {n_embd, n_ff_shared}, false, 1},   \
    {                                                                      \
        "blk.%d.ffn_down_shexp.weight", {n_ff_shared, n_embd}, false, 1    \
    }
#define POST_NORMS(n_embd) NORM("blk.%d.post_attention_norm", n_embd), NORM("blk.%d.post_ffw_norm", n_embd)

#define SHAPE(n_embd, n_head, n_head_kv, n_ff)                                                              \
    {"embedding_length", n_embd}, {"attention.head_count", n_head}, {"attention.head_count_kv", n_head_kv}, \
        {"feed_forward_length", n_ff},                                                                      \
    {                                                                                                       \
        "context_length", 32768                                                                             \
    }
#define HEADS_OF(n)                 \
    {"attention.key_length", n},    \
    {                               \
        "attention.value_length", n \
    }
#define END  \
    {        \
        NULL \
    }

const struct arch_model arch_models[] = {
    {"Qwen2.5-7B", "qwen2", 7615616512, 57344, false, 28, KEYS{SHAPE(3584, 28, 4, 18944), END},
     TENSORS{ENDS(3584, 152064),
             ATTENTION(3584, 3584, 512),
             {"blk.%d.attn_q.bias", {3584}},
             {"blk.%d.attn_k.bias", {512}},
             {"blk.%d.attn_v.bias", {512}},
             FFN(3584, 18944),
             END}},
    {"Qwen3-8B", "qwen3", 8190735360, 147456, false, 36, KEYS{SHAPE(4096, 32, 8, 12288), HEADS_OF(128), END},
     TENSORS{ENDS(4096, 151936), ATTENTION(4096, 4096, 1024), HEAD_NORMS(128), FFN(4096, 12288), END}},
    {"Qwen3-30B-A3B", "qwen3moe", 30532122624, 98304, false, 48,
     KEYS{SHAPE(2048, 32, 4, 6144),
          HEADS_OF(128),
          {"expert_count", 128},
          {"expert_used_count", 8},
          {"expert_feed_forward_length", 768},
          END},
     TENSORS{ENDS(2048, 151936), ATTENTION(2048, 4096, 512), HEAD_NORMS(128), MOE(2048, 768, 128), END}},
    {"Mixtral-8x7B", "llama", 46702792704, 131072, false, 32,
     KEYS{SHAPE(4096, 32, 8, 14336), {"expert_count", 8}, {"expert_used_count", 2}, END},
     TENSORS{ENDS(4096, 32000), ATTENTION(4096, 4096, 1024), MOE(4096, 14336, 8), END}},
    {"Gemma-2-9B", "gemma2", 9241705984, 344064, false, 42,
     KEYS{SHAPE(3584, 16, 8, 14336), HEADS_OF(256), {"attention.sliding_window", 4096}, END},
     TENSORS{ENDS_TIED(3584, 256000), ATTENTION(3584, 4096, 2048), POST_NORMS(3584), FFN(3584, 14336), END}},
    {"Gemma-3-12B", "gemma3", 11766034176, 393216, false, 48,
     KEYS{SHAPE(3840, 16, 8, 15360), HEADS_OF(256), {"attention.sliding_window", 1024}, END},
     TENSORS{ENDS_TIED(3840, 262208), ATTENTION(3840, 4096, 2048), HEAD_NORMS(256), POST_NORMS(3840),
             FFN(3840, 15360), END}},
    {"Phi-3-mini", "phi3", 3821079552, 393216, false, 32, KEYS{SHAPE(3072, 32, 32, 8192), END},
     TENSORS{ENDS(3072, 32064), NORM("blk.%d.attn_norm", 3072), MATRIX("blk.%d.attn_qkv", 3072, 9216),
             MATRIX("blk.%d.attn_output", 3072, 3072), NORM("blk.%d.ffn_norm", 3072),
             MATRIX("blk.%d.ffn_up", 3072, 16384), MATRIX("blk.%d.ffn_down", 8192, 3072), END}},
    {"DeepSeek-V2-Lite", "deepseek2", 15706484224, 31104, true, 27,
     KEYS{SHAPE(2048, 16, 16, 10944),
          {"attention.key_length", 192},
          {"attention.value_length", 128},
          {"attention.kv_lora_rank", 512},
          {"rope.dimension_count", 64},
          {"expert_count", 64},
          {"expert_used_count", 6},
          {"expert_shared_count", 2},
          {"expert_feed_forward_length", 1408},
          {"leading_dense_block_count", 1},
          END},
     TENSORS{ENDS(2048, 102400), NORM("blk.%d.attn_norm", 2048), MATRIX("blk.%d.attn_q", 2048, 3072),
             WHOLE("blk.%d.attn_kv_a_mqa", 2048, 576), NORM("blk.%d.attn_kv_a_norm", 512),
             MATRIX("blk.%d.attn_kv_b", 512, 4096), MATRIX("blk.%d.attn_output", 2048, 2048),
             DENSE_FIRST(2048, 10944), MOE_BEHIND_IT(2048, 1408, 64, 2816), END}},
    {"DeepSeek-V3", "deepseek2", 671026419200, 70272, true, 61,
     KEYS{SHAPE(7168, 128, 1, 18432),
          {"attention.key_length", 576},
          {"attention.value_length", 512},
          {"attention.key_length_mla", 192},
          {"attention.value_length_mla", 128},
          {"attention.q_lora_rank", 1536},
          {"attention.kv_lora_rank", 512},
          {"rope.dimension_count", 64},
          {"expert_count", 256},
          {"expert_used_count", 8},
          {"expert_group_count", 8},
          {"expert_group_used_count", 4},
          {"expert_gating_func", 2},
          {"expert_shared_count", 1},
          {"expert_feed_forward_length", 2048},
          {"leading_dense_block_count", 3},
          END},
     TENSORS{ENDS(7168, 129280),
             NORM("blk.%d.attn_norm", 7168),
             WHOLE("blk.%d.attn_q_a", 7168, 1536),
             NORM("blk.%d.attn_q_a_norm", 1536),
             MATRIX("blk.%d.attn_q_b", 1536, 24576),
             WHOLE("blk.%d.attn_kv_a_mqa", 7168, 576),
             NORM("blk.%d.attn_kv_a_norm", 512),
             EXPERTS("blk.%d.attn_k_b", 128, 512, 128),
             EXPERTS("blk.%d.attn_v_b", 512, 128, 128),
             MATRIX("blk.%d.attn_output", 16384, 7168),
             NORM("blk.%d.ffn_norm", 7168),
             {"blk.%d.ffn_gate.weight", {7168, 18432}, false, 0, 3},
             {"blk.%d.ffn_up.weight", {7168, 18432}, false, 0, 3},
             {"blk.%d.ffn_down.weight", {18432, 7168}, false, 0, 3},
             {"blk.%d.exp_probs_b.bias", {256}, true, 3},
             {"blk.%d.ffn_gate_inp.weight", {7168, 256}, true, 3},
             {"blk.%d.ffn_gate_exps.weight", {7168, 2048, 256}, false, 3},
             {"blk.%d.ffn_up_exps.weight", {7168, 2048, 256}, false, 3},
             {"blk.%d.ffn_down_exps.weight", {2048, 7168, 256}, false, 3},
             {"blk.%d.ffn_gate_shexp.weight", {7168, 2048}, false, 3},
             {"blk.%d.ffn_up_shexp.weight", {7168, 2048}, false, 3},
             {"blk.%d.ffn_down_shexp.weight", {2048, 7168}, false, 3},
             END}},
    {"Qwen1.5-MoE-A2.7B", "qwen2moe", 14315784192, 196608, false, 24,
     KEYS{SHAPE(2048, 16, 16, 5632),
          {"expert_count", 60},
          {"expert_used_count", 4},
          {"expert_feed_forward_length", 1408},
          {"expert_shared_feed_forward_length", 5632},
          END},
     TENSORS{ENDS(2048, 151936),
             ATTENTION(2048, 2048, 2048),
             {"blk.%d.attn_q.bias", {2048}},
             {"blk.%d.attn_k.bias", {2048}},
             {"blk.%d.attn_v.bias", {2048}},
             MOE(2048, 1408, 60),
             NORM("blk.%d.ffn_gate_inp_shexp", 2048),
             MATRIX("blk.%d.ffn_gate_shexp", 2048, 5632),
             MATRIX("blk.%d.ffn_up_shexp", 2048, 5632),
             MATRIX("blk.%d.ffn_down_shexp", 5632, 2048),
             END}},
    {"deepseek-moe-16b", "deepseek", 16375728128, 229376, false, 28,
     KEYS{SHAPE(2048, 16, 16, 10944),
          {"expert_count", 64},
          {"expert_used_count", 6},
          {"expert_shared_count", 2},
          {"expert_feed_forward_length", 1408},
          {"leading_dense_block_count", 1},
          END},
     TENSORS{ENDS(2048, 102400), ATTENTION(2048, 2048, 2048), DENSE_FIRST(2048, 10944),
             MOE_BEHIND_IT(2048, 1408, 64, 2816), END}},
    {"gpt-oss-20b", "gpt-oss", 20914757184, 49152, false, 24,
     KEYS{SHAPE(2880, 64, 8, 2880),
          HEADS_OF(64),
          {"expert_count", 32},
          {"expert_used_count", 4},
          {"expert_feed_forward_length", 2880},
          {"attention.sliding_window", 128},
          END},
     TENSORS{ENDS(2880, 201088),
             ATTENTION(2880, 4096, 512),
             {"blk.%d.attn_q.bias", {4096}},
             {"blk.%d.attn_k.bias", {512}},
             {"blk.%d.attn_v.bias", {512}},
             {"blk.%d.attn_output.bias", {2880}, true},
             {"blk.%d.attn_sinks.weight", {64}},
             NORM("blk.%d.post_attention_norm", 2880),
             WHOLE("blk.%d.ffn_gate_inp", 2880, 32),
             {"blk.%d.ffn_gate_inp.bias", {32}, true},
             EXPERTS("blk.%d.ffn_gate_exps", 2880, 2880, 32),
             EXPERTS("blk.%d.ffn_up_exps", 2880, 2880, 32),
             EXPERTS("blk.%d.ffn_down_exps", 2880, 2880, 32),
             {"blk.%d.ffn_gate_exps.bias", {2880, 32}},
             {"blk.%d.ffn_up_exps.bias", {2880, 32}},
             {"blk.%d.ffn_down_exps.bias", {2880, 32}},
             END}},
};

const size_t n_arch_models = sizeof arch_models / sizeof *arch_models;

static void add(gguf_writer *w, const char *name, const struct arch_tensor *t, tsr_type type)
{
    int n_dims = t->ne[2] ? 3 : t->ne[1] ? 2 : 1;
    const char *end = strrchr(name, '.');
    if (n_dims == 1 || (end && strcmp(end, ".bias") == 0))
        type = TSR_TYPE_F32;
    else if (t->ne[0] % tsr_type_block_elems(type) != 0)
        type = TSR_TYPE_F16;
    gguf_writer_tensor_zero(w, name, type, n_dims, t->ne);
}

gguf_writer *arch_model_writer(const struct arch_model *m, tsr_type type)
{
    char name[96];
    gguf_writer *w = gguf_writer_create(3);
    gguf_writer_string(w, "general.architecture", m->architecture);
    gguf_writer_string(w, "general.name", m->title);
    snprintf(name, sizeof name, "%s.block_count", m->architecture);
    gguf_writer_u32(w, name, (uint32_t)m->n_layers);
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", m->architecture);
    gguf_writer_f32(w, name, 1e-6f);
    for (const struct arch_key *k = m->keys; k->suffix; k++) {
        snprintf(name, sizeof name, "%s.%s", m->architecture, k->suffix);
        gguf_writer_u32(w, name, (uint32_t)k->value);
    }
    for (const struct arch_tensor *t = m->tensors; t->name; t++) {
        bool layered = strstr(t->name, "%d");
        int end = !layered ? 1 : t->n_layers ? t->first_layer + t->n_layers : m->n_layers;
        for (int l = t->first_layer; l < end; l++) {
            if (layered)
                snprintf(name, sizeof name, "blk.%d%s", l, t->name + strlen("blk.%d"));
            else
                snprintf(name, sizeof name, "%s", t->name);
            add(w, name, t, type);
        }
    }
    return w;
}
