/* The gated delta rule behind causal convolutions (Gated DeltaNet, arXiv:2412.06464), with a decay for each
 * head, or for each row of a head's state (Kimi Delta Attention, arXiv:2510.26692). Divided by key heads,
 * each with the value heads that use it. No device computes anything twice but the few rows that compress
 * the input for decays by row and their gate. Where these value heads are no neighbours, everything by value
 * heads is in parts (tsr_weight_parts), in each of which they are: then ssm_out, whose columns are in the
 * order of the file, needs the whole output. Otherwise ssm_out takes each device's value heads. Either way it
 * yields a sum over devices. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

/* Rows of a tensor, the same number of them for every key head. */
static tsr_status declare_rows(tsr_weights *w, const tsr_layer_kind *k, int l, tsr_weight_rows r,
                               const char *name, tsr_tensor **tensor_out)
{
    char full[TSR_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s", l, name);
    tsr_status status = tsr_weights_declare_rows(w, true, TSR_WEIGHT_KV_ROWS, l, r, tensor_out, full);
    if (status == TSR_OK)
        tsr_weights_cut_heads(*tensor_out, r.ne1 / k->n_head_kv);
    return status;
}

/* The rows in as many parts as the layer's value heads. */
static tsr_status declare_parts(tsr_weights *w, const tsr_layer_kind *k, int l, tsr_weight_rows r,
                                const char *name, tsr_weight_parts *parts_out)
{
    tsr_status status = TSR_OK;
    const int64_t n = r.ne1 / k->parts;
    parts_out->n = (int)k->parts;
    for (int i = 0; i < (int)k->parts; i++)
        TSR_TRY(declare_rows(w, k, l, (tsr_weight_rows){r.ne0, r.first + i * n, n, r.all}, name,
                             &parts_out->at[i]));
out:
    return status;
}

/* Queries, keys and values are rows of one tensor. */
static tsr_status declare_qkv(tsr_weights *w, const tsr_layer_kind *k, int l, int64_t ne0, const char *name,
                              tsr_tensor **q, tsr_tensor **key, tsr_weight_parts *v)
{
    tsr_status status = TSR_OK;
    int64_t n_k = k->n_head_kv * k->key_dim, n_v = k->n_head * k->head_dim, all = 2 * n_k + n_v;
    TSR_TRY(declare_rows(w, k, l, (tsr_weight_rows){ne0, 0, n_k, all}, name, q));
    TSR_TRY(declare_rows(w, k, l, (tsr_weight_rows){ne0, n_k, n_k, all}, name, key));
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){ne0, 2 * n_k, n_v, all}, name, v));
out:
    return status;
}

tsr_status tsr_declare_delta(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_delta_weights *layer = &w->layers[l].delta;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    const int64_t n = hp->n_embd, n_head = k->n_head, n_v = n_head * k->head_dim;
    TSR_TRY(declare_qkv(w, k, l, n, "attn_qkv.weight", &layer->wq, &layer->wk, &layer->wv));
    TSR_TRY(declare_qkv(w, k, l, k->conv_kernel, "ssm_conv1d.weight", &layer->conv_q, &layer->conv_k,
                        &layer->conv_v));
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){n, 0, n_v, n_v}, "attn_gate.weight", &layer->wz));
    if (hp->joined_alpha_beta) {
        TSR_TRY(declare_rows(w, k, l, (tsr_weight_rows){n, 0, 2 * n_head, 2 * n_head}, "ssm_ba.weight",
                             &layer->ba));
    } else {
        TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){n, 0, n_head, n_head}, "ssm_alpha.weight",
                              &layer->alpha));
        TSR_TRY(
            declare_parts(w, k, l, (tsr_weight_rows){n, 0, n_head, n_head}, "ssm_beta.weight", &layer->beta));
    }
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){1, 0, n_head, n_head}, "ssm_a", &layer->a));
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){1, 0, n_head, n_head}, "ssm_dt.bias", &layer->dt_bias));
    TSR_DECLARE(norm, true, TSR_WEIGHT_ATTENTION_WHOLE, k->head_dim, 1, "ssm_norm.weight");
    TSR_DECLARE(out, true, TSR_WEIGHT_Q_COLUMNS, n_v, hp->n_embd, "ssm_out.weight");
    tsr_weights_cut_heads(layer->out, n_v / k->n_head_kv);
out:
    return status;
}

/* The part of the state's decay, or of the output's gate, that is compressed to the length of a head. */
static tsr_status declare_compressed(tsr_weights *w, const tsr_hparams *hp, int l, char letter,
                                     tsr_tensor **low, tsr_weight_parts *parts)
{
    tsr_status status = TSR_OK;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    const int64_t rank = k->head_dim, n = k->n_head * k->head_dim;
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, rank, low,
                                "blk.%d.ssm_%c_a.weight", l, letter));
    snprintf(name, sizeof name, "ssm_%c_b.weight", letter);
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){rank, 0, n, n}, name, parts));
out:
    return status;
}

