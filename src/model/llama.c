/* The llama architecture: pre-norm attention with grouped query heads and rotary embedding, SwiGLU FFN. */
#include <math.h>

#include "model/arch.h"

static tsr_status read_hparams(const tsr_gguf *gguf, tsr_hparams *hparams_out)
{
    tsr_status status = tsr_hparams_read(gguf, "llama", hparams_out);
    if (status == TSR_OK)
        hparams_out->rope_interleaved = true;
    return status;
}

static tsr_status declare_layer(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    int64_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;

#define DECLARE(field, required, role, ne0, ne1, name) \
    TSR_TRY(tsr_weights_declare(w, required, role, l, ne0, ne1, &layer->field, "blk.%d." name, l))
    DECLARE(attn_norm, true, TSR_WEIGHT_ATTENTION_WHOLE, hp->n_embd, 1, "attn_norm.weight");
    DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, hp->n_embd, n_q, "attn_q.weight");
    DECLARE(wk, true, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_k.weight");
    DECLARE(wv, true, TSR_WEIGHT_KV_ROWS, hp->n_embd, n_kv, "attn_v.weight");
    DECLARE(wo, true, TSR_WEIGHT_Q_COLUMNS, n_q, hp->n_embd, "attn_output.weight");
    DECLARE(bq, false, TSR_WEIGHT_Q_ROWS, n_q, 1, "attn_q.bias");
    DECLARE(bk, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_k.bias");
    DECLARE(bv, false, TSR_WEIGHT_KV_ROWS, n_kv, 1, "attn_v.bias");
    DECLARE(ffn_norm, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_norm.weight");
    DECLARE(gate, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_gate.weight");
    DECLARE(up, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_up.weight");
    DECLARE(down, true, TSR_WEIGHT_FFN_COLUMNS, hp->n_ff, hp->n_embd, "ffn_down.weight");
#undef DECLARE
out:
    return status;
}

static tsr_status declare(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_EMBEDDING, hp->n_embd, hp->n_vocab,
                                &w->embedding, "token_embd.weight"));
    for (int l = 0; l < (int)hp->n_layers; l++)
        TSR_TRY(declare_layer(w, hp, l));
    TSR_TRY(tsr_weights_declare(w, true, TSR_WEIGHT_OUTPUT_WHOLE, TSR_LAYER_OUTPUT, hp->n_embd, 1,
                                &w->output_norm, "output_norm.weight"));
    TSR_TRY(tsr_weights_declare(w, false, TSR_WEIGHT_VOCAB_ROWS, TSR_LAYER_OUTPUT, hp->n_embd, hp->n_vocab,
                                &w->output, "output.weight"));
    if (!w->output)
        TSR_TRY(tsr_weights_tie_output(w));
out:
    return status;
}

static tsr_tensor *project(tsr_graph *graph, tsr_tensor *w, tsr_tensor *bias, tsr_tensor *x)
{
    tsr_tensor *y = tsr_mul_mat(graph, w, x);
    return bias ? tsr_add(graph, y, bias) : y;
}

static tsr_tensor *build_attention(const tsr_hparams *hp, const tsr_layer_weights *w, int layer,
                                   const tsr_step_graph *step, tsr_tensor *x)
{
    tsr_graph *graph = step->graph;
    tsr_tensor *h = tsr_rms_norm(graph, x, w->attn_norm, hp->norm_eps);
    tsr_tensor *q = project(graph, w->wq, w->bq, h);
    tsr_tensor *k = project(graph, w->wk, w->bk, h);
    tsr_tensor *v = project(graph, w->wv, w->bv, h);
    q = tsr_rope(graph, q, step->rope_table, hp->head_dim, hp->rope_interleaved);
    k = tsr_rope(graph, k, step->rope_table, hp->head_dim, hp->rope_interleaved);
    tsr_kv_store(graph, step->kv, layer, k, v, &step->kv_inputs);
    float scale = (float)(1.0 / sqrt((double)hp->head_dim));
    tsr_tensor *a = tsr_attention(graph, step->kv, layer, q, &step->kv_inputs, scale, 0, 0);
    return tsr_add(graph, tsr_mul_mat(graph, w->wo, a), x);
}

static tsr_tensor *build_ffn(const tsr_hparams *hp, const tsr_layer_weights *w, tsr_graph *graph,
                             tsr_tensor *x)
{
    tsr_tensor *h = tsr_rms_norm(graph, x, w->ffn_norm, hp->norm_eps);
    tsr_tensor *gate = tsr_mul_mat(graph, w->gate, h);
    tsr_tensor *up = tsr_mul_mat(graph, w->up, h);
    return tsr_add(graph, tsr_mul_mat(graph, w->down, tsr_swiglu(graph, gate, up)), x);
}

static tsr_tensor *build(const tsr_hparams *hp, const tsr_weights *w, const tsr_step_graph *step)
{
    tsr_graph *graph = step->graph;
    tsr_tensor *x = tsr_get_rows(graph, w->embedding, step->tokens);
    for (int l = 0; l < (int)hp->n_layers; l++) {
        x = build_attention(hp, &w->layers[l], l, step, x);
        x = build_ffn(hp, &w->layers[l], graph, x);
    }
    x = tsr_get_rows(graph, x, step->output_rows);
    x = tsr_rms_norm(graph, x, w->output_norm, hp->norm_eps);
    return tsr_mul_mat(graph, w->output, x);
}

const tsr_arch tsr_arch_llama = {
    .name = "llama", .read_hparams = read_hparams, .declare = declare, .build = build};
