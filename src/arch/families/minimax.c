/* MiniMax: half of a head is rotated, elements half a rotation apart; a mixture of experts that are chosen by
 * sigmoids and a bias.
 *
 *     x = x + Wo attn(norm(x))                                 attention of norm(q), norm(k), v
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) (+ shared(norm(x)))
 *
 * - minimax-m2: one norm over all query heads of a token and one over all key heads.
 *
 * - minimax-m3: norms of every head; clamped activations; shared experts; dense first layers. The other
 * layers attend to blocks of positions that an index selects for each KV head (blocks/index.c). */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->expert_normalize = true;
    return TSR_OK;
}

static tsr_status read_m3(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->expert_normalize = true;
    hp->ffn_activation = TSR_GLU_CLAMPED;
    return tsr_hparams_read_indexer(keys, hp);
}

static tsr_status read_m3_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    if (l < hp->n_dense_layers)
        return TSR_OK;
    if (hp->indexer.n_heads != layer->n_head_kv)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: layer %lld has an index of %lld heads for %lld KV heads; the numbers must be "
                        "equal",
                        tsr_gguf_path(keys->gguf), (long long)l, (long long)hp->indexer.n_heads,
                        (long long)layer->n_head_kv);
    layer->n_selected = hp->indexer.n_selected;
    layer->index_dim = hp->indexer.dim;
    return TSR_OK;
}

static tsr_status declare_m3_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
    TSR_TRY(tsr_declare_index(w, hp, l, hp->n_embd, "q_proj", "k_proj"));
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_wide_norms(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_minimax_m2 = {.name = "minimax-m2",
                                      .experts = true,
                                      .read_hparams = read_hparams,
                                      .declare_layer = declare_layer,
                                      .build_layer = tsr_build_layer};

const tsr_arch tsr_arch_minimax_m3 = {.name = "minimax-m3",
                                      .experts = true,
                                      .read_hparams = read_m3,
                                      .read_layer = read_m3_layer,
                                      .declare_layer = declare_m3_layer,
                                      .build_layer = tsr_build_layer};
