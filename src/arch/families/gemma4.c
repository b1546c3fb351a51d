/* gemma4: Gemma 4. A gemma3 with layers of two shapes: those with a sliding window have short heads, those
 * that see all positions have long ones, their own rotation and fewer KV heads. Values have a norm, too, and
 * scores no scale.
 *
 *     x = x + post(Wo attn(norm(x)))
 *     x = x + post(ffn(norm(x)))                               a dense FFN, or the sum of a dense FFN and a
 *                                                              mixture, with norms of their own
 *     x = c_l (x + the part of the layer's embedding)          blocks/layer_input.c
 *
 * In small models the last layers have no keys and values of their own. */
#include <math.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status read_hparams(tsr_keys *keys, tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_rope_params *local = &hp->rope[TSR_ROPE_WINDOWED];
    hp->embedding_scale = sqrt((double)hp->n_embd);
    hp->ffn_activation = TSR_GLU_GELU_TANH;
    hp->attention_scale = 1;
    hp->value_norm = true;
    hp->expert_normalize = true;
    *local = hp->rope[TSR_ROPE_MAIN];
    local->scaling = TSR_ROPE_SCALING_NONE;
    local->as_trained = true;
    local->base = 10000;
    TSR_TRY(tsr_hparams_read_window(keys, 6, hp));
    TSR_TRY(tsr_keys_int(keys, "rope.dimension_count_swa", TSR_ALL_LAYERS, false, 2, TSR_MAX_HEAD_DIM,
                         &local->n_rot));
    TSR_TRY(tsr_keys_real(keys, "final_logit_softcapping", false, 0, 1e6, &hp->logit_softcap));
    TSR_TRY(tsr_keys_int(keys, "attention.shared_kv_layers", TSR_ALL_LAYERS, false, 0, hp->n_layers - 1,
                         &hp->n_shared_kv));
    TSR_TRY(tsr_keys_int(keys, "embedding_length_per_layer_input", TSR_ALL_LAYERS, false, 0, 1 << 16,
                         &hp->n_layer_input));
out:
    return status;
}

static tsr_status read_layer(tsr_keys *keys, const tsr_hparams *hp, int64_t l, tsr_layer_kind *layer)
{
    tsr_status status = TSR_OK;
    int64_t v = hp->head_dim, k = hp->head_dim;
    TSR_TRY(tsr_keys_int(keys, "feed_forward_length", l, true, 1, 1 << 22, &layer->n_ff));
    TSR_TRY(tsr_keys_int(keys, "attention.key_length_swa", TSR_ALL_LAYERS, false, 1, TSR_MAX_HEAD_DIM, &k));
    TSR_TRY(tsr_keys_int(keys, "attention.value_length_swa", TSR_ALL_LAYERS, false, 1, TSR_MAX_HEAD_DIM, &v));
    if (k != v || k < hp->rope[TSR_ROPE_WINDOWED].n_rot)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s: heads with a window have %lld (keys) and %lld (values) elements, of which %lld are "
            "rotated; the first two must be equal, and no less",
            tsr_gguf_path(keys->gguf), (long long)k, (long long)v,
            (long long)hp->rope[TSR_ROPE_WINDOWED].n_rot);
    if (layer->window > 0)
        layer->head_dim = k;
out:
    return status;
}

static tsr_status declare_mixture(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_weight_role whole = TSR_WEIGHT_FFN_WHOLE;
    TSR_TRY(tsr_declare_experts(w, hp, l));
    TSR_DECLARE(router_scale, true, whole, hp->n_embd, 1, "ffn_gate_inp.scale");
    TSR_DECLARE(expert_scales, true, whole, hp->n_expert, 1, "ffn_down_exps.scale");
    TSR_DECLARE(dense_post_norm, true, whole, hp->n_embd, 1, "post_ffw_norm_1.weight");
    TSR_DECLARE(expert_norm, true, whole, hp->n_embd, 1, "pre_ffw_norm_2.weight");
    TSR_DECLARE(expert_post_norm, true, whole, hp->n_embd, 1, "post_ffw_norm_2.weight");
out:
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const int64_t head_dim = tsr_hparams_layer(hp, l)->head_dim;
    const bool has_kv = tsr_hparams_kv_layer(hp, l) == l;
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_DECLARE(q_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, head_dim, 1, "attn_q_norm.weight");
    if (has_kv)
        TSR_DECLARE(k_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, head_dim, 1, "attn_k_norm.weight");
    TSR_TRY(tsr_declare_ffn(w, hp, l));
    if (hp->n_expert > 0)
        TSR_TRY(declare_mixture(w, hp, l));
    TSR_TRY(tsr_declare_post_norms(w, hp, l));
    TSR_TRY(tsr_declare_layer_input(w, hp, l));
    TSR_DECLARE(output_scale, false, TSR_WEIGHT_FFN_WHOLE, 1, 1, "layer_output_scale.weight");
out:
    return status;
}

/* The router reads x / rms(x), times factors of its own. */
static tsr_tensor *ffn_and_experts(const tsr_layer *at, tsr_tensor *x)
{
    tsr_graph *graph = at->step->graph;
    const tsr_layer_weights *w = at->w;
    tsr_tensor *y = tsr_block_ffn(at, tsr_block_norm(at, x, w->ffn_norm));
    if (!w->router)
        return y;
    y = tsr_block_norm(at, y, w->dense_post_norm);
    tsr_tensor *of_router =
        tsr_scale(graph, tsr_block_norm(at, x, w->router_scale), (float)(1 / sqrt((double)at->hp->n_embd)));
    tsr_tensor *z = tsr_block_experts(at, tsr_block_norm(at, x, w->expert_norm), of_router);
    return tsr_add(graph, tsr_block_norm(at, z, w->expert_post_norm), y);
}

static tsr_tensor *build_layer(const tsr_layer *at, tsr_tensor *x)
{
    const tsr_layer_weights *w = at->w;
    tsr_tensor *y = tsr_block_attention(at, tsr_block_norm(at, x, w->attn_norm));
    x = tsr_block_residual(at, x, tsr_block_norm(at, y, w->attn_post_norm));
    x = tsr_block_outputs(at, x);
    x = tsr_block_residual(at, x, tsr_block_norm(at, ffn_and_experts(at, x), w->ffn_post_norm));
    x = tsr_block_layer_input(at, x);
    return w->output_scale ? tsr_scale_by(at->step->graph, x, w->output_scale) : x;
}

const tsr_arch tsr_arch_gemma4 = {.name = "gemma4",
                                  .experts = true,
                                  .read_hparams = read_hparams,
                                  .read_layer = read_layer,
                                  .declare_layer = declare_layer,
                                  .build_layer = build_layer};
