/* The dense FFN: down(act(gate h) * up h), act being SiLU or GELU. gate and up are divided by rows, down by
 * the same columns. */
#include <stdio.h>

#include "core/status.h"
#include "model/blocks.h"

/* Files without ffn_gate keep both in ffn_up: gate's rows, then up's. */
static bool is_fused(const tsr_weights *w, const tsr_hparams *hp, int l)
{
    char gate[TSR_MAX_NAME], up[TSR_MAX_NAME];
    if (!w->gguf)
        return false;
    snprintf(gate, sizeof gate, "blk.%d.ffn_gate.weight", l);
    snprintf(up, sizeof up, "blk.%d.ffn_up.weight", l);
    const tsr_gguf_tensor *both = tsr_gguf_find_tensor(w->gguf, up);
    return !tsr_gguf_find_tensor(w->gguf, gate) && both && both->ne[1] == 2 * hp->n_ff;
}

static tsr_status declare_fused(tsr_weights *w, const tsr_hparams *hp, int l, int64_t ne0, const char *suffix,
                                tsr_tensor **gate, tsr_tensor **up)
{
    tsr_status status = TSR_OK;
    char name[TSR_MAX_NAME];
    int64_t n = hp->n_ff;
    snprintf(name, sizeof name, "blk.%d.ffn_up.%s", l, suffix);
    TSR_TRY(tsr_weights_declare_rows(w, ne0 > 1, TSR_WEIGHT_FFN_ROWS, l, (tsr_weight_rows){ne0, 0, n, 2 * n},
                                     gate, name));
    TSR_TRY(tsr_weights_declare_rows(w, ne0 > 1, TSR_WEIGHT_FFN_ROWS, l, (tsr_weight_rows){ne0, n, n, 2 * n},
                                     up, name));
out:
    return status;
}

tsr_status tsr_declare_ffn(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    if (is_fused(w, hp, l)) {
        TSR_TRY(declare_fused(w, hp, l, hp->n_embd, "weight", &layer->gate, &layer->up));
        TSR_TRY(declare_fused(w, hp, l, 1, "bias", &layer->gate_bias, &layer->up_bias));
    } else {
        TSR_DECLARE(gate, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_gate.weight");
        TSR_DECLARE(up, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_up.weight");
        TSR_DECLARE(gate_bias, false, TSR_WEIGHT_FFN_ROWS, hp->n_ff, 1, "ffn_gate.bias");
        TSR_DECLARE(up_bias, false, TSR_WEIGHT_FFN_ROWS, hp->n_ff, 1, "ffn_up.bias");
    }
    TSR_DECLARE(down, true, TSR_WEIGHT_FFN_COLUMNS, hp->n_ff, hp->n_embd, "ffn_down.weight");
    TSR_DECLARE(down_bias, false, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_down.bias");
out:
    return status;
}

tsr_tensor *tsr_block_ffn(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_layer_weights *w = at->w;
    tsr_tensor *gate = tsr_block_linear(at, w->gate, w->gate_bias, h);
    tsr_tensor *up = tsr_block_linear(at, w->up, w->up_bias, h);
    tsr_tensor *product = at->hp->ffn_activation == TSR_GLU_GELU_TANH ? tsr_geglu(at->step->graph, gate, up)
                                                                      : tsr_swiglu(at->step->graph, gate, up);
    return tsr_block_linear(at, w->down, w->down_bias, product);
}
