/* Lowering of one node: the shardings that each op needs of its operands, and the sharding of its result.
 * This is the table in docs/design/graph.md as code. */
#include "core/mem.h"
#include "graph/lower/lowering.h"

static bool same_division(const tsr_value *a, const tsr_value *b)
{
    return a->sharding == TSR_SHARDING_SPLIT && b->sharding == TSR_SHARDING_SPLIT &&
           a->devices == b->devices && tsr_shard_map_equal(a->map, b->map);
}

tsr_status tsr_lowering_check_placed(const tsr_tensor *weight)
{
    if (weight->placement.sharding == TSR_SHARDING_NONE || !weight->shards)
        return tsr_fail(TSR_ERR_INVALID,
                        "weight %s is not allocated; call tsr_tensors_alloc() before compiling",
                        weight->name);
    return TSR_OK;
}

tsr_status tsr_lowering_emit_node(tsr_lowering *low, const tsr_tensor *node, tsr_value value, tsr_instr instr)
{
    tsr_status status = TSR_OK;
    int index;
    value.name = node->name;
    value.type = node->type;
    value.ne0 = node->ne[0];
    value.ne1 = node->ne[1];
    value.flags = node->flags;
    TSR_TRY(tsr_lowering_add_value(low, value, &index));
    instr.kind = node->op;
    instr.name = node->name;
    instr.args = node->args;
    instr.out = index;
    instr.devices = value.devices;
    instr.collective = -1;
    TSR_TRY(tsr_lowering_add_instr(low, instr));
    low->out->value_of_node[node->index] = index;
out:
    return status;
}

/* Append a node whose value is PARTIAL over the devices of `weight`. Those that do not contribute may still
 * write to its slot: experts that are added to the sum (tsr_lower_experts()) may be on more devices. */
static tsr_status emit_partial(tsr_lowering *low, const tsr_tensor *node, tsr_device_set contributors,
                               tsr_instr instr)
{
    tsr_status status = TSR_OK;
    tsr_value value = {.sharding = TSR_SHARDING_PARTIAL,
                       .devices = instr.weight->placement.devices,
                       .contributors = contributors};
    TSR_TRY(tsr_lowering_emit_node(low, node, value, instr));
    low->pending = low->out->value_of_node[node->index];
out:
    return status;
}

static tsr_status lower_get_rows(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *table = node->src[0];
    tsr_instr instr = {.n_in = 1};
    if (!tsr_tensor_is_weight(table)) { /* rows of an activation */
        int x = tsr_lowering_value_of(low, table);
        TSR_TRY(tsr_lowering_need_whole(low, x, tsr_lowering_value(low, x)->devices, &instr.in[0]));
        tsr_device_set devices = tsr_lowering_value(low, instr.in[0])->devices;
        TSR_TRY(
            tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[1]), devices, &instr.in[1]));
        instr.n_in = 2;
        return tsr_lowering_emit_node(
            low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = devices}, instr);
    }
    instr.weight = table;
    TSR_TRY(tsr_lowering_check_placed(table));
    const tsr_placement *place = &table->placement;
    TSR_TRY(
        tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[1]), place->devices, &instr.in[0]));
    if (place->sharding == TSR_SHARDING_REPLICATED)
        return tsr_lowering_emit_node(
            low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = place->devices}, instr);
    if (place->axis != 1)
        return tsr_fail(TSR_ERR_INVALID, "get_rows: table %s is divided by columns; divide its rows",
                        table->name);
    TSR_TRY(tsr_lowering_resolve_pending(low));
    return emit_partial(low, node, tsr_lowering_holders(&table->placement), instr);
out:
    return status;
}

/* With W SPLIT(0) each device multiplies its own columns of x: x is divided like W, or whole. */
static tsr_status lower_row_parallel(tsr_lowering *low, const tsr_tensor *node, int x)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *w = node->src[0];
    tsr_value like_w = {
        .sharding = TSR_SHARDING_SPLIT, .devices = w->placement.devices, .map = w->placement.map};
    tsr_instr instr = {.weight = w, .in = {x}, .n_in = 1};
    if (!same_division(tsr_lowering_value(low, x), &like_w))
        TSR_TRY(tsr_lowering_need_whole(low, x, w->placement.devices, &instr.in[0]));
    TSR_TRY(tsr_lowering_resolve_pending(low));
    return emit_partial(low, node, tsr_lowering_holders(&w->placement), instr);
