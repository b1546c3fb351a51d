/* phi3 (Phi 3 and 4): llama's layers with queries, keys and values in one tensor and gate and up in another
 * (tsr_declare_attention() and tsr_declare_ffn() declare the parts). Rotation of elements half a head apart,
 * stretched by LongRoPE in the models for 128k tokens. Some models have a sliding window in every layer.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x)) */
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    return tsr_hparams_read_window(keys, 0, hp);
}

const tsr_arch tsr_arch_phi3 = {.name = "phi3",
                                .read_hparams = read_hparams,
                                .declare_layer = tsr_declare_plain_layer,
                                .build_layer = tsr_build_layer};
