/* Attention to the positions of a window and to compressed rows of all positions (DeepSeek V4).
 *
 *     c = norm(W_c h), rotated at its end               key and value of all heads, of each position
 *     row of `ratio` positions: norm(COMPRESS(W_x h, W_gate h)), rotated as the first of them
 *     query of head i: part i of W_q norm(W_a h), divided by its rms, rotated
 *     y = softmax over the window, the rows and a sink;  rotated back by the query's position
 *     result: W_o [.. W_g (y of the heads of group g) ..]
 *
 * Layers whose rows are selected (blocks/index.c) have index keys, which are rows of their own, and rows that
 * overlap. A row is written with its last position, and seen from there on.
 *
 * All heads read the same rows, so every device with heads stores them whole. Every device of the layer's
 * group computes them, and has the state of the rows that are not complete, also without heads. Groups of
 * heads are divided, and the columns of W_o with them. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

/* A compressor to rows of `dim` elements; `halves` 2: rows overlap. */
static tsr_status declare_compressor(tsr_weights *w, const tsr_hparams *hp, int l, int64_t dim,
                                     int64_t halves, const char *kind, tsr_compressor_weights *c)
{
    tsr_status status = TSR_OK;
    const tsr_weight_role whole = TSR_WEIGHT_ATTENTION_WHOLE;
    const int64_t n = halves * dim;
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_weights_declare(w, true, whole, l, hp->n_embd, n, &c->x, "blk.%d.%s_compressor_kv.weight", l,
                                kind));
    TSR_TRY(tsr_weights_declare(w, true, whole, l, hp->n_embd, n, &c->gate,
                                "blk.%d.%s_compressor_gate.weight", l, kind));
    snprintf(name, sizeof name, "blk.%d.%s_compressor_ape.weight", l, kind);
    TSR_TRY(
        tsr_weights_declare_vector(w, true, whole, l, n, tsr_hparams_layer(hp, l)->ratio, &c->bias, name));
    TSR_TRY(tsr_weights_declare(w, true, whole, l, dim, 1, &c->norm, "blk.%d.%s_compressor_norm.weight", l,
                                kind));
out:
    return status;
}

static tsr_status declare_rows(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    const tsr_weight_role whole = TSR_WEIGHT_ATTENTION_WHOLE;
    const int64_t halves = kind->index_dim > 0 ? 2 : 1, n_index = hp->indexer.n_heads;
    if (kind->ratio == 0)
        return TSR_OK;
    TSR_TRY(declare_compressor(w, hp, l, kind->head_dim, halves, "attn", &layer->compressor));
    if (kind->index_dim == 0)
        return TSR_OK;
    TSR_TRY(declare_compressor(w, hp, l, kind->index_dim, halves, "indexer", &layer->index_compressor));
    TSR_DECLARE(index.q, true, whole, hp->latent.q_rank, n_index * kind->index_dim,
                "indexer.attn_q_b.weight");
    TSR_DECLARE(index.proj, true, whole, hp->n_embd, n_index, "indexer.proj.weight");
out:
    return status;
}

tsr_status tsr_declare_compressed(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const tsr_layer_kind *kind = tsr_hparams_layer(hp, l);
    const tsr_weight_role whole = TSR_WEIGHT_ATTENTION_WHOLE;
    const int64_t rank = hp->latent.q_rank, dim = kind->head_dim, n_groups = kind->n_head_kv;
    const int64_t n_q = kind->n_head * dim;
    TSR_DECLARE(latent_q, true, whole, hp->n_embd, rank, "attn_q_a.weight");
    TSR_DECLARE(latent_q_norm, true, whole, rank, 1, "attn_q_a_norm.weight");
    TSR_DECLARE(wq, true, TSR_WEIGHT_Q_ROWS, rank, n_q, "attn_q_b.weight");
    TSR_DECLARE(latent_kv, true, whole, hp->n_embd, dim, "attn_kv.weight");
    TSR_DECLARE(latent_kv_norm, true, whole, dim, 1, "attn_kv_a_norm.weight");
    TSR_DECLARE(sinks, false, TSR_WEIGHT_Q_HEADS, kind->n_head, 1, "attn_sinks.weight");
    TSR_DECLARE(group_out, true, TSR_WEIGHT_Q_ROWS, n_q / n_groups, n_groups * hp->out_rank,
                "attn_output_a.weight");
    TSR_DECLARE(wo, true, TSR_WEIGHT_Q_COLUMNS, n_groups * hp->out_rank, hp->n_embd, "attn_output_b.weight");
    tsr_weights_cut_heads(layer->group_out, hp->out_rank);
    tsr_weights_cut_heads(layer->wo, hp->out_rank);
    TSR_TRY(declare_rows(w, hp, l));
out:
    return status;
}