out:
    return status;
}

static tsr_status lower_mul_mat(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *w = node->src[0];
    TSR_TRY(tsr_lowering_check_placed(w));
    int x = tsr_lowering_value_of(low, node->src[1]);
    const tsr_placement *place = &w->placement;
    if (place->sharding == TSR_SHARDING_SPLIT && place->axis == 0)
        return lower_row_parallel(low, node, x);
    tsr_instr instr = {.weight = w, .n_in = 1};
    TSR_TRY(tsr_lowering_need_whole(low, x, place->devices, &instr.in[0]));
    tsr_value value = {.sharding = place->sharding, .devices = place->devices, .map = place->map};
    return tsr_lowering_emit_node(low, node, value, instr);
out:
    return status;
}

/* A norm over rows that are divided like the weight. If the weight has elements for each head, each device
 * norms its heads. Otherwise the norm is over all columns: the devices' sums of squares are added, then each
 * device scales its own columns. */
static tsr_status lower_divided_norm(tsr_lowering *low, const tsr_tensor *node, int x)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *weight = node->src[1];
    const tsr_node_args *args = node->args;
    const tsr_value like = {
        .sharding = TSR_SHARDING_SPLIT, .devices = weight->placement.devices, .map = weight->placement.map};
    tsr_value squares = {.name = node->name,
                         .type = TSR_TYPE_F32,
                         .ne0 = 2,
                         .ne1 = node->ne[1],
                         .sharding = TSR_SHARDING_PARTIAL,
                         .devices = like.devices,
                         .contributors = tsr_lowering_holders(&weight->placement)};
    tsr_instr sum = {.kind = TSR_OP_SUM_SQUARES,
                     .name = node->name,
                     .weight = weight,
                     .in = {x},
                     .n_in = 1,
                     .devices = like.devices,
                     .collective = -1};
    tsr_instr scale = {.weight = weight, .in = {x}, .n_in = 2};
    const bool by_head = args->head_dim > 0 && like.map->granule % args->head_dim == 0;
    if ((args->center || args->head_dim > 0) != by_head || !same_division(tsr_lowering_value(low, x), &like))
        return tsr_fail(TSR_ERR_INVALID, "%s: weight %s and %s are divided differently", node->name,
                        weight->name, node->src[0]->name);
    if (by_head)
        return tsr_lowering_emit_node(low, node, like, (tsr_instr){.weight = weight, .in = {x}, .n_in = 1});
    TSR_TRY(tsr_lowering_resolve_pending(low));
    TSR_TRY(tsr_lowering_add_value(low, squares, &sum.out));
    TSR_TRY(tsr_lowering_add_instr(low, sum));
    TSR_TRY(tsr_lowering_all_reduce(low, sum.out, -1, &scale.in[1]));
    TSR_TRY(tsr_lowering_emit_node(low, node, like, scale));
    low->out->instrs[low->out->n_instrs - 1].kind = TSR_OP_RMS_SCALE;
out:
    return status;
}

/* A norm over all of ne0 needs a whole operand, or one divided like the weight; a norm per head keeps the
 * division by heads. */
