/* Reading hyper-parameters. Every number that becomes an extent is bounded here, so that no product of two
 * extents overflows. */
#include "arch/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/op.h"

enum { KEY_BYTES = 96 };

typedef struct reader {
    const tsr_gguf *gguf;
    const char *architecture;
    char key[KEY_BYTES]; /* the last key, with its prefix */
} reader;

static const char *full_key(reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->architecture, suffix);
    return r->key;
}

/* Some files have one number per layer where others have one for all layers. Equal numbers count as one. */
static tsr_status uniform_array(reader *r, int64_t *value_out)
{
    tsr_gguf_value_type type;
    int64_t n, first, value;
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_gguf_get_array(r->gguf, r->key, &type, &n));
    if (n < 1)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is an empty array", tsr_gguf_path(r->gguf), r->key);
    TSR_TRY(tsr_gguf_array_i64(r->gguf, r->key, 0, &first));
    for (int64_t i = 1; i < n; i++) {
        TSR_TRY(tsr_gguf_array_i64(r->gguf, r->key, i, &value));
        if (value != first)
            return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s differs between layers (%lld and %lld)",
                            tsr_gguf_path(r->gguf), r->key, (long long)first, (long long)value);
    }
    *value_out = first;
out:
    return status;
}

static tsr_status absent(const reader *r, bool required)
{
    if (!required)
        return TSR_OK;
    return tsr_fail(TSR_ERR_FORMAT, "%s: key %s is missing", tsr_gguf_path(r->gguf), r->key);
}

static tsr_status element(reader *r, int64_t n, int64_t layer, int64_t *value_out)
{
    if (layer < n)
        return tsr_gguf_array_i64(r->gguf, r->key, layer, value_out);
    return tsr_fail(TSR_ERR_FORMAT, "%s: %s has %lld entries, none for layer %lld", tsr_gguf_path(r->gguf),
                    r->key, (long long)n, (long long)layer);
}

/* An integer in [low, high] of one layer (ALL_LAYERS: equal in all layers). *value keeps its default if the
 * key is absent and `required` is false. */
static tsr_status get_layer_int(reader *r, const char *suffix, int64_t layer, bool required, int64_t low,
                                int64_t high, int64_t *value)
{
    const char *key = full_key(r, suffix);
    tsr_gguf_value_type type;
    int64_t n, number = 0;
    uint64_t scalar;
    tsr_status status = TSR_OK;
    if (!tsr_gguf_has_key(r->gguf, key))
        return absent(r, required);
    if (tsr_gguf_get_array(r->gguf, key, &type, &n) == TSR_OK) {
        TSR_TRY(layer == TSR_ALL_LAYERS ? uniform_array(r, &number) : element(r, n, layer, &number));
    } else {
        tsr_fail_clear();
        TSR_TRY(tsr_gguf_get_u64(r->gguf, key, &scalar));
        number = scalar > INT64_MAX ? INT64_MAX : (int64_t)scalar;
    }
    if (number < low || number > high)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %lld; it must be in [%lld, %lld]", tsr_gguf_path(r->gguf),
                        key, (long long)number, (long long)low, (long long)high);
    *value = number;
out:
    return status;
}

static tsr_status get_int(reader *r, const char *suffix, bool required, int64_t low, int64_t high,
                          int64_t *value)
{
    return get_layer_int(r, suffix, TSR_ALL_LAYERS, required, low, high, value);
}

tsr_status tsr_hparams_key(const tsr_gguf *gguf, const char *architecture, const char *suffix, int64_t layer,
                           bool required, int64_t low, int64_t high, int64_t *value)
{
    reader r = {.gguf = gguf, .architecture = architecture};
    return get_layer_int(&r, suffix, layer, required, low, high, value);
}

static tsr_status get_real(reader *r, const char *suffix, bool required, double low, double high,
                           double *value)
{
    const char *key = full_key(r, suffix);
    double number;
    if (!tsr_gguf_has_key(r->gguf, key))
        return absent(r, required);
    tsr_status status = tsr_gguf_get_f64(r->gguf, key, &number);
    if (status != TSR_OK)
        return status;
    if (!(number >= low && number <= high))
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %g; it must be in [%g, %g]", tsr_gguf_path(r->gguf), key,
                        number, low, high);
    *value = number;
    return TSR_OK;
}

