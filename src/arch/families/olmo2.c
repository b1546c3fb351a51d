/* olmo2 (OLMo 2, arXiv:2501.00656, and 3): norms after the blocks and none before them; one norm over all
 * query heads of a token and one over all key heads. OLMo 3 has a window in three of four layers; the
 * rotation of layers with a window is not stretched.
 *
 *     x = x + norm(Wo attn(x))                                 attention of norm(q), norm(k), v
 *     x = x + norm(Wdown(silu(Wgate x) * Wup x))
 *
 * olmoe (arXiv:2409.02060): norms before the blocks, and a mixture of experts weighted by the softmax over
 * all experts. */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_rope_params *local = &hp->rope[TSR_ROPE_WINDOWED];
    *local = hp->rope[TSR_ROPE_MAIN];
    local->scaling = TSR_ROPE_SCALING_NONE;
    local->attn_factor = 1;
    local->as_trained = true;
    TSR_TRY(tsr_hparams_read_window(keys, 4, hp));
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_wide_norms(w, hp, l));
    TSR_TRY(tsr_declare_ffn(w, hp, l));
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_olmo2 = {.name = "olmo2",
                                 .read_hparams = read_hparams,
                                 .declare_layer = declare_layer,
                                 .build_layer = tsr_build_layer};

static tsr_status declare_olmoe_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_wide_norms(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_olmoe = {
    .name = "olmoe", .experts = true, .declare_layer = declare_olmoe_layer, .build_layer = tsr_build_layer};
