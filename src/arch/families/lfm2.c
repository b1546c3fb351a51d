/* LFM2 (arXiv:2511.23404): short convolutions in most layers, attention with norms of heads in the others,
 * and a sliding window there in some models. A file has 0 KV heads for a layer with a convolution.
 *
 *     x = x + mix(norm(x))
 *     x = x + ffn(norm(x))
 *
 * lfm2moe: first dense layers, then experts that are chosen by sigmoids and a bias. Files call the last norm
 * token_embd_norm. */
#include "core/status.h"
#include "core/mem.h"
#include "arch/blocks.h"

static tsr_status read_lfm2(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    hp->expert_normalize = true;
    hp->output_norm = "token_embd_norm";
    return tsr_hparams_read_window(keys, 0, hp);
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    int64_t kernel;
    (void)l;
    TSR_TRY(tsr_keys_int(keys, "shortconv.l_cache", TSR_ALL_LAYERS, true, 2, TSR_MAX_CONV_KERNEL, &kernel));
    if (layer->n_head_kv > 0)
        return TSR_OK;
    layer->mixer = TSR_MIXER_CONV;
    layer->window = 0;
    layer->rope_q = layer->rope_k = -1;
    layer->conv_kernel = kernel;
    layer->head_dim = tsr_gcd(hp->n_embd, hp->head_dim);
    layer->n_head = layer->n_head_kv = hp->n_embd / layer->head_dim;
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    if (kind->mixer == TSR_MIXER_CONV) {
        TSR_TRY(tsr_declare_short_conv(w, hp, l));
    } else {
        TSR_TRY(tsr_declare_attention(w, hp, l));
        TSR_TRY(tsr_declare_qk_norms(w, l, kind->head_dim, kind->head_dim));
    }
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

#define LFM2(arch)                                                    \
    const tsr_arch tsr_arch_##arch = {.name = #arch,                  \
                                      .experts = true,                \
                                      .read_hparams = read_lfm2,      \
                                      .read_layer = read_layer,       \
                                      .declare_layer = declare_layer, \
                                      .build_layer = tsr_build_layer}

LFM2(lfm2);
LFM2(lfm2moe);
