/* qwen2, qwen3 and qwen3moe: llama's layers, rotation of elements half a head apart. Qwen 2 has biases of
 * queries, keys and values; Qwen 3 has none, but norms over every query and key head.
 *
 *     x = x + Wo attn(norm(x))                                 Qwen 3: attention of norm(q), norm(k), v
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x)) */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare_qwen3_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_plain_layer(w, hp, l));
    TSR_TRY(tsr_declare_qk_norms(w, l, hp->head_dim, hp->head_dim));
out:
    return status;
}

const tsr_arch tsr_arch_qwen2 = {
    .name = "qwen2", .declare_layer = tsr_declare_plain_layer, .build_layer = tsr_build_layer};
const tsr_arch tsr_arch_qwen3 = {
    .name = "qwen3", .declare_layer = declare_qwen3_layer, .build_layer = tsr_build_layer};

static tsr_status read_qwen3moe(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->expert_normalize = true;
    return TSR_OK;
}

const tsr_arch tsr_arch_qwen3moe = {.name = "qwen3moe",
                                    .experts = true,
                                    .read_hparams = read_qwen3moe,
                                    .declare_layer = declare_qwen3_layer,
                                    .build_layer = tsr_build_layer};