/* The rows of a compressor, with a row for the last of `ratio` tokens; `part` of the layer's state. */
static tsr_tensor *rows(const tsr_layer *at, tsr_tensor *h, const tsr_compressor_weights *w, int part,
                        int64_t dim, int slot)
{
    const tsr_step_graph *step = at->step;
    const tsr_compress_rule rule = {
        .ratio = at->kind->ratio, .overlap = at->kind->index_dim > 0, .bias = w->bias};
    tsr_tensor *x = tsr_mul_mat(step->graph, w->x, h), *gate = tsr_mul_mat(step->graph, w->gate, h);
    x = tsr_compress(step->graph, step->kv_inputs, at->index, part, x, gate, &rule);
    return tsr_block_rotate(at, tsr_block_norm(at, x, w->norm), dim, slot);
}

/* Store rows of a KV layer. */
static void store(const tsr_layer *at, int layer, tsr_tensor *x)
{
    tsr_kv_store(at->step->graph, at->step->kv_inputs, layer, x, x);
}

/* The rows that the layer sees, by index queries made of q_input; NULL: all. */
static tsr_tensor *select_rows(const tsr_layer *at, tsr_tensor *h, tsr_tensor *q_input)
{
    tsr_graph *graph = at->step->graph;
    const int64_t dim = at->kind->index_dim;
    const int layer = (int)tsr_hparams_index_layer(at->hp, at->index);
    const tsr_index_weights *w = &at->w->index;
    const tsr_select_rule rule = {.n_blocks = at->kind->n_selected, .block = 1};
    if (dim == 0)
        return NULL;
    store(at, layer, rows(at, h, &at->w->index_compressor, 1, dim, TSR_ROPE_INDEX_ROWS));
    tsr_tensor *q = tsr_block_rotate(at, tsr_mul_mat(graph, w->q, q_input), dim, TSR_ROPE_INDEX);
    return tsr_select(graph, at->step->kv_inputs, layer, q, tsr_mul_mat(graph, w->proj, h), &rule);
}

tsr_tensor *tsr_block_compressed(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_step_graph *step = at->step;
    tsr_graph *graph = step->graph;
    const tsr_layer_kind *kind = at->kind;
    const tsr_layer_weights *w = at->w;
    const int64_t dim = kind->head_dim;
    tsr_attention_config config = tsr_block_attention_config(at, dim);
    tsr_tensor *q = tsr_block_norm(at, tsr_mul_mat(graph, w->latent_q, h), w->latent_q_norm);
    if (kind->ratio > 0) {
        const int slot = kind->index_dim > 0 ? TSR_ROPE_CHOSEN_ROWS : TSR_ROPE_ROWS;
        config.sees_more = true;
        config.more_layer = (int)tsr_hparams_rows_layer(at->hp, at->index);
        config.selection = select_rows(at, h, q);
        store(at, config.more_layer, rows(at, h, &w->compressor, 0, dim, slot));
    }
    q = tsr_rms_norm_plain(graph, tsr_mul_mat(graph, w->wq, q), dim, at->hp->norm_eps);
    q = tsr_block_rotate(at, q, dim, kind->rope_q);
    tsr_tensor *c = tsr_block_norm(at, tsr_mul_mat(graph, w->latent_kv, h), w->latent_kv_norm);
    c = tsr_block_rotate(at, c, dim, kind->rope_k);
    store(at, at->index, c);
    tsr_tensor *y = tsr_attention(graph, step->kv_inputs, at->index, q, &config);
    y = tsr_block_rotate(at, y, dim, kind->ratio > 0 ? TSR_ROPE_WIDE_BACK : TSR_ROPE_BACK);
    return tsr_mul_mat(graph, w->wo, tsr_mul_heads(graph, w->group_out, y, kind->n_head_kv));
}
