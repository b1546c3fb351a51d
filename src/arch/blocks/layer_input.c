/* Embeddings per layer (Gemma 3n and 4). With e the scaled embedding of a token and n the length of a layer's
 * input, every layer l has an input
 *
 *     p_l = (norm(Wproj e / sqrt(n_embd))_l + sqrt(n) E[token]_l) / sqrt(2)
 *
 * a part of n elements of a row for all layers, and ends with
 *
 *     h = h + norm(Wout (gelu(Wgate h) * p_l))
 *
 * E is as large as the embedding of a much wider model, so its rows are divided like those of the
 * embedding. */
#include <math.h>

#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_declare_layer_inputs(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    const int64_t n = hp->n_layer_input, all = n * hp->n_layers;
    if (n == 0)
        return TSR_OK;
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_EMBEDDING, all, hp->n_vocab,
                                &w->layer_embedding, "per_layer_token_embd.weight"));
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_EMBEDDING, hp->n_embd, all,
                                &w->layer_proj, "per_layer_model_proj.weight"));
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_EMBEDDING, n, 1,
                                &w->layer_proj_norm, "per_layer_proj_norm.weight"));
out:
    return status;
}

tsr_status tsr_declare_layer_input(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const int64_t n = hp->n_layer_input;
    if (n == 0)
        return TSR_OK;
    TSR_DECLARE(input_gate, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, n, "inp_gate.weight");
    TSR_DECLARE(input_proj, true, TSR_WEIGHT_FFN_WHOLE, n, hp->n_embd, "proj.weight");
    TSR_DECLARE(input_norm, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "post_norm.weight");
out:
    return status;
}

tsr_tensor *tsr_build_layer_inputs(const tsr_hparams *hp, const tsr_weights *w, const tsr_step_graph *step,
                                   tsr_tensor *x)
{
    tsr_graph *graph = step->graph;
    const double n = (double)hp->n_layer_input;
    if (!w->layer_embedding)
        return NULL;
    tsr_tensor *p = tsr_mul_mat(graph, w->layer_proj, x);
    p = tsr_scale(graph, p, (float)(1 / sqrt((double)hp->n_embd)));
    p = tsr_rms_norm(graph, p, w->layer_proj_norm, hp->norm_eps);
    tsr_tensor *rows = tsr_get_rows(graph, w->layer_embedding, step->tokens);
    p = tsr_add(graph, tsr_scale(graph, rows, (float)sqrt(n)), p);
    return tsr_scale(graph, p, (float)sqrt(0.5));
}

tsr_tensor *tsr_block_layer_input(const tsr_layer *at, tsr_tensor *x)
{
    tsr_graph *graph = at->step->graph;
    const int64_t n = at->hp->n_layer_input;
    if (!at->layer_input)
        return x;
    const tsr_columns columns = {.period = tsr_tensor_ne(at->layer_input)[0], .first = at->index * n, .n = n};
    tsr_tensor *p = tsr_block_outputs(at, tsr_take_columns(graph, at->layer_input, columns));
    tsr_tensor *y = tsr_geglu(graph, tsr_mul_mat(graph, at->w->input_gate, x), p);
    y = tsr_mul_mat(graph, at->w->input_proj, y);
    return tsr_add(graph, tsr_block_norm(at, y, at->w->input_norm), x);
}
