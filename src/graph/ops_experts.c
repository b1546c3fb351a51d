/* Constructors of the ops for a mixture of experts, like ops.c. */
#include <math.h>

#include "core/config.h"
#include "core/routing.h"
#include "graph/graph.h"

/* NULL, or an F32 weight of n elements. */
static bool is_vector(const tsr_tensor *w, int64_t n)
{
    return !w ||
           (w->type == TSR_TYPE_F32 && tsr_tensor_is_weight(w) && w->ne[0] == n && tsr_tensor_rows(w) == 1);
}

size_t tsr_routing_config_init(tsr_routing_config *config_out, size_t size)
{
    const tsr_routing_config defaults = {.normalize = true, .scale = 1};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

/* experts x tokens is bounded so that every size in a routing fits int32_t, its element type. */
static const char *routing_fault(const tsr_tensor *logits, const tsr_routing_config *c)
{
    const int64_t n_experts = logits->ne[0];
    if (!tsr_tensor_is_activation(logits) || c->n_used < 1 || c->n_used > n_experts)
        return "logits must be F32, of at least as many experts as a token uses (n_used, at least 1)";
    if (n_experts > TSR_MAX_EXPERTS || logits->ne[1] > (1 << 30) / c->n_used)
        return "too many experts or tokens";
    if ((int)c->gating < TSR_GATING_SOFTMAX || c->gating > TSR_GATING_SQRT_SOFTPLUS || !isfinite(c->scale))
        return "the gating must be a tsr_gating, and the scale finite";
    if (!is_vector(c->bias, n_experts) || !is_vector(c->factors, n_experts))
        return "the bias and the factors must be F32 weights with an element per expert";
    if (c->n_groups > 1 &&
        (c->n_groups > TSR_MAX_EXPERT_GROUPS || n_experts % c->n_groups != 0 || c->n_groups_used < 1 ||
         c->n_groups_used > c->n_groups || c->n_used > n_experts / c->n_groups * c->n_groups_used))
        return "at most 64 groups must divide the experts, and those in use hold as many as a token uses";
    if (c->table && (!c->ids || c->table->type != TSR_TYPE_I32 || !tsr_tensor_is_weight(c->table) ||
                     c->table->ne[0] != c->n_used || c->ids->type != TSR_TYPE_I32 ||
                     tsr_tensor_is_weight(c->ids) || c->ids->ne[0] != logits->ne[1] || c->ids->ne[1] != 1))
        return "the table must be an I32 weight with the experts of an id in a row, and the ids I32, one for "
               "each token";
    return NULL;
}

tsr_tensor *tsr_route(tsr_graph *graph, tsr_tensor *logits, const tsr_routing_config *given)
{
    tsr_routing_config config = tsr_routing_config_default();
    const tsr_status status =
        tsr_config_read("tsr_routing_config", given, sizeof config, &config, sizeof config);
    if (status != TSR_OK)
        return tsr_graph_fail(graph, status);
    tsr_tensor *const operands[] = {logits, config.ids};
    if (tsr_graph_misses(graph, "route", operands, config.table && config.ids ? 2 : 1))
        return NULL;
    const char *fault = routing_fault(logits, &config);
    if (fault)
        return tsr_graph_refuse(graph, "route", logits, fault);
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_ROUTE, TSR_TYPE_I32,
                         tsr_routing_words(logits->ne[1], config.n_used, logits->ne[0]), 1, "route");
    if (!node)
        return NULL;
    node->tensor.src[0] = logits;
    node->tensor.src[1] = config.table ? config.ids : NULL;
    node->args.n_used = config.n_used;
    node->args.n_experts = logits->ne[0];
    node->args.route = config;
    node->args.weigh_inputs = config.weigh_inputs;
    return &node->tensor;
}

