/* Models with LayerNorms whose attention and FFN are computed in parallel.
 *
 *     x = x + Wo attn(norm(x)) + Wdown act(Wup norm'(x))       norm': the same norm, or a second one
 *
 * - gptneox: GPT-NeoX and Pythia (arXiv:2204.06745). Fused Q, K and V, biases everywhere, GELU without a
 * gate, a norm for each block; in parallel unless the file says otherwise.
 *
 * - phi2: Phi 1, 1.5 and 2 (arXiv:2309.05463). One norm; the logits have a bias, too.
 *
 * - falcon: Falcon (arXiv:2311.16867). Only the norms have biases; large models have a second norm for
 * attention.
 *
 * - command-r: Command R. Norms without biases, in Command R+ also over every query and key head; SwiGLU, a
 * factor on the logits.
 *
 * - cohere2: Command R7B and A. Three of four layers have a window; every fourth has neither window nor
 * rotation.
 *
 * - cohere2moe: a mixture of experts, whose result is the mean of the chosen and of the shared experts. Dense
 * layers at the beginning are rotated without a window. RMS norms where the file has their epsilon. */
#include "core/status.h"
#include "arch/blocks.h"

/* phi2, falcon */
static tsr_status read_ungated(tsr_keys *keys, tsr_hparams *hp)
{
    (void)keys;
    hp->layer_norm = true;
    hp->parallel_blocks = true;
    hp->ungated_ffn = true;
    return TSR_OK;
}

static tsr_status read_gptneox(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = read_ungated(keys, hp);
    return status == TSR_OK ? tsr_keys_bool(keys, "use_parallel_residual", &hp->parallel_blocks) : status;
}

static tsr_status read_cohere(tsr_keys *keys, bool scale_required, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    hp->layer_norm = true;
    hp->parallel_blocks = true;
    hp->rope_interleaved = true;
    TSR_TRY(tsr_keys_real(keys, "logit_scale", scale_required, 1e-6, 1e6, &hp->logit_scale));
out:
    return status;
}

static tsr_status read_command_r(tsr_keys *keys, tsr_hparams *hp)
{
    return read_cohere(keys, false, hp);
}

static tsr_status read_cohere2(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(read_cohere(keys, true, hp));
    TSR_TRY(tsr_hparams_read_window(keys, 4, hp));
out:
    return status;
}

/* The mean of two results: either is halved where its factor is at hand, which changes no bit. */
static tsr_status read_cohere2moe(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(read_cohere2(keys, hp));
    hp->layer_norm = !tsr_keys_have(keys, "attention.layer_norm_rms_epsilon");
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    if (hp->n_ff_shared > 0) {
        hp->expert_scale *= 0.5f;
        hp->shared_scale = 0.5;
    }
out:
    return status;
}

/* The prediction layer is rotated, with a window or without. */
static tsr_status rotate_cohere2moe(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    const bool always = l < hp->n_dense_layers || l >= tsr_hparams_n_step_layers(hp);
    return always ? TSR_OK : tsr_layer_rotate_windows(keys, hp, l, layer);
}

#define PARALLEL(identifier, arch, read, layer, with_experts)                              \
    const tsr_arch tsr_arch_##identifier = {.name = arch,                                  \
                                            .experts = with_experts,                       \
                                            .read_hparams = read,                          \
                                            .read_layer = layer,                           \
                                            .declare_layer = tsr_declare_layer_norm_layer, \
                                            .build_layer = tsr_build_layer_norm_layer}

PARALLEL(gptneox, "gptneox", read_gptneox, NULL, false);
PARALLEL(phi2, "phi2", read_ungated, NULL, false);
PARALLEL(falcon, "falcon", read_ungated, NULL, false);
PARALLEL(command_r, "command-r", read_command_r, NULL, false);
PARALLEL(cohere2, "cohere2", read_cohere2, tsr_layer_rotate_windows, false);
PARALLEL(cohere2moe, "cohere2moe", read_cohere2moe, rotate_cohere2moe, true);
