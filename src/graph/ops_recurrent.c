/* Constructors of ops with the states of sequences, and of columns that repeat; like ops.c. */
#include "graph/graph.h"

#include <math.h>

tsr_tensor *tsr_take_columns(tsr_graph *graph, tsr_tensor *x, tsr_columns c)
{
    if (tsr_graph_misses(graph, "columns", &x, 1))
        return NULL;
    if (!tsr_tensor_is_f32(x) || c.period < 1 || c.first < 0 || c.n < 1 || c.first > c.period ||
        c.n > c.period - c.first || x->ne[0] % c.period != 0)
        return tsr_graph_refuse(graph, "columns", x,
                                "ne[0] must be a multiple of the period, which has these columns");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_COPY, TSR_TYPE_F32, x->ne[0] / c.period * c.n, x->ne[1], "columns");
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->args.columns = c;
    return &node->tensor;
}

/* Whether all parts are F32 weights of ne0 x ne1. */
static bool are_parts(const tsr_weight_parts *parts, int64_t ne0, int64_t ne1)
{
    bool good = parts->n >= 1 && parts->n <= TSR_MAX_PARTS;
    for (int i = 0; good && i < parts->n; i++)
        good = tsr_tensor_is_weight(parts->at[i]) && parts->at[i]->type == TSR_TYPE_F32 &&
               parts->at[i]->ne[0] == ne0 && tsr_tensor_rows(parts->at[i]) == ne1;
    return good;
}

tsr_tensor *tsr_mul_mat_parts(tsr_graph *graph, const tsr_weight_parts *w, tsr_tensor *x)
{
    tsr_tensor *first = tsr_mul_mat(graph, w->at[0], x);
    if (!first || w->n == 1)
        return first;
    if (tsr_graph_misses(graph, "mul_mat", w->at, w->n))
        return NULL;
    for (int i = 1; i < w->n; i++)
        if (w->at[i]->type != w->at[0]->type || w->at[i]->ne[0] != w->at[0]->ne[0] ||
            w->at[i]->ne[1] != w->at[0]->ne[1] || !tsr_tensor_is_weight(w->at[i]))
            return tsr_graph_refuse(graph, "mul_mat", w->at[i],
                                    "the parts must be weights of one type and shape");
    first->ne[1] *= w->n;
    ((tsr_node *)first)->args.parts = *w;
    return first;
}

tsr_tensor *tsr_mul_mat_joined(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x)
{
    tsr_tensor *const operands[] = {w, x};
    if (tsr_graph_misses(graph, "mul_mat", operands, 2))
        return NULL;
    int64_t n = x->ne[0] > 0 ? w->ne[0] / x->ne[0] : 0;
    if (!tsr_tensor_is_f32(x) || !tsr_tensor_is_weight(w) || w->ne[2] != 1 || w->ne[3] != 1 ||
        n * x->ne[0] != w->ne[0] || x->ne[1] % n != 0)
        return tsr_graph_refuse(graph, "mul_mat", x,
                                "rows of the second operand must make up a row of the weight");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_MUL_MAT, TSR_TYPE_F32, w->ne[1], x->ne[1] / n, w->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = w;
    node->tensor.src[1] = x;
    return &node->tensor;
}

tsr_tensor *tsr_conv(tsr_graph *graph, tsr_tensor *x, const tsr_weight_parts *weights, bool silu,
                     tsr_state_part state, const tsr_state_inputs *inputs)
{
    tsr_tensor *const operands[] = {x, inputs->rows, inputs->next};
    if (tsr_graph_misses(graph, "conv", operands, 3) ||
        tsr_graph_misses(graph, "conv", weights->at, weights->n))
        return NULL;
    int64_t kernel = weights->at[0]->ne[0];
    if (!tsr_tensor_is_f32(x) || !are_parts(weights, kernel, x->ne[0]) ||
        x->ne[1] != weights->n * inputs->next->ne[0] || kernel < 2 || kernel > TSR_MAX_CONV_KERNEL)
        return tsr_graph_refuse(graph, "conv", x,
                                "the weights must be F32, with a row of 2 to 8 elements per channel");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_CONV, TSR_TYPE_F32, x->ne[0], x->ne[1], weights->at[0]->name);
    if (!node)
        return NULL;
    for (int i = 0; i < 3; i++)
        node->tensor.src[i] = operands[i];
    node->args.parts = *weights;
    node->args.silu = silu;
    node->args.state = state;
    return &node->tensor;
}

