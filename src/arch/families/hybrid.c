/* Models of Mamba-2 and attention, with one block per layer or both mixers in one layer.
 *
 * - nemotron_h, nemotron_h_moe: Nemotron-H, Nemotron 2 and 3 (arXiv:2504.03624). A layer is one block:
 * Mamba-2, attention without rotation, or an FFN without a gate (the square of ReLU), in nemotron_h_moe a
 * mixture of such experts. The prediction layer is attention, then a mixture.
 *
 *     x = x + block(norm(x))
 *
 * - falcon-h1: Falcon-H1 (arXiv:2507.22448). Mamba-2 and attention read one norm. The factors of the original
 * are in the file's weights.
 *
 *     x = x + Wo attn(norm(x)) + mamba(norm(x))
 *     x = x + Wdown(silu(Wgate norm(x)) * Wup norm(x)) */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

/* Its norms are RMS norms, though the key is that of LayerNorms. */
static tsr_status read_nemotron_h(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    double eps = 0;
    hp->ungated_ffn = true;
    hp->relu_squared = true;
    tsr_hparams_default_gating(keys, TSR_GATING_SIGMOID, hp);
    TSR_TRY(tsr_keys_int(keys, "moe_latent_size", TSR_ALL_LAYERS, false, 0, 1 << 20, &hp->n_expert_embd));
    TSR_TRY(tsr_keys_real(keys, "attention.layer_norm_epsilon", false, 0, 1, &eps));
    hp->norm_eps = (float)eps;
out:
    return status;
}

/* A layer with KV heads has attention, and one with an FFN length an FFN; the others have Mamba-2. Only the
 * prediction layer has both. */
static tsr_status read_nemotron_h_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l,
                                        tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    int64_t n_ff = 0;
    TSR_TRY(tsr_keys_int(keys, "feed_forward_length", l, true, 0, 1 << 22, &n_ff));
    layer->rope_q = layer->rope_k = -1;
    if (layer->n_head_kv == 0 && n_ff > 0) {
        layer->mixer = TSR_MIXER_NONE;
        layer->n_head = layer->head_dim = 0;
        return TSR_OK;
    }
    if (n_ff > 0)
        return TSR_OK;
    layer->ffn = TSR_FFN_NONE;
    layer->n_ff = 0;
    if (layer->n_head_kv == 0)
        TSR_TRY(tsr_layer_read_mamba(keys, l, layer));
out:
    (void)hp;
    return status;
}

static tsr_status declare_nemotron_h_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    if (kind->mixer != TSR_MIXER_NONE && kind->ffn != TSR_FFN_NONE)
        return tsr_declare_plain_layer(w, hp, l);
    tsr_layer_weights *layer = &w->layers[l];
    const bool mixes = kind->mixer != TSR_MIXER_NONE;
    TSR_TRY(tsr_declare_norm(w, mixes ? TSR_WEIGHT_ATTENTION_WHOLE : TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd,
                             "attn_norm", mixes ? &layer->attn_norm : &layer->ffn_norm));
    if (!mixes)
        return tsr_declare_ffn_or_experts(w, hp, l);
    return kind->mixer == TSR_MIXER_MAMBA ? tsr_declare_mamba(w, hp, l) : tsr_declare_attention(w, hp, l);
out:
    return status;
}

/* All layers have the same Mamba-2. */
static tsr_status read_falcon_h1(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_layer_kind mamba = {.ffn = TSR_FFN_NONE};
    TSR_TRY(tsr_layer_read_mamba(keys, 0, &mamba));
    TSR_TRY(tsr_hparams_set_layer(hp, 0, &mamba));
out:
    return status;
}

static tsr_status read_falcon_h1_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l,
                                       tsr_layer_kind *layer)
{
    (void)keys;
    (void)hp;
    (void)l;
    layer->beside = 1; /* kind 0 */
    return TSR_OK;
}

/* Converters write the norm before the FFN without the end ".weight". */
static tsr_status declare_falcon_h1_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "attn_norm", &layer->attn_norm));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_mamba(w, hp, l));
    TSR_DECLARE(ffn_norm, false, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_norm");
    if (!layer->ffn_norm)
        TSR_DECLARE(ffn_norm, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_norm.weight");
    TSR_TRY(tsr_declare_ffn(w, hp, l));
out:
    return status;
}

#define NEMOTRON_H(arch, with_experts)                                           \
    const tsr_arch tsr_arch_##arch = {.name = #arch,                             \
                                      .experts = with_experts,                   \
                                      .read_hparams = read_nemotron_h,           \
                                      .read_layer = read_nemotron_h_layer,       \
                                      .declare_layer = declare_nemotron_h_layer, \
                                      .build_layer = tsr_build_layer}

NEMOTRON_H(nemotron_h, false);
NEMOTRON_H(nemotron_h_moe, true);
const tsr_arch tsr_arch_falcon_h1 = {.name = "falcon-h1",
                                     .read_hparams = read_falcon_h1,
                                     .read_layer = read_falcon_h1_layer,
                                     .declare_layer = declare_falcon_h1_layer,
                                     .build_layer = tsr_build_layer};