tsr_status tsr_declare_delta_rows(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_delta_weights *layer = &w->layers[l].delta;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    const int64_t n_head = k->n_head, n = n_head * k->head_dim;
    const tsr_weight_rows matrix = {hp->n_embd, 0, n, n}, conv = {k->conv_kernel, 0, n, n},
                          each = {1, 0, n, n};
    TSR_TRY(declare_rows(w, k, l, matrix, "attn_q.weight", &layer->wq));
    TSR_TRY(declare_rows(w, k, l, matrix, "attn_k.weight", &layer->wk));
    TSR_TRY(declare_parts(w, k, l, matrix, "attn_v.weight", &layer->wv));
    TSR_TRY(declare_rows(w, k, l, conv, "ssm_conv1d_q.weight", &layer->conv_q));
    TSR_TRY(declare_rows(w, k, l, conv, "ssm_conv1d_k.weight", &layer->conv_k));
    TSR_TRY(declare_parts(w, k, l, conv, "ssm_conv1d_v.weight", &layer->conv_v));
    TSR_TRY(declare_compressed(w, hp, l, 'f', &layer->alpha_low, &layer->alpha));
    TSR_TRY(declare_compressed(w, hp, l, 'g', &layer->z_low, &layer->wz));
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){hp->n_embd, 0, n_head, n_head}, "ssm_beta.weight",
                          &layer->beta));
    TSR_TRY(declare_parts(w, k, l, (tsr_weight_rows){1, 0, n_head, n_head}, "ssm_a", &layer->a));
    TSR_TRY(declare_parts(w, k, l, each, "ssm_dt.bias", &layer->dt_bias));
    TSR_DECLARE(norm, true, TSR_WEIGHT_ATTENTION_WHOLE, k->head_dim, 1, "ssm_norm.weight");
    TSR_DECLARE(out, true, TSR_WEIGHT_Q_COLUMNS, n, hp->n_embd, "attn_output.weight");
out:
    return status;
}

/* W h behind its convolution and SiLU. */
static tsr_tensor *convolved(const tsr_layer *at, const tsr_weight_parts *weights,
                             const tsr_weight_parts *conv, int part, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    return tsr_conv(step->graph, step->kv_inputs, at->index, part, tsr_mul_mat_parts(step->graph, weights, h),
                    conv, NULL, true);
}

static tsr_weight_parts one(tsr_tensor *weight)
{
    return (tsr_weight_parts){.at = {weight}, .n = 1};
}

tsr_tensor *tsr_block_delta(const tsr_layer *at, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    const tsr_delta_weights *w = &at->w->delta;
    const tsr_layer_kind *k = at->kind;
    const int64_t group = k->n_head / k->parts / k->n_head_kv;
    const tsr_weight_parts wq = one(w->wq), wk = one(w->wk), conv_q = one(w->conv_q), conv_k = one(w->conv_k);
    tsr_tensor *z = tsr_mul_mat_parts(graph, &w->wz, w->z_low ? tsr_mul_mat(graph, w->z_low, h) : h);
    tsr_recurrence_operands operands = {.q = convolved(at, &wq, &conv_q, TSR_STATE_CONV_Q, h),
                                        .k = convolved(at, &wk, &conv_k, TSR_STATE_CONV_K, h),
                                        .v = convolved(at, &w->wv, &w->conv_v, TSR_STATE_CONV_V, h),
                                        .a = w->a,
                                        .dt_bias = w->dt_bias,
                                        .n_heads = k->n_head / k->parts,
                                        .n_key_heads = k->n_head_kv,
                                        .eps = 1e-6f /* fixed in the models' own code */};
    if (w->ba) {
        tsr_tensor *ba = tsr_mul_mat(graph, w->ba, h);
        operands.beta = tsr_take_columns(graph, ba, (tsr_columns){2 * group, 0, group});
        operands.alpha = tsr_take_columns(graph, ba, (tsr_columns){2 * group, group, group});
    } else {
        operands.beta = tsr_mul_mat_parts(graph, &w->beta, h);
        operands.alpha =
            tsr_mul_mat_parts(graph, &w->alpha, w->alpha_low ? tsr_mul_mat(graph, w->alpha_low, h) : h);
    }
    tsr_tensor *y =
        tsr_recurrence(graph, at->step->kv_inputs, at->index, TSR_STATE_CONV_V + (int)k->parts, &operands);
    y = tsr_glu(graph, w->z_low ? TSR_GLU_SIGMOID : TSR_GLU_SILU, 0, z, tsr_block_norm(at, y, w->norm));
    return tsr_mul_mat_joined(graph, w->out, y);
}
