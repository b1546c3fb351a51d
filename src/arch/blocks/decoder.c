/* The parts of a decoder around its layers: embedding, last norm, output matrix; and the sums between
 * blocks. */
#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_declare_decoder(tsr_weights *w, const tsr_hparams *hp,
                               tsr_status (*layer)(tsr_weights *, const tsr_hparams *, int))
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_EMBEDDING, hp->n_embd, hp->n_vocab,
                                &w->embedding, "token_embd.weight"));
    TSR_TRY(tsr_declare_layer_inputs(w, hp));
    for (int l = 0; l < (int)hp->n_layers; l++)
        TSR_TRY(layer(w, hp, l));
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_OUTPUT, hp->n_embd, 1,
                                &w->output_norm, "%s.weight",
                                hp->output_norm ? hp->output_norm : "output_norm"));
    if (hp->layer_norm)
        TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_OUTPUT, hp->n_embd, 1,
                                    &w->output_norm_bias, "output_norm.bias"));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_OUTPUT, hp->n_embd, hp->n_vocab,
                                &w->output, "output.weight"));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_OUTPUT, hp->n_vocab, 1,
                                &w->output_bias, "output.bias"));
    if (!w->output)
        TSR_TRY(tsr_weights_tie_output(w));
    if (hp->n_streams > 0)
        TSR_TRY(tsr_declare_output_streams(w, hp));
    if (hp->predicts)
        TSR_TRY(tsr_declare_prediction(w, hp));
out:
    return status;
}

tsr_tensor *tsr_block_factor(tsr_graph *graph, tsr_tensor *x, double factor)
{
    return factor != 0 && factor != 1 ? tsr_scale(graph, x, (float)factor) : x;
}

tsr_tensor *tsr_block_logits(const tsr_hparams *hp, const tsr_weights *w, tsr_graph *graph,
                             tsr_tensor *output, tsr_tensor *x)
{
    x = tsr_mul_mat(graph, output, x);
    x = tsr_block_factor(graph, w->output_bias ? tsr_add(graph, x, w->output_bias) : x, hp->logit_scale);
    return hp->logit_softcap > 0 ? tsr_softcap(graph, x, (float)hp->logit_softcap) : x;
}

tsr_tensor *tsr_build_decoder(const tsr_hparams *hp, const tsr_weights *w, tsr_step_graph *step,
                              tsr_tensor *(*layer)(const tsr_layer *, tsr_tensor *))
{
    tsr_graph *graph = step->graph;
    tsr_tensor *x =
        tsr_block_factor(graph, tsr_get_rows(graph, w->embedding, step->tokens), hp->embedding_scale);
    tsr_tensor *layer_input = tsr_build_layer_inputs(hp, w, step, x), *selection = NULL;
    if (hp->n_streams > 0)
        x = tsr_build_streams(hp, graph, x);
    for (int l = 0; l < (int)tsr_hparams_n_step_layers(hp); l++) {
        tsr_layer at = {.step = step,
                        .hp = hp,
                        .kind = tsr_hparams_layer(hp, l),
                        .w = &w->layers[l],
                        .ffn_columns = w->ffn_columns,
                        .layer_input = layer_input,
                        .selection = &selection,
                        .index = l};
        x = layer(&at, x);
    }
    if (hp->n_streams > 0)
        x = tsr_build_output_stream(hp, w, graph, x);
    if (hp->predicts) {
        step->hidden_out = tsr_graph_output(graph, x);
        x = tsr_get_rows(graph, x, step->output_rows);
    }
    x = tsr_block_model_norm(hp, graph, x, w->output_norm, w->output_norm_bias);
    return step->embeds ? x : tsr_block_logits(hp, w, graph, w->output, x);
}

tsr_status tsr_declare_norm(tsr_weights *w, tsr_weight_role role, int l, int64_t n, const char *name,
                            tsr_tensor **norm_out)
{
    return tsr_weights_declare(w, true, role, l, n, 1, norm_out, "blk.%d.%s.weight", l, name);
}

tsr_status tsr_declare_pre_norms(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "attn_norm", &layer->attn_norm));
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd, "ffn_norm", &layer->ffn_norm));
out:
    return status;
}

tsr_status tsr_declare_post_norms(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "post_attention_norm",
                             &layer->attn_post_norm));
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd, "post_ffw_norm", &layer->ffn_post_norm));
out:
    return status;
}