static tsr_status lower_rms_norm(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *weight = node->src[1];
    TSR_TRY(tsr_lowering_check_placed(weight));
    if (weight->placement.sharding != TSR_SHARDING_REPLICATED)
        return lower_divided_norm(low, node, tsr_lowering_value_of(low, node->src[0]));
    const tsr_tensor *bias = ((const tsr_node_args *)node->args)->bias;
    if (bias)
        TSR_TRY(tsr_lowering_check_placed(bias));
    if (bias && (bias->placement.sharding != TSR_SHARDING_REPLICATED ||
                 bias->placement.devices != weight->placement.devices))
        return tsr_fail(TSR_ERR_INVALID, "layer_norm: bias %s is not whole on every device of weight %s",
                        bias->name, weight->name);
    tsr_instr instr = {.weight = weight, .in = {tsr_lowering_value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value *x = tsr_lowering_value(low, instr.in[0]);
    if (x->sharding == TSR_SHARDING_SPLIT && x->map->granule % weight->ne[0] == 0 &&
        !(x->devices & ~weight->placement.devices))
        return tsr_lowering_emit_node(low, node, *x, instr);
    TSR_TRY(tsr_lowering_need_whole(low, instr.in[0], weight->placement.devices, &instr.in[0]));
    return tsr_lowering_emit_node(
        low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = weight->placement.devices},
        instr);
out:
    return status;
}

/* factor * x, or x times a weight of one element. */
static tsr_status lower_scale(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *factor = node->src[1];
    tsr_instr instr = {.weight = factor, .in = {tsr_lowering_value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    if (factor)
        TSR_TRY(tsr_lowering_check_placed(factor));
    if (factor && (like.devices & ~factor->placement.devices))
        return tsr_fail(TSR_ERR_INVALID, "scale: factor %s is missing on a device that holds %s",
                        factor->name, node->src[0]->name);
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

/* Ops on single heads (or elements) keep the division of their first operand, and the number of its heads;
 * the other operands in src are whole inputs. */
tsr_status tsr_lower_by_head(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.in = {tsr_lowering_value_of(low, node->src[0])}, .n_in = tsr_node_n_src(node)};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    int64_t head_dim = TSR_MAX(((const tsr_node_args *)node->args)->head_dim, 1);
    if (like.sharding == TSR_SHARDING_SPLIT && like.map->granule % head_dim != 0)
        TSR_TRY(tsr_lowering_need_whole(low, instr.in[0], like.devices, &instr.in[0]));
    like = *tsr_lowering_value(low, instr.in[0]);
    for (int i = 1; i < instr.n_in; i++)
        TSR_TRY(tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), like.devices,
                                        &instr.in[i]));
    if (like.sharding == TSR_SHARDING_SPLIT && node->ne[0] != like.ne0)
        TSR_TRY(tsr_lowering_scale_map(low, like.map, node->ne[0], &like.map));
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

/* With W divided, x must be divided by the same heads. */
static tsr_status lower_mul_heads(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *w = node->src[0];
    const tsr_node_args *args = node->args;
    const tsr_placement *place = &w->placement;
    tsr_instr instr = {.weight = w, .n_in = 1};
    TSR_TRY(tsr_lowering_check_placed(w));
    int index = tsr_lowering_value_of(low, node->src[1]);
    tsr_value x = *tsr_lowering_value(low, index);
    if (place->sharding == TSR_SHARDING_REPLICATED) {
        TSR_TRY(tsr_lowering_need_whole(low, index, place->devices, &instr.in[0]));
        return tsr_lowering_emit_node(
            low, node, (tsr_value){.sharding = TSR_SHARDING_REPLICATED, .devices = place->devices}, instr);
    }
    if (place->axis != 1 || x.sharding != TSR_SHARDING_SPLIT || x.devices != place->devices ||
        !tsr_lowering_same_heads(x.map, x.ne0 / args->n_heads, place->map, args->head_dim))
        return tsr_fail(TSR_ERR_INVALID, "mul_heads: %s and %s are not divided by the same heads", w->name,
                        x.name);
    instr.in[0] = index;
    TSR_TRY(tsr_lowering_scale_map(low, x.map, node->ne[0], &x.map));
    return tsr_lowering_emit_node(low, node, x, instr);
out:
    return status;
}

/* Whether the parts of x that have an element of `gate` each are divided as these elements are. */
static bool parts_alike(const tsr_value *x, const tsr_value *gate)
{
    return x->sharding == TSR_SHARDING_SPLIT && gate->sharding == TSR_SHARDING_SPLIT &&
           x->devices == gate->devices && tsr_lowering_same_heads(gate->map, 1, x->map, x->ne0 / gate->ne0);
}

static tsr_status lower_gate(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {
        .in = {tsr_lowering_value_of(low, node->src[0]), tsr_lowering_value_of(low, node->src[1])},
        .n_in = 2};
    if (node->src[1]->ne[0] == 1)
        return tsr_lower_by_head(low, node);
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[1], &instr.in[1]));
    tsr_device_set devices = tsr_lowering_value(low, instr.in[0])->devices;
    if (!parts_alike(tsr_lowering_value(low, instr.in[0]), tsr_lowering_value(low, instr.in[1])))
        for (int i = 0; i < 2; i++)
            TSR_TRY(tsr_lowering_need_whole(low, instr.in[i], devices, &instr.in[i]));
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

/* Ops that mix ne0 and have no weight: softmax, argmax. */
static tsr_status lower_whole_rows(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_instr instr = {.n_in = 1};
    int x = tsr_lowering_value_of(low, node->src[0]);
    tsr_status status = tsr_lowering_need_whole(low, x, tsr_lowering_value(low, x)->devices, &instr.in[0]);
    if (status != TSR_OK)
        return status;
    tsr_value like = {.sharding = TSR_SHARDING_REPLICATED,
                      .devices = tsr_lowering_value(low, instr.in[0])->devices};
    return tsr_lowering_emit_node(low, node, like, instr);
}

/* Every device that has a part of x finds the candidates of its part; of a whole x, the first device. */
static tsr_status lower_top_k(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_instr instr = {.n_in = 1};
    tsr_status status = tsr_lowering_need_summed(low, tsr_lowering_value_of(low, node->src[0]), &instr.in[0]);
    if (status != TSR_OK)
        return status;
    const tsr_value *x = tsr_lowering_value(low, instr.in[0]);
    tsr_value value = {.sharding = TSR_SHARDING_REPLICATED};
    TSR_FOR_DEVICES(d, x->devices)
        if (tsr_value_cols(x, d) > 0 && (x->sharding == TSR_SHARDING_SPLIT || value.devices == 0))
            value.devices |= tsr_device_set_one(d);
    return tsr_lowering_emit_node(low, node, value, instr);
}

/* add and glu: operands divided alike stay divided; otherwise both become whole on the devices of the first
 * operand. */
static tsr_status lower_elementwise(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {
        .in = {tsr_lowering_value_of(low, node->src[0]), tsr_lowering_value_of(low, node->src[1])},
        .n_in = 2};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[1], &instr.in[1]));
    if (!same_division(tsr_lowering_value(low, instr.in[0]), tsr_lowering_value(low, instr.in[1]))) {
        TSR_TRY(tsr_lowering_need_whole(low, instr.in[0], tsr_lowering_value(low, instr.in[0])->devices,
                                        &instr.in[0]));
        TSR_TRY(tsr_lowering_need_whole(low, instr.in[1], tsr_lowering_value(low, instr.in[0])->devices,
                                        &instr.in[1]));
    }
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

