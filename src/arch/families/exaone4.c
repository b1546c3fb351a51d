/* exaone4 (EXAONE 4, arXiv:2507.11407): norms behind the blocks and none before them, norms over every query
 * and key head; rotation of elements half a head apart. In models with windows, three of four layers have a
 * window, and the others, which see all positions, have no rotation.
 *
 *     x = x + norm(Wo attn(x))                                 attention of norm(q), norm(k), v
 *     x = x + norm(Wdown(silu(Wgate x) * Wup x)) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    return tsr_hparams_read_window(keys, 4, hp);
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
    TSR_TRY(tsr_declare_ffn(w, hp, l));
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_exaone4 = {.name = "exaone4",
                                   .read_hparams = read_hparams,
                                   .read_layer = tsr_layer_rotate_windows,
                                   .declare_layer = declare_layer,
                                   .build_layer = tsr_build_layer};
