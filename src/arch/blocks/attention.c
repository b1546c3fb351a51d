/* Self-attention with grouped query heads and rotary embedding. Queries, keys and values are divided by KV
 * head; W_o takes each device's heads and yields a sum over devices. */
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_layer_rotate_windows(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    (void)keys;
    (void)l;
    if (hp->window > 0 && layer->window == 0)
        layer->rope_q = layer->rope_k = -1;
    return TSR_OK;
}

/* Declare W_q, W_k and W_v as parts of one tensor of rows, or their biases as parts of one tensor of elements
 * (ne0 1): queries, then keys, then values. */
static tsr_status declare_fused(tsr_weights *w, const tsr_hparams *hp, int l, int64_t ne0, const char *suffix,
                                tsr_tensor **q, tsr_tensor **k, tsr_tensor **v)
{
    tsr_status status = TSR_OK;
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    int64_t n_q = kind->n_head * kind->head_dim, n_kv = kind->n_head_kv * kind->head_dim;
    int64_t all = n_q + 2 * n_kv;
    bool required = ne0 > 1;
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.%s", l, suffix);
    TSR_TRY(tsr_weights_declare_rows(w, required, TSR_WEIGHT_Q_ROWS, l, (tsr_weight_rows){ne0, 0, n_q, all},
                                     q, name));
    TSR_TRY(tsr_weights_declare_rows(w, required, TSR_WEIGHT_KV_ROWS, l,
                                     (tsr_weight_rows){ne0, n_q, n_kv, all}, k, name));
    TSR_TRY(tsr_weights_declare_rows(w, required, TSR_WEIGHT_KV_ROWS, l,
                                     (tsr_weight_rows){ne0, n_q + n_kv, n_kv, all}, v, name));
out:
    return status;
}

static bool is_fused(const tsr_weights *w, int l)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", l);
    return w->gguf && tsr_gguf_find_tensor(w->gguf, name);
}

