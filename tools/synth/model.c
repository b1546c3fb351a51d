/* Keys and tensors of a shape, with the names and extents that files of its architecture have (llama.cpp's
 * gguf-py/gguf/constants.py). */
#include <stdlib.h>
#include <string.h>

#include "gguf/writer.h"
#include "options.h"
#include "synth/synth.h"

/* What the layers of an architecture have besides a llama's. */
enum {
    QKV_BIASES = 16,
    OUTPUT_BIAS = 32,     /* of attention */
    POST_NORMS = 64,      /* behind attention and FFN */
    RENAMED_NORM = 128,   /* the norm before the FFN is called post_attention_norm */
    SINKS = 256,          /* of every head */
    EXPERT_BIASES = 512,  /* and of the router */
    CHOICE_BIAS = 1024,   /* on the choice of experts */
    SHARED_EXPERT = 2048, /* one, as large as the others */
    HALF_ROTATED = 4096   /* heads */
};

typedef struct family {
    const char *architecture;
    unsigned parts;
    int window;        /* of some layers; 0: of none */
    float rope_factor; /* by which the context is stretched; 0: it is not */
    int n_ctx_orig;    /* before stretching by YaRN; 0: linear */
} family;

static const family families[] = {
    {"llama", 0, 0, 0, 0},
    {"qwen3", SYNTH_HEAD_NORMS, 0, 0, 0},
    {"qwen3moe", SYNTH_HEAD_NORMS, 0, 0, 0},
    {"gemma3", SYNTH_HEAD_NORMS | POST_NORMS, 1024, 8, 0},
    {"gpt-oss", QKV_BIASES | OUTPUT_BIAS | SINKS | RENAMED_NORM | EXPERT_BIASES, 128, 32, 4096},
    {"glm4moe", QKV_BIASES | RENAMED_NORM | CHOICE_BIAS | SHARED_EXPERT | HALF_ROTATED, 0, 0, 0},
};

static const family *family_of(const synth_shape *shape)
{
    for (int i = 0; i < TOOL_COUNT(families); i++)
        if (strcmp(families[i].architecture, shape->architecture) == 0)
            return &families[i];
    return &families[0];
}

static bool has(const synth_shape *shape, unsigned part)
{
    return ((shape->parts | family_of(shape)->parts) & part) != 0;
}

/* -- tensors -- */

enum { MOST_TENSORS_PER_LAYER = 32 };

typedef struct list {
    const synth_model *model;
    synth_tensor *at;
    int n;
} list;