/* a + bias. The bias is a weight of one row, divided like a or whole. */
static tsr_status lower_bias(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    const tsr_tensor *bias = node->src[1];
    TSR_TRY(tsr_lowering_check_placed(bias));
    if (bias->type != TSR_TYPE_F32)
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s is %s; only F32 is added", bias->name,
                        tsr_type_name(bias->type));
    tsr_instr instr = {.weight = bias, .in = {tsr_lowering_value_of(low, node->src[0])}, .n_in = 1};
    TSR_TRY(tsr_lowering_need_summed(low, instr.in[0], &instr.in[0]));
    tsr_value like_bias = {
        .sharding = bias->placement.sharding, .devices = bias->placement.devices, .map = bias->placement.map};
    if (like_bias.sharding == TSR_SHARDING_SPLIT &&
        !same_division(tsr_lowering_value(low, instr.in[0]), &like_bias))
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s and %s are divided differently", bias->name,
                        node->src[0]->name);
    if (tsr_lowering_value(low, instr.in[0])->devices & ~bias->placement.devices)
        return tsr_fail(TSR_ERR_INVALID, "add: bias %s is missing on a device that holds %s", bias->name,
                        node->src[0]->name);
    tsr_value like = *tsr_lowering_value(low, instr.in[0]);
    return tsr_lowering_emit_node(low, node, like, instr);
out:
    return status;
}

static bool is_fresh_partial(tsr_lowering *low, const tsr_tensor *tensor)
{
    int index = tsr_lowering_value_of(low, tensor);
    return index >= 0 && index == low->pending && low->n_uses[tensor->index] == 1 &&
           !(tensor->flags & TSR_TENSOR_OUTPUT);
}