static tsr_status declare_qkv(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    int64_t n_q = kind->n_head * kind->head_dim, n_kv = kind->n_head_kv * kind->head_dim;
    const bool has_kv = tsr_hparams_kv_layer(hp, l) == l;
    if (has_kv && !hp->gated_attention && is_fused(w, l)) {
        TSR_TRY(declare_fused(w, hp, l, hp->n_embd, "weight", &layer->wq, &layer->wk, &layer->wv));
        TSR_TRY(declare_fused(w, hp, l, 1, "bias", &layer->bq, &layer->bk, &layer->bv));
        return TSR_OK;
    }
    TSR_DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, hp->gated_attention ? 2 * n_q : n_q,
                "attn_q.weight");
    if (hp->gated_attention)
        tsr_weights_cut_heads(layer->wq, 2 * n_q / kind->n_head_kv);
    TSR_DECLARE(bq, false, TSR_WEIGHT_Q_ROWS, n_q, 1, "attn_q.bias");
    if (!has_kv)
        return TSR_OK;
    TSR_DECLARE(wk, true, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_k.weight");
    TSR_DECLARE(wv, !hp->value_norm, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_v.weight");
    TSR_DECLARE(bk, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_k.bias");
    TSR_DECLARE(bv, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_v.bias");
out:
    return status;
}

tsr_status tsr_declare_attention(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    int64_t n_q = kind->n_head * kind->head_dim;
    TSR_TRY(declare_qkv(w, hp, l));
    TSR_DECLARE(wo, true, TSR_WEIGHT_Q_COLUMNS, n_q, hp->n_embd, "attn_output.weight");
    TSR_DECLARE(bo, false, TSR_WEIGHT_ATTENTION_WHOLE, hp->n_embd, 1, "attn_output.bias");
    TSR_DECLARE(sinks, false, TSR_WEIGHT_Q_HEADS, kind->n_head, 1, "attn_sinks.weight");
out:
    return status;
}

tsr_status tsr_declare_qk_norms(tsr_weights *w, int l, int64_t n_q, int64_t n_k)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_DECLARE(q_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, n_q, 1, "attn_q_norm.weight");
    TSR_DECLARE(k_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, n_k, 1, "attn_k_norm.weight");
out:
    return status;
}

/* The weights are divided like the heads, so the norms are computed without gathering a row. */
tsr_status tsr_declare_wide_norms(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    TSR_DECLARE(q_norm, true, TSR_WEIGHT_Q_ROWS, kind->n_head * kind->head_dim, 1, "attn_q_norm.weight");
    TSR_DECLARE(k_norm, true, TSR_WEIGHT_KV_ROWS, kind->n_head_kv * kind->head_dim, 1, "attn_k_norm.weight");
out:
    return status;
}

/* A weight for each head is a matrix of the file, and a vector for the norm. */
static tsr_status declare_heads_norm(tsr_weights *w, tsr_weight_role role, int l, int64_t n, int64_t n_heads,
                                     const char *name, tsr_tensor **norm_out)
{
    char full[TSR_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s.weight", l, name);
    return tsr_weights_declare_vector(w, false, role, l, n, n_heads, norm_out, full);
}

tsr_status tsr_declare_heads_norms(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    TSR_TRY(declare_heads_norm(w, TSR_WEIGHT_Q_ROWS, l, kind->head_dim, kind->n_head, "attn_q_norm",
                               &layer->q_norm));
    TSR_TRY(declare_heads_norm(w, TSR_WEIGHT_KV_ROWS, l, kind->head_dim, kind->n_head_kv, "attn_k_norm",
                               &layer->k_norm));
out:
    return status;
}

static tsr_tensor *head_norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight)
{
    if (weight && at->hp->layer_norm)
        return tsr_heads_norm(at->step->graph, x, weight, at->kind->head_dim, true, at->hp->norm_eps);
    return tsr_block_norm(at, x, weight);
}

tsr_tensor *tsr_block_rotate(const tsr_layer *at, tsr_tensor *x, int64_t head_dim, int slot)
{
    if (slot < 0)
        return x;
    return tsr_rope(at->step->graph, x, at->step->rope_tables[slot], head_dim, at->hp->rope_interleaved);
}

/* The sigmoid of a gate for each head, or for each element, is a factor on the result. Both may be NULL after
 * a failure. */
static tsr_tensor *gate(const tsr_layer *at, tsr_tensor *x, tsr_tensor *gates)
{
    return x && gates && tsr_tensor_ne(gates)[0] == tsr_tensor_ne(x)[0]
               ? tsr_glu(at->step->graph, TSR_GLU_SIGMOID, 0, gates, x)
               : tsr_gate(at->step->graph, x, gates);
}

/* The queries, or the gates, of a product with both for each head. */
static tsr_tensor *half(const tsr_layer *at, tsr_tensor *both, bool gates)
{
    int64_t n = at->kind->head_dim;
    return tsr_take_columns(at->step->graph, both, (tsr_columns){2 * n, gates ? n : 0, n});
}

static tsr_tensor *norm_and_rotate(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight, int slot)
{
    const int64_t head_dim = at->kind->head_dim;
    if (at->hp->rotated_norm && at->kind->rope_k >= 0)
        return tsr_rms_norm_plain(at->step->graph, tsr_block_rotate(at, x, head_dim, slot), head_dim,
                                  at->hp->norm_eps);
    return at->hp->norm_after_rope ? head_norm(at, tsr_block_rotate(at, x, head_dim, slot), weight)
                                   : tsr_block_rotate(at, head_norm(at, x, weight), head_dim, slot);
}

static void store_kv(const tsr_layer *at, tsr_tensor *k, tsr_tensor *v)
{
    tsr_graph *graph = at->step->graph;
    if (at->hp->value_norm)
        v = tsr_rms_norm_plain(graph, v, at->kind->head_dim, at->hp->norm_eps);
    tsr_kv_store(graph, at->step->kv_inputs, at->index, k, v);
}

tsr_attention_config tsr_block_attention_config(const tsr_layer *at, int64_t head_dim)
{
    const double scale = at->hp->attention_scale;
    return (tsr_attention_config){.size = sizeof(tsr_attention_config),
                                  .scale = (float)(scale > 0 ? scale : 1 / sqrt((double)head_dim)),
                                  .softcap = (float)at->hp->attention_softcap,
                                  .chunked = at->hp->chunked,
                                  .sinks = at->w->sinks};
}

/* Without W_v, values are the products of W_k. A layer without both reads another layer's. */
tsr_tensor *tsr_block_attention(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    const tsr_hparams *hp = at->hp;
    const tsr_layer_weights *w = at->w;
    const int kv_layer = (int)tsr_hparams_kv_layer(hp, at->index);
    tsr_tensor *q = tsr_block_linear(at, w->wq, w->bq, h);
    tsr_tensor *gates = hp->gated_attention ? half(at, q, true) : NULL;
    q = hp->gated_attention ? half(at, q, false) : q;
    tsr_tensor *k = w->wk ? tsr_block_linear(at, w->wk, w->bk, h) : NULL;
    tsr_tensor *v = w->wv ? tsr_block_linear(at, w->wv, w->bv, h) : k;
    q = norm_and_rotate(at, q, w->q_norm, at->kind->rope_q);
    if (k)
        store_kv(at, norm_and_rotate(at, k, w->k_norm, at->kind->rope_k), v);
    tsr_attention_config config = tsr_block_attention_config(at, at->kind->head_dim);
    config.selection = tsr_block_select(at, h, h);
    tsr_tensor *a = tsr_attention(step->graph, step->kv_inputs, kv_layer, q, &config);
    if (w->attn_gate)
        gates = tsr_mul_mat(step->graph, w->attn_gate, h);
    a = gates ? gate(at, a, gates) : a;
    return tsr_block_linear(at, w->wo, w->bo, a);
}
