/* Attention to selected positions: every token sees those with the largest scores by an index, small queries
 * and one small key for each position (DeepSeek-V3.2, arXiv:2512.02556, section 2.1), or the blocks of
 * positions with the largest (MiniMax M3). Index keys have a KV layer of their own.
 *
 * The index is no larger than a head or a few, so every device with a part of the layer computes and stores
 * all of it: then all select the same positions without a sum over devices. */
#include "core/status.h"
#include "arch/blocks.h"

/* Of the key's LayerNorm, in transformers' models/glm_moe_dsa. */
static const float layer_norm_eps = 1e-6f;

tsr_status tsr_declare_index(tsr_weights *w, const tsr_hparams *hp, int l, int64_t q_rank, const char *q,
                             const char *k)
{
    tsr_status status = TSR_OK;
    const tsr_weight_role whole = TSR_WEIGHT_ATTENTION_WHOLE;
    const int64_t dim = tsr_hparams_layer(hp, l)->index_dim, n_heads = hp->indexer.n_heads;
    tsr_index_weights *index = &w->layers[l].index;
    if (dim == 0)
        return TSR_OK;
    TSR_TRY(tsr_weights_declare(w, true, whole, l, q_rank, n_heads * dim, &index->q,
                                "blk.%d.indexer.%s.weight", l, q));
    TSR_TRY(
        tsr_weights_declare(w, true, whole, l, hp->n_embd, dim, &index->k, "blk.%d.indexer.%s.weight", l, k));
    TSR_TRY(
        tsr_weights_declare(w, true, whole, l, dim, 1, &index->k_norm, "blk.%d.indexer.k_norm.weight", l));
    if (!hp->indexer.sums_heads)
        return tsr_weights_declare(w, true, whole, l, dim, 1, &index->q_norm, "blk.%d.indexer.q_norm.weight",
                                   l);
    TSR_TRY(tsr_weights_declare(w, true, whole, l, hp->n_embd, n_heads, &index->proj,
                                "blk.%d.indexer.proj.weight", l));
    TSR_TRY(tsr_weights_declare(w, false, whole, l, dim, 1, &index->k_norm_bias, "blk.%d.indexer.k_norm.bias",
                                l));
out:
    return status;
}

/* Factors on scores, which models also have, do not change the selection. */
tsr_tensor *tsr_block_select(const tsr_layer *at, tsr_tensor *h, tsr_tensor *q_input)
{
    const tsr_step_graph *step = at->step;
    const tsr_indexer *x = &at->hp->indexer;
    const tsr_index_weights *w = &at->w->index;
    const int64_t dim = at->kind->index_dim;
    if (at->kind->n_selected == 0)
        return NULL;
    if (dim == 0)
        return *at->selection;
    const int layer = (int)tsr_hparams_index_layer(at->hp, at->index);
    const tsr_select_rule rule = {.n_blocks = at->kind->n_selected, .block = x->block, .n_local = x->n_local};
    tsr_tensor *k = tsr_mul_mat(step->graph, w->k, h);
    k = x->sums_heads ? tsr_layer_norm(step->graph, k, w->k_norm, w->k_norm_bias, layer_norm_eps)
                      : tsr_block_norm(at, k, w->k_norm);
    k = tsr_block_rotate(at, k, dim, at->kind->rope_k);
    tsr_kv_store(step->graph, step->kv_inputs, layer, k, k);
    tsr_tensor *q = tsr_block_norm(at, tsr_mul_mat(step->graph, w->q, q_input), w->q_norm);
    q = tsr_block_rotate(at, q, dim, at->kind->rope_k);
    tsr_tensor *weights = x->sums_heads ? tsr_mul_mat(step->graph, w->proj, h) : NULL;
    return *at->selection = tsr_select(step->graph, step->kv_inputs, layer, q, weights, &rule);
}
