/* Reading hyper-parameters. Every number that becomes an extent is bounded here, so that no product of two
 * extents overflows. */
#include "arch/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

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

static tsr_status parse_scaling(tsr_keys *keys, tsr_rope_scaling *scaling)
{
    static const struct {
        const char *name;
        tsr_rope_scaling scaling;
    } names[] = {{"none", TSR_ROPE_SCALING_NONE},
                 {"linear", TSR_ROPE_SCALING_LINEAR},
                 {"yarn", TSR_ROPE_SCALING_YARN},
                 {"longrope", TSR_ROPE_SCALING_LONGROPE}};
    tsr_gguf_string type = {0};
    tsr_status status = tsr_keys_string(keys, "rope.scaling.type", &type);
    if (status != TSR_OK || type.bytes == 0)
        return status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) == type.bytes && memcmp(type.data, names[i].name, type.bytes) == 0) {
            *scaling = names[i].scaling;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s is \"%.*s\"; none, linear, yarn and longrope are supported",
                    tsr_gguf_path(keys->gguf), keys->name, (int)TSR_MIN(type.bytes, (size_t)64), type.data);
}

/* "<arch>.rope.scaling.*", or the older "<arch>.rope.scale_linear". A file with LongRoPE's tensors may lack
 * the name of the scaling. */
static tsr_status read_rope_scaling(tsr_keys *keys, double n_ctx_train, tsr_rope_params *rope)
{
    tsr_status status = TSR_OK;
    double factor = 0; /* files say 0 for "none" */
    rope->factor = rope->attn_factor = 1;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->n_ctx_orig = n_ctx_train;
    TSR_TRY(tsr_keys_real(keys, "rope.scale_linear", false, 1e-3, 1e6, &rope->factor));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.factor", false, 0, 1e6, &factor));
    if (factor > 0)
        TSR_TRY(tsr_keys_real(keys, "rope.scaling.factor", false, 1e-3, 1e6, &rope->factor));
    if (rope->factor != 1) /* a factor without a type is linear */
        rope->scaling = TSR_ROPE_SCALING_LINEAR;
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.original_context_length", false, 1, 1e9, &rope->n_ctx_orig));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.attn_factor", false, 1e-3, 1e3, &rope->attn_factor));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.yarn_log_multiplier", false, 0, 1e3, &rope->log_multiplier));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &rope->beta_fast));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &rope->beta_slow));
    if (tsr_gguf_find_tensor(keys->gguf, "rope_factors_long.weight"))
        rope->scaling = TSR_ROPE_SCALING_LONGROPE;
    TSR_TRY(parse_scaling(keys, &rope->scaling));
    TSR_TRY(tsr_keys_real(keys, "rope.scaling.yarn_attn_factor", false, 1e-3, 1e3, &rope->yarn_magnitude));
out:
    return status;
}

/* Without LongRoPE's factors the rotation would be wrong. */
static tsr_status check_longrope(tsr_keys *keys, const tsr_rope_params *rope)
{
    static const char *const names[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
    for (int i = 0; i < 2 && rope->scaling == TSR_ROPE_SCALING_LONGROPE; i++)
        if (!tsr_gguf_find_tensor(keys->gguf, names[i]))
            return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: a longrope model without tensor %s",
                            tsr_gguf_path(keys->gguf), names[i]);
    return TSR_OK;
}

static tsr_status read_rope(tsr_keys *keys, const tsr_hparams *hp, tsr_rope_params *rope)
{
    tsr_status status = TSR_OK;
    rope->n_rot = hp->latent.kv_rank > 0 ? hp->latent.n_rot : hp->head_dim;
    TSR_TRY(tsr_keys_int(keys, "rope.dimension_count", TSR_ALL_LAYERS, false, 2, 1 << 16, &rope->n_rot));
    rope->base = 10000;
    TSR_TRY(tsr_keys_real(keys, "rope.freq_base", false, 1e-3, 1e12, &rope->base));
    TSR_TRY(read_rope_scaling(keys, (double)hp->n_ctx_train, rope));
    TSR_TRY(check_longrope(keys, rope));
out:
    return status;
}

/* Latent attention: the lengths of keys and values in the file are those of the compressed row, the _mla ones
 * those of a head. Files of older converters have neither the latter nor a matrix per head. */
