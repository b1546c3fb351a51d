/* Constructors of the ops for a mixture of experts, like ops.c. */
#include "core/routing.h"
#include "graph/graph.h"

/* NULL, or an F32 weight of n elements. */
static bool is_vector(const tsr_tensor *w, int64_t n)
{
    return !w ||
           (w->type == TSR_TYPE_F32 && tsr_tensor_is_weight(w) && w->ne[0] == n && tsr_tensor_rows(w) == 1);
}

/* experts x tokens is bounded so that every size in a routing fits int32_t, its element type. */
tsr_tensor *tsr_route(tsr_graph *graph, tsr_tensor *logits, const tsr_routing_rule *rule)
{
    if (tsr_graph_misses(graph, "route", &logits, 1))
        return NULL;
    const int64_t n_experts = logits->ne[0], n_tokens = logits->ne[1], n_used = rule->n_used;
    if (!tsr_tensor_is_f32(logits) || n_used < 1 || n_used > n_experts)
        return tsr_graph_refuse(graph, "route", logits,
                                "logits must be F32, of at least as many experts as a token uses");
    if (n_experts > TSR_MAX_EXPERTS || n_tokens > (1 << 30) / n_used)
        return tsr_graph_refuse(graph, "route", logits, "too many experts or tokens");
    if (!is_vector(rule->bias, n_experts) || !is_vector(rule->factors, n_experts))
        return tsr_graph_refuse(graph, "route", logits,
                                "the bias and the factors must be F32 weights with an element per expert");
    if (rule->n_groups > 1 && (rule->n_groups > TSR_MAX_EXPERT_GROUPS || n_experts % rule->n_groups != 0 ||
                               rule->n_groups_used < 1 || rule->n_groups_used > rule->n_groups ||
                               n_used > n_experts / rule->n_groups * rule->n_groups_used))
        return tsr_graph_refuse(
            graph, "route", logits,
            "at most 64 groups must divide the experts, and those in use hold as many as a token uses");
    const tsr_tensor *table = rule->table, *ids = rule->ids;
    if (table && (!ids || table->type != TSR_TYPE_I32 || !tsr_tensor_is_weight(table) ||
                  table->ne[0] != n_used || ids->type != TSR_TYPE_I32 || ids->ne[0] != n_tokens))
        return tsr_graph_refuse(graph, "route", logits,
                                "the table must be an I32 weight with the experts of an id in a row, and the "
                                "ids I32, one for each token");
    tsr_node *node = tsr_graph_append(graph, TSR_OP_ROUTE, TSR_TYPE_I32,
                                      tsr_routing_words(n_tokens, n_used, n_experts), 1, "route");
    if (!node)
        return NULL;
    node->tensor.src[0] = logits;
    node->tensor.src[1] = table ? rule->ids : NULL;
    node->args.n_used = n_used;
    node->args.n_experts = n_experts;
    node->args.route = *rule;
    node->args.weigh_inputs = rule->weigh_inputs;
    return &node->tensor;
}

tsr_tensor *tsr_experts(tsr_graph *graph, tsr_tensor *x, tsr_tensor *routing, const tsr_expert_weights *w)
{
    tsr_tensor *const operands[] = {x, routing, w->gate, w->up, w->down};
    if (tsr_graph_misses(graph, "experts", operands, 5))
        return NULL;
    const tsr_node_args *route = routing->args;
    if (!tsr_tensor_is_f32(x) || routing->op != TSR_OP_ROUTE || route->n_experts != w->n_experts ||
        routing->ne[0] != tsr_routing_words(x->ne[1], route->n_used, w->n_experts))
        return tsr_graph_refuse(graph, "experts", x,
                                "the operands must be F32 and a routing of its tokens to the experts");
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_EXPERTS_DOWN, TSR_TYPE_F32, x->ne[0], x->ne[1], w->down->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->tensor.src[1] = routing;
    node->args.n_used = route->n_used;
    node->args.n_experts = w->n_experts;
    node->args.weigh_inputs = route->weigh_inputs;
    node->args.experts = *w;
    return &node->tensor;
}

tsr_tensor *tsr_experts_onto(tsr_graph *graph, tsr_tensor *experts, tsr_tensor *other)
{
    if (!experts || !other)
        return experts;
    if (experts->op != TSR_OP_EXPERTS_DOWN || experts->src[2] || other->index > experts->index ||
        other->op != TSR_OP_MUL_MAT || other->ne[0] != experts->ne[0] || other->ne[1] != experts->ne[1])
        return tsr_graph_refuse(
            graph, "experts_onto", other,
            "the other operand must be a product of the experts' shape, made before them");
    experts->src[2] = other;
    return experts;
}
