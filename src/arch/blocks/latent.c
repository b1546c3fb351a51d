/* Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of all heads are
 * linear in one compressed row per token, which alone is stored.
 *
 *     [c | r] = W_a h;  c = norm(c);  r is rotated             the stored row, of kv_rank + n_rot elements
 *     query of head i:  [p_i | s_i] = part i of W_q h or of W_b norm(W_c h);  s_i is rotated
 *     key of head i:    [K_i^T c | r]                          value of head i:  V_i c
 *
 * Since p_i . (K_i^T c) = (K_i p_i) . c, queries [K_i p_i | s_i] are compared with the stored rows
 * themselves. The weighted sum of the rows' c is made a sum of values by V_i afterwards. A prompt would take
 * less arithmetic with keys and values of the heads, but sums in another order: results would depend on how
 * many tokens share a call. So one token and many are computed in this form.
 *
 * All heads read the same rows, so every device with heads computes and stores whole rows; heads are divided,
 * and with them the rows of W_q, the matrices K_i and V_i, and the columns of W_o. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare_queries(tsr_weights *w, const tsr_hparams *hp, int l, int64_t n_q)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const int64_t rank = hp->latent.q_rank;
    if (rank == 0) {
        TSR_DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, n_q, "attn_q.weight");
        return TSR_OK;
    }
    TSR_DECLARE(latent_q, true, TSR_WEIGHT_ATTENTION_WHOLE, hp->n_embd, rank, "attn_q_a.weight");
    TSR_DECLARE(latent_q_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, rank, 1, "attn_q_a_norm.weight");
    TSR_DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, rank, n_q, "attn_q_b.weight");
out:
    return status;
}

/* Rows of c, then rows of r. */
static tsr_status declare_row(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const int64_t rank = hp->latent.kv_rank, n_rot = hp->latent.n_rot;
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.attn_kv_a_mqa.weight", l);
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_ATTENTION_WHOLE, l,
                                     (tsr_weight_rows){hp->n_embd, 0, rank, rank + n_rot}, &layer->latent_kv,
                                     name));
    TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_ATTENTION_WHOLE, l,
                                     (tsr_weight_rows){hp->n_embd, rank, n_rot, rank + n_rot},
                                     &layer->key_rot, name));
    TSR_DECLARE(latent_kv_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, rank, 1, "attn_kv_a_norm.weight");
out:
    return status;
}

tsr_status tsr_declare_latent(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    const tsr_latent *latent = &hp->latent;
    char name[TSR_MAX_NAME];
    TSR_TRY(declare_queries(w, hp, l, kind->n_head * (latent->n_plain + latent->n_rot)));
    TSR_TRY(declare_row(w, hp, l));
    snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", l);
    TSR_TRY(tsr_weights_declare_heads(w, l, latent->n_plain, latent->kv_rank, kind->n_head, &layer->k_of_head,
                                      name));
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", l);
    TSR_TRY(tsr_weights_declare_heads(w, l, latent->kv_rank, kind->head_dim, kind->n_head, &layer->v_of_head,
                                      name));
    TSR_DECLARE(wo, true, TSR_WEIGHT_Q_COLUMNS, kind->n_head * kind->head_dim, hp->n_embd,
                "attn_output.weight");
    tsr_weights_cut_heads(layer->wq, latent->n_plain + latent->n_rot);
    tsr_weights_cut_heads(layer->k_of_head, latent->kv_rank);
    tsr_weights_cut_heads(layer->v_of_head, kind->head_dim);
out:
    return status;
}

tsr_tensor *tsr_block_latent(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    const tsr_latent *latent = &at->hp->latent;
    const tsr_layer_weights *w = at->w;
    const int64_t q_dim = latent->n_plain + latent->n_rot;
    tsr_tensor *q = h;
    if (w->latent_q)
        q = tsr_block_norm(at, tsr_mul_mat(step->graph, w->latent_q, h), w->latent_q_norm);
    tsr_attention_config config = tsr_block_attention_config(at, q_dim);
    config.selection = tsr_block_select(at, h, q);
    q = tsr_block_rotate(at, tsr_mul_mat(step->graph, w->wq, q), q_dim, at->kind->rope_q);
    q = tsr_mul_heads(step->graph, w->k_of_head, q, at->kind->n_head);
    tsr_tensor *c = tsr_block_norm(at, tsr_mul_mat(step->graph, w->latent_kv, h), w->latent_kv_norm);
    tsr_tensor *r =
        tsr_block_rotate(at, tsr_mul_mat(step->graph, w->key_rot, h), latent->n_rot, at->kind->rope_k);
    tsr_kv_store(step->graph, step->kv_inputs, at->index, r, c);
    tsr_tensor *a = tsr_attention(step->graph, step->kv_inputs, at->index, q, &config);
    a = tsr_mul_heads(step->graph, w->v_of_head, a, at->kind->n_head);
    return tsr_mul_mat(step->graph, w->wo, a);
}
