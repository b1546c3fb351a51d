/* Sharding propagation.
 *
 * Nodes are taken in order. What an op needs of its operands (whole, or divided like another tensor) follows
 * from where its weight lies; what it makes follows from the table in docs/architecture.md. A conversion is
 * added only when an operand is not what the op needs: PARTIAL -> all-reduce, SPLIT -> all-gather, wrong
 * devices -> hand-over. The result of a conversion is remembered, so that it happens once per value.
 *
 * At most one PARTIAL is unresolved at any time: before a second one is made the first is summed up. */
#include "graph/lower.h"

#include <string.h>

#include "core/mem.h"
#include "graph/slots.h"

typedef struct lowering {
    const tsr_graph *graph;
    tsr_lowered *out;
    int *n_uses; /* [n_nodes] live consumers */
    bool *live;  /* [n_nodes] */
    int pending; /* PARTIAL value not yet summed up, -1 = none */
    tsr_slots slots;
} lowering;

/* ---- values and instructions ----------------------------------------------------------------- */

static tsr_status add_value(lowering *low, tsr_value value, int *index_out)
{
    tsr_lowered *out = low->out;
    if (out->n_values == out->values_capacity) {
        int capacity = out->values_capacity ? 2 * out->values_capacity : 128;
        tsr_value *values = tsr_mem_realloc(out->values, (size_t)capacity, sizeof *values);
        if (!values)
            return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %d graph values", capacity);
        out->values = values;
        out->values_capacity = capacity;
    }
    value.whole = -1;
    out->values[out->n_values] = value;
    *index_out = out->n_values++;
    return TSR_OK;
}

static tsr_status add_instr(lowering *low, tsr_instr instr)
{
    tsr_lowered *out = low->out;
    if (out->n_instrs == out->instrs_capacity) {
        int capacity = out->instrs_capacity ? 2 * out->instrs_capacity : 128;
        tsr_instr *instrs = tsr_mem_realloc(out->instrs, (size_t)capacity, sizeof *instrs);
        if (!instrs)
            return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %d graph instructions", capacity);
        out->instrs = instrs;
        out->instrs_capacity = capacity;
    }
    out->instrs[out->n_instrs++] = instr;
    return TSR_OK;
}

static tsr_value *value_at(lowering *low, int index)
{
    return &low->out->values[index];
}

static int value_of(lowering *low, const tsr_tensor *tensor)
{
    return low->out->value_of_node[tensor->index];
}

int64_t tsr_value_cols(const tsr_value *value, int d)
{
    if (!(value->devices >> d & 1))
        return 0;
    return value->sharding == TSR_SHARDING_SPLIT ? tsr_shard_map_count(value->map, d) : value->ne0;
}

/* ---- conversions ----------------------------------------------------------------------------- */

/* Sum up a PARTIAL, adding `residual` (a REPLICATED value on the same devices, or -1). */
static tsr_status all_reduce(lowering *low, int partial, int residual, int *whole_out)
{
    tsr_status status = TSR_OK;
    tsr_value value = *value_at(low, partial);
    value.sharding = TSR_SHARDING_REPLICATED;
    value.contributors = 0;
    int whole;
    TSR_TRY(add_value(low, value, &whole));
    TSR_TRY(add_instr(low, (tsr_instr){.kind = TSR_OP_ALL_REDUCE,
                                       .name = value.name,
                                       .in = {partial, residual},
                                       .n_in = residual >= 0 ? 2 : 1,
                                       .out = whole,
                                       .devices = value.devices,
                                       .collective = low->out->n_collectives}));
    tsr_slots_meet(&low->slots, low->out->n_collectives++, value.devices,
                   value_at(low, partial)->contributors, value.slot);
    low->out->n_all_reduces++;
    value_at(low, partial)->whole = whole;
    if (low->pending == partial)
        low->pending = -1;
    *whole_out = whole;
out:
    return status;
}

static tsr_status resolve_pending(lowering *low)
{
    int whole;
    return low->pending < 0 ? TSR_OK : all_reduce(low, low->pending, -1, &whole);
}

