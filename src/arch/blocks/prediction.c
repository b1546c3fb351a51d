/* The prediction layer: one more layer behind the last, which proposes a further token (multi-token
 * prediction; DeepSeek-V3, arXiv:2412.19437, section 2.2). With h the residual stream behind the last layer
 * at a token, and e the embedding of the token after it,
 *
 *     x = W [norm_e(e) | norm_h(h)]
 *     x = layer(x)                           like the model's, with keys and values of its own
 *     logits = W_out norm(x)
 *
 * W is taken apart by columns, so that nothing is joined: x = W_e norm_e(e) + W_h norm_h(h). The embedding,
 * the last norm and W_out are the model's where the file has no others. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_declare_prediction(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    const int l = (int)hp->n_layers - 1;
    const int64_t n = hp->n_embd;
    tsr_prediction_weights *p = &w->prediction;
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", l);
    TSR_TRY(tsr_weights_declare_columns(w, TSR_WEIGHT_ATTENTION_WHOLE, l,
                                        (tsr_weight_columns){0, n, 2 * n, n}, &p->of_embedding, name));
    TSR_TRY(tsr_weights_declare_columns(w, TSR_WEIGHT_ATTENTION_WHOLE, l,
                                        (tsr_weight_columns){n, n, 2 * n, n}, &p->of_hidden, name));
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, n, "nextn.enorm", &p->embedding_norm));
    TSR_TRY(tsr_declare_norm(w, TSR_WEIGHT_ATTENTION_WHOLE, l, n, "nextn.hnorm", &p->hidden_norm));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_OUTPUT, n, 1, &p->norm,
                                "blk.%d.nextn.shared_head_norm.weight", l));
    if (!p->norm) /* the name of bailingmoe2's files */
        TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_OUTPUT, n, 1, &p->norm,
                                    "blk.%d.layer_output_norm.weight", l));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_EMBEDDING, n, hp->n_vocab,
                                &p->embedding, "blk.%d.nextn.embed_tokens.weight", l));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_OUTPUT, n, hp->n_vocab, &p->output,
                                "blk.%d.nextn.shared_head_head.weight", l));
out:
    return status;
}

/* No file has biases of norms here. */
static tsr_tensor *norm(const tsr_layer *at, tsr_tensor *x, tsr_tensor *weight)
{
    return tsr_block_model_norm(at->hp, at->step->graph, x, weight, NULL);
}

tsr_tensor *tsr_build_prediction(const tsr_hparams *hp, const tsr_weights *w, const tsr_step_graph *step,
                                 tsr_tensor *(*layer)(const tsr_layer *, tsr_tensor *))
{
    tsr_graph *graph = step->graph;
    const tsr_prediction_weights *p = &w->prediction;
    const int l = (int)hp->n_layers - 1;
    tsr_tensor *selection = NULL;
    const tsr_layer at = {.step = step,
                          .hp = hp,
                          .kind = tsr_hparams_layer(hp, l),
                          .w = &w->layers[l],
                          .ffn_columns = w->ffn_columns,
                          .selection = &selection,
                          .index = l};
    tsr_tensor *e = tsr_get_rows(graph, p->embedding ? p->embedding : w->embedding, step->tokens);
    e = tsr_block_factor(graph, e, hp->embedding_scale);
    tsr_tensor *x = tsr_mul_mat(graph, p->of_embedding, norm(&at, e, p->embedding_norm));
    tsr_tensor *y = tsr_mul_mat(graph, p->of_hidden, norm(&at, step->hidden_in, p->hidden_norm));
    x = layer(&at, tsr_add(graph, x, y));
    x = norm(&at, x, p->norm ? p->norm : w->output_norm);
    return tsr_block_logits(hp, w, graph, p->output ? p->output : w->output, x);
}