/* Extents of 0 are omitted; layer -1: outside layers. */
static void add(list *l, int layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
{
    synth_tensor *t = &l->at[l->n++];
    *t = (synth_tensor){.layer = layer,
                        .n_dims = 1 + (ne1 > 0) + (ne2 > 0),
                        .ne = {ne0, ne1 > 0 ? ne1 : 1, ne2 > 0 ? ne2 : 1}};
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->type = synth_tensor_type(l->model, t);
}

static void add_attention(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    int64_t n_q = (int64_t)s->n_head * s->head_dim, n_kv = (int64_t)s->n_head_kv * s->head_dim;
    add(l, layer, "attn_norm.weight", s->n_embd, 0, 0);
    add(l, layer, "attn_q.weight", s->n_embd, n_q, 0);
    add(l, layer, "attn_k.weight", s->n_embd, n_kv, 0);
    add(l, layer, "attn_v.weight", s->n_embd, n_kv, 0);
    add(l, layer, "attn_output.weight", n_q, s->n_embd, 0);
    if (has(s, QKV_BIASES)) {
        add(l, layer, "attn_q.bias", n_q, 0, 0);
        add(l, layer, "attn_k.bias", n_kv, 0, 0);
        add(l, layer, "attn_v.bias", n_kv, 0, 0);
    }
    if (has(s, OUTPUT_BIAS))
        add(l, layer, "attn_output.bias", s->n_embd, 0, 0);
    if (has(s, SINKS))
        add(l, layer, "attn_sinks.weight", s->n_head, 0, 0);
    if (has(s, SYNTH_HEAD_NORMS)) {
        add(l, layer, "attn_q_norm.weight", s->head_dim, 0, 0);
        add(l, layer, "attn_k_norm.weight", s->head_dim, 0, 0);
    }
}

static void add_experts(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add(l, layer, "ffn_gate_inp.weight", s->n_embd, s->n_expert, 0);
    add(l, layer, "ffn_gate_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
    add(l, layer, "ffn_up_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
    add(l, layer, "ffn_down_exps.weight", s->n_ff_expert, s->n_embd, s->n_expert);
    if (has(s, EXPERT_BIASES)) {
        add(l, layer, "ffn_gate_inp.bias", s->n_expert, 0, 0);
        add(l, layer, "ffn_gate_exps.bias", s->n_ff_expert, s->n_expert, 0);
        add(l, layer, "ffn_up_exps.bias", s->n_ff_expert, s->n_expert, 0);
        add(l, layer, "ffn_down_exps.bias", s->n_embd, s->n_expert, 0);
    }
    if (has(s, CHOICE_BIAS))
        add(l, layer, "exp_probs_b.bias", s->n_expert, 0, 0);
    if (has(s, SHARED_EXPERT)) {
        add(l, layer, "ffn_gate_shexp.weight", s->n_embd, s->n_ff_expert, 0);
        add(l, layer, "ffn_up_shexp.weight", s->n_embd, s->n_ff_expert, 0);
        add(l, layer, "ffn_down_shexp.weight", s->n_ff_expert, s->n_embd, 0);
    }
}

static void add_layer(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add_attention(l, layer);
    if (has(s, POST_NORMS))
        add(l, layer, "post_attention_norm.weight", s->n_embd, 0, 0);
    add(l, layer, has(s, RENAMED_NORM) ? "post_attention_norm.weight" : "ffn_norm.weight", s->n_embd, 0, 0);
    if (s->n_expert && layer >= s->n_dense_layers) {
        add_experts(l, layer);
    } else {
        add(l, layer, "ffn_gate.weight", s->n_embd, s->n_ff, 0);
        add(l, layer, "ffn_up.weight", s->n_embd, s->n_ff, 0);
        add(l, layer, "ffn_down.weight", s->n_ff, s->n_embd, 0);
    }
    if (has(s, POST_NORMS))
        add(l, layer, "post_ffw_norm.weight", s->n_embd, 0, 0);
}

/* The layer that predicts further tokens: a layer like others and what joins its two inputs. */
static void add_nextn(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add_layer(l, layer);
    add(l, layer, "nextn.eh_proj.weight", 2 * (int64_t)s->n_embd, s->n_embd, 0);
    add(l, layer, "nextn.embed_tokens.weight", s->n_embd, s->n_vocab, 0);
    add(l, layer, "nextn.enorm.weight", s->n_embd, 0, 0);
    add(l, layer, "nextn.hnorm.weight", s->n_embd, 0, 0);
    add(l, layer, "nextn.shared_head_head.weight", s->n_embd, s->n_vocab, 0);
    add(l, layer, "nextn.shared_head_norm.weight", s->n_embd, 0, 0);
}

synth_tensor *synth_tensors(const synth_model *model, int *n_out)
{
    const synth_shape *s = &model->shape;
    list l = {.model = model};
    l.at = calloc(((size_t)s->n_layers + 1) * MOST_TENSORS_PER_LAYER + 4, sizeof *l.at);
    if (!l.at)
        return NULL;
    add(&l, -1, "token_embd.weight", s->n_embd, s->n_vocab, 0);
    for (int layer = 0; layer < s->n_layers; layer++)
        add_layer(&l, layer);
    if (has(s, SYNTH_NEXTN))
        add_nextn(&l, s->n_layers);
    add(&l, -1, "output_norm.weight", s->n_embd, 0, 0);
    if (!has(s, SYNTH_TIED))
        add(&l, -1, "output.weight", s->n_embd, s->n_vocab, 0);
    if (has(s, SYNTH_ROPE_FACTORS))
        add(&l, -1, "rope_freqs.weight", s->head_dim / 2, 0, 0);
    *n_out = l.n;
    return l.at;
}

/* -- keys -- */

typedef struct keys {
    tsr_gguf_writer *writer;
    const char *architecture;
} keys;

static void put_int(const keys *k, const char *suffix, int value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", k->architecture, suffix);
    tsr_gguf_writer_u32(k->writer, key, (uint32_t)value);
}

static void put_real(const keys *k, const char *suffix, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", k->architecture, suffix);
    tsr_gguf_writer_f32(k->writer, key, value);
}

static void put_rope_scaling(const keys *k, const family *f)
{
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", k->architecture);
    tsr_gguf_writer_string(k->writer, key, f->n_ctx_orig ? "yarn" : "linear");
    put_real(k, "rope.scaling.factor", f->rope_factor);
    if (f->n_ctx_orig)
        put_int(k, "rope.scaling.original_context_length", f->n_ctx_orig);
}

static void put_experts(const keys *k, const synth_shape *s)
{
    put_int(k, "expert_count", s->n_expert);
    put_int(k, "expert_used_count", s->n_expert_used);
    put_int(k, "expert_feed_forward_length", s->n_ff_expert);
    if (s->n_dense_layers)
        put_int(k, "leading_dense_block_count",
                s->n_dense_layers < s->n_layers ? s->n_dense_layers : s->n_layers);
    if (has(s, SHARED_EXPERT))
        put_int(k, "expert_shared_count", 1);
    if (has(s, SYNTH_NEXTN))
        put_int(k, "nextn_predict_layers", 1);
}

void synth_add_keys(const synth_shape *s, tsr_gguf_writer *writer)
{
    const family *f = family_of(s);
    const keys k = {writer, s->architecture};
    tsr_gguf_writer_string(writer, "general.architecture", s->architecture);
    tsr_gguf_writer_string(writer, "general.name", s->name);
    put_int(&k, "block_count", s->n_layers + has(s, SYNTH_NEXTN));
    put_int(&k, "context_length", s->n_ctx);
    put_int(&k, "embedding_length", s->n_embd);
    put_int(&k, "feed_forward_length", s->n_ff);
    put_int(&k, "attention.head_count", s->n_head);
    put_int(&k, "attention.head_count_kv", s->n_head_kv);
    put_int(&k, "attention.key_length", s->head_dim);
    put_int(&k, "attention.value_length", s->head_dim);
    put_real(&k, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_int(&k, "rope.dimension_count", has(s, HALF_ROTATED) ? s->head_dim / 2 : s->head_dim);
    put_real(&k, "rope.freq_base", s->rope_freq_base);
    put_int(&k, "vocab_size", s->n_vocab);
    if (f->window)
        put_int(&k, "attention.sliding_window", f->window);
    if (f->rope_factor > 0)
        put_rope_scaling(&k, f);
    if (s->n_expert)
        put_experts(&k, s);
    tsr_gguf_writer_string(writer, "tokenizer.ggml.model", "no_vocab");
}