/* A SPLIT value becomes whole on all its devices: each copies its part into the workspace, then all read
 * all. */
static tsr_status all_gather(lowering *low, int split, int *whole_out)
{
    tsr_status status = TSR_OK;
    int part, whole;
    TSR_TRY(resolve_pending(low));
    tsr_value value = *value_at(low, split);
    value.sharding = TSR_SHARDING_PARTIAL;
    TSR_TRY(tsr_slots_choose(&low->slots, value.devices, &value.slot));
    TSR_TRY(add_value(low, value, &part));
    TSR_TRY(add_instr(low, (tsr_instr){.kind = TSR_OP_COPY,
                                       .name = value.name,
                                       .in = {split},
                                       .n_in = 1,
                                       .out = part,
                                       .devices = value.devices,
                                       .collective = -1}));
    value.sharding = TSR_SHARDING_REPLICATED;
    TSR_TRY(add_value(low, value, &whole));
    TSR_TRY(add_instr(low, (tsr_instr){.kind = TSR_OP_ALL_GATHER,
                                       .name = value.name,
                                       .in = {part},
                                       .n_in = 1,
                                       .out = whole,
                                       .devices = value.devices,
                                       .collective = low->out->n_collectives}));
    tsr_slots_meet(&low->slots, low->out->n_collectives++, value.devices, value.devices, value.slot);
    low->out->n_all_gathers++;
    value_at(low, split)->whole = whole;
    *whole_out = whole;
out:
    return status;
}

/* Copy a REPLICATED value to devices that lack it. The lowest device that has it sends. */
static tsr_status hand_over(lowering *low, int index, uint64_t missing)
{
    tsr_status status = TSR_OK;
    tsr_value *value = value_at(low, index);
    uint64_t sender = value->devices & (~value->devices + 1);
    tsr_instr instr = {.name = value->name, .n_in = 1, .collective = low->out->n_collectives};
    instr.in[0] = index;
    instr.kind = TSR_OP_SEND;
    instr.devices = sender;
    instr.out = -1;
    TSR_TRY(add_instr(low, instr));
    instr.kind = TSR_OP_RECV;
    instr.devices = missing;
    instr.out = index;
    instr.n_in = 0;
    TSR_TRY(add_instr(low, instr));
    value_at(low, index)->devices |= missing;
    tsr_slots_hand_over(&low->slots, low->out->n_collectives++, sender, missing);
    low->out->n_handovers += __builtin_popcountll(missing);
out:
    return status;
}

/* The whole of value `index` on every device of `devices`. Inputs are simply wanted there: the caller fills
 * them. */
static tsr_status need_whole(lowering *low, int index, uint64_t devices, int *whole_out)
{
    tsr_status status = TSR_OK;
    int whole = index;
    tsr_value *value = value_at(low, index);
    if (value->sharding != TSR_SHARDING_REPLICATED) {
        whole = value->whole;
        if (whole < 0 && value->sharding == TSR_SHARDING_PARTIAL)
            TSR_TRY(all_reduce(low, index, -1, &whole));
        else if (whole < 0)
            TSR_TRY(all_gather(low, index, &whole));
    }
    value = value_at(low, whole);
    uint64_t missing = devices & ~value->devices;
    if (value->flags & TSR_TENSOR_INPUT)
        value->devices |= devices;
    else if (missing)
        TSR_TRY(hand_over(low, whole, missing));
    *whole_out = whole;
out:
    return status;
}

/* An operand as an elementwise op takes it: anything but PARTIAL. */
static tsr_status need_summed(lowering *low, int index, int *index_out)
{
    *index_out = index;
    if (value_at(low, index)->sharding != TSR_SHARDING_PARTIAL)
        return TSR_OK;
    return need_whole(low, index, value_at(low, index)->devices, index_out);
}

static bool same_division(const tsr_value *a, const tsr_value *b)
{
    return a->sharding == TSR_SHARDING_SPLIT && b->sharding == TSR_SHARDING_SPLIT &&
           a->devices == b->devices && tsr_shard_map_equal(a->map, b->map);
}