tsr_status tsr_declare_ffn_or_experts(tsr_weights *w, const tsr_hparams *hp, int l)
{
    return tsr_hparams_layer(hp, l)->ffn == TSR_FFN_EXPERTS ? tsr_declare_experts(w, hp, l)
                                                            : tsr_declare_ffn(w, hp, l);
}

tsr_status tsr_declare_renamed_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, hp->n_embd, "attn_norm", &layer->attn_norm));
    TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(
        tsr_declare_norm(w, TSR_WEIGHT_FFN_WHOLE, l, hp->n_embd, "post_attention_norm", &layer->ffn_norm));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

tsr_status tsr_declare_plain_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_declare_pre_norms(w, hp, l));
    if (tsr_hparams_layer(hp, l)->mixer == TSR_MIXER_MAMBA)
        TSR_TRY(tsr_declare_mamba(w, hp, l));
    else
        TSR_TRY(tsr_declare_attention(w, hp, l));
    TSR_TRY(tsr_declare_ffn_or_experts(w, hp, l));
out:
    return status;
}

static tsr_tensor *mix(const tsr_layer *at, tsr_tensor *h)
{
    switch (at->kind->mixer) {
    case TSR_MIXER_ATTENTION:
    case TSR_MIXER_NONE:
        break;
    case TSR_MIXER_DELTA:
        return tsr_block_delta(at, h);
    case TSR_MIXER_LATENT:
        return tsr_block_latent(at, h);
    case TSR_MIXER_CONV:
        return tsr_block_short_conv(at, h);
    case TSR_MIXER_MAMBA:
        return tsr_block_mamba(at, h);
    case TSR_MIXER_COMPRESSED:
        return tsr_block_compressed(at, h);
    }
    return tsr_block_attention(at, h);
}

/* x and what the layer's mixers add to it. */
static tsr_tensor *mixed(const tsr_layer *at, tsr_tensor *x)
{
    tsr_tensor *h = tsr_block_norm(at, x, at->w->attn_norm);
    tsr_tensor *y = mix(at, h);
    x = tsr_block_residual(at, x, tsr_block_norm(at, y, at->w->attn_post_norm));
    return at->kind->beside ? tsr_block_residual(at, x, tsr_block_mamba(at, h)) : x;
}

tsr_tensor *tsr_build_layer(const tsr_layer *at, tsr_tensor *x)
{
    if (at->kind->mixer != TSR_MIXER_NONE)
        x = mixed(at, x);
    x = tsr_block_outputs(at, x);
    if (at->kind->ffn == TSR_FFN_NONE)
        return x;
    tsr_tensor *h = tsr_block_norm(at, x, at->w->ffn_norm);
    tsr_tensor *y = at->w->router ? tsr_block_experts(at, h, h) : tsr_block_ffn(at, h);
    return tsr_block_residual(at, x, tsr_block_norm(at, y, at->w->ffn_post_norm));
}

tsr_tensor *tsr_block_norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight)
{
    return weight ? tsr_rms_norm(at->step->graph, x, weight, at->hp->norm_eps) : x;
}

tsr_tensor *tsr_block_model_norm(const tsr_hparams *hp, tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight,
                                 tsr_tensor *bias)
{
    return hp->layer_norm ? tsr_layer_norm(graph, x, weight, bias, hp->norm_eps)
                          : tsr_rms_norm(graph, x, weight, hp->norm_eps);
}

tsr_tensor *tsr_block_outputs(const tsr_layer *at, tsr_tensor *x)
{
    const bool is_last = at->index + 1 == (int)at->hp->n_layers; /* of a step, or the prediction layer */
    return is_last ? tsr_get_rows(at->step->graph, x, at->step->output_rows) : x;
}

tsr_tensor *tsr_block_linear(const tsr_layer *at, tsr_tensor *w, tsr_tensor *bias, tsr_tensor *x)
{
    tsr_tensor *y = tsr_mul_mat(at->step->graph, w, x);
    return bias ? tsr_add(at->step->graph, y, bias) : y;
}

tsr_tensor *tsr_block_residual(const tsr_layer *at, tsr_tensor *x, tsr_tensor *y)
{
    return tsr_add(at->step->graph, tsr_block_factor(at->step->graph, y, at->hp->residual_scale), x);
}
