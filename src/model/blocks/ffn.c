/* The dense FFN: down(silu(gate h) * up h). gate and up are divided by rows, down by the same columns. */
#include "core/status.h"
#include "model/blocks.h"

tsr_status tsr_declare_ffn(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];

#define DECLARE(field, required, role, ne0, ne1, name) \
    TSR_TRY(tsr_weights_declare(w, required, role, l, ne0, ne1, &layer->field, "blk.%d." name, l))
    DECLARE(gate, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_gate.weight");
    DECLARE(up, true, TSR_WEIGHT_FFN_ROWS, hp->n_embd, hp->n_ff, "ffn_up.weight");
    DECLARE(down, true, TSR_WEIGHT_FFN_COLUMNS, hp->n_ff, hp->n_embd, "ffn_down.weight");
    DECLARE(gate_bias, false, TSR_WEIGHT_FFN_ROWS, hp->n_ff, 1, "ffn_gate.bias");
    DECLARE(up_bias, false, TSR_WEIGHT_FFN_ROWS, hp->n_ff, 1, "ffn_up.bias");
    DECLARE(down_bias, false, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_down.bias");
#undef DECLARE
out:
    return status;
}

tsr_tensor *tsr_block_ffn(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_layer_weights *w = at->w;
    tsr_tensor *gate = tsr_block_linear(at, w->gate, w->gate_bias, h);
    tsr_tensor *up = tsr_block_linear(at, w->up, w->up_bias, h);
    return tsr_block_linear(at, w->down, w->down_bias, tsr_swiglu(at->step->graph, gate, up));
}
