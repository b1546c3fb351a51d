/* The gated delta rule behind causal convolutions (Gated DeltaNet, arXiv:2412.06464). Divided by key heads,
 * each with the value heads that use it, so no device computes anything twice; ssm_out takes each device's
 * value heads and yields a sum over devices. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

/* Queries, keys and values are parts of one tensor of rows. */
static tsr_status declare_rows(tsr_weights *w, const tsr_layer_kind *k, int l, int64_t ne0, const char *name,
                               tsr_tensor **q, tsr_tensor **key, tsr_tensor **v)
{
    tsr_status status = TSR_OK;
    int64_t n_k = k->n_head_kv * k->key_dim, n_v = k->n_head * k->head_dim, all = 2 * n_k + n_v;
    char full[TSR_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s.weight", l, name);
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_KV_ROWS, l, (tsr_weight_rows){ne0, 0, n_k, all}, q,
                                     full));
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_KV_ROWS, l, (tsr_weight_rows){ne0, n_k, n_k, all},
                                     key, full));
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_Q_ROWS, l, (tsr_weight_rows){ne0, 2 * n_k, n_v, all},
                                     v, full));
    tsr_weights_cut_heads(*q, k->key_dim);
    tsr_weights_cut_heads(*key, k->key_dim);
    tsr_weights_cut_heads(*v, n_v / k->n_head_kv);
out:
    return status;
}

tsr_status tsr_declare_delta(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_delta_weights *layer = &w->layers[l].delta;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    const int64_t group = k->n_head / k->n_head_kv, n_v = k->n_head * k->head_dim;
    TSR_TRY(declare_rows(w, k, l, hp->n_embd, "attn_qkv", &layer->wq, &layer->wk, &layer->wv));
    TSR_TRY(
        declare_rows(w, k, l, k->conv_kernel, "ssm_conv1d", &layer->conv_q, &layer->conv_k, &layer->conv_v));
    TSR_DECLARE(wz, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, n_v, "attn_gate.weight");
    TSR_DECLARE(ba, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, 2 * k->n_head, "ssm_ba.weight");
    TSR_DECLARE(a, true, TSR_WEIGHT_Q_ROWS, k->n_head, 1, "ssm_a");
    TSR_DECLARE(dt_bias, true, TSR_WEIGHT_Q_ROWS, k->n_head, 1, "ssm_dt.bias");
    TSR_DECLARE(norm, true, TSR_WEIGHT_ATTENTION_WHOLE, k->head_dim, 1, "ssm_norm.weight");
    TSR_DECLARE(out, true, TSR_WEIGHT_Q_COLUMNS, n_v, hp->n_embd, "ssm_out.weight");
    tsr_weights_cut_heads(layer->wz, group * k->head_dim);
    tsr_weights_cut_heads(layer->ba, 2 * group);
    tsr_weights_cut_heads(layer->a, group);
    tsr_weights_cut_heads(layer->dt_bias, group);
    tsr_weights_cut_heads(layer->out, group * k->head_dim);
out:
    return status;
}

/* W h behind its convolution and SiLU. */
static tsr_tensor *convolved(const tsr_layer *at, tsr_tensor *weight, tsr_tensor *conv, int part,
                             tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    return tsr_conv(step->graph, tsr_mul_mat(step->graph, weight, h), conv, NULL, true,
                    (tsr_state_part){step->kv, at->index, part}, &step->state_inputs);
}

tsr_tensor *tsr_block_delta(const tsr_layer *at, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    const tsr_delta_weights *w = &at->w->delta;
    const tsr_layer_kind *k = at->kind;
    const int64_t group = k->n_head / k->n_head_kv;
    tsr_tensor *z = tsr_mul_mat(graph, w->wz, h), *ba = tsr_mul_mat(graph, w->ba, h);
    const tsr_recurrence_operands operands = {
        .q = convolved(at, w->wq, w->conv_q, TSR_STATE_CONV_Q, h),
        .k = convolved(at, w->wk, w->conv_k, TSR_STATE_CONV_K, h),
        .v = convolved(at, w->wv, w->conv_v, TSR_STATE_CONV_V, h),
        .beta = tsr_take_columns(graph, ba, (tsr_columns){2 * group, 0, group}),
        .alpha = tsr_take_columns(graph, ba, (tsr_columns){2 * group, group, group}),
        .a = w->a,
        .dt_bias = w->dt_bias,
        .n_heads = k->n_head,
        .n_key_heads = k->n_head_kv,
        .eps = 1e-6f /* fixed in the models' own code */};
    tsr_tensor *y =
        tsr_recurrence(graph, &operands, (tsr_state_part){at->step->kv, at->index, TSR_STATE_MATRIX},
                       &at->step->state_inputs);
    return tsr_mul_mat(graph, w->out, tsr_swiglu(graph, z, tsr_block_norm(at, y, w->norm)));
}
