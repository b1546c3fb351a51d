/* A short convolution between two gates (LFM2, arXiv:2511.23404):
 *
 *     [b | c | u] = W_in h
 *     y = W_out (c * conv(b * u))
 *
 * The convolution is causal and of each channel by itself. Its state is the last inputs b * u, so every
 * device keeps those of its channels. Channels are divided in groups like heads, with their rows of b, c and
 * u and their columns of W_out, which yields a sum over devices. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

tsr_status tsr_declare_short_conv(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_conv_weights *layer = &w->layers[l].conv;
    const tsr_layer_kind *k = tsr_hparams_layer(hp, l);
    const int64_t n = k->n_head * k->head_dim;
    tsr_tensor **const rows[] = {&layer->before, &layer->after, &layer->x};
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.shortconv.in_proj.weight", l);
    for (int i = 0; i < 3; i++)
        TSR_TRY(tsr_weights_declare_rows(w, true, TSR_WEIGHT_KV_ROWS, l,
                                         (tsr_weight_rows){hp->n_embd, i * n, n, 3 * n}, rows[i], name));
    TSR_DECLARE(conv, true, TSR_WEIGHT_KV_ROWS, k->conv_kernel, n, "shortconv.conv.weight");
    TSR_DECLARE(out, true, TSR_WEIGHT_Q_COLUMNS, n, hp->n_embd, "shortconv.out_proj.weight");
out:
    return status;
}

tsr_tensor *tsr_block_short_conv(const tsr_layer *at, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    const tsr_conv_weights *w = &at->w->conv;
    const tsr_weight_parts conv = {.at = {w->conv}, .n = 1};
    tsr_tensor *x =
        tsr_glu(graph, TSR_GLU_PLAIN, 0, tsr_mul_mat(graph, w->before, h), tsr_mul_mat(graph, w->x, h));
    x = tsr_conv(graph, at->step->kv_inputs, at->index, 0, x, &conv, NULL, false);
    x = tsr_glu(graph, TSR_GLU_PLAIN, 0, tsr_mul_mat(graph, w->after, h), x);
    return tsr_mul_mat(graph, w->out, x);
}
