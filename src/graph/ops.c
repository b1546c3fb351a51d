/* Op constructors: check shapes and types, append a node. Shardings are decided when the graph is compiled,
 * not here. */
#include "graph/graph.h"

#include "core/mem.h"

static void *bad(tsr_graph *graph, const char *op, const tsr_tensor *a, const tsr_tensor *b, const char *why)
{
    return tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s(%s [%lld, %lld], %s [%lld, %lld]): %s", op,
                                          a->name, (long long)a->ne[0], (long long)a->ne[1], b->name,
                                          (long long)b->ne[0], (long long)b->ne[1], why));
}

bool tsr_graph_misses(tsr_graph *graph, const char *op, tsr_tensor *const *operands, int n)
{
    for (int i = 0; i < n; i++) {
        tsr_tensor *x = operands[i];
        const bool is_weight = x && tsr_tensor_is_weight(x);
        if (x && (is_weight ? x->rt == graph->rt : tsr_graph_has(graph, x)))
            continue;
        if (x)
            tsr_graph_refuse(graph, op, x,
                             is_weight ? "it is a weight of another runtime; load it on the graph's runtime"
                                       : "it is of another graph; pass operands of this graph, and weights");
        else if (graph->status == TSR_OK)
            tsr_graph_fail(graph, tsr_fail(TSR_ERR_INVALID, "%s: an operand is NULL", op));
        return true;
    }
    return false;
}

static bool operands_missing(tsr_graph *graph, const char *op, tsr_tensor *a, tsr_tensor *b)
{
    tsr_tensor *const operands[] = {a, b};
    return tsr_graph_misses(graph, op, operands, 2);
}

static tsr_node *unary(tsr_graph *graph, tsr_op_kind op, tsr_tensor *x)
{
    const char *name = tsr_op_kind_name(op);
    if (operands_missing(graph, name, x, x))
        return NULL;
    if (!tsr_tensor_is_activation(x))
        return bad(graph, name, x, x,
                   "the operand must be F32 of at most two dimensions, and an input or computed");
    tsr_node *node = tsr_graph_append(graph, op, TSR_TYPE_F32, x->ne[0], x->ne[1], name);
    if (node)
        node->tensor.src[0] = x;
    return node;
}

tsr_tensor *tsr_get_rows(tsr_graph *graph, tsr_tensor *table, tsr_tensor *ids)
{
    if (operands_missing(graph, "get_rows", table, ids))
        return NULL;
    if (ids->type != TSR_TYPE_I32 || ids->ne[1] != 1 || tsr_tensor_is_weight(ids))
        return bad(graph, "get_rows", table, ids, "the ids must be I32 of one row, an input or computed");
    if (!tsr_tensor_is_weight(table) && !tsr_tensor_is_f32(table))
        return bad(graph, "get_rows", table, ids, "a table that is no weight must be F32");
    if (table->ne[2] != 1 || table->ne[3] != 1)
        return bad(graph, "get_rows", table, ids, "the table must have two dimensions");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_GET_ROWS, TSR_TYPE_F32, table->ne[0], ids->ne[0], "get_rows");
    if (!node)
        return NULL;
    node->tensor.src[0] = table;
    node->tensor.src[1] = ids;
    return &node->tensor;
}

tsr_tensor *tsr_mul_mat(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x)
{
    if (operands_missing(graph, "mul_mat", w, x))
        return NULL;
    if (!tsr_tensor_is_activation(x))
        return bad(graph, "mul_mat", w, x,
                   "the second operand must be F32 of at most two dimensions, and an input or computed");
    if (w->ne[0] != x->ne[0])
        return bad(graph, "mul_mat", w, x, "ne[0] of both must be equal");
    if (w->ne[2] != 1 || w->ne[3] != 1)
        return bad(graph, "mul_mat", w, x, "the weight must have two dimensions");
    if (!tsr_tensor_is_weight(w))
        return bad(graph, "mul_mat", w, x, "the first operand must be a weight");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_MUL_MAT, TSR_TYPE_F32, w->ne[1], x->ne[1], w->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = w;
    node->tensor.src[1] = x;
    return &node->tensor;
}

tsr_tensor *tsr_mul_heads(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x, int64_t n_heads)
{
    if (operands_missing(graph, "mul_heads", w, x))
        return NULL;
    if (!tsr_tensor_is_activation(x) || !tsr_tensor_is_weight(w) || w->ne[2] != 1 || w->ne[3] != 1)
        return bad(graph, "mul_heads", w, x,
                   "the operands must be a weight and a computed F32, of two dimensions");
    if (n_heads < 1 || w->ne[1] % n_heads != 0 || x->ne[0] % n_heads != 0 || x->ne[0] / n_heads < w->ne[0])
        return bad(graph, "mul_heads", w, x,
                   "the heads must divide ne[1] of the weight and ne[0] of x, with ne[0] of the weight at "
                   "most a head's elements of x");
    const int64_t n_rows = w->ne[1] / n_heads, rest = x->ne[0] / n_heads - w->ne[0];
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_MUL_HEADS, TSR_TYPE_F32, (n_rows + rest) * n_heads, x->ne[1], w->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = w;
    node->tensor.src[1] = x;
    node->args.head_dim = n_rows;
    node->args.n_heads = n_heads;
    return &node->tensor;
}