static tsr_status read_latent(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_latent *latent = &hp->latent;
    int64_t key = 0, row, rank;
    if (!tsr_keys_have(keys, "attention.key_length_mla"))
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: key %s is missing: an older converter joined keys and values of all heads in "
                        "attn_kv_b; convert the model anew",
                        tsr_gguf_path(keys->gguf), keys->name);
    TSR_TRY(tsr_keys_int(keys, "attention.kv_lora_rank", TSR_ALL_LAYERS, true, 1, 1 << 16, &rank));
    TSR_TRY(tsr_keys_int(keys, "attention.q_lora_rank", TSR_ALL_LAYERS, false, 0, 1 << 16, &latent->q_rank));
    TSR_TRY(tsr_keys_int(keys, "attention.key_length_mla", TSR_ALL_LAYERS, true, 4, 1 << 16, &key));
    TSR_TRY(
        tsr_keys_int(keys, "attention.value_length_mla", TSR_ALL_LAYERS, true, 1, 1 << 16, &hp->head_dim));
    TSR_TRY(tsr_keys_int(keys, "rope.dimension_count", TSR_ALL_LAYERS, true, 2, key - 2, &latent->n_rot));
    row = rank + latent->n_rot;
    TSR_TRY(tsr_keys_int(keys, "attention.key_length", TSR_ALL_LAYERS, false, row, row, &row));
    tsr_keys_ignore(keys, "attention.value_length"); /* kimi-linear: not that of the compressed row */
    latent->kv_rank = rank;
    latent->n_plain = key - latent->n_rot;
    if (latent->n_plain % 2 != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %lld elements of a head without rotation; the number is even",
                        tsr_gguf_path(keys->gguf), (long long)latent->n_plain);
    hp->n_head_kv = hp->n_head;
    if (row > TSR_MAX_HEAD_DIM)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: attention heads of %lld elements; up to %d are possible",
                        tsr_gguf_path(keys->gguf), (long long)row, TSR_MAX_HEAD_DIM);
out:
    return status;
}

static tsr_status read_heads(tsr_keys *keys, bool latent, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_keys_int(keys, "attention.head_count", TSR_LARGEST_LAYER, true, 1, 1 << 16, &hp->n_head));
    hp->n_head_kv = hp->n_head;
    TSR_TRY(
        tsr_keys_int(keys, "attention.head_count_kv", TSR_LARGEST_LAYER, false, 1, 1 << 16, &hp->n_head_kv));
    if (latent)
        return read_latent(keys, hp);
    hp->head_dim = hp->n_embd / hp->n_head;
    TSR_TRY(tsr_keys_int(keys, "attention.key_length", TSR_ALL_LAYERS, false, 1, 1 << 16, &hp->head_dim));
    int64_t value_length = hp->head_dim;
    TSR_TRY(tsr_keys_int(keys, "attention.value_length", TSR_ALL_LAYERS, false, 1, 1 << 16, &value_length));
    if (hp->head_dim < 1 || value_length != hp->head_dim)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: heads of %lld (keys) and %lld (values) elements; they must be equal",
                        tsr_gguf_path(keys->gguf), (long long)hp->head_dim, (long long)value_length);
    if (hp->head_dim > TSR_MAX_HEAD_DIM)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: attention heads of %lld elements; up to %d are possible",
                        tsr_gguf_path(keys->gguf), (long long)hp->head_dim, TSR_MAX_HEAD_DIM);
out:
    return status;
}

void tsr_hparams_default_gating(tsr_keys *keys, tsr_gating gating, tsr_hparams *hp)
{
    if (!tsr_keys_have(keys, "expert_gating_func"))
        hp->expert_gating = gating;
}

/* The groups of experts that compete for a token. */
static tsr_status read_groups(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    int64_t n = 0;
    TSR_TRY(tsr_keys_int(keys, "expert_group_count", TSR_ALL_LAYERS, false, 0, TSR_MAX_EXPERT_GROUPS, &n));
    if (n <= 1) {
        tsr_keys_ignore(keys, "expert_group_used_count");
        return TSR_OK;
    }
    TSR_TRY(
        tsr_keys_int(keys, "expert_group_used_count", TSR_ALL_LAYERS, true, 1, n, &hp->n_expert_groups_used));
    hp->n_expert_groups = n;
    if (hp->n_expert % n != 0 || hp->n_expert_used > hp->n_expert / n * hp->n_expert_groups_used)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "%s: %lld of %lld experts are used, of %lld of %lld groups; the groups must be equal, "
            "and those in use hold as many experts",
            tsr_gguf_path(keys->gguf), (long long)hp->n_expert_used, (long long)hp->n_expert,
            (long long)hp->n_expert_groups_used, (long long)n);
