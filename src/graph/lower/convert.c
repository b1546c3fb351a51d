/* Values, instructions, and the conversions between shardings; see lowering.h. */
#include "graph/lower/lowering.h"

#include "core/mem.h"

tsr_status tsr_lowering_add_value(tsr_lowering *low, tsr_value value, int *index_out)
{
    tsr_lowered *out = low->out;
    tsr_status status = tsr_mem_grow(&out->values, out->n_values, &out->values_capacity, 128,
                                     sizeof *out->values, "graph values");
    if (status != TSR_OK)
        return status;
    value.whole = -1;
    out->values[out->n_values] = value;
    *index_out = out->n_values++;
    return TSR_OK;
}

tsr_status tsr_lowering_add_instr(tsr_lowering *low, tsr_instr instr)
{
    tsr_lowered *out = low->out;
    tsr_status status = tsr_mem_grow(&out->instrs, out->n_instrs, &out->instrs_capacity, 128,
                                     sizeof *out->instrs, "graph instructions");
    if (status != TSR_OK)
        return status;
    out->instrs[out->n_instrs++] = instr;
    return TSR_OK;
}

tsr_value *tsr_lowering_value(tsr_lowering *low, int index)
{
    return &low->out->values[index];
}

int tsr_lowering_value_of(tsr_lowering *low, const tsr_tensor *tensor)
{
    return low->out->value_of_node[tensor->index];
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Granules of another number of elements, where those of `like` have no whole number of elements: the largest
 * ones that have an end at every cut. */
static void find_granules(const tsr_shard_map *like, tsr_shard_map *map)
{
    map->granule = map->extent;
    for (int d = 0; d <= like->n_devices; d++) {
        map->begin[d] = tsr_shard_map_first(like, d) * map->extent / like->extent;
        map->granule = common_divisor(map->granule, map->begin[d]);
    }
    for (int d = 0; d <= like->n_devices; d++)
        map->begin[d] /= map->granule;
}

tsr_status tsr_lowering_scale_map(tsr_lowering *low, const tsr_shard_map *like, int64_t extent,
                                  const tsr_shard_map **map_out)
{
    tsr_status status = TSR_OK;
    tsr_lowered *out = low->out;
    tsr_shard_map *map = NULL;
    TSR_TRY(tsr_mem_grow(&out->maps, out->n_maps, &out->maps_capacity, 8, sizeof *out->maps, "shard maps"));
    TSR_TRY(TSR_NEW(&map, "a shard map"));
    *map = *like;
    map->extent = extent;
    map->granule = like->granule * extent / like->extent;
    if (like->granule * extent % like->extent != 0)
        find_granules(like, map);
    out->maps[out->n_maps++] = map;
    *map_out = map;
out:
    return status;
}

/* -- conversions -- */

/* Sum up a PARTIAL, adding `residual` (a REPLICATED value on the same devices, or -1). */
tsr_status tsr_lowering_all_reduce(tsr_lowering *low, int partial, int residual, int *whole_out)
{
    tsr_status status = TSR_OK;
    tsr_value value = *tsr_lowering_value(low, partial);
    value.sharding = TSR_SHARDING_REPLICATED;
    value.contributors = 0;
    int whole;
    TSR_TRY(tsr_lowering_add_value(low, value, &whole));
    TSR_TRY(tsr_lowering_add_instr(low, (tsr_instr){.kind = TSR_OP_ALL_REDUCE,
                                                    .name = value.name,
                                                    .in = {partial, residual},
                                                    .n_in = residual >= 0 ? 2 : 1,
                                                    .out = whole,
                                                    .devices = value.devices,
                                                    .collective = low->out->n_collectives++}));
    low->out->n_all_reduces++;
    tsr_lowering_value(low, partial)->whole = whole;
    if (low->pending == partial)
        low->pending = -1;
    *whole_out = whole;
out:
    return status;
}

tsr_status tsr_lowering_resolve_pending(tsr_lowering *low)
{
    int whole;
    return low->pending < 0 ? TSR_OK : tsr_lowering_all_reduce(low, low->pending, -1, &whole);
}

/* A SPLIT value on one device alone has all its columns there: a copy has the other sharding. */
static tsr_status copy_alone(tsr_lowering *low, int split, int *whole_out)
{
    tsr_status status = TSR_OK;
    tsr_value value = *tsr_lowering_value(low, split);
    value.sharding = TSR_SHARDING_REPLICATED;
    TSR_TRY(tsr_lowering_add_value(low, value, whole_out));
    TSR_TRY(tsr_lowering_add_instr(low, (tsr_instr){.kind = TSR_OP_COPY,
                                                    .name = value.name,
                                                    .in = {split},
                                                    .n_in = 1,
                                                    .out = *whole_out,
                                                    .devices = value.devices,
                                                    .collective = -1}));
    tsr_lowering_value(low, split)->whole = *whole_out;
out:
    return status;
}

/* Make a SPLIT value whole on all its devices: each copies its part into the workspace, then all devices
 * read all parts. */
static tsr_status all_gather(tsr_lowering *low, int split, int *whole_out)
{
    tsr_status status = TSR_OK;
    int part, whole;
    TSR_TRY(tsr_lowering_resolve_pending(low));
    tsr_value value = *tsr_lowering_value(low, split);
    value.sharding = TSR_SHARDING_PARTIAL;
    TSR_TRY(tsr_lowering_add_value(low, value, &part));
    TSR_TRY(tsr_lowering_add_instr(low, (tsr_instr){.kind = TSR_OP_COPY,
                                                    .name = value.name,
                                                    .in = {split},
                                                    .n_in = 1,
                                                    .out = part,
                                                    .devices = value.devices,
                                                    .collective = -1}));
    value.sharding = TSR_SHARDING_REPLICATED;
    TSR_TRY(tsr_lowering_add_value(low, value, &whole));
    TSR_TRY(tsr_lowering_add_instr(low, (tsr_instr){.kind = TSR_OP_ALL_GATHER,
                                                    .name = value.name,
                                                    .in = {part},
                                                    .n_in = 1,
                                                    .out = whole,
                                                    .devices = value.devices,
                                                    .collective = low->out->n_collectives++}));
    low->out->n_all_gathers++;
    tsr_lowering_value(low, split)->whole = whole;
    *whole_out = whole;
out:
    return status;
}

/* Copy a REPLICATED value to devices that lack it. The lowest device that has the value sends. */
static tsr_status transfer(tsr_lowering *low, int index, tsr_device_set missing)
{
    tsr_status status = TSR_OK;
    tsr_value *value = tsr_lowering_value(low, index);
    tsr_device_set sender = tsr_device_set_one(tsr_device_set_first(value->devices));
    tsr_instr instr = {.name = value->name, .n_in = 1, .collective = low->out->n_collectives};
    instr.in[0] = index;
    instr.kind = TSR_OP_SEND;
    instr.devices = sender;
    instr.out = -1;
    TSR_TRY(tsr_lowering_add_instr(low, instr));
    instr.kind = TSR_OP_RECV;
    instr.devices = missing;
    instr.out = index;
    instr.n_in = 0;
    TSR_TRY(tsr_lowering_add_instr(low, instr));
    tsr_lowering_value(low, index)->devices |= missing;
    low->out->n_collectives++;
    low->out->n_transfers += tsr_device_set_count(missing);
out:
    return status;
}

/* Make value `index` whole on every device of `devices`. Inputs need no conversion: the caller fills them
 * there. */
tsr_status tsr_lowering_need_whole(tsr_lowering *low, int index, tsr_device_set devices, int *whole_out)
{
    tsr_status status = TSR_OK;
    int whole = index;
    tsr_value *value = tsr_lowering_value(low, index);
    if (value->sharding != TSR_SHARDING_REPLICATED) {
        whole = value->whole;
        if (whole < 0 && value->sharding == TSR_SHARDING_PARTIAL)
            TSR_TRY(tsr_lowering_all_reduce(low, index, -1, &whole));
        else if (whole < 0 && tsr_device_set_count(value->devices) == 1)
            TSR_TRY(copy_alone(low, index, &whole));
        else if (whole < 0)
            TSR_TRY(all_gather(low, index, &whole));
    }
    value = tsr_lowering_value(low, whole);
    tsr_device_set missing = devices & ~value->devices;
    if (value->flags & TSR_TENSOR_INPUT)
        value->devices |= devices;
    else if (missing)
        TSR_TRY(transfer(low, whole, missing));
    *whole_out = whole;
out:
    return status;
}

/* Make an operand valid for an elementwise op: any sharding but PARTIAL. */
tsr_status tsr_lowering_need_summed(tsr_lowering *low, int index, int *index_out)
{
    *index_out = index;
    if (tsr_lowering_value(low, index)->sharding != TSR_SHARDING_PARTIAL)
        return TSR_OK;
    return tsr_lowering_need_whole(low, index, tsr_lowering_value(low, index)->devices, index_out);
}

/* -- divisions -- */

bool tsr_lowering_same_heads(const tsr_shard_map *a, int64_t a_dim, const tsr_shard_map *b, int64_t b_dim)
{
    bool alike = a->n_devices == b->n_devices;
    for (int d = 0; alike && d < a->n_devices; d++)
        alike = tsr_shard_map_first(a, d) * b_dim == tsr_shard_map_first(b, d) * a_dim &&
                tsr_shard_map_count(a, d) * b_dim == tsr_shard_map_count(b, d) * a_dim &&
                tsr_shard_map_count(a, d) % a_dim == 0;
    return alike;
}

tsr_device_set tsr_lowering_holders(const tsr_placement *place)
{
    tsr_device_set mask = 0;
    for (int d = 0; d < place->map->n_devices; d++)
        if (tsr_shard_map_count(place->map, d) > 0)
            mask |= tsr_device_set_one(d);
    return mask & place->devices;
}

tsr_device_set tsr_lowering_deciders(const tsr_lowering *low, tsr_device_set devices)
{
    tsr_device *const *all = low->graph->rt->devices;
    TSR_FOR_DEVICES(d, devices)
        if (all[d]->is_gpu != all[tsr_device_set_first(devices)]->is_gpu)
            return tsr_device_set_one(tsr_device_set_first(devices));
    return devices;
}