tsr_tensor *tsr_rms_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, float eps)
{
    if (operands_missing(graph, "rms_norm", x, weight))
        return NULL;
    if (weight->type != TSR_TYPE_F32 || tsr_tensor_rows(weight) != 1 || !tsr_tensor_is_weight(weight))
        return bad(graph, "rms_norm", x, weight, "the weight must be an F32 weight of one row");
    if (weight->ne[0] < 1 || x->ne[0] % weight->ne[0] != 0)
        return bad(graph, "rms_norm", x, weight, "ne[0] of the weight must divide ne[0] of x");
    tsr_node *node = unary(graph, TSR_OP_RMS_NORM, x);
    if (!node)
        return NULL;
    node->tensor.src[1] = weight;
    node->args.eps = eps;
    return &node->tensor;
}

tsr_tensor *tsr_rms_norm_plain(tsr_graph *graph, tsr_tensor *x, int64_t n, float eps)
{
    if (operands_missing(graph, "rms_norm", x, x))
        return NULL;
    if (n < 1 || x->ne[0] % n != 0)
        return bad(graph, "rms_norm", x, x, "the length must divide ne[0] of x");
    tsr_node *node = unary(graph, TSR_OP_RMS_NORM, x);
    if (!node)
        return NULL;
    node->args.head_dim = n;
    node->args.eps = eps;
    return &node->tensor;
}

tsr_tensor *tsr_layer_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, tsr_tensor *bias, float eps)
{
    tsr_tensor *y = tsr_rms_norm(graph, x, weight, eps);
    if (!y)
        return NULL;
    if (weight->ne[0] != x->ne[0])
        return bad(graph, "layer_norm", x, weight, "ne[0] of both must be equal");
    if (bias && (bias->type != TSR_TYPE_F32 || tsr_tensor_rows(bias) != 1 || bias->ne[0] != x->ne[0] ||
                 !tsr_tensor_is_weight(bias)))
        return bad(graph, "layer_norm", x, bias,
                   "the bias must be an F32 weight of one row of ne[0] elements");
    tsr_node *node = (tsr_node *)y;
    node->args.center = true;
    node->args.bias = bias;
    return y;
}

tsr_tensor *tsr_heads_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, int64_t head_dim, bool center,
                           float eps)
{
    tsr_tensor *y = tsr_layer_norm(graph, x, weight, NULL, eps);
    if (!y)
        return NULL;
    if (head_dim < 1 || x->ne[0] % head_dim != 0)
        return bad(graph, "heads_norm", x, weight, "head_dim must divide ne[0] of x");
    ((tsr_node *)y)->args.head_dim = head_dim;
    ((tsr_node *)y)->args.center = center;
    return y;
}

tsr_tensor *tsr_rope(tsr_graph *graph, tsr_tensor *x, tsr_tensor *table, int64_t head_dim, bool interleaved)
{
    if (operands_missing(graph, "rope", x, table))
        return NULL;
    if (!tsr_tensor_is_f32(table) || table->ne[1] != x->ne[1] || !(table->flags & TSR_TENSOR_INPUT))
        return bad(graph, "rope", x, table, "the table must be an F32 input with a row per token");
    if (head_dim < 1 || x->ne[0] % head_dim != 0 || table->ne[0] > head_dim || table->ne[0] % 2 != 0)
        return bad(graph, "rope", x, table,
                   "head_dim must divide ne[0] of x, and table rows be even and at most head_dim");
    tsr_node *node = unary(graph, TSR_OP_ROPE, x);
    if (!node)
        return NULL;
    node->tensor.src[1] = table;
    node->args.head_dim = head_dim;
    node->args.interleaved = interleaved;
    return &node->tensor;
}

tsr_tensor *tsr_glu(tsr_graph *graph, tsr_glu_kind kind, float limit, tsr_tensor *gate, tsr_tensor *up)
{
    if (operands_missing(graph, "glu", gate, up))
        return NULL;
    const bool has_limit = kind == TSR_GLU_CAPPED || kind == TSR_GLU_BOUNDED;
    if ((int)kind < TSR_GLU_SILU || kind > TSR_GLU_BOUNDED || (has_limit && !(limit > 0)))
        return bad(graph, "glu", gate, up, "the kind must be a tsr_glu_kind, and its limit more than 0");
    if (!tsr_tensor_is_activation(up) || gate->ne[0] != up->ne[0] || gate->ne[1] != up->ne[1])
        return bad(graph, "glu", gate, up, "both must be F32 of one shape");
    tsr_node *node = unary(graph, TSR_OP_GLU, gate);
    if (!node)
        return NULL;
    node->tensor.src[1] = up;
    node->args.glu = kind;
    node->args.limit = limit;
    return &node->tensor;
}

