/* llama, and models with other names that are computed like llama: pre-norm layers of attention with grouped
 * query heads and a SwiGLU FFN, or (Mixtral) a mixture of experts weighted by the softmax over the chosen
 * experts.
 *
 *     x = x + Wo attn(norm(x))
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x))
 *     x = x + sum over the chosen experts e of weight_e expert_e(norm(x))     with a mixture of experts
 *
 *     mistral3    Ministral 3: queries grow with the logarithm of their position
 *     smollm3     every fourth layer has no rotation (NoPE in arXiv:2501.18795)
 *     arcee       AFM: the square of ReLU, without a gate
 *     exaone      EXAONE 3, rotation of elements half a head apart
 *     internlm2, xverse, ernie4_5 */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_llama(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->rope_interleaved = true;
    hp->expert_normalize = true;
    return TSR_OK;
}

/* The rotary table contains the growth of queries, so all elements of a head must be rotated. */
static tsr_status read_mistral3(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    double temperature = 0;
    hp->rope_interleaved = true;
    TSR_TRY(tsr_keys_real(keys, "attention.temperature_scale", false, 0, 10, &temperature));
    if (temperature == 0)
        return TSR_OK;
    if (hp->rope[TSR_ROPE_MAIN].n_rot != hp->head_dim)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: attention.temperature_scale is not supported for heads of which %lld of %lld "
                        "elements are rotated; all must be",
                        tsr_gguf_path(keys->gguf), (long long)hp->rope[TSR_ROPE_MAIN].n_rot,
                        (long long)hp->head_dim);
    hp->rope[TSR_ROPE_QUERIES] = hp->rope[TSR_ROPE_MAIN];
    hp->rope[TSR_ROPE_QUERIES].temperature = temperature;
out:
    return status;
}

static tsr_status read_smollm3_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    (void)keys;
    (void)hp;
    if (l % 4 == 3)
        layer->rope_q = layer->rope_k = -1;
    return TSR_OK;
}

static tsr_status read_arcee(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->rope_interleaved = true;
    hp->ungated_ffn = true;
    hp->relu_squared = true;
    return TSR_OK;
}

#define LLAMA(arch, read, with_experts)                                         \
    const tsr_arch tsr_arch_##arch = {.name = #arch,                            \
                                      .experts = with_experts,                  \
                                      .read_hparams = read,                     \
                                      .declare_layer = tsr_declare_plain_layer, \
                                      .build_layer = tsr_build_layer}

LLAMA(llama, read_llama, true);
LLAMA(internlm2, read_llama, false);
LLAMA(xverse, read_llama, false);
LLAMA(mistral3, read_mistral3, false);
LLAMA(arcee, read_arcee, false);
LLAMA(exaone, NULL, false);
LLAMA(ernie4_5, read_llama, false);
const tsr_arch tsr_arch_smollm3 = {.name = "smollm3",
                                   .read_hparams = read_llama,
                                   .read_layer = read_smollm3_layer,
                                   .declare_layer = tsr_declare_plain_layer,
                                   .build_layer = tsr_build_layer};
