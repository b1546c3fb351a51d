/* Mamba-2 (arXiv:2405.21060): ssm_in makes gates, values, keys, queries (in the papers' words z, x, B, C) and
 * steps of time; values, keys and queries go through convolutions; the recurrence; a gate; a norm over the
 * heads of each group; ssm_out. Falcon-H1, where it is beside attention, has models without the norm.
 *
 * The heads of a group share keys and queries. Where a norm joins them, too, whole groups are divided. With
 * one group, or without a norm, heads are divided, so that the work can be cut at any head, and every device
 * has the keys and queries of all groups: a small part of ssm_in. ssm_out takes each device's heads and
 * yields a sum over devices. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_layer_read_mamba(tsr_keys *keys, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    char norm[TSR_MAX_NAME];
    int64_t inner = 0, n_heads = 0;
    snprintf(norm, sizeof norm, "blk.%d.ssm_norm.weight", (int)l);
    layer->mixer = TSR_MIXER_MAMBA;
    layer->rope_q = layer->rope_k = -1;
    layer->parts = 1;
    TSR_TRY(tsr_keys_int(keys, "ssm.time_step_rank", TSR_ALL_LAYERS, true, 1, 1 << 16, &n_heads));
    TSR_TRY(tsr_keys_int(keys, "ssm.group_count", TSR_ALL_LAYERS, true, 1, n_heads, &layer->n_groups));
    TSR_TRY(
        tsr_keys_int(keys, "ssm.state_size", TSR_ALL_LAYERS, true, 1, TSR_MAX_STATE_ROWS, &layer->key_dim));
    TSR_TRY(tsr_keys_int(keys, "ssm.conv_kernel", TSR_ALL_LAYERS, true, 2, TSR_MAX_CONV_KERNEL,
                         &layer->conv_kernel));
    TSR_TRY(tsr_keys_int(keys, "ssm.inner_size", TSR_ALL_LAYERS, true, n_heads, 1 << 20, &inner));
    if (inner % n_heads != 0 || n_heads % layer->n_groups != 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %lld heads of %lld elements in %lld groups; all must be equal",
                        tsr_gguf_path(keys->gguf), (long long)n_heads, (long long)inner,
                        (long long)layer->n_groups);
    layer->n_head = n_heads;
    layer->head_dim = inner / n_heads;
    layer->n_head_kv =
        layer->n_groups > 1 && tsr_gguf_find_tensor(keys->gguf, norm) ? layer->n_groups : n_heads;
out:
    return status;
}

/* The kind with the shape of the layer's Mamba-2, which may be beside attention. */
static const tsr_layer_kind *mamba_kind(const tsr_hparams *hp, int l)
{
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    return kind->beside ? &hp->kinds[kind->beside - 1] : kind;
}

/* A declaration of tensors of one layer. */
typedef struct place {
    tsr_weights *w;
    int l;
    bool beside;
    int64_t n_units; /* heads, or groups, that are divided */
} place;

static void cut(const place *p, tsr_tensor *tensor, int64_t n)
{
    tsr_weights_cut_heads(tensor, n / p->n_units);
    if (tensor)
        ((tsr_weight *)tensor)->beside = p->beside; /* its first member */
}