out:
    return status;
}

/* Router logits to weights, as numbered by llama.cpp (enum llama_expert_gating_func_type): softmax over all
 * experts (1), softmax over the chosen experts (3, equal to 1 if weights are normalized), sigmoids (2), roots
 * of softplus (4). */
static tsr_status read_gating(tsr_keys *keys, tsr_hparams *hp)
{
    int64_t gating = 0;
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_keys_int(keys, "expert_gating_func", TSR_ALL_LAYERS, false, 0, 1 << 10, &gating));
    if (gating > 4)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s: %s is %lld; softmax (1, 3), sigmoid (2) and the root of softplus (4) are supported",
            tsr_gguf_path(keys->gguf), keys->name, (long long)gating);
    hp->expert_gating = gating == 2   ? TSR_GATING_SIGMOID
                        : gating == 4 ? TSR_GATING_SQRT_SOFTPLUS
                                      : TSR_GATING_SOFTMAX;
    hp->expert_normalize |= gating == 3;
    TSR_TRY(read_groups(keys, hp));
out:
    return status;
}

/* The FFN length of a mixture is that of one expert. */
static tsr_status read_experts(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    double scale = 1;
    int64_t n_shared = 0;
    hp->expert_scale = 1;
    TSR_TRY(tsr_keys_int(keys, "expert_count", TSR_ALL_LAYERS, false, 0, TSR_MAX_EXPERTS, &hp->n_expert));
    if (hp->n_expert == 0)
        return TSR_OK;
    TSR_TRY(
        tsr_keys_int(keys, "expert_used_count", TSR_ALL_LAYERS, true, 1, hp->n_expert, &hp->n_expert_used));
    TSR_TRY(tsr_keys_int(keys, "expert_feed_forward_length", TSR_ALL_LAYERS, false, 1, 1 << 22, &hp->n_ff));
    TSR_TRY(tsr_keys_int(keys, "leading_dense_block_count", TSR_ALL_LAYERS, false, 0, hp->n_layers,
                         &hp->n_dense_layers));
    TSR_TRY(
        tsr_keys_int(keys, "interleave_moe_layer_step", TSR_ALL_LAYERS, false, 0, 1 << 12, &hp->expert_step));
    TSR_TRY(tsr_keys_int(keys, "expert_shared_count", TSR_ALL_LAYERS, false, 0, 1 << 10, &n_shared));
    hp->n_ff_shared = n_shared * hp->n_ff;
    TSR_TRY(tsr_keys_int(keys, "expert_shared_feed_forward_length", TSR_ALL_LAYERS, false, 0, 1 << 22,
                         &hp->n_ff_shared));
    TSR_TRY(tsr_keys_real(keys, "expert_weights_scale", false, 0, 1e6, &scale));
    if (scale > 0) /* files say 0 for "none" */
        hp->expert_scale = (float)scale;
    TSR_TRY(read_gating(keys, hp));
out:
    return status;
}

/* Prediction layers are the last ones, and block_count includes them. The first becomes the model's last
 * layer where it is wanted. */
static tsr_status read_layers(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_keys_int(keys, "block_count", TSR_ALL_LAYERS, true, 1, TSR_MAX_LAYERS, &hp->n_layers));
    TSR_TRY(tsr_keys_int(keys, "nextn_predict_layers", TSR_ALL_LAYERS, false, 0, hp->n_layers - 1,
                         &hp->n_predict_layers));
    hp->n_layers -= hp->n_predict_layers;
    if (keys->prediction && hp->n_predict_layers == 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "%s: the model has no prediction layer (%s.nextn_predict_layers); leave out "
                        "--prediction (config.prediction.load)",
                        tsr_gguf_path(keys->gguf), keys->architecture);
    hp->predicts = keys->prediction;
    hp->n_layers += hp->predicts;
    hp->n_predict_layers -= hp->predicts;
out:
    return status;
}

