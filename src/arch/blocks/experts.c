/* The FFN of a mixture of experts: a router chooses a few experts for each token. The result is the weighted
 * sum of the chosen experts, plus the result of the shared experts. Devices hold columns of every expert,
 * divided like those of a dense FFN, or whole experts. Either way each device has one partial sum, so one
 * all-reduce gives the result. */
#include <stdio.h>

#include "core/status.h"
#include "arch/blocks.h"

static tsr_status declare_one(tsr_weights *w, tsr_weight_role role, int l, tsr_weight_experts experts,
                              const char *kind, tsr_tensor **tensor_out)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.ffn_%s.0.weight", l, kind);
    if (tsr_gguf_find_tensor(w->gguf, name))
        return tsr_weights_declare_expert_tensors(w, role, l, experts, tensor_out, kind);
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", l, kind);
    return tsr_weights_declare_experts(w, role, l, experts, tensor_out, name);
}

/* Gate and up: a tensor each, or in one the rows of gate, then the rows of up, of each expert. Without a gate
 * it is up (core/op.h, tsr_glu_kind). */
static tsr_status declare_gate_and_up(tsr_weights *w, int l, bool gated, const tsr_weight_experts *rows)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];
    tsr_weight_experts of_gate = *rows, of_up = *rows;
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", l);
    const bool joined = gated && tsr_gguf_find_tensor(w->gguf, name);
    if (joined) {
        of_gate.all_rows = of_up.all_rows = 2 * rows->ne1;
        of_up.first_row = rows->ne1;
    }
    if (gated)
        TSR_TRY(declare_one(w, TSR_WEIGHT_EXPERT_ROWS, l, of_gate, joined ? "gate_up" : "gate",
                            &layer->expert_gate));
    TSR_TRY(declare_one(w, TSR_WEIGHT_EXPERT_ROWS, l, of_up, joined ? "gate_up" : "up", &layer->expert_up));
    if (!gated)
        layer->expert_gate = layer->expert_up;
out:
    return status;
}

static tsr_status declare_biases(tsr_weights *w, tsr_weight_role role, int l, int64_t n,
                                 const tsr_weight_experts *experts, const char *kind, tsr_tensor **tensor_out)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", l, kind);
    return tsr_weights_declare_expert_biases(w, role, l, n, experts, tensor_out, name);
}

tsr_status tsr_declare_experts(tsr_weights *w, const tsr_hparams *hp, int l)
{
    tsr_status status = TSR_OK;
    tsr_layer_weights *layer = &w->layers[l];

    const int64_t n_embd = hp->n_expert_embd > 0 ? hp->n_expert_embd : hp->n_embd;
    const tsr_weight_experts rows = {n_embd, hp->n_ff, hp->n_expert, hp->by_expert, 0, 0};
    const tsr_weight_experts columns = {hp->n_ff, n_embd, hp->n_expert, hp->by_expert, 0, 0};

    TSR_DECLARE(router, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, hp->n_expert, "ffn_gate_inp.weight");
    TSR_TRY(declare_gate_and_up(w, l, !hp->ungated_ffn, &rows));
    TSR_TRY(declare_one(w, TSR_WEIGHT_EXPERT_COLUMNS, l, columns, "down", &layer->expert_down));
    TSR_DECLARE(router_bias, false, TSR_WEIGHT_FFN_WHOLE, hp->n_expert, 1, "ffn_gate_inp.bias");
    TSR_DECLARE(choice_bias, false, TSR_WEIGHT_FFN_WHOLE, hp->n_expert, 1, "exp_probs_b.bias");
    TSR_TRY(declare_biases(w, TSR_WEIGHT_EXPERT_COLUMNS, l, hp->n_ff, &rows, "up", &layer->expert_up_bias));
    layer->expert_gate_bias = layer->expert_up_bias;
    if (!hp->ungated_ffn)
        TSR_TRY(declare_biases(w, TSR_WEIGHT_EXPERT_COLUMNS, l, hp->n_ff, &rows, "gate",
                               &layer->expert_gate_bias));
    TSR_TRY(declare_biases(w, TSR_WEIGHT_EXPERTS, l, n_embd, &columns, "down", &layer->expert_down_bias));
    if (hp->n_expert_embd > 0) {
        TSR_DECLARE(expert_in, true, TSR_WEIGHT_FFN_WHOLE, hp->n_embd, n_embd, "ffn_latent_down.weight");
        TSR_DECLARE(expert_out, true, TSR_WEIGHT_FFN_WHOLE, n_embd, hp->n_embd, "ffn_latent_up.weight");
    }
    if (hp->n_ff_shared > 0)
        TSR_TRY(tsr_declare_shared_experts(w, hp, l));
out:
    return status;
}

static tsr_glu_kind activation(const tsr_layer *at)
{
    const tsr_hparams *hp = at->hp;
    if (hp->ungated_ffn)
        return hp->relu_squared ? TSR_GLU_RELU : TSR_GLU_GELU_GATE;
    return tsr_block_activation(hp, at->kind->expert_limit);
}

/* The chosen experts between two matrices of their own. Their sum is one all-reduce, that of the shared
 * experts another. */
static tsr_tensor *in_latent_space(const tsr_layer *at, tsr_tensor *h, tsr_tensor *routing,
                                   const tsr_experts_config *weights)
{
    tsr_graph *graph = at->step->graph;
    tsr_tensor *x = tsr_mul_mat(graph, at->w->expert_in, h);
    return tsr_mul_mat(graph, at->w->expert_out, tsr_experts(graph, x, routing, weights));
}

tsr_tensor *tsr_block_experts(const tsr_layer *at, tsr_tensor *h, tsr_tensor *router_input)
{
    const tsr_hparams *hp = at->hp;
    tsr_graph *graph = at->step->graph;
    const tsr_routing_config rule = {.size = sizeof rule,
                                     .n_used = hp->n_expert_used,
                                     .gating = hp->expert_gating,
                                     .normalize = hp->expert_normalize,
                                     .scale = hp->expert_scale,
                                     .bias = at->w->choice_bias,
                                     .factors = at->w->expert_scales,
                                     .n_groups = hp->n_expert_groups,
                                     .n_groups_used = hp->n_expert_groups_used,
                                     .weigh_inputs = hp->weigh_expert_inputs,
                                     .table = at->w->expert_table,
                                     .ids = at->w->expert_table ? at->step->tokens : NULL};
    const tsr_experts_config weights = {.size = sizeof weights,
                                        .gate = at->w->expert_gate,
                                        .up = at->w->expert_up,
                                        .down = at->w->expert_down,
                                        .gate_bias = at->w->expert_gate_bias,
                                        .up_bias = at->w->expert_up_bias,
                                        .down_bias = at->w->expert_down_bias,
                                        .granule = at->ffn_columns,
                                        .glu = activation(at),
                                        .limit = at->kind->expert_limit};
    tsr_tensor *logits = tsr_block_linear(at, at->w->router, at->w->router_bias, router_input);
    tsr_tensor *routing = tsr_route(graph, logits, &rule);
    if (at->w->expert_in) {
        tsr_tensor *y = in_latent_space(at, h, routing, &weights);
        return at->w->shared.down ? tsr_add(graph, tsr_block_shared_experts(at, h), y) : y;
    }
    tsr_tensor *shared = at->w->shared.down ? tsr_block_shared_experts(at, h) : NULL;
    tsr_tensor *y = tsr_experts(graph, h, routing, &weights);
    return at->w->shared.down_bias ? tsr_add(graph, y, shared) : tsr_experts_onto(graph, y, shared);
}