tsr_tensor *tsr_swiglu(tsr_graph *graph, tsr_tensor *gate, tsr_tensor *up)
{
    return tsr_glu(graph, TSR_GLU_SILU, 0, gate, up);
}

tsr_tensor *tsr_geglu(tsr_graph *graph, tsr_tensor *gate, tsr_tensor *up)
{
    return tsr_glu(graph, TSR_GLU_GELU_TANH, 0, gate, up);
}

tsr_tensor *tsr_gelu(tsr_graph *graph, tsr_tensor *x)
{
    return tsr_glu(graph, TSR_GLU_GELU_GATE, 0, x, x);
}

tsr_tensor *tsr_relu_squared(tsr_graph *graph, tsr_tensor *x)
{
    return tsr_glu(graph, TSR_GLU_RELU, 0, x, x);
}

tsr_tensor *tsr_add(tsr_graph *graph, tsr_tensor *a, tsr_tensor *b)
{
    if (operands_missing(graph, "add", a, b))
        return NULL;
    if (!tsr_tensor_is_f32(b) || a->ne[0] != b->ne[0] || (b->ne[1] != a->ne[1] && b->ne[1] != 1))
        return bad(graph, "add", a, b, "both must be F32 of one shape, or the second have one row");
    if (tsr_tensor_is_weight(b) && b->ne[1] != 1)
        return bad(graph, "add", a, b, "a weight (a bias) must have one row, which is added to every row");
    tsr_node *node = unary(graph, TSR_OP_ADD, a);
    if (!node)
        return NULL;
    node->tensor.src[1] = b;
    return &node->tensor;
}

tsr_tensor *tsr_scale(tsr_graph *graph, tsr_tensor *x, float factor)
{
    tsr_node *node = unary(graph, TSR_OP_SCALE, x);
    if (!node)
        return NULL;
    node->args.factor = factor;
    return &node->tensor;
}

tsr_tensor *tsr_scale_by(tsr_graph *graph, tsr_tensor *x, tsr_tensor *factor)
{
    if (operands_missing(graph, "scale_by", x, factor))
        return NULL;
    if (factor->type != TSR_TYPE_F32 || factor->ne[0] != 1 || tsr_tensor_rows(factor) != 1 ||
        !tsr_tensor_is_weight(factor))
        return bad(graph, "scale_by", x, factor, "the factor must be an F32 weight of one element");
    tsr_node *node = (tsr_node *)tsr_scale(graph, x, 1);
    if (!node)
        return NULL;
    node->tensor.src[1] = factor;
    return &node->tensor;
}

tsr_tensor *tsr_softcap(tsr_graph *graph, tsr_tensor *x, float cap)
{
    tsr_node *node = unary(graph, TSR_OP_SOFTCAP, x);
    if (!node)
        return NULL;
    if (!(cap > 0))
        return bad(graph, "softcap", x, x, "the cap must be positive");
    node->args.softcap = cap;
    return &node->tensor;
}

tsr_tensor *tsr_gate(tsr_graph *graph, tsr_tensor *x, tsr_tensor *gate)
{
    if (operands_missing(graph, "gate", x, gate))
        return NULL;
    if (!tsr_tensor_is_activation(gate) || gate->ne[0] < 1 || x->ne[0] % gate->ne[0] != 0 ||
        gate->ne[1] != x->ne[1])
        return bad(
            graph, "gate", x, gate,
            "the second operand must be F32 with as many rows, and its ne[0] divide that of the first");
    tsr_node *node = unary(graph, TSR_OP_GATE, x);
    if (!node)
        return NULL;
    node->tensor.src[1] = gate;
    return &node->tensor;
}

tsr_tensor *tsr_softmax(tsr_graph *graph, tsr_tensor *x, float factor)
{
    tsr_node *node = unary(graph, TSR_OP_SOFTMAX, x);
    if (!node)
        return NULL;
    node->args.factor = factor;
    return &node->tensor;
}

tsr_tensor *tsr_argmax(tsr_graph *graph, tsr_tensor *x)
{
    tsr_node *node = unary(graph, TSR_OP_ARGMAX, x);
    if (!node)
        return NULL;
    node->tensor.type = TSR_TYPE_I32;
    node->tensor.ne[0] = 1;
    return &node->tensor;
}
