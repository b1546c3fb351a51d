/* minimax-m2 (MiniMax M2): one norm over all query heads of a token and one over all key heads; half of a
 * head is rotated, elements half a rotation apart; a mixture of experts that are chosen by sigmoids and a
 * bias.
 *
 *     x = x + Wo attn(norm(x))                                 attention of norm(q), norm(k), v
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->expert_normalize = true;
    return TSR_OK;
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
