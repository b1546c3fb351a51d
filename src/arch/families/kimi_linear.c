/* Kimi Linear (arXiv:2510.26692): a gated delta rule with a decay for each row of the state in most layers,
 * latent attention without a rotation in the others; experts that are chosen by sigmoids and a bias, with
 * shared experts. A file has 0 KV heads for a layer with the delta rule.
 *
 *     x = x + mix(norm(x))
 *     x = x + ffn(norm(x)) */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_kimi_linear(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->expert_normalize = true;
    return TSR_OK;
}

/* Older converters joined keys and values of all heads. */
static tsr_status refuse_joined(const tsr_gguf *gguf, int64_t l)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.attn_kv_b.weight", (int)l);
    if (!tsr_gguf_find_tensor(gguf, name))
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "%s: an older converter joined keys and values of all heads in %s; convert the model "
                    "anew",
                    tsr_gguf_path(gguf), name);
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    int64_t head_dim, conv_kernel;
    (void)hp;
    TSR_TRY(refuse_joined(keys->gguf, l));
    layer->rope_q = layer->rope_k = -1;
    TSR_TRY(tsr_keys_int(keys, "kda.head_dim", TSR_ALL_LAYERS, true, 1, TSR_MAX_STATE_ROWS, &head_dim));
    TSR_TRY(
        tsr_keys_int(keys, "ssm.conv_kernel", TSR_ALL_LAYERS, true, 2, TSR_MAX_CONV_KERNEL, &conv_kernel));
    if (layer->n_head_kv > 0) {
        layer->mixer = TSR_MIXER_LATENT;
    } else {
        layer->mixer = TSR_MIXER_DELTA;
        layer->head_dim = layer->key_dim = head_dim;
        layer->conv_kernel = conv_kernel;
        layer->parts = 1;
    }
    layer->n_head_kv = layer->n_head;
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    if (tsr_hparams_layer(hp, l)->mixer == TSR_MIXER_DELTA)
        TSR_TRY(tsr_declare_delta_rows(w, hp, l));
    else
        TSR_TRY(tsr_declare_latent(w, hp, l));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

const tsr_arch tsr_arch_kimi_linear = {.name = "kimi-linear",
                                       .experts = true,
                                       .latent = true,
                                       .read_hparams = read_kimi_linear,
                                       .read_layer = read_layer,
                                       .declare_layer = declare_layer,
                                       .build_layer = tsr_build_layer};
