/* A mixture of experts: its routing, and its FFN as two instructions. The hidden activations between the two
 * instructions are no node's value. */
#include "core/routing.h"
#include "graph/lower/lowering.h"

static tsr_status append(tsr_lowering *low, tsr_value value, tsr_instr instr, int *index_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_lowering_add_value(low, value, index_out));
    instr.name = value.name;
    instr.out = *index_out;
    instr.devices = value.devices;
    instr.collective = -1;
    TSR_TRY(tsr_lowering_add_instr(low, instr));
out:
    return status;
}

tsr_status tsr_lower_route(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    tsr_instr instr = {.kind = node->op, .args = node->args, .n_in = 1};
    int logits = tsr_lowering_value_of(low, node->src[0]);
    const tsr_tensor *const whole[] = {instr.args->route.bias, instr.args->route.factors,
                                       instr.args->route.table};
    TSR_TRY(tsr_lowering_need_whole(low, logits, tsr_lowering_value(low, logits)->devices, &instr.in[0]));
    for (int i = 0; i < 3; i++)
        if (whole[i] && (whole[i]->placement.sharding != TSR_SHARDING_REPLICATED ||
                         tsr_lowering_value(low, instr.in[0])->devices & ~whole[i]->placement.devices))
            return tsr_fail(TSR_ERR_INVALID, "route: %s is missing on a device that holds %s", whole[i]->name,
                            node->src[0]->name);
    tsr_value value = {.name = node->name,
                       .type = node->type,
                       .ne0 = node->ne[0],
                       .ne1 = node->ne[1],
                       .sharding = TSR_SHARDING_REPLICATED,
                       .devices = tsr_lowering_deciders(low, tsr_lowering_value(low, instr.in[0])->devices),
                       .flags = node->flags};
    if (node->src[1])
        TSR_TRY(tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[1]), value.devices,
                                        &instr.in[instr.n_in++]));
    TSR_TRY(append(low, value, instr, &low->out->value_of_node[node->index]));
out:
    return status;
}

/* Whether `map` has the same cuts as `like`, with `factor` elements per element of `like`. */
static bool cuts_like(const tsr_shard_map *map, const tsr_shard_map *like, int64_t factor)
{
    if (map->extent != like->extent * factor || map->granule != like->granule * factor ||
        map->n_devices != like->n_devices)
        return false;
    for (int d = 0; d <= map->n_devices; d++)
        if (map->begin[d] != like->begin[d])
            return false;
    return true;
}

static tsr_status check_matrix(const tsr_tensor *w)
{
    if (w->placement.sharding != TSR_SHARDING_SPLIT || !w->shards)
        return tsr_fail(TSR_ERR_INVALID, "experts: weight %s is not allocated, or not divided", w->name);
    return TSR_OK;
}

/* Biases of gate and up, and by experts those of down, are divided like down. */
static tsr_status check_bias(const tsr_tensor *bias, const tsr_tensor *down)
{
    if (!bias)
        return TSR_OK;
    const tsr_placement *place = &bias->placement;
    if (place->sharding != TSR_SHARDING_SPLIT || !bias->shards || place->axis != down->placement.axis ||
        place->devices != down->placement.devices || !tsr_shard_map_equal(place->map, down->placement.map))
        return tsr_fail(TSR_ERR_INVALID, "experts: bias %s and weight %s are divided differently", bias->name,
                        down->name);
    return TSR_OK;
}

/* By columns, biases of down are divided by experts over devices that have columns. */
static tsr_status check_rows(const tsr_tensor *bias, const tsr_tensor *down)
{
    if (!bias)
        return TSR_OK;
    const tsr_placement *place = &bias->placement;
    if (place->sharding != TSR_SHARDING_SPLIT || !bias->shards || place->axis != 1 ||
        (tsr_lowering_holders(place) & ~tsr_lowering_holders(&down->placement)))
        return tsr_fail(
            TSR_ERR_INVALID,
            "experts: bias %s is not divided by rows over devices that have columns of %s; divide it "
            "by the bytes of %s on each device",
            bias->name, down->name, down->name);
    return TSR_OK;
}

static tsr_status check_biases(const tsr_experts_config *e)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_bias(e->gate_bias, e->down));
    TSR_TRY(check_bias(e->up_bias, e->down));
    return e->down->placement.axis == 1 ? check_bias(e->down_bias, e->down)
                                        : check_rows(e->down_bias, e->down);
out:
    return status;
}