/* partial + x in one pass: the all-reduce adds x. */
static tsr_status lower_add(tsr_lowering *low, const tsr_tensor *node)
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
    int partial = tsr_lowering_value_of(low, a), residual, sum;
    TSR_TRY(tsr_lowering_need_whole(low, tsr_lowering_value_of(low, b),
                                    tsr_lowering_value(low, partial)->devices, &residual));
    if (low->pending != partial) /* making b whole may have summed it already */
        return lower_elementwise(low, node);
    TSR_TRY(tsr_lowering_all_reduce(low, partial, residual, &sum));
    tsr_lowering_value(low, sum)->flags = node->flags;
    tsr_lowering_value(low, sum)->name = node->name;
    low->out->value_of_node[node->index] = sum;
out:
    return status;
}

static tsr_status lower_input(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_value value = {.name = node->name,
                       .type = node->type,
                       .ne0 = node->ne[0],
                       .ne1 = node->ne[1],
                       .sharding = TSR_SHARDING_REPLICATED,
                       .flags = node->flags};
    return tsr_lowering_add_value(low, value, &low->out->value_of_node[node->index]);
}

/* Most ops run on the devices of their first operand, but an input has no devices until an op needs it. Then
 * it is placed on the devices of the other operand, otherwise on all devices of the graph. */
static void place_input(tsr_lowering *low, const tsr_tensor *node)
{
    const tsr_tensor *first = node->src[0], *second = node->src[1];
    if (!first || tsr_tensor_is_weight(first) || tsr_node_n_src(node) == 0)
        return;
    tsr_value *x = tsr_lowering_value(low, tsr_lowering_value_of(low, first));
    if (!(x->flags & TSR_TENSOR_INPUT) || x->devices)
        return;
    if (second && tsr_tensor_is_weight(second))
        x->devices = second->placement.devices;
    else if (second)
        x->devices = tsr_lowering_value(low, tsr_lowering_value_of(low, second))->devices;
    if (x->devices == 0)
        x->devices = low->devices;
}

tsr_status tsr_lower_node(tsr_lowering *low, const tsr_tensor *node)
{
    place_input(low, node);
    switch (node->op) {
    case TSR_OP_NONE:
        return lower_input(low, node);
    case TSR_OP_GET_ROWS:
        return lower_get_rows(low, node);
    case TSR_OP_MUL_MAT:
        return ((const tsr_node_args *)node->args)->parts.n > 1 ? tsr_lower_mul_mat_parts(low, node)
                                                                : lower_mul_mat(low, node);
    case TSR_OP_MUL_HEADS:
        return lower_mul_heads(low, node);
    case TSR_OP_RMS_NORM:
        return node->src[1] ? lower_rms_norm(low, node) : tsr_lower_by_head(low, node);
    case TSR_OP_ATTENTION:
        return tsr_lower_attention(low, node);
    case TSR_OP_SELECT:
        return tsr_lower_select(low, node);
    case TSR_OP_SCALE:
        return lower_scale(low, node);
    case TSR_OP_ROPE:
    case TSR_OP_SOFTCAP:
        return tsr_lower_by_head(low, node);
    case TSR_OP_GATE:
        return lower_gate(low, node);
    case TSR_OP_SOFTMAX:
    case TSR_OP_ARGMAX:
        return lower_whole_rows(low, node);
    case TSR_OP_TOP_K:
        return lower_top_k(low, node);
    case TSR_OP_KV_WRITE:
        return tsr_lower_kv_write(low, node);
    case TSR_OP_ADD:
        return lower_add(low, node);
    case TSR_OP_GLU:
        return lower_elementwise(low, node);
    case TSR_OP_COPY:
        return node->src[1] ? tsr_lower_concat(low, node) : tsr_lower_columns(low, node);
    case TSR_OP_CONV:
        return tsr_lower_conv(low, node);
    case TSR_OP_RECURRENCE:
        return tsr_lower_recurrence(low, node);
    case TSR_OP_COMPRESS:
        return tsr_lower_compress(low, node);
    case TSR_OP_STREAM_WEIGHTS:
    case TSR_OP_STREAM_MIX:
        return tsr_lower_streams(low, node);
    case TSR_OP_ROUTE:
        return tsr_lower_route(low, node);
    case TSR_OP_EXPERTS_DOWN:
        return tsr_lower_experts(low, node);
    default:
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: op %s cannot be part of a graph", node->name,
                        tsr_op_kind_name(node->op));
    }
}