tsr_status tsr_hparams_read(tsr_keys *keys, bool latent, tsr_hparams *hparams_out)
{
    tsr_status status = TSR_OK;
    tsr_hparams hp = {0};

    snprintf(hp.architecture, sizeof hp.architecture, "%s", keys->architecture);
    copy_string(keys->gguf, "general.name", hp.name, sizeof hp.name);
    TSR_TRY(read_layers(keys, &hp));
    TSR_TRY(tsr_keys_int(keys, "embedding_length", TSR_ALL_LAYERS, true, 1, 1 << 20, &hp.n_embd));
    const bool has_length = tsr_keys_have(keys, "expert_feed_forward_length"); /* no layer may be dense */
    TSR_TRY(tsr_keys_int(keys, "feed_forward_length", TSR_LARGEST_LAYER, !has_length, 1, 1 << 22, &hp.n_ff));
    TSR_TRY(tsr_keys_int(keys, "context_length", TSR_ALL_LAYERS, true, 1, INT32_MAX, &hp.n_ctx_train));
    TSR_TRY(read_experts(keys, &hp));
    TSR_TRY(read_heads(keys, latent, &hp));
    TSR_TRY(read_rope(keys, &hp, &hp.rope[TSR_ROPE_MAIN]));
    *hparams_out = hp;
out:
    return status;
}

tsr_status tsr_hparams_read_norm(tsr_keys *keys, tsr_hparams *hp)
{
    double eps = (double)hp->norm_eps;
    tsr_status status = tsr_keys_real(
        keys, hp->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", eps == 0,
        0, 1, &eps);
    if (status == TSR_OK)
        hp->norm_eps = (float)eps;
    return status;
}

/* -- what differs between layers -- */

static const char window_pattern[] = "attention.sliding_window_pattern";

static tsr_status read_window(tsr_keys *keys, const tsr_hparams *hp, int64_t l, int64_t *window_out)
{
    int64_t period = hp->window_period, flag = period == 0 || l % period < period - 1;
    tsr_status status = TSR_OK;
    if (period < 0) {
        flag = 0;
        if (l < -period)
            status = tsr_keys_int(keys, window_pattern, l, true, 0, 1, &flag);
    }
    *window_out = flag ? hp->window : 0;
    return status;
}

/* A slot that the model has, or -1. */
static int rope_slot(const tsr_hparams *hp, int slot)
{
    slot = hp->rope[slot].n_rot > 0 ? slot : TSR_ROPE_MAIN;
    return hp->rope[slot].n_rot > 0 ? slot : -1;
}

static bool has_experts(const tsr_hparams *hp, int64_t l)
{
    return hp->n_expert > 0 && l >= hp->n_dense_layers && (l + 1) % TSR_MAX(hp->expert_step, 1) == 0;
}

tsr_status tsr_layer_kind_read(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *kind_out)
{
    tsr_status status = TSR_OK;
    tsr_layer_kind k = {.n_head = hp->n_head, .head_dim = hp->head_dim};
    k.ffn = has_experts(hp, l) ? TSR_FFN_EXPERTS : TSR_FFN_DENSE;
    TSR_TRY(tsr_keys_int(keys, "attention.head_count", l, false, 0, 1 << 16, &k.n_head));
    k.n_head_kv = k.n_head;
    TSR_TRY(tsr_keys_int(keys, "attention.head_count_kv", l, false, 0, 1 << 16, &k.n_head_kv));
    if (k.ffn == TSR_FFN_DENSE)
        TSR_TRY(tsr_keys_int(keys, "feed_forward_length", l, false, 0, 1 << 22, &k.n_ff));
    TSR_TRY(read_window(keys, hp, l, &k.window));
    k.rope_q = rope_slot(hp, k.window > 0 ? TSR_ROPE_WINDOWED : TSR_ROPE_QUERIES);
    k.rope_k = rope_slot(hp, k.window > 0 ? TSR_ROPE_WINDOWED : TSR_ROPE_MAIN);
    *kind_out = k;
out:
    return status;
}

_Static_assert(sizeof(tsr_layer_kind) == 13 * sizeof(int64_t) + 4 * sizeof(int) + 2 * sizeof(float),
               "kinds are compared as bytes, so they have no padding");

tsr_status tsr_hparams_set_layer(tsr_hparams *hp, int64_t l, const tsr_layer_kind *kind)
{
    int i = 0;
    while (i < hp->n_kinds && memcmp(&hp->kinds[i], kind, sizeof *kind) != 0)
        i++;
    if (i == TSR_MAX_LAYER_KINDS)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "layers of more than %d shapes (layer %lld has one more)",
                        TSR_MAX_LAYER_KINDS, (long long)l);
    hp->n_kinds = TSR_MAX(hp->n_kinds, i + 1);
    hp->kinds[i] = *kind;
    hp->kind_of[l] = (unsigned char)i;
    return TSR_OK;
}

int64_t tsr_hparams_kv_layer(const tsr_hparams *hp, int64_t l)
{
    const int64_t window = tsr_hparams_layer(hp, l)->window, n_own = hp->n_layers - hp->n_shared_kv;
    if (l < n_own)
        return l;
    int64_t source = n_own - 1;
    while (source > 0 && tsr_hparams_layer(hp, source)->window != window)
        source--;
    return source;
}