static void copy_string(const tsr_gguf *gguf, const char *key, char *out, size_t capacity)
{
    tsr_gguf_string text;
    out[0] = '\0';
    if (!tsr_gguf_has_key(gguf, key) || tsr_gguf_get_string(gguf, key, &text) != TSR_OK) {
        tsr_fail_clear();
        return;
    }
    snprintf(out, capacity, "%.*s", (int)TSR_MIN(text.bytes, capacity - 1), text.data);
}

static tsr_status parse_scaling(reader *r, tsr_rope_scaling *scaling)
{
    static const struct {
        const char *name;
        tsr_rope_scaling scaling;
    } names[] = {{"none", TSR_ROPE_SCALING_NONE},
                 {"linear", TSR_ROPE_SCALING_LINEAR},
                 {"yarn", TSR_ROPE_SCALING_YARN},
                 {"longrope", TSR_ROPE_SCALING_LONGROPE}};
    char type[16];
    copy_string(r->gguf, full_key(r, "rope.scaling.type"), type, sizeof type);
    if (type[0] == '\0')
        return TSR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(type, names[i].name) == 0) {
            *scaling = names[i].scaling;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s is \"%s\"; none, linear, yarn and longrope are supported",
                    tsr_gguf_path(r->gguf), r->key, type);
}

/* "<arch>.rope.scaling.*", or the older "<arch>.rope.scale_linear". A file with LongRoPE's tensors may lack
 * the name of the scaling. */
static tsr_status read_rope_scaling(reader *r, double n_ctx_train, tsr_rope_params *rope)
{
    tsr_status status = TSR_OK;
    double factor = 0; /* files say 0 for "none" */
    rope->factor = rope->attn_factor = 1;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->n_ctx_orig = n_ctx_train;
    TSR_TRY(get_real(r, "rope.scale_linear", false, 1e-3, 1e6, &rope->factor));
    TSR_TRY(get_real(r, "rope.scaling.factor", false, 0, 1e6, &factor));
    if (factor > 0)
        TSR_TRY(get_real(r, "rope.scaling.factor", false, 1e-3, 1e6, &rope->factor));
    if (rope->factor != 1) /* a factor without a type is linear */
        rope->scaling = TSR_ROPE_SCALING_LINEAR;
    TSR_TRY(get_real(r, "rope.scaling.original_context_length", false, 1, 1e9, &rope->n_ctx_orig));
    TSR_TRY(get_real(r, "rope.scaling.attn_factor", false, 1e-3, 1e3, &rope->attn_factor));
    TSR_TRY(get_real(r, "rope.scaling.yarn_log_multiplier", false, 0, 1e3, &rope->log_multiplier));
    TSR_TRY(get_real(r, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &rope->beta_fast));
    TSR_TRY(get_real(r, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &rope->beta_slow));
    if (tsr_gguf_find_tensor(r->gguf, "rope_factors_long.weight"))
        rope->scaling = TSR_ROPE_SCALING_LONGROPE;
    TSR_TRY(parse_scaling(r, &rope->scaling));
out:
    return status;
}

/* Without LongRoPE's factors the rotation would be wrong. */
static tsr_status check_longrope(reader *r, const tsr_rope_params *rope)
{
    static const char *const names[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
    for (int i = 0; i < 2 && rope->scaling == TSR_ROPE_SCALING_LONGROPE; i++)
        if (!tsr_gguf_find_tensor(r->gguf, names[i]))
            return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: a longrope model without tensor %s",
                            tsr_gguf_path(r->gguf), names[i]);
    return TSR_OK;
}

static tsr_status read_rope(reader *r, const tsr_hparams *hp, tsr_rope_params *rope)
{
    tsr_status status = TSR_OK;
    rope->n_rot = hp->head_dim;
    TSR_TRY(get_int(r, "rope.dimension_count", false, 2, hp->head_dim, &rope->n_rot));
    if (rope->n_rot % 2 != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: rope.dimension_count %lld is odd", tsr_gguf_path(r->gguf),
                        (long long)rope->n_rot);
    rope->base = 10000;
    TSR_TRY(get_real(r, "rope.freq_base", false, 1e-3, 1e12, &rope->base));
    TSR_TRY(read_rope_scaling(r, (double)hp->n_ctx_train, rope));
    TSR_TRY(check_longrope(r, rope));
out:
    return status;
}

