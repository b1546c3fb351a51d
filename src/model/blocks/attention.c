/* Self-attention with grouped query heads and rotary embedding. Queries, keys and values are divided by KV
 * head; W_o takes each device's heads and yields a sum over devices. */
#include <math.h>

#include "core/status.h"
#include "model/blocks.h"

tsr_status tsr_declare_attention(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    int64_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;

#define DECLARE(field, required, role, ne0, ne1, name) \
    TSR_TRY(tsr_weights_declare(w, required, role, l, ne0, ne1, &layer->field, "blk.%d." name, l))
    DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, n_q, "attn_q.weight");
    DECLARE(wk, true, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_k.weight");
    DECLARE(wv, true, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_v.weight");
    DECLARE(wo, true, TSR_WEIGHT_Q_COLUMNS, n_q, hp->n_embd, "attn_output.weight");
    DECLARE(bq, false, TSR_WEIGHT_Q_ROWS, n_q, 1, "attn_q.bias");
    DECLARE(bk, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_k.bias");
    DECLARE(bv, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_v.bias");
    DECLARE(bo, false, TSR_WEIGHT_ATTENTION_WHOLE, hp->n_embd, 1, "attn_output.bias");
#undef DECLARE
out:
    return status;
}

tsr_tensor *tsr_block_attention(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    const tsr_hparams *hp = at->hp;
    const tsr_layer_weights *w = at->w;
    tsr_tensor *q = tsr_block_linear(at, w->wq, w->bq, h);
    tsr_tensor *k = tsr_block_linear(at, w->wk, w->bk, h);
    tsr_tensor *v = tsr_block_linear(at, w->wv, w->bv, h);
    q = tsr_rope(step->graph, q, step->rope_table, hp->head_dim, hp->rope_interleaved);
    k = tsr_rope(step->graph, k, step->rope_table, hp->head_dim, hp->rope_interleaved);
    tsr_kv_store(step->graph, step->kv, at->index, k, v, &step->kv_inputs);
    float scale = (float)(1.0 / sqrt((double)hp->head_dim));
    tsr_tensor *a = tsr_attention(step->graph, step->kv, at->index, q, &step->kv_inputs, scale, 0, 0);
    return tsr_block_linear(at, w->wo, w->bo, a);
}
