/* The tables of architectures and tensors.
 *
 * Names: llama.cpp's gguf-py/gguf/constants.py (MODEL_ARCH_NAMES, TENSOR_NAMES) and the GGUF specification's
 * "Standardized tensor names". Shapes: load_tensors() of the same project. Experts are divided like a dense
 * FFN, by FFN columns inside every expert: the devices then work evenly, whatever experts a token uses. With
 * whole experts, single tokens would not keep all devices busy. */
#include "plan/header_only/names.h"

#include <string.h>

static const char *const architectures[] = {
    "llama",     "mistral3",   "qwen2",     "qwen2moe", "qwen3",      "qwen3moe", "gemma", "gemma2",
    "gemma3",    "phi3",       "deepseek2", "deepseek", "granite",    "olmo2",    "olmoe", "stablelm",
    "command-r", "granitemoe", "internlm2", "exaone",   "starcoder2", "cohere2",  "glm4",  "chatglm",
    "smollm3",   "ernie4_5",   "minicpm",   "xverse",   "gpt-oss",    "qwen2vl"};

#define ATTENTION_WHOLE TSR_WEIGHT_ATTENTION_WHOLE, TSR_EXTENT_NONE, 0
#define FFN_WHOLE       TSR_WEIGHT_FFN_WHOLE, TSR_EXTENT_NONE, 0
#define OUTPUT_WHOLE    TSR_WEIGHT_OUTPUT_WHOLE, TSR_EXTENT_NONE, 0

static const tsr_tensor_row tensors[] = {
    {"token_embd.weight", TSR_WEIGHT_VOCAB_ROWS, TSR_EXTENT_VOCAB, 0},
    {"output.weight", TSR_WEIGHT_VOCAB_ROWS, TSR_EXTENT_VOCAB, 0},
    {"output.bias", TSR_WEIGHT_VOCAB_ROWS, TSR_EXTENT_VOCAB, 0},
    {"output_norm.weight", OUTPUT_WHOLE},
    {"output_norm.bias", OUTPUT_WHOLE},
    {"rope_freqs.weight", TSR_WEIGHT_OUTPUT_WHOLE, TSR_EXTENT_NONE, TSR_TENSOR_CALLER},
    {"rope_factors_long.weight", TSR_WEIGHT_OUTPUT_WHOLE, TSR_EXTENT_NONE, TSR_TENSOR_CALLER},
    {"rope_factors_short.weight", TSR_WEIGHT_OUTPUT_WHOLE, TSR_EXTENT_NONE, TSR_TENSOR_CALLER},

    /* attention */
    {"blk.#.attn_norm.weight", ATTENTION_WHOLE},
    {"blk.#.attn_norm.bias", ATTENTION_WHOLE},
    {"blk.#.attn_q.weight", TSR_WEIGHT_Q_ROWS, TSR_EXTENT_Q, 0},
    {"blk.#.attn_q.bias", TSR_WEIGHT_Q_ROWS, TSR_EXTENT_Q, 0},
    {"blk.#.attn_k.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_K, 0},
    {"blk.#.attn_k.bias", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_K, 0},
    {"blk.#.attn_v.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_V, 0},
    {"blk.#.attn_v.bias", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_V, 0},
    {"blk.#.attn_qkv.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_QKV,
     0}, /* every device gets rows of all three */
    {"blk.#.attn_qkv.bias", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_QKV, 0},
    {"blk.#.attn_output.weight", TSR_WEIGHT_Q_COLUMNS, TSR_EXTENT_O, 0},
    {"blk.#.attn_output.bias", ATTENTION_WHOLE},
    {"blk.#.attn_q_norm.weight", ATTENTION_WHOLE}, /* of one head, or over all of them */
    {"blk.#.attn_k_norm.weight", ATTENTION_WHOLE},
    {"blk.#.attn_sinks.weight", TSR_WEIGHT_Q_ROWS, TSR_EXTENT_HEADS, 0},
    {"blk.#.post_attention_norm.weight", ATTENTION_WHOLE},

    /* MLA: compressed rows are whole on every device; matrices that expand them are divided by heads */
    {"blk.#.attn_q_a.weight", ATTENTION_WHOLE},
    {"blk.#.attn_q_a_norm.weight", ATTENTION_WHOLE},
    {"blk.#.attn_q_b.weight", TSR_WEIGHT_Q_ROWS, TSR_EXTENT_Q, 0},
    {"blk.#.attn_kv_a_mqa.weight", ATTENTION_WHOLE},
    {"blk.#.attn_kv_a_norm.weight", ATTENTION_WHOLE},
    {"blk.#.attn_kv_b.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_KV_B, 0},
    {"blk.#.attn_k_b.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_HEADS, 0},
    {"blk.#.attn_v_b.weight", TSR_WEIGHT_KV_ROWS, TSR_EXTENT_HEADS, 0},

    /* FFN */
    {"blk.#.ffn_norm.weight", FFN_WHOLE},
    {"blk.#.ffn_norm.bias", FFN_WHOLE},
    {"blk.#.post_ffw_norm.weight", FFN_WHOLE},
    {"blk.#.ffn_gate.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF, 0},
    {"blk.#.ffn_up.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF, TSR_TENSOR_TWICE},
    {"blk.#.ffn_up.bias", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF, 0},
    {"blk.#.ffn_down.weight", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF, 0},
    {"blk.#.ffn_down.bias", FFN_WHOLE},

    /* mixtures of experts: the router, the experts in one tensor (or, in old files, one each), the shared */
    {"blk.#.ffn_gate_inp.weight", FFN_WHOLE},
    {"blk.#.ffn_gate_inp.bias", FFN_WHOLE},
    {"blk.#.exp_probs_b.bias", FFN_WHOLE},
    {"blk.#.ffn_gate_exps.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_up_exps.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_down_exps.weight", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_gate_exps.bias", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_up_exps.bias", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_down_exps.bias", TSR_WEIGHT_EXPERTS, TSR_EXTENT_NONE, 0},
    {"blk.#.ffn_gate_up_exps.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_EXPERT,
     TSR_TENSOR_EXPERT | TSR_TENSOR_TWICE},
    {"blk.#.ffn_gate.#.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_up.#.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_down.#.weight", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF_EXPERT, TSR_TENSOR_EXPERT},
    {"blk.#.ffn_gate_inp_shexp.weight", FFN_WHOLE},
    {"blk.#.ffn_gate_shexp.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_SHARED, 0},
    {"blk.#.ffn_up_shexp.weight", TSR_WEIGHT_FFN_ROWS, TSR_EXTENT_FF_SHARED, 0},
    {"blk.#.ffn_down_shexp.weight", TSR_WEIGHT_FFN_COLUMNS, TSR_EXTENT_FF_SHARED, 0},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

bool tsr_arch_table_has(const char *architecture)
{
    for (size_t i = 0; i < COUNT(architectures); i++)
        if (strcmp(architectures[i], architecture) == 0)
            return true;
    return false;
}

/* Whether a name is the pattern with a number of at most nine digits for every '#'. */
static bool matches(const char *pattern, const char *name)
{
    for (; *pattern; pattern++) {
        size_t n_digits = *pattern == '#' ? strspn(name, "0123456789") : 0;
        if (*pattern == '#' ? n_digits < 1 || n_digits > 9 : *pattern != *name)
            return false;
        name += *pattern == '#' ? n_digits : 1;
    }
    return *name == '\0';
}

const tsr_tensor_row *tsr_arch_table_find(const char *name)
{
    for (size_t i = 0; i < COUNT(tensors); i++)
        if (matches(tensors[i].name, name))
            return &tensors[i];
    return NULL;
}