int64_t tsr_hparams_n_together(const tsr_hparams *hp)
{
    int64_t first = hp->n_layers;
    for (int64_t l = hp->n_layers - hp->n_shared_kv; l < hp->n_layers; l++)
        first = TSR_MIN(first, tsr_hparams_kv_layer(hp, l));
    return hp->n_layers - first;
}

int64_t tsr_hparams_index_layer(const tsr_hparams *hp, int64_t l)
{
    int64_t index = hp->n_layers;
    for (int64_t i = 0; i < l; i++)
        index += (tsr_hparams_layer(hp, i)->index_dim > 0) + (tsr_hparams_layer(hp, i)->ratio > 0);
    return index;
}

int64_t tsr_hparams_rows_layer(const tsr_hparams *hp, int64_t l)
{
    return tsr_hparams_index_layer(hp, l) + (tsr_hparams_layer(hp, l)->index_dim > 0);
}

tsr_status tsr_hparams_read_indexer(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_indexer *x = &hp->indexer;
    const int64_t n_rot = hp->rope[TSR_ROPE_MAIN].n_rot;
    x->block = 1;
    TSR_TRY(tsr_keys_int(keys, "attention.indexer.head_count", TSR_ALL_LAYERS, true, 1, TSR_MAX_INDEX_HEADS,
                         &x->n_heads));
    TSR_TRY(tsr_keys_int(keys, "attention.indexer.key_length", TSR_ALL_LAYERS, true, 1, TSR_MAX_INDEX_DIM,
                         &x->dim));
    if (x->dim < n_rot)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %lld, and rope.dimension_count, which it includes, %lld",
                        tsr_gguf_path(keys->gguf), keys->name, (long long)x->dim, (long long)n_rot);
    TSR_TRY(tsr_keys_int(keys, "attention.indexer.top_k", TSR_ALL_LAYERS, true, 1, TSR_MAX_SELECTED,
                         &x->n_selected));
    TSR_TRY(tsr_keys_int(keys, "attention.indexer.block_size", TSR_ALL_LAYERS, false, 1, 1 << 16, &x->block));
    TSR_TRY(tsr_keys_int(keys, "attention.indexer.local_blocks", TSR_ALL_LAYERS, false, 0, x->n_selected,
                         &x->n_local));
    const int64_t n_lists = x->sums_heads ? 1 : x->n_heads;
    if (n_lists * x->n_selected > TSR_MAX_SELECTED)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: tokens select %lld blocks of positions for each of %lld heads; up to %d are "
                        "possible for all together",
                        tsr_gguf_path(keys->gguf), (long long)x->n_selected, (long long)n_lists,
                        TSR_MAX_SELECTED);
out:
    return status;
}

static tsr_status read_window_pattern(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_gguf_value_type type;
    int64_t n, n_layers = hp->n_layers + hp->n_predict_layers, n_step_layers = tsr_hparams_n_step_layers(hp);
    if (!tsr_keys_have(keys, window_pattern) ||
        tsr_gguf_get_array(keys->gguf, keys->name, &type, &n) != TSR_OK) {
        tsr_fail_clear();
        return tsr_keys_int(keys, window_pattern, TSR_ALL_LAYERS, false, 0, 1 << 12, &hp->window_period);
    }
    if (n != n_layers && n != n_step_layers)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s has %lld entries for %lld layers", tsr_gguf_path(keys->gguf),
                        keys->name, (long long)n, (long long)n_layers);
    hp->window_period = -n;
    return TSR_OK;
}

tsr_status tsr_hparams_read_window(tsr_keys *keys, int64_t period, tsr_hparams *hp)
{
    static const char base[] = "rope.freq_base_swa";
    tsr_status status = TSR_OK;
    tsr_rope_params *local = &hp->rope[TSR_ROPE_WINDOWED];
    hp->window_period = period;
    TSR_TRY(tsr_keys_int(keys, "attention.sliding_window", TSR_ALL_LAYERS, false, 0, INT32_MAX, &hp->window));
    TSR_TRY(read_window_pattern(keys, hp));
    if (local->n_rot == 0 && tsr_keys_have(keys, base))
        *local = hp->rope[TSR_ROPE_MAIN];
    TSR_TRY(tsr_keys_real(keys, base, false, 1e-3, 1e12, &local->base));
out:
    return status;
}