/* ---- one node -------------------------------------------------------------------------------- */

static tsr_status weight_placed(const tsr_tensor *weight)
{
    if (weight->placement.sharding == TSR_SHARDING_NONE || !weight->shards)
        return tsr_fail(TSR_ERR_INVALID,
                        "weight %s is not allocated; call tsr_tensors_alloc() before compiling",
                        weight->name);
    return TSR_OK;
}

/* The node's own value with the given placement, and the instruction that makes it. */
static tsr_status emit_node(lowering *low, const tsr_tensor *node, tsr_value value, tsr_instr instr)
{
    tsr_status status = TSR_OK;
    int index;
    value.name = node->name;
    value.type = node->type;
    value.ne0 = node->ne[0];
    value.ne1 = node->ne[1];
    value.flags = node->flags;
    TSR_TRY(add_value(low, value, &index));
    instr.kind = node->op;
    instr.name = node->name;
    instr.args = node->args;
    instr.out = index;
    instr.devices = value.devices;
    instr.collective = -1;
    TSR_TRY(add_instr(low, instr));
    low->out->value_of_node[node->index] = index;
out:
    return status;
}

/* A node whose value is PARTIAL over `weight`'s devices. */
static tsr_status emit_partial(lowering *low, const tsr_tensor *node, uint64_t contributors, tsr_instr instr)
{
    tsr_status status = TSR_OK;
    tsr_value value = {.sharding = TSR_SHARDING_PARTIAL,
                       .devices = instr.weight->placement.devices,
                       .contributors = contributors};
    TSR_TRY(tsr_slots_choose(&low->slots, contributors, &value.slot));
    TSR_TRY(emit_node(low, node, value, instr));
    low->pending = low->out->value_of_node[node->index];
out:
    return status;
}

/* Devices of a divided weight whose shard is not empty. */
static uint64_t holders(const tsr_tensor *weight)
{
    uint64_t mask = 0;
    for (int d = 0; d < weight->placement.map->n_devices; d++)
        if (tsr_shard_map_count(weight->placement.map, d) > 0)
            mask |= UINT64_C(1) << d;
    return mask & weight->placement.devices;
}

static tsr_status lower_get_rows(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *table = node->src[0];
    tsr_instr instr = {.n_in = 1};
    if (!tsr_tensor_is_weight(table)) { /* rows of an activation */
        int x = value_of(low, table);
        TSR_TRY(need_whole(low, x, value_at(low, x)->devices, &instr.in[0]));
        uint64_t devices = value_at(low, instr.in[0])->devices;
        TSR_TRY(need_whole(low, value_of(low, node->src[1]), devices, &instr.in[1]));
        instr.n_in = 2;
        return emit_node(low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = devices},
                         instr);
    }
    instr.weight = table;
    TSR_TRY(weight_placed(table));
    const tsr_placement *place = &table->placement;
    TSR_TRY(need_whole(low, value_of(low, node->src[1]), place->devices, &instr.in[0]));
    if (place->sharding == TSR_SHARDING_REPLICATED)
        return emit_node(low, node,
                         (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = place->devices}, instr);
    if (place->axis != 1)
        return tsr_fail(TSR_ERR_INVALID, "get_rows: table %s is divided by columns; divide its rows",
                        table->name);
    TSR_TRY(resolve_pending(low));
    return emit_partial(low, node, holders(table), instr);
out:
    return status;
}

/* W SPLIT(0) takes its own columns of x: either x is divided in the same way, or it is whole. */
static tsr_status lower_row_parallel(lowering *low, const tsr_tensor *node, int x)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *w = node->src[0];
    tsr_value like_w = {
        .sharding = TSR_SHARDING_SPLIT, .devices = w->placement.devices, .map = w->placement.map};
    tsr_instr instr = {.weight = w, .in = {x}, .n_in = 1};
    if (!same_division(value_at(low, x), &like_w))
        TSR_TRY(need_whole(low, x, w->placement.devices, &instr.in[0]));
    TSR_TRY(resolve_pending(low));
    return emit_partial(low, node, holders(w), instr);