/* Devices begin at whole granules, so that every device sums the granules of all splits. */
static tsr_status check_experts(const tsr_node_args *args, int64_t n_embd)
{
    tsr_status status = TSR_OK;
    const tsr_experts_config *e = &args->experts;
    const tsr_tensor *const rows[] = {e->gate, e->up};
    TSR_TRY(check_matrix(e->down));
    const tsr_placement *down = &e->down->placement;
    bool by_columns = down->axis == 0;
    if (e->down->ne[0] != (by_columns ? args->n_ff : n_embd * args->n_ff))
        return tsr_fail(TSR_ERR_INVALID, "experts: weight %s is divided inside its experts' rows",
                        e->down->name);
    if (by_columns && down->map->granule % tsr_experts_granule(args) != 0)
        return tsr_fail(
            TSR_ERR_INVALID,
            "experts: weight %s is divided by granules of %lld columns, which are no multiple of the "
            "granule of %lld that is summed",
            e->down->name, (long long)down->map->granule, (long long)tsr_experts_granule(args));
    for (int i = 0; i < 2; i++) {
        TSR_TRY(check_matrix(rows[i]));
        const tsr_placement *place = &rows[i]->placement;
        if (rows[i]->ne[0] != n_embd * args->n_ff || place->axis != down->axis ||
            place->devices != down->devices || !cuts_like(place->map, down->map, by_columns ? n_embd : 1))
            return tsr_fail(TSR_ERR_INVALID, "experts: weights %s and %s are divided differently",
                            rows[i]->name, e->down->name);
    }
    TSR_TRY(check_biases(e));
out:
    return status;
}

/* The hidden activations: SPLIT like down's columns, or whole on every device, where each device uses the
 * slots of its experts. */
static tsr_value hidden_value(const tsr_node_args *args, const tsr_tensor *node)
{
    const tsr_placement *down = &args->experts.down->placement;
    return (tsr_value){.name = args->experts.up->name,
                       .type = TSR_TYPE_F32,
                       .ne0 = args->n_ff,
                       .ne1 = node->ne[1] * args->n_used,
                       .sharding = down->axis == 0 ? TSR_SHARDING_SPLIT : TSR_SHARDING_REPLICATED,
                       .devices = down->devices,
                       .map = down->axis == 0 ? down->map : NULL};
}

/* The sum is in the slot of `other` (slots.h), if `other` is still PARTIAL, otherwise in a new slot. A slot
 * is free on the devices of the value that it is chosen for, so experts may share that of `other` only where
 * `other` is on all devices that write to it. */
static tsr_status add_onto(tsr_lowering *low, int other, tsr_instr *sum, tsr_value *value)
{
    if (other >= 0 && other == low->pending) {
        if (value->contributors & ~tsr_lowering_value(low, other)->devices)
            return tsr_fail(TSR_ERR_INVALID, "experts: weight %s is on devices that have no part in %s",
                            value->name, tsr_lowering_value(low, other)->name);
        sum->in[sum->n_in++] = other;
        value->contributors |= tsr_lowering_value(low, other)->contributors;
        return TSR_OK;
    }
    return tsr_lowering_resolve_pending(low);
}

tsr_status tsr_lower_experts(tsr_lowering *low, const tsr_tensor *node)
{
    tsr_status status = TSR_OK;
    int *index = &low->out->value_of_node[node->index], other = -1, whole;
    const tsr_node_args *args = node->args;
    const tsr_placement *down = &args->experts.down->placement;
    tsr_instr glu = {.kind = TSR_OP_EXPERTS_GLU, .args = args, .n_in = 2};
    tsr_instr sum = {.kind = TSR_OP_EXPERTS_DOWN, .args = args, .weight = args->experts.down, .n_in = 2};

    TSR_TRY(check_experts(args, node->ne[0]));
    for (int i = 0; i < 2; i++)
        TSR_TRY(tsr_lowering_need_whole(low, tsr_lowering_value_of(low, node->src[i]), down->devices,
                                        &glu.in[i]));
    TSR_TRY(append(low, hidden_value(args, node), glu, &sum.in[0]));
    sum.in[1] = glu.in[1];
    if (node->src[2] && low->n_uses[node->src[2]->index] > 1)
        return tsr_fail(TSR_ERR_INVALID, "experts_onto: %s is used by another op, too; add it with tsr_add()",
                        node->src[2]->name);
    if (node->src[2])
        other = tsr_lowering_value_of(low, node->src[2]);
    tsr_value value = {.name = node->name,
                       .type = node->type,
                       .ne0 = node->ne[0],
                       .ne1 = node->ne[1],
                       .sharding = TSR_SHARDING_PARTIAL,
                       .devices = down->devices,
                       .contributors = tsr_lowering_holders(down),
                       .flags = node->flags};
    TSR_TRY(add_onto(low, other, &sum, &value));
    TSR_TRY(append(low, value, sum, index));
    low->pending = *index;
    if (other >= 0 && sum.n_in == 2) { /* `other` was already summed */
        TSR_TRY(tsr_lowering_need_whole(low, other, down->devices, &whole));
        TSR_TRY(tsr_lowering_all_reduce(low, *index, whole, index));
    }
out:
    return status;
}
