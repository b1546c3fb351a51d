/* Layers with LayerNorms, or with RMS norms in the same places. Attention and FFN run one after the other, or
 * in parallel (GPT-J, Wang and Komatsuzaki). In parallel, both read the norm of the layer's input:
 *
 *     x + attention(norm(x)) + ffn(norm'(x))
 *
 * norm' is the same norm or a second one. */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare_norms(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_weight_role attention = TSR_WEIGHT_ATTENTION_WHOLE, ffn = TSR_WEIGHT_FFN_WHOLE;
    TSR_DECLARE(attn_norm, true, attention, hp->n_embd, 1, "attn_norm.weight");
    TSR_DECLARE(attn_norm_2, false, attention, hp->n_embd, 1, "attn_norm_2.weight");
    TSR_DECLARE(ffn_norm, !hp->parallel_blocks, ffn, hp->n_embd, 1, "ffn_norm.weight");
    if (!hp->layer_norm)
        return TSR_OK;
    TSR_DECLARE(attn_norm_bias, false, attention, hp->n_embd, 1, "attn_norm.bias");
    TSR_DECLARE(attn_norm_2_bias, false, attention, hp->n_embd, 1, "attn_norm_2.bias");
    TSR_DECLARE(ffn_norm_bias, false, ffn, hp->n_embd, 1, "ffn_norm.bias");
out:
    return status;
}

tsr_status tsr_declare_layer_norm_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(declare_norms(w, hp, l));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_heads_norms(w, hp, l));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

static tsr_tensor *norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight, tsr_tensor *bias)
{
    return tsr_block_model_norm(at->hp, at->step->graph, x, weight, bias);
}

tsr_tensor *tsr_build_layer_norm_layer(const tsr_layer *at, tsr_tensor *x)
{
    const tsr_layer_weights *w = at->w;
    tsr_tensor *h = norm(at, x, w->attn_norm, w->attn_norm_bias);
    tsr_tensor *of_attention = w->attn_norm_2 ? norm(at, x, w->attn_norm_2, w->attn_norm_2_bias) : h;
    tsr_tensor *y = tsr_block_residual(at, x, tsr_block_attention(at, of_attention));
    y = tsr_block_outputs(at, y);
    if (!w->ffn_norm)
        h = tsr_block_outputs(at, h);
    else if (at->hp->parallel_blocks)
        h = norm(at, tsr_block_outputs(at, x), w->ffn_norm, w->ffn_norm_bias);
    else
        h = norm(at, y, w->ffn_norm, w->ffn_norm_bias);
    return tsr_block_residual(at, y, w->router ? tsr_block_experts(at, h, h) : tsr_block_ffn(at, h));
}