out:
    return status;
}

static tsr_status lower_mul_mat(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *w = node->src[0];
    TSR_TRY(weight_placed(w));
    int x = value_of(low, node->src[1]);
    const tsr_placement *place = &w->placement;
    if (place->sharding == TSR_SHARDING_SPLIT && place->axis == 0)
        return lower_row_parallel(low, node, x);
    tsr_instr instr = {.weight = w, .n_in = 1};
    TSR_TRY(need_whole(low, x, place->devices, &instr.in[0]));
    tsr_value value = {.sharding = place->sharding, .devices = place->devices, .map = place->map};
    return emit_node(low, node, value, instr);
out:
    return status;
}

/* A norm over the whole of ne0 needs it whole; a norm per head leaves heads where they are. */
static tsr_status lower_rms_norm(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *weight = node->src[1];
    TSR_TRY(weight_placed(weight));
    if (weight->placement.sharding != TSR_SHARDING_REPLICATED)
        return tsr_fail(TSR_ERR_INVALID, "rms_norm: weight %s is divided; replicate it", weight->name);
    tsr_instr instr = {.weight = weight, .in = {value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value *x = value_at(low, instr.in[0]);
    if (x->sharding == TSR_SHARDING_SPLIT && x->map->granule % weight->ne[0] == 0 &&
        !(x->devices & ~weight->placement.devices))
        return emit_node(low, node, *x, instr);
    TSR_TRY(need_whole(low, instr.in[0], weight->placement.devices, &instr.in[0]));
    return emit_node(low, node,
                     (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = weight->placement.devices},
                     instr);
out:
    return status;
}

/* Ops that treat heads (or elements) one by one keep the division of their first operand; the others in src
 * are whole inputs. */
static tsr_status lower_by_head(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.in = {value_of(low, node->src[0])}, .n_in = tsr_node_n_src(node)};
    TSR_TRY(need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like = *value_at(low, instr.in[0]);
    int64_t head_dim = node->op == TSR_OP_ROPE ? ((const tsr_node_args *)node->args)->head_dim : 1;
    if (like.sharding == TSR_SHARDING_SPLIT && like.map->granule % head_dim != 0)
        TSR_TRY(need_whole(low, instr.in[0], like.devices, &instr.in[0]));
    like = *value_at(low, instr.in[0]);
    for (int i = 1; i < instr.n_in; i++)
        TSR_TRY(need_whole(low, value_of(low, node->src[i]), like.devices, &instr.in[i]));
    return emit_node(low, node, like, instr);
out:
    return status;
}

/* Ops that mix ne0 and have no weight: softmax, argmax. */
static tsr_status lower_whole_rows(lowering *low, const tsr_tensor *node)
{
    tsr_instr instr = {.n_in = 1};
    int x = value_of(low, node->src[0]);
    tsr_status status = need_whole(low, x, value_at(low, x)->devices, &instr.in[0]);
    if (status != TSR_OK)
        return status;
    tsr_value like = {.sharding = TSR_SHARDING_REPLICATED, .devices = value_at(low, instr.in[0])->devices};
    return emit_node(low, node, like, instr);
}

static tsr_status lower_kv_write(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.in = {value_of(low, node->src[0]), value_of(low, node->src[1])}, .n_in = 5};
    const tsr_value *k = value_at(low, instr.in[0]), *v = value_at(low, instr.in[1]);
    if (!same_division(k, v))
        return tsr_fail(TSR_ERR_INVALID, "kv_write: %s and %s must be divided by the same heads", k->name,
                        v->name);
    uint64_t devices = k->devices;
    for (int i = 2; i < 5; i++)
        TSR_TRY(need_whole(low, value_of(low, node->src[i]), devices, &instr.in[i]));
    instr.kind = node->op;
    instr.name = node->name;
    instr.args = node->args;
    instr.out = -1;
    instr.devices = devices;
    instr.collective = -1;
    TSR_TRY(add_instr(low, instr));
out:
    return status;
}

/* add and glu: operands divided alike stay so; otherwise both become whole where the first one is. */
static tsr_status lower_elementwise(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.in = {value_of(low, node->src[0]), value_of(low, node->src[1])}, .n_in = 2};
    TSR_TRY(need_summed(low, instr.in[0], &instr.in[0]));
    TSR_TRY(need_summed(low, instr.in[1], &instr.in[1]));
    if (!same_division(value_at(low, instr.in[0]), value_at(low, instr.in[1]))) {
        TSR_TRY(need_whole(low, instr.in[0], value_at(low, instr.in[0])->devices, &instr.in[0]));
        TSR_TRY(need_whole(low, instr.in[1], value_at(low, instr.in[0])->devices, &instr.in[1]));
    }
    tsr_value like = *value_at(low, instr.in[0]);
    return emit_node(low, node, like, instr);
out:
    return status;
}

