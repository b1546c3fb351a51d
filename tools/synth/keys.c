/* The keys of a shape, as files of its architecture have them (llama.cpp's gguf-py/gguf/constants.py). */
#include "gguf/writer.h"
#include "synth/family.h"

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

/* One number for each layer. */
static void put_of_layers(const keys *k, const char *suffix, const synth_shape *s,
                          int (*number)(const synth_heads *heads))
{
    char key[96];
    int32_t numbers[SYNTH_MOST_LAYERS];
    snprintf(key, sizeof key, "%s.%s", k->architecture, suffix);
    for (int l = 0; l < s->n_layers; l++) {
        const synth_heads heads = synth_heads_of(s, l);
        numbers[l] = number(&heads);
    }
    tsr_gguf_writer_array(k->writer, key, TSR_GGUF_I32, numbers, (size_t)s->n_layers);
}

static int n_head_of(const synth_heads *heads)
{
    return heads->n_head;
}

static int n_head_kv_of(const synth_heads *heads)
{
    return heads->n_head_kv;
}

static int is_windowed(const synth_heads *heads)
{
    return heads->windowed;
}

static void put_rope_scaling(const keys *k, const synth_family *f)
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
    if (s->expert_step)
        put_int(k, "interleave_moe_layer_step", s->expert_step);
    if (synth_has(s, SYNTH_SHARED_EXPERT) && !synth_has(s, SYNTH_SHARED_GATE))
        put_int(k, "expert_shared_count", 1);
    if (s->n_ff_shared)
        put_int(k, "expert_shared_feed_forward_length", s->n_ff_shared);
    if (synth_has(s, SYNTH_SIGMOIDS))
        put_int(k, "expert_gating_func", 2);
    if (s->n_expert_groups) {
        put_int(k, "expert_group_count", s->n_expert_groups);
        put_int(k, "expert_group_used_count", s->n_expert_groups_used);
    }
    if (synth_has(s, SYNTH_NEXTN))
        put_int(k, "nextn_predict_layers", 1);
}

/* The lengths of keys and values are those of the compressed row, the _mla ones those of a head. */
static void put_latent(const keys *k, const synth_shape *s)
{
    const synth_latent *a = &s->latent;
    put_int(k, "attention.head_count", s->n_head);
    put_int(k, "attention.head_count_kv", 1);
    put_int(k, "attention.q_lora_rank", a->q_rank);
    put_int(k, "attention.kv_lora_rank", a->kv_rank);
    put_int(k, "attention.key_length", a->kv_rank + a->n_rot);
    put_int(k, "attention.value_length", a->kv_rank);
    put_int(k, "attention.key_length_mla", a->n_plain + a->n_rot);
    put_int(k, "attention.value_length_mla", s->head_dim);
    put_int(k, "rope.dimension_count", a->n_rot);
}

static void put_window(const keys *k, const synth_shape *s)
{
    const int size = s->window.size ? s->window.size : synth_family_of(s)->window;
    put_int(k, "attention.sliding_window", size);
    if (s->window.size)
        put_of_layers(k, "attention.sliding_window_pattern", s, is_windowed);
    if (s->window.head_dim) {
        put_int(k, "attention.key_length_swa", s->window.head_dim);
        put_int(k, "attention.value_length_swa", s->window.head_dim);
        put_int(k, "rope.dimension_count_swa", s->window.head_dim);
    }
}

static void put_recurrence(const keys *k, const synth_shape *s)
{
    put_int(k, "full_attention_interval", synth_family_of(s)->period);
    put_int(k, "ssm.conv_kernel", SYNTH_CONV_KERNEL);
    put_int(k, "ssm.state_size", s->delta.head_dim);
    put_int(k, "ssm.group_count", s->delta.n_key_heads);
    put_int(k, "ssm.time_step_rank", s->delta.n_value_heads);
    put_int(k, "ssm.inner_size", s->delta.n_value_heads * s->delta.head_dim);
}

static void put_attention(const keys *k, const synth_shape *s)
{
    const int part = synth_family_of(s)->rotated;
    if (s->window.n_head)
        put_of_layers(k, "attention.head_count", s, n_head_of);
    else
        put_int(k, "attention.head_count", s->n_head);
    if (s->window.n_head_kv)
        put_of_layers(k, "attention.head_count_kv", s, n_head_kv_of);
    else
        put_int(k, "attention.head_count_kv", s->n_head_kv);
    put_int(k, "attention.key_length", s->head_dim);
    put_int(k, "attention.value_length", s->head_dim);
    put_int(k, "rope.dimension_count", part ? s->head_dim / part : s->head_dim);
    if (s->delta.n_key_heads)
        put_recurrence(k, s);
}

void synth_add_keys(const synth_shape *s, tsr_gguf_writer *writer)
{
    const synth_family *f = synth_family_of(s);
    const keys k = {writer, s->architecture};
    tsr_gguf_writer_string(writer, "general.architecture", s->architecture);
    tsr_gguf_writer_string(writer, "general.name", s->name);
    put_int(&k, "block_count", s->n_layers + synth_has(s, SYNTH_NEXTN));
    put_int(&k, "context_length", s->n_ctx);
    put_int(&k, "embedding_length", s->n_embd);
    put_int(&k, "feed_forward_length", s->n_ff);
    if (s->latent.kv_rank > 0)
        put_latent(&k, s);
    else
        put_attention(&k, s);
    put_real(&k, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_real(&k, "rope.freq_base", s->rope_freq_base);
    put_int(&k, "vocab_size", s->n_vocab);
    if (f->window || s->window.size)
        put_window(&k, s);
    if (s->n_shared_kv)
        put_int(&k, "attention.shared_kv_layers", s->n_shared_kv);
    if (s->n_layer_input)
        put_int(&k, "embedding_length_per_layer_input", s->n_layer_input);
    if (f->rope_factor > 0)
        put_rope_scaling(&k, f);
    if (s->n_expert)
        put_experts(&k, s);
    tsr_gguf_writer_string(writer, "tokenizer.ggml.model", "no_vocab");
}
