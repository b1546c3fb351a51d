/* The dense FFN: down(act(gate h) * up h), or without a gate down(act(up h)). gate and up are divided by
 * rows, down by the same columns. The shared experts of a mixture are a dense FFN, too. */
#include <stdio.h>

#include <tsr/split.h>

#include "core/status.h"
#include "arch/blocks.h"

/* Declare one FFN of a layer, with tensors blk.<l>.ffn_<kind><suffix>.<end>. */
typedef struct ffn_place {
    tsr_weights *w;
    int l;
    const char *suffix;
    int64_t n_embd, n_ff;
    bool gated;
} ffn_place;

static tsr_status declare_one(const ffn_place *p, bool required, tsr_weight_role role, int64_t ne0,
                              int64_t ne1, const char *kind, const char *end, tsr_tensor **tensor_out)
{
    return tsr_weights_declare(p->w, required, role, p->l, ne0, ne1, tensor_out, "blk.%d.ffn_%s%s.%s", p->l,
                               kind, p->suffix, end);
}

/* Files without ffn_gate have both matrices in ffn_up: the rows of gate, then the rows of up. */
static bool is_fused(const ffn_place *p)
{
    char gate[TSR_MAX_NAME], up[TSR_MAX_NAME];
    if (!p->w->gguf || !p->gated)
        return false;
    snprintf(gate, sizeof gate, "blk.%d.ffn_gate%s.weight", p->l, p->suffix);
    snprintf(up, sizeof up, "blk.%d.ffn_up%s.weight", p->l, p->suffix);
    const tsr_gguf_tensor *both = tsr_gguf_find_tensor(p->w->gguf, up);
    return !tsr_gguf_find_tensor(p->w->gguf, gate) && both && both->ne[1] == 2 * p->n_ff;
}

static tsr_status declare_fused(const ffn_place *p, int64_t ne0, const char *end, tsr_tensor **gate,
                                tsr_tensor **up)
{
    tsr_status status = TSR_OK;
    char name[TSR_MAX_NAME];
    int64_t n = p->n_ff;
    snprintf(name, sizeof name, "blk.%d.ffn_up%s.%s", p->l, p->suffix, end);
    TSR_TRY(tsr_weights_declare_rows(p->w, ne0 > 1, TSR_WEIGHT_FFN_ROWS, p->l,
                                     (tsr_weight_rows){ne0, 0, n, 2 * n}, gate, name));
    TSR_TRY(tsr_weights_declare_rows(p->w, ne0 > 1, TSR_WEIGHT_FFN_ROWS, p->l,
                                     (tsr_weight_rows){ne0, n, n, 2 * n}, up, name));
out:
    return status;
}

static tsr_status declare(const ffn_place *p, tsr_ffn_weights *f)
{
    tsr_status status = TSR_OK;
    if (is_fused(p)) {
        TSR_TRY(declare_fused(p, p->n_embd, "weight", &f->gate, &f->up));
        TSR_TRY(declare_fused(p, 1, "bias", &f->gate_bias, &f->up_bias));
    } else {
        if (p->gated)
            TSR_TRY(
                declare_one(p, true, TSR_WEIGHT_FFN_ROWS, p->n_embd, p->n_ff, "gate", "weight", &f->gate));
        TSR_TRY(declare_one(p, true, TSR_WEIGHT_FFN_ROWS, p->n_embd, p->n_ff, "up", "weight", &f->up));
        if (p->gated)
            TSR_TRY(declare_one(p, false, TSR_WEIGHT_FFN_ROWS, p->n_ff, 1, "gate", "bias", &f->gate_bias));
        TSR_TRY(declare_one(p, false, TSR_WEIGHT_FFN_ROWS, p->n_ff, 1, "up", "bias", &f->up_bias));
    }
    TSR_TRY(declare_one(p, true, TSR_WEIGHT_FFN_COLUMNS, p->n_ff, p->n_embd, "down", "weight", &f->down));
    TSR_TRY(declare_one(p, false, TSR_WEIGHT_FFN_WHOLE, p->n_embd, 1, "down", "bias", &f->down_bias));
out:
    return status;
}

/* The FFN class counts columns of experts, whole experts, or columns of the longest dense FFN. The shared
 * experts and FFNs of another length therefore have granules of their own. */
static tsr_status declare_with_own_granules(const ffn_place *p, tsr_ffn_weights *f)
{
    tsr_status status = TSR_OK;
    int64_t columns;
    TSR_TRY(declare(p, f));
    TSR_TRY(tsr_granule_ffn(p->n_ff, tsr_type_block_elems(tsr_tensor_type(f->down)), &columns));
    tsr_tensor *const divided[] = {f->gate, f->up, f->down, f->gate_bias, f->up_bias};
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++)
        if (divided[i])
            tsr_weights_cut_every(divided[i], columns);
out:
    return status;
}

tsr_status tsr_declare_ffn(tsr_weights *w, const tsr_hparams *hp, int l)
{
    const int64_t n_ff = tsr_hparams_layer(hp, l)->n_ff;
    const ffn_place p = {w, l, "", hp->n_embd, n_ff, !hp->ungated_ffn};
    return hp->n_expert > 0 || n_ff != hp->n_ff ? declare_with_own_granules(&p, &w->layers[l].ffn)
                                                : declare(&p, &w->layers[l].ffn);
}

tsr_status tsr_declare_shared_experts(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    const ffn_place p = {w, l, "_shexp", hp->n_embd, hp->n_ff_shared, !hp->ungated_ffn};
    TSR_TRY(declare_with_own_granules(&p, &layer->shared));
    TSR_DECLARE(shared_gate, false, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, 1, "ffn_gate_inp_shexp.weight");
out:
    return status;
}

/* The input of down. */
static tsr_tensor *hidden(const tsr_layer *at, const tsr_ffn_weights *w, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    tsr_tensor *gate = w->gate ? tsr_block_linear(at, w->gate, w->gate_bias, h) : NULL;
    tsr_tensor *up = tsr_block_linear(at, w->up, w->up_bias, h);
    if (!gate)
        return at->hp->relu_squared ? tsr_relu_squared(graph, up) : tsr_gelu(graph, up);
    const float limit = at->kind->ffn_limit;
    return tsr_glu(graph, tsr_block_activation(at->hp, limit), limit, gate, up);
}

tsr_glu_kind tsr_block_activation(const tsr_hparams *hp, float limit)
{
    if (limit > 0)
        return hp->bounded_glu ? TSR_GLU_BOUNDED : TSR_GLU_CAPPED;
    return hp->ffn_activation;
}

tsr_tensor *tsr_block_ffn(const tsr_layer *at, tsr_tensor *h)
{
    const tsr_ffn_weights *w = &at->w->ffn;
    return tsr_block_linear(at, w->down, w->down_bias, hidden(at, w, h));
}

/* The gate per token is a factor on the whole result, hence on every partial sum; so is the scale. */
tsr_tensor *tsr_block_shared_experts(const tsr_layer *at, tsr_tensor *h)
{
    tsr_graph *graph = at->step->graph;
    const tsr_ffn_weights *w = &at->w->shared;
    tsr_tensor *x = hidden(at, w, h);
    if (at->w->shared_gate)
        x = tsr_gate(graph, x, tsr_mul_mat(graph, at->w->shared_gate, h));
    if (at->hp->shared_scale > 0)
        x = tsr_scale(graph, x, (float)at->hp->shared_scale);
    return tsr_block_linear(at, w->down, w->down_bias, x);
}