/* a + bias, the bias a weight of one row, divided like a or whole. */
static tsr_status lower_bias(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *bias = node->src[1];
    TSR_TRY(weight_placed(bias));
    if (bias->type != TSR_TYPE_F32)
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s is %s; only F32 is added", bias->name,
                        tsr_type_name(bias->type));
    tsr_instr instr = {.weight = bias, .in = {value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like_bias = {
        .sharding = bias->placement.sharding, .devices = bias->placement.devices, .map = bias->placement.map};
    if (like_bias.sharding == TSR_SHARDING_SPLIT && !same_division(value_at(low, instr.in[0]), &like_bias))
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s and %s are divided differently", bias->name,
                        node->src[0]->name);
    if (value_at(low, instr.in[0])->devices & ~bias->placement.devices)
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s is missing on a device that holds %s", bias->name,
                        node->src[0]->name);
    tsr_value like = *value_at(low, instr.in[0]);
    return emit_node(low, node, like, instr);
out:
    return status;
}

static bool is_fresh_partial(lowering *low, const tsr_tensor *tensor)
{
    int index = value_of(low, tensor);
    return index >= 0 && index == low->pending && low->n_uses[tensor->index] == 1 &&
           !(tensor->flags & TSR_TENSOR_OUTPUT);
}

/* partial + x in one pass: the all-reduce adds x on the way. */
static tsr_status lower_add(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *a = node->src[0], *b = node->src[1];
    if (tsr_tensor_is_weight(b))
        return lower_bias(low, node);
    if (a->ne[1] != b->ne[1] || a == b)
        return lower_elementwise(low, node);
    if (!is_fresh_partial(low, a) && is_fresh_partial(low, b)) {
        const tsr_tensor *t = a;
        a = b;
        b = t;
    }
    if (!is_fresh_partial(low, a))
        return lower_elementwise(low, node);
    int partial = value_of(low, a), residual, sum;
    TSR_TRY(need_whole(low, value_of(low, b), value_at(low, partial)->devices, &residual));
    if (low->pending != partial) /* gathering b may have summed it up already */
        return lower_elementwise(low, node);
    TSR_TRY(all_reduce(low, partial, residual, &sum));
    value_at(low, sum)->flags = node->flags;
    value_at(low, sum)->name = node->name;
    low->out->value_of_node[node->index] = sum;
out:
    return status;
}

static tsr_status lower_input(lowering *low, const tsr_tensor *node)
{
    tsr_value value = {.name = node->name,
                       .type = node->type,
                       .ne0 = node->ne[0],
                       .ne1 = node->ne[1],
                       .sharding = TSR_SHARDING_REPLICATED,
                       .flags = node->flags};
    return add_value(low, value, &low->out->value_of_node[node->index]);
}