tsr_tensor *tsr_conv_bias(tsr_graph *graph, tsr_tensor *conv, tsr_tensor *bias)
{
    if (!conv || !bias)
        return conv;
    tsr_node_args *args = &((tsr_node *)conv)->args;
    const tsr_weight_parts as_parts = {.at = {bias}, .n = 1};
    if (conv->op != TSR_OP_CONV || args->parts.n != 1 || !are_parts(&as_parts, conv->ne[0], 1))
        return tsr_graph_refuse(graph, "conv_bias", conv,
                                "the bias must be F32, with an element per channel");
    args->bias = bias;
    return conv;
}

/* Whether the operands of n parts have the shapes of one recurrence, which has either beta or a skip. */
static bool is_recurrence(const tsr_recurrence_operands *o, int64_t dk, int n)
{
    const tsr_weight_parts skip = {.at = {o->skip}, .n = 1};
    int64_t n_decay = o->alpha->ne[0] / o->n_heads;
    bool shaped = o->n_heads % o->n_key_heads == 0 && o->q->ne[0] == o->n_key_heads * dk &&
                  o->k->ne[0] == o->q->ne[0] && o->v->ne[0] % o->n_heads == 0 && dk >= 1 &&
                  dk <= TSR_MAX_STATE_ROWS && (n_decay == 1 || n_decay == dk) &&
                  o->alpha->ne[0] == o->n_heads * n_decay && o->dt_bias.n == n &&
                  are_parts(&o->a, o->n_heads, 1) && are_parts(&o->dt_bias, o->n_heads * n_decay, 1);
    return shaped && (o->beta ? !o->skip && o->beta->ne[0] == o->n_heads
                              : n == 1 && n_decay == 1 && o->skip && are_parts(&skip, o->n_heads, 1));
}

tsr_tensor *tsr_recurrence(tsr_graph *graph, const tsr_recurrence_operands *o, tsr_state_part state,
                           const tsr_state_inputs *inputs)
{
    tsr_tensor *operands[] = {o->q, o->k, o->v, o->alpha, inputs->rows, inputs->next, o->beta};
    const int n = o->a.n, n_operands = o->skip ? 6 : 7;
    if (tsr_graph_misses(graph, "recurrence", operands, n_operands) ||
        tsr_graph_misses(graph, "recurrence", o->a.at, n) ||
        tsr_graph_misses(graph, "recurrence", o->dt_bias.at, n))
        return NULL;
    int64_t dk = o->q->ne[0] / o->n_key_heads;
    bool shaped = is_recurrence(o, dk, n);
    for (int i = 0; i < n_operands; i++)
        shaped = shaped &&
                 (i == 4 || i == 5 ||
                  (tsr_tensor_is_f32(operands[i]) && operands[i]->ne[1] == o->q->ne[1] * (i < 2 ? 1 : n)));
    if (!shaped)
        return tsr_graph_refuse(graph, "recurrence", o->q,
                                "the operands do not have the shapes of one recurrence");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_RECURRENCE, TSR_TYPE_F32, o->v->ne[0], o->v->ne[1], "recurrence");
    if (!node)
        return NULL;
    for (int i = 0; i < n_operands; i++)
        node->tensor.src[i] = operands[i];
    node->args.recurrence = *o;
    node->args.factor = (float)(1 / sqrt((double)dk));
    node->args.state = state;
    return &node->tensor;
}
