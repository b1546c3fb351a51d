/* hunyuan-dense and hunyuan-moe (Hunyuan 0.5B to 7B and Hunyuan A13B of Tencent): llama's layers with norms
 * over every query and key head behind the rotation; rotation of elements half a head apart. The base of the
 * rotation in a file is already stretched for long contexts. hunyuan-moe has shared experts.
 *
 *     x = x + Wo attn(norm(x))                                 attention of norm(rope(q)), norm(rope(k)), v
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x))
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x)) + shared(norm(x)) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->norm_after_rope = true;
    hp->expert_normalize = true;
    return TSR_OK;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
out:
    return status;
}

const tsr_arch tsr_arch_hunyuan_dense = {.name = "hunyuan-dense",
                                         .read_hparams = read_hparams,
                                         .declare_layer = declare_layer,
                                         .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_hunyuan_moe = {.name = "hunyuan-moe",
                                       .experts = true,
                                       .read_hparams = read_hparams,
                                       .declare_layer = declare_layer,
                                       .build_layer = tsr_build_layer};
