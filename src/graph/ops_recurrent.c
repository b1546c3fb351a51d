/* Constructors of ops with the states of sequences, and of columns that repeat; like ops.c. */
#include "graph/graph.h"

#include <math.h>

static void *bad(tsr_graph *graph, const char *op, const tsr_tensor *x, const char *why)
{
    return tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s(%s [%lld, %lld]): %s", op, x->name,
                                          (long long)x->ne[0], (long long)x->ne[1], why));
}

static bool is_f32(const tsr_tensor *x)
{
    return x->type == TSR_TYPE_F32 && x->ne[2] == 1 && x->ne[3] == 1;
}

static bool is_row(const tsr_tensor *weight, int64_t n)
{
    return tsr_tensor_is_weight(weight) && weight->type == TSR_TYPE_F32 && weight->ne[0] == n &&
           tsr_tensor_rows(weight) == 1;
}

/* An operand is NULL after an earlier failure, or by a bug of the caller. */
static bool missing(tsr_graph *graph, const char *op, tsr_tensor *const *operands, int n)
{
    for (int i = 0; i < n; i++) {
        if (operands[i])
            continue;
        if (graph->status == TSR_OK)
            tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s: an operand is NULL", op));
        return true;
    }
    return false;
}

tsr_tensor *tsr_take_columns(tsr_graph *graph, tsr_tensor *x, tsr_columns c)
{
    if (missing(graph, "columns", &x, 1))
        return NULL;
    if (!is_f32(x) || c.first < 0 || c.n < 1 || c.first + c.n > c.period || x->ne[0] % c.period != 0)
        return bad(graph, "columns", x, "ne[0] must be a multiple of the period, which has these columns");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_COPY, TSR_TYPE_F32, x->ne[0] / c.period * c.n, x->ne[1], "columns");
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->args.columns = c;
    return &node->tensor;
}

tsr_tensor *tsr_conv(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, tsr_tensor *bias, bool silu,
                     tsr_state_part state, const tsr_state_inputs *inputs)
{
    tsr_tensor *const operands[] = {x, weight, inputs->rows, inputs->next};
    if (missing(graph, "conv", operands, 4))
        return NULL;
    if (!is_f32(x) || !tsr_tensor_is_weight(weight) || weight->type != TSR_TYPE_F32 ||
        weight->ne[1] != x->ne[0] || weight->ne[0] < 2 || weight->ne[0] > TSR_MAX_CONV_KERNEL)
        return bad(graph, "conv", x, "the weight must be F32, a row of 2 to 8 elements per channel");
    if (bias && !is_row(bias, x->ne[0]))
        return bad(graph, "conv", x, "the bias must be an F32 weight with an element per channel");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_CONV, TSR_TYPE_F32, x->ne[0], x->ne[1], weight->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->tensor.src[1] = inputs->rows;
    node->tensor.src[2] = inputs->next;
    node->tensor.src[3] = weight;
    node->args.bias = bias;
    node->args.silu = silu;
    node->args.state = state;
    return &node->tensor;
}

tsr_tensor *tsr_recurrence(tsr_graph *graph, const tsr_recurrence_operands *o, tsr_state_part state,
                           const tsr_state_inputs *inputs)
{
    tsr_tensor *const operands[] = {o->q, o->k,       o->v,         o->alpha,    o->beta,
                                    o->a, o->dt_bias, inputs->rows, inputs->next};
    if (missing(graph, "recurrence", operands, 9))
        return NULL;
    int64_t dk = o->q->ne[0] / o->n_key_heads, n_decay = o->alpha->ne[0] / o->n_heads;
    bool shaped = o->n_heads % o->n_key_heads == 0 && o->q->ne[0] == o->n_key_heads * dk &&
                  o->k->ne[0] == o->q->ne[0] && o->v->ne[0] % o->n_heads == 0 && dk >= 1 &&
                  dk <= TSR_MAX_STATE_ROWS && (n_decay == 1 || n_decay == dk) &&
                  o->alpha->ne[0] == o->n_heads * n_decay && o->beta->ne[0] == o->n_heads;
    for (int i = 0; i < 5; i++)
        shaped = shaped && is_f32(operands[i]) && operands[i]->ne[1] == o->q->ne[1];
    if (!shaped || !is_row(o->a, o->n_heads) || !is_row(o->dt_bias, o->n_heads * n_decay))
        return bad(graph, "recurrence", o->q, "the operands do not have the shapes of one gated delta rule");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_RECURRENCE, TSR_TYPE_F32, o->v->ne[0], o->v->ne[1], "recurrence");
    if (!node)
        return NULL;
    for (int i = 0; i < 5; i++)
        node->tensor.src[i] = operands[i];
    node->tensor.src[5] = inputs->rows;
    node->tensor.src[6] = inputs->next;
    node->args.recurrence = *o;
    node->args.factor = (float)(1 / sqrt((double)dk));
    node->args.state = state;
    return &node->tensor;
}