/* Rows [first, first + n) of a tensor of `all` rows (ne0 1: elements). */
static tsr_status declare_rows(const place *p, bool required, tsr_weight_rows rows, bool whole,
                               const char *name, tsr_tensor **tensor_out)
{
    char full[TSR_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s", p->l, name);
    tsr_status status =
        tsr_weights_declare_rows(p->w, required, whole ? TSR_WEIGHT_ATTENTION_WHOLE : TSR_WEIGHT_KV_ROWS,
                                 p->l, rows, tensor_out, full);
    if (status == TSR_OK && !whole)
        cut(p, *tensor_out, rows.ne1);
    return status;
}

/* A matrix [ne0, ne1] with elements for each unit, as a vector. */
static tsr_status declare_vector(const place *p, bool required, int64_t ne0, int64_t ne1, const char *name,
                                 tsr_tensor **tensor_out)
{
    char full[TSR_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s", p->l, name);
    tsr_status status =
        tsr_weights_declare_vector(p->w, required, TSR_WEIGHT_KV_ROWS, p->l, ne0, ne1, tensor_out, full);
    if (status == TSR_OK)
        cut(p, *tensor_out, ne0 * ne1);
    return status;
}

/* Values, then keys, then queries, from row `first` of a tensor on. */
static tsr_status declare_convolved(const place *p, const tsr_layer_kind *k, bool required,
                                    tsr_weight_rows rows, const char *name, tsr_tensor **x, tsr_tensor **b,
                                    tsr_tensor **c)
{
    tsr_status status = TSR_OK;
    const bool whole = k->n_groups != k->n_head_kv;
    const int64_t n_x = k->n_head * k->head_dim, n_b = k->n_groups * k->key_dim, first = rows.first;
    rows.ne1 = n_x;
    TSR_TRY(declare_rows(p, required, rows, false, name, x));
    rows.ne1 = n_b;
    rows.first = first + n_x;
    TSR_TRY(declare_rows(p, required, rows, whole, name, b));
    rows.first += n_b;
    TSR_TRY(declare_rows(p, required, rows, whole, name, c));
out:
    return status;
}

tsr_status tsr_declare_mamba(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_mamba_weights *m = &w->layers[l].mamba;
    const tsr_layer_kind *k = mamba_kind(hp, l);
    const place p = {w, l, tsr_hparams_layer(hp, l)->beside > 0, k->n_head_kv};
    const int64_t n_x = k->n_head * k->head_dim, n = n_x + 2 * k->n_groups * k->key_dim;
    const int64_t n_in = n_x + n + k->n_head, embd = hp->n_embd;
    TSR_TRY(declare_rows(&p, true, (tsr_weight_rows){embd, 0, n_x, n_in}, false, "ssm_in.weight", &m->wz));
    TSR_TRY(declare_convolved(&p, k, true, (tsr_weight_rows){embd, n_x, 0, n_in}, "ssm_in.weight", &m->wx,
                              &m->wb, &m->wc));
    TSR_TRY(declare_rows(&p, true, (tsr_weight_rows){embd, n_x + n, k->n_head, n_in}, false, "ssm_in.weight",
                         &m->wdt));
    TSR_TRY(declare_convolved(&p, k, true, (tsr_weight_rows){k->conv_kernel, 0, 0, n}, "ssm_conv1d.weight",
                              &m->conv_x, &m->conv_b, &m->conv_c));
    TSR_TRY(declare_convolved(&p, k, false, (tsr_weight_rows){1, 0, 0, n}, "ssm_conv1d.bias", &m->bias_x,
                              &m->bias_b, &m->bias_c));
    TSR_TRY(declare_vector(&p, true, 1, k->n_head, "ssm_a", &m->a));
    TSR_TRY(declare_vector(&p, true, 1, k->n_head, "ssm_d", &m->skip));
    TSR_TRY(declare_vector(&p, true, k->n_head, 1, "ssm_dt.bias", &m->dt_bias));
    TSR_TRY(declare_vector(&p, !p.beside, n_x / k->n_groups, k->n_groups, "ssm_norm.weight", &m->norm));
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_Q_COLUMNS, l, n_x, embd, &m->out, "blk.%d.ssm_out.weight",
                                l));
    cut(&p, m->out, n_x);
out:
    return status;
}

/* SiLU of the convolution of W h. */
static tsr_tensor *convolved(const tsr_layer *at, tsr_tensor *weight, tsr_tensor *conv, tsr_tensor *bias,
                             int part, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    const tsr_weight_parts kernel = {.at = {conv}, .n = 1};
    return tsr_conv(step->graph, step->kv_inputs, at->index, part, tsr_mul_mat(step->graph, weight, h),
                    &kernel, bias, true);
}

tsr_tensor *tsr_block_mamba(const tsr_layer *at, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    const tsr_mamba_weights *w = &at->w->mamba;
    const tsr_layer_kind *k = mamba_kind(at->hp, at->index);
    const tsr_recurrence_operands operands = {
        .q = convolved(at, w->wc, w->conv_c, w->bias_c, TSR_STATE_CONV_Q, h),
        .k = convolved(at, w->wb, w->conv_b, w->bias_b, TSR_STATE_CONV_K, h),
        .v = convolved(at, w->wx, w->conv_x, w->bias_x, TSR_STATE_CONV_V, h),
        .alpha = tsr_mul_mat(graph, w->wdt, h),
        .a = {.at = {w->a}, .n = 1},
        .dt_bias = {.at = {w->dt_bias}, .n = 1},
        .skip = w->skip,
        .n_heads = k->n_head,
        .n_key_heads = k->n_groups};
    tsr_tensor *y = tsr_recurrence(graph, at->step->kv_inputs, at->index, TSR_STATE_CONV_V + 1, &operands);
    y = tsr_swiglu(graph, tsr_mul_mat(graph, w->wz, h), y);
    if (w->norm && k->n_groups == 1)
        y = tsr_rms_norm(graph, y, w->norm, at->hp->norm_eps);
    else if (w->norm)
        y = tsr_heads_norm(graph, y, w->norm, k->n_head * k->head_dim / k->n_groups, false, at->hp->norm_eps);
    return tsr_mul_mat(graph, w->out, y);
}
