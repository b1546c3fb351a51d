/* Residual streams (hyper-connections, arXiv:2409.19606; with a mixing that keeps sums, arXiv:2512.24880). A
 * token has n streams X_i instead of one, all of which begin as its embedding. Every block reads a sum of
 * them, and its result goes to each:
 *
 *     m = W (flat X / rms(flat X));  pre, post and C from m (STREAM_WEIGHTS in core/op.h)
 *     X_k = post_k block(norm(sum_i pre_i X_i)) + sum_j C_jk X_j
 *
 * The last norm reads a sum with weights of its own. Streams are whole on every device, as the one stream of
 * other models is. */
#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare(tsr_weights *w, const tsr_hparams *hp, tsr_weight_role role, int l,
                          const char *block, tsr_stream_weights_of *s)
{
    tsr_status status = TSR_OK;
    const int64_t n = hp->n_streams, all = (2 + n) * n;
    TSR_TRY(tsr_weights_declare(w, true, role, l, n * hp->n_embd, all, &s->matrix, "blk.%d.hc_%s_fn.weight",
                                l, block));
    TSR_TRY(tsr_weights_declare(w, true, role, l, 3, 1, &s->scale, "blk.%d.hc_%s_scale.weight", l, block));
    TSR_TRY(tsr_weights_declare(w, true, role, l, all, 1, &s->base, "blk.%d.hc_%s_base.weight", l, block));
out:
    return status;
}

tsr_status tsr_declare_streams(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(declare(w, hp, TSR_WEIGHT_ATTENTION_WHOLE, l, "attn", &w->layers[l].attn_streams));
    TSR_TRY(declare(w, hp, TSR_WEIGHT_FFN_WHOLE, l, "ffn", &w->layers[l].ffn_streams));
out:
    return status;
}

tsr_status tsr_declare_output_streams(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    const tsr_weight_role role = TSR_WEIGHT_OUTPUT_WHOLE;
    tsr_stream_weights_of *s = &w->output_streams;
    TSR_TRY(tsr_weights_declare(w, true, role, TSR_LAYER_OUTPUT, hp->n_streams * hp->n_embd, hp->n_streams,
                                &s->matrix, "output_hc_fn.weight"));
    TSR_TRY(tsr_weights_declare(w, true, role, TSR_LAYER_OUTPUT, 1, 1, &s->scale, "output_hc_scale.weight"));
    TSR_TRY(tsr_weights_declare(w, true, role, TSR_LAYER_OUTPUT, hp->n_streams, 1, &s->base,
                                "output_hc_base.weight"));
out:
    return status;
}

tsr_tensor *tsr_build_streams(const tsr_hparams *hp, tsr_graph *graph, tsr_tensor *x)
{
    return tsr_stream_mix(graph, x, NULL, NULL, &(tsr_mix_rule){.n_in = 1, .n_out = hp->n_streams});
}

static tsr_tensor *weights_of(const tsr_hparams *hp, tsr_graph *graph, const tsr_stream_weights_of *s,
                              bool mixes, tsr_tensor *x)
{
    const tsr_stream_rule rule = {.n = hp->n_streams,
                                  .iterations = hp->stream_iterations,
                                  .mixes = mixes,
                                  .eps = hp->stream_eps,
                                  .scale = s->scale,
                                  .base = s->base};
    tsr_tensor *flat = tsr_rms_norm_plain(graph, x, hp->n_streams * hp->n_embd, hp->norm_eps);
    return tsr_stream_weights(graph, tsr_mul_mat(graph, s->matrix, flat), &rule);
}

/* The sum of the streams that a block reads. */
static tsr_tensor *collected(const tsr_hparams *hp, tsr_graph *graph, tsr_tensor *x, tsr_tensor *weights)
{
    return tsr_stream_mix(graph, x, weights, NULL, &(tsr_mix_rule){.n_in = hp->n_streams, .n_out = 1});
}

/* The streams with the result y of a block. */
static tsr_tensor *distributed(const tsr_hparams *hp, tsr_graph *graph, tsr_tensor *x, tsr_tensor *weights,
                               tsr_tensor *y)
{
    const int64_t n = hp->n_streams;
    return tsr_stream_mix(graph, x, weights, y,
                          &(tsr_mix_rule){.n_in = n, .n_out = n, .first = 2 * n, .add_first = n});
}

tsr_tensor *tsr_build_output_stream(const tsr_hparams *hp, const tsr_weights *w, tsr_graph *graph,
                                    tsr_tensor *x)
{
    return collected(hp, graph, x, weights_of(hp, graph, &w->output_streams, false, x));
}

tsr_tensor *tsr_build_stream_layer(const tsr_layer *at, tsr_tensor *x)
{
    const tsr_hparams *hp = at->hp;
    tsr_graph *graph = at->step->graph;
    tsr_tensor *weights = weights_of(hp, graph, &at->w->attn_streams, true, x);
    tsr_tensor *h = tsr_block_norm(at, collected(hp, graph, x, weights), at->w->attn_norm);
    x = tsr_block_outputs(at, distributed(hp, graph, x, weights, tsr_block_compressed(at, h)));
    weights = weights_of(hp, graph, &at->w->ffn_streams, true, x);
    h = tsr_block_norm(at, collected(hp, graph, x, weights), at->w->ffn_norm);
    return distributed(hp, graph, x, weights, tsr_block_experts(at, h, h));
}