static tsr_status read_heads(reader *r, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(get_int(r, "attention.head_count", true, 1, 1 << 16, &hp->n_head));
    hp->n_head_kv = hp->n_head;
    TSR_TRY(get_int(r, "attention.head_count_kv", false, 1, 1 << 16, &hp->n_head_kv));
    if (hp->n_head % hp->n_head_kv != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %lld heads are no multiple of %lld KV heads",
                        tsr_gguf_path(r->gguf), (long long)hp->n_head, (long long)hp->n_head_kv);
    hp->head_dim = hp->n_embd / hp->n_head;
    TSR_TRY(get_int(r, "attention.key_length", false, 1, 1 << 16, &hp->head_dim));
    int64_t value_length = hp->head_dim;
    TSR_TRY(get_int(r, "attention.value_length", false, 1, 1 << 16, &value_length));
    if (hp->head_dim < 1 || value_length != hp->head_dim)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: heads of %lld (keys) and %lld (values) elements; they must be equal",
                        tsr_gguf_path(r->gguf), (long long)hp->head_dim, (long long)value_length);
    if (hp->head_dim > TSR_MAX_HEAD_DIM)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: attention heads of %lld elements; up to %d are possible",
                        tsr_gguf_path(r->gguf), (long long)hp->head_dim, TSR_MAX_HEAD_DIM);
out:
    return status;
}

/* Router logits to weights, as numbered by llama.cpp (enum llama_expert_gating_func_type): softmax over all
 * experts (1), softmax over the chosen experts (3, equal to 1 if weights are normalized), sigmoids (2). */
static tsr_status read_gating(reader *r, tsr_hparams *hp)
{
    int64_t gating = 0, n_groups = 1;
    tsr_status status = TSR_OK;
    TSR_TRY(get_int(r, "expert_gating_func", false, 0, 1 << 10, &gating));
    if (gating > 3)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s is %lld; softmax (1, 3) and sigmoid (2) are supported",
                        tsr_gguf_path(r->gguf), r->key, (long long)gating);
    hp->expert_gating = gating == 2 ? TSR_GATING_SIGMOID : TSR_GATING_SOFTMAX;
    hp->expert_normalize |= gating == 3;
    TSR_TRY(get_int(r, "expert_group_count", false, 0, 1 << 10, &n_groups));
    if (n_groups > 1)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: %s is %lld; experts that are chosen by groups are not supported",
                        tsr_gguf_path(r->gguf), r->key, (long long)n_groups);
out:
    return status;
}

/* The FFN length of a mixture is that of one expert. */
static tsr_status read_experts(reader *r, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    double scale = 1;
    int64_t n_shared = 0;
    hp->expert_scale = 1;
    TSR_TRY(get_int(r, "expert_count", false, 0, TSR_MAX_EXPERTS, &hp->n_expert));
    if (hp->n_expert == 0)
        return TSR_OK;
    hp->n_ff_dense = hp->n_ff;
    TSR_TRY(get_int(r, "expert_used_count", true, 1, hp->n_expert, &hp->n_expert_used));
    TSR_TRY(get_int(r, "expert_feed_forward_length", false, 1, 1 << 22, &hp->n_ff));
    TSR_TRY(get_int(r, "leading_dense_block_count", false, 0, hp->n_layers, &hp->n_dense_layers));
    TSR_TRY(get_int(r, "expert_shared_count", false, 0, 1 << 10, &n_shared));
    hp->n_ff_shared = n_shared * hp->n_ff;
    TSR_TRY(get_int(r, "expert_shared_feed_forward_length", false, 0, 1 << 22, &hp->n_ff_shared));
    TSR_TRY(get_real(r, "expert_weights_scale", false, 0, 1e6, &scale));
    if (scale > 0) /* files say 0 for "none" */
        hp->expert_scale = (float)scale;
    TSR_TRY(read_gating(r, hp));
out:
    return status;
}