size_t tsr_experts_config_init(tsr_experts_config *config_out, size_t size)
{
    const tsr_experts_config defaults = {.glu = TSR_GLU_SILU};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

/* Whether a matrix of all experts has n_ff * n_embd * n_experts elements. */
static bool is_mixture(const tsr_tensor *w, int64_t n_embd, int64_t n_ff, int64_t n_experts)
{
    const int64_t n_rows = tsr_tensor_rows(w);
    return tsr_tensor_is_weight(w) && w->ne[2] == 1 && w->ne[3] == 1 &&
           w->ne[0] * n_rows == n_embd * n_ff * n_experts;
}

static bool is_bias(const tsr_tensor *b, int64_t n, int64_t n_experts)
{
    return !b || (tsr_tensor_is_weight(b) && b->type == TSR_TYPE_F32 && b->ne[0] == n &&
                  tsr_tensor_rows(b) == n_experts);
}

/* Why these cannot be the matrices of n_experts experts for x; NULL: they can. */
static const char *experts_fault(const tsr_experts_config *c, const tsr_tensor *x, int64_t n_experts,
                                 int64_t n_ff)
{
    const int64_t n_embd = x->ne[0], block = tsr_type_block_elems(c->down->type);
    if (n_ff < 1 || !is_mixture(c->gate, n_embd, n_ff, n_experts) ||
        !is_mixture(c->up, n_embd, n_ff, n_experts) || !is_mixture(c->down, n_embd, n_ff, n_experts))
        return "gate, up and down must be weights of two dimensions, each with ne[0] of x times n_ff "
               "elements for each expert of the routing";
    if (!is_bias(c->gate_bias, n_ff, n_experts) || !is_bias(c->up_bias, n_ff, n_experts) ||
        !is_bias(c->down_bias, n_embd, n_experts))
        return "biases must be F32 weights with a row for each expert, of n_ff elements for gate and up and "
               "ne[0] of x for down";
    if (c->granule < 0 || c->granule % block != 0)
        return "the granule must be whole blocks of the type of down";
    if ((int)c->glu < TSR_GLU_SILU || c->glu > TSR_GLU_BOUNDED ||
        ((c->glu == TSR_GLU_CAPPED || c->glu == TSR_GLU_BOUNDED) && !(c->limit > 0)))
        return "glu must be a tsr_glu_kind, and its limit more than 0";
    return NULL;
}

/* An FFN without a gate has up as gate. */
static tsr_status read_experts(const tsr_experts_config *given, tsr_experts_config *c)
{
    *c = tsr_experts_config_default();
    tsr_status status = tsr_config_read("tsr_experts_config", given, sizeof *c, c, sizeof *c);
    if (status == TSR_OK && (!c->gate || c->gate == c->up)) {
        c->gate = c->up;
        c->gate_bias = c->up_bias;
    }
    return status;
}

tsr_tensor *tsr_experts(tsr_graph *graph, tsr_tensor *x, tsr_tensor *routing, const tsr_experts_config *given)
{
    tsr_experts_config config;
    const tsr_status status = read_experts(given, &config);
    if (status != TSR_OK)
        return tsr_graph_fail(graph, status);
    tsr_tensor *const operands[] = {x, routing, config.gate, config.up, config.down};
    if (tsr_graph_misses(graph, "experts", operands, 5))
        return NULL;
    const tsr_node_args *route = routing->args;
    if (!tsr_tensor_is_activation(x) || routing->op != TSR_OP_ROUTE ||
        routing->ne[0] != tsr_routing_words(x->ne[1], route->n_used, route->n_experts))
        return tsr_graph_refuse(graph, "experts", x,
                                "the operands must be F32 and a tsr_route() of as many tokens");
    const int64_t n_elements = config.up->ne[0] * tsr_tensor_rows(config.up);
    const int64_t n_ff =
        x->ne[0] > 0 && x->ne[0] <= n_elements ? n_elements / (x->ne[0] * route->n_experts) : 0;
    const char *fault = experts_fault(&config, x, route->n_experts, n_ff);
    if (fault)
        return tsr_graph_refuse(graph, "experts", config.down, fault);
    tsr_node *node =
        tsr_graph_append(graph, TSR_OP_EXPERTS_DOWN, TSR_TYPE_F32, x->ne[0], x->ne[1], config.down->name);
    if (!node)
        return NULL;
    node->tensor.src[0] = x;
    node->tensor.src[1] = routing;
    node->args.n_used = route->n_used;
    node->args.n_experts = route->n_experts;
    node->args.n_ff = n_ff;
    node->args.weigh_inputs = route->weigh_inputs;
    node->args.experts = config;
    return &node->tensor;
}

tsr_tensor *tsr_experts_onto(tsr_graph *graph, tsr_tensor *experts, tsr_tensor *other)
{
    tsr_tensor *const operands[] = {experts, other};
    if (!experts || !other)
        return experts;
    if (tsr_graph_misses(graph, "experts_onto", operands, 2))
        return NULL;
    if (experts->op != TSR_OP_EXPERTS_DOWN || experts->src[2] || other->index > experts->index ||
        other->op != TSR_OP_MUL_MAT || (other->flags & TSR_TENSOR_OUTPUT) || other->ne[0] != experts->ne[0] ||
        other->ne[1] != experts->ne[1])
        return tsr_graph_refuse(
            graph, "experts_onto", other,
            "the other operand must be a product of the experts' shape, made before them");
    experts->src[2] = other;
    return experts;
}