static tsr_status lower_node(lowering *low, const tsr_tensor *node)
{
    switch (node->op) {
    case TSR_OP_NONE:
        return lower_input(low, node);
    case TSR_OP_GET_ROWS:
        return lower_get_rows(low, node);
    case TSR_OP_MUL_MAT:
        return lower_mul_mat(low, node);
    case TSR_OP_RMS_NORM:
        return lower_rms_norm(low, node);
    case TSR_OP_ROPE:
    case TSR_OP_ATTENTION:
    case TSR_OP_SCALE:
        return lower_by_head(low, node);
    case TSR_OP_SOFTMAX:
    case TSR_OP_ARGMAX:
        return lower_whole_rows(low, node);
    case TSR_OP_KV_WRITE:
        return lower_kv_write(low, node);
    case TSR_OP_ADD:
        return lower_add(low, node);
    case TSR_OP_GLU:
        return lower_elementwise(low, node);
    default:
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: op %s cannot be part of a graph", node->name,
                        tsr_op_kind_name(node->op));
    }
}

/* ---- the whole graph ------------------------------------------------------------------------- */

/* Nodes that lead to an output or a KV write, and how many live consumers each has. */
static tsr_status find_live(lowering *low)
{
    const tsr_graph *graph = low->graph;
    bool any = false;
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const tsr_tensor *node = &graph->nodes[i]->tensor;
        if ((node->flags & TSR_TENSOR_OUTPUT) || node->op == TSR_OP_KV_WRITE)
            low->live[i] = any = true;
        if (!low->live[i])
            continue;
        for (int s = 0; s < tsr_node_n_src(node); s++) {
            if (tsr_tensor_is_weight(node->src[s]))
                continue;
            low->live[node->src[s]->index] = true;
            low->n_uses[node->src[s]->index]++;
        }
    }
    return any ? TSR_OK
               : tsr_fail(TSR_ERR_INVALID, "the graph has no output; mark one with tsr_graph_output()");
}

/* An output that is still PARTIAL is summed up, and the sum is what the caller reads. */
static tsr_status settle_output(lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    int *index = &low->out->value_of_node[node->index];
    if (*index < 0 || !(node->flags & TSR_TENSOR_OUTPUT))
        return TSR_OK;
    if (value_at(low, *index)->sharding == TSR_SHARDING_PARTIAL)
        TSR_TRY(need_whole(low, *index, value_at(low, *index)->devices, index));
    value_at(low, *index)->flags |= TSR_TENSOR_OUTPUT;
out:
    return status;
}

tsr_status tsr_lower(const tsr_graph *graph, tsr_lowered *lowered_out)
{
    tsr_status status = TSR_OK;
    tsr_lowered lowered = {.n_nodes = graph->n_nodes};
    lowering low = {.graph = graph, .out = &lowered, .pending = -1};
    size_t n = (size_t)graph->n_nodes;

    if (graph->status != TSR_OK)
        return tsr_fail(graph->status, "%s", graph->message);
    TSR_TRY(tsr_mem_array(n, sizeof(int), "graph values", &lowered.value_of_node));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "graph uses", &low.n_uses));
    TSR_TRY(tsr_mem_array(n, sizeof(bool), "live graph nodes", &low.live));
    for (int i = 0; i < graph->n_nodes; i++)
        lowered.value_of_node[i] = -1;
    TSR_TRY(tsr_slots_init(&low.slots, graph->rt->n_devices));
    TSR_TRY(find_live(&low));
    for (int i = 0; i < graph->n_nodes; i++)
        if (low.live[i])
            TSR_TRY(lower_node(&low, &graph->nodes[i]->tensor));
    for (int i = 0; i < graph->n_nodes; i++)
        if (low.live[i])
            TSR_TRY(settle_output(&low, &graph->nodes[i]->tensor));
    *lowered_out = lowered;
    memset(&lowered, 0, sizeof lowered);
out:
    tsr_lowered_free(&lowered);
    tsr_slots_free(&low.slots);
    tsr_mem_free(low.n_uses);
    tsr_mem_free(low.live);
    return status;
}

void tsr_lowered_free(tsr_lowered *lowered)
{
    tsr_mem_free(lowered->values);
    tsr_mem_free(lowered->instrs);
    tsr_mem_free(lowered->value_of_node);
    memset(lowered, 0, sizeof *lowered);
}