tsr_status tsr_hparams_read(const tsr_gguf *gguf, const char *architecture, tsr_hparams *hparams_out)
{
    tsr_status status = TSR_OK;
    reader r = {.gguf = gguf, .architecture = architecture};
    tsr_hparams hp = {0};
    double eps = 0;

    snprintf(hp.architecture, sizeof hp.architecture, "%s", architecture);
    copy_string(gguf, "general.name", hp.name, sizeof hp.name);
    TSR_TRY(get_int(&r, "block_count", true, 1, 1 << 12, &hp.n_layers));
    TSR_TRY(get_int(&r, "embedding_length", true, 1, 1 << 20, &hp.n_embd));
    TSR_TRY(get_int(&r, "feed_forward_length", true, 1, 1 << 22, &hp.n_ff));
    TSR_TRY(get_int(&r, "context_length", true, 1, INT32_MAX, &hp.n_ctx_train));
    TSR_TRY(read_experts(&r, &hp));
    TSR_TRY(read_heads(&r, &hp));
    TSR_TRY(get_real(&r, "attention.layer_norm_epsilon", false, 0, 1, &eps));
    bool required = !tsr_gguf_has_key(gguf, r.key);
    TSR_TRY(get_real(&r, "attention.layer_norm_rms_epsilon", required, 0, 1, &eps));
    hp.norm_eps = (float)eps;
    TSR_TRY(read_rope(&r, &hp, &hp.rope[TSR_ROPE_MAIN]));
    *hparams_out = hp;
out:
    return status;
}

tsr_status tsr_hparams_real(const tsr_gguf *gguf, const char *architecture, const char *suffix, bool required,
                            double low, double high, double *value)
{
    reader r = {.gguf = gguf, .architecture = architecture};
    return get_real(&r, suffix, required, low, high, value);
}

/* -- what differs between layers -- */

bool tsr_hparams_is_mixture(const tsr_hparams *hp, int64_t layer)
{
    return hp->n_expert > 0 && layer >= hp->n_dense_layers;
}

static bool has_window(int64_t period, int64_t layer)
{
    return period == 0 || layer % period < period - 1;
}

int64_t tsr_hparams_window(const tsr_hparams *hp, int64_t layer)
{
    return has_window(hp->window_period, layer) ? hp->window : 0;
}

int tsr_hparams_rope(const tsr_hparams *hp, int64_t layer, bool queries)
{
    if (hp->no_rope_period > 0 && layer % hp->no_rope_period == hp->no_rope_period - 1)
        return -1;
    int slot = tsr_hparams_window(hp, layer) > 0 ? TSR_ROPE_WINDOWED
               : queries                         ? TSR_ROPE_QUERIES
                                                 : TSR_ROPE_MAIN;
    slot = hp->rope[slot].n_rot > 0 ? slot : TSR_ROPE_MAIN;
    return hp->rope[slot].n_rot > 0 ? slot : -1;
}

/* Convert a flag per layer to the equivalent period; 0: all layers. */
static tsr_status period_of_flags(reader *r, int64_t n, int64_t n_layers, int64_t *period_out)
{
    tsr_status status = TSR_OK;
    int64_t flag, first_full = n;
    if (n != n_layers)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s has %lld entries for %lld layers", tsr_gguf_path(r->gguf),
                        r->key, (long long)n, (long long)n_layers);
    for (int64_t i = 0; i < n; i++) {
        TSR_TRY(tsr_gguf_array_i64(r->gguf, r->key, i, &flag));
        if (flag == 0 && first_full == n)
            first_full = i;
        if (first_full < n && has_window(first_full + 1, i) != (flag != 0))
            return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s is not periodic", tsr_gguf_path(r->gguf), r->key);
    }
    *period_out = first_full < n ? first_full + 1 : 0;
out:
    return status;
}

tsr_status tsr_hparams_read_window(const tsr_gguf *gguf, int64_t period, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    reader r = {.gguf = gguf, .architecture = hp->architecture};
    tsr_gguf_value_type type;
    int64_t n;
    hp->window_period = period;
    TSR_TRY(get_int(&r, "attention.sliding_window", false, 0, INT32_MAX, &hp->window));
    if (!tsr_gguf_has_key(gguf, full_key(&r, "attention.sliding_window_pattern")))
        return TSR_OK;
    if (tsr_gguf_get_array(gguf, r.key, &type, &n) == TSR_OK)
        return period_of_flags(&r, n, hp->n_layers, &hp->window_period);
    tsr_fail_clear();
    TSR_TRY(get_int(&r, "attention.sliding_window_pattern", true, 0, 1 << 12, &hp->window_period));
out:
    return status;
}
