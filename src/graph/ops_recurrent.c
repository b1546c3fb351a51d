/* Constructors of ops with the states of sequences, and of columns that repeat or are joined; like ops.c. */
#include <math.h>

#include "graph/graph.h"
#include "graph/kv_inputs.h"

tsr_tensor *tsr_take_columns(tsr_graph *graph, tsr_tensor *x, tsr_columns c)
{
    if (tsr_graph_misses(graph, "columns", &x, 1))
        return NULL;
    if (!tsr_tensor_is_activation(x) || c.period < 1 || c.first < 0 || c.n < 1 || c.first > c.period ||
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

tsr_tensor *tsr_concat(tsr_graph *graph, tsr_tensor *const *parts, int n, int64_t n_heads)
{
    int64_t n_elements = 0;
    if (!parts || n < 2 || n > TSR_MAX_CONCAT || n_heads < 1)
        return tsr_graph_fail(
            graph,
            tsr_fail(TSR_ERR_INVALID, "concat: %d operands of %lld heads; 2 to %d of at least 1 are possible",
                     parts ? n : 0, (long long)n_heads, TSR_MAX_CONCAT));
    if (tsr_graph_misses(graph, "concat", parts, n))
        return NULL;
    for (int i = 0; i < n; i++) {
        if (!tsr_tensor_is_activation(parts[i]) || parts[i]->ne[0] < 1 || parts[i]->ne[0] % n_heads != 0 ||
            parts[i]->ne[0] > INT64_MAX / TSR_MAX_CONCAT || parts[i]->ne[1] != parts[0]->ne[1])
            return tsr_graph_refuse(graph, "concat", parts[i],
                                    "the operands must be F32 with a row for each token, inputs or computed, "
                                    "and the heads divide ne[0] of each");
        n_elements += parts[i]->ne[0];
    }
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_COPY, TSR_TYPE_F32, n_elements, parts[0]->ne[1], "concat");
    if (!node)
        return NULL;
    for (int i = 0; i < n; i++)
        node->tensor.src[i] = parts[i];
    node->args.n_heads = n_heads;
    return &node->tensor;
}

/* tsr_graph_misses() of a number of parts that is possible. */
static bool parts_missing(tsr_graph *graph, const char *op, const tsr_weight_parts *parts)
{
    if (parts->n >= 1 && parts->n <= TSR_MAX_PARTS)
        return tsr_graph_misses(graph, op, parts->at, parts->n);
    tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s: an operand of %d parts; 1 to %d are possible", op,
                                   parts->n, TSR_MAX_PARTS));
    return true;
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
    if (parts_missing(graph, "mul_mat", w))
        return NULL;
    tsr_tensor *first = tsr_mul_mat(graph, w->at[0], x);
    if (!first || w->n == 1)
        return first;
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
    if (!tsr_tensor_is_activation(x) || !tsr_tensor_is_weight(w) || w->ne[2] != 1 || w->ne[3] != 1 ||
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

tsr_tensor *tsr_conv(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state, tsr_tensor *x,
                     const tsr_weight_parts *weights, tsr_tensor *bias, bool silu)
{
    if (tsr_graph_misses(graph, "conv", &x, 1) || parts_missing(graph, "conv", weights) ||
        (bias && tsr_graph_misses(graph, "conv", &bias, 1)) ||
        !tsr_kv_inputs_check_states(graph, "conv", inputs, layer, state, weights->n, x))
        return NULL;
    const int64_t kernel = weights->at[0]->ne[0];
    const tsr_weight_parts biases = {.at = {bias}, .n = 1};
    if (!tsr_tensor_is_activation(x) || !are_parts(weights, kernel, x->ne[0]) ||
        x->ne[1] != weights->n * inputs->n_tokens || kernel < 2 || kernel > TSR_MAX_CONV_KERNEL)
        return tsr_graph_refuse(
            graph, "conv", x,
            "the weights must be F32, with a row of 2 to 8 elements per channel, and x must "
            "have a row for each token and part");
    if (bias && (weights->n != 1 || !are_parts(&biases, x->ne[0], 1)))
        return tsr_graph_refuse(graph, "conv", x,
                                "the bias must be F32, with an element per channel, and of one part");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_CONV, TSR_TYPE_F32, x->ne[0], x->ne[1], weights->at[0]->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->tensor.src[1] = inputs->states.rows;
    node->tensor.src[2] = inputs->states.next;
    node->args.parts = *weights;
    node->args.bias = bias;
    node->args.silu = silu;
    node->args.state = (tsr_state_part){inputs->kv, layer, state};
    return &node->tensor;
}

/* Whether the operands of n parts have the shapes of one recurrence, which has either beta or a skip. */
static bool is_recurrence(const tsr_recurrence_operands *o, int64_t dk, int n)
{
    const tsr_weight_parts skip = {.at = {o->skip}, .n = 1};
    if (o->n_heads < 1)
        return false;
    int64_t n_decay = o->alpha->ne[0] / o->n_heads;
    bool shaped = o->n_heads % o->n_key_heads == 0 && o->q->ne[0] == o->n_key_heads * dk &&
                  o->k->ne[0] == o->q->ne[0] && o->v->ne[0] % o->n_heads == 0 && dk >= 1 &&
                  dk <= TSR_MAX_STATE_ROWS && (n_decay == 1 || n_decay == dk) &&
                  o->alpha->ne[0] == o->n_heads * n_decay && o->dt_bias.n == n &&
                  are_parts(&o->a, o->n_heads, 1) && are_parts(&o->dt_bias, o->n_heads * n_decay, 1);
    return shaped && (o->beta ? !o->skip && o->beta->ne[0] == o->n_heads
                              : n == 1 && n_decay == 1 && o->skip && are_parts(&skip, o->n_heads, 1));
}

tsr_tensor *tsr_recurrence(tsr_graph *graph, tsr_kv_inputs *inputs, int layer, int state,
                           const tsr_recurrence_operands *o)
{
    const int n = o->a.n, n_operands = o->skip ? 6 : 7;
    tsr_tensor *const given[] = {o->q, o->k, o->v, o->alpha, o->skip ? o->skip : o->beta, o->beta};
    if (tsr_graph_misses(graph, "recurrence", given, o->beta ? 6 : 5) ||
        parts_missing(graph, "recurrence", &o->a) || parts_missing(graph, "recurrence", &o->dt_bias) ||
        !tsr_kv_inputs_check_states(graph, "recurrence", inputs, layer, state, n, o->q))
        return NULL;
    tsr_tensor *const operands[] = {o->q,   o->k, o->v, o->alpha, inputs->states.rows, inputs->states.next,
                                    o->beta};
    const int64_t dk = o->n_key_heads > 0 ? o->q->ne[0] / o->n_key_heads : 0;
    bool shaped = dk > 0 && o->q->ne[1] == inputs->n_tokens && is_recurrence(o, dk, n);
    for (int i = 0; i < n_operands; i++)
        shaped = shaped && (i == 4 || i == 5 ||
                            (tsr_tensor_is_activation(operands[i]) &&
                             operands[i]->ne[1] == inputs->n_tokens * (i < 2 ? 1 : n)));
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
    node->args.state = (tsr_state_part){inputs->kv, layer, state};
    return &node->tensor;
}
