/* Lifetimes and in-place reuse.
 *
 * On each device a value is live from the instruction that makes it to the last instruction there that reads
 * it. An op that works element by element (or row by row, reading a row before writing it) may write over an
 * operand whose life ends at the op; the packer decides. The permission depends on the kind of op only,
 * never on sizes. So a graph for fewer tokens has the same items with the same lifetimes and can use the
 * offsets of the larger graph. Inputs keep their memory for the whole program, because the caller need not
 * set them again; outputs keep their memory to the end. All inputs of a device are one item, so that one copy
 * brings them from the host. */
#include "graph/emit/layout.h"

#include <string.h>

#include "core/mem.h"

/* -- lifetimes -- */

typedef struct lifetimes {
    const tsr_runtime *rt;
    const tsr_lowered *low;
    tsr_layout *layout;
    int *last; /* [n_values][n_devices] last instruction that reads it, -1 = none */
} lifetimes;

static int *last_of(lifetimes *life, int value, int d)
{
    return &life->last[value * life->layout->n_devices + d];
}

static int *item_of(lifetimes *life, int value, int d)
{
    return &life->layout->item_of[value * life->layout->n_devices + d];
}

static int in_place_operand(lifetimes *life, int i, int d)
{
    const tsr_instr *instr = &life->low->instrs[i];
    int first, end;
    tsr_instr_in_place(instr, &first, &end);
    for (int k = first; k < end; k++) {
        const tsr_value *value = &life->low->values[instr->in[k]];
        if (*item_of(life, instr->in[k], d) >= 0 && *last_of(life, instr->in[k], d) == i &&
            !(value->flags & (TSR_TENSOR_INPUT | TSR_TENSOR_OUTPUT)))
            return instr->in[k];
    }
    return -1;
}

static void find_last_uses(lifetimes *life)
{
    const tsr_lowered *low = life->low;
    for (int k = 0; k < low->n_values * life->layout->n_devices; k++)
        life->last[k] = -1;
    for (int i = 0; i < low->n_instrs; i++)
        TSR_FOR_DEVICES(d, low->instrs[i].devices) {
            for (int k = 0; k < low->instrs[i].n_in; k++)
                *last_of(life, low->instrs[i].in[k], d) = i;
            if (low->instrs[i].part > 0) /* the value must live until all its parts are made */
                *last_of(life, low->instrs[i].out, d) = i;
        }
}

/* Add an input of device `d` to the item of its inputs. */
static tsr_status define_input(lifetimes *life, int v, int d)
{
    tsr_device_layout *device = &life->layout->devices[d];
    size_t bytes;
    tsr_status status = tsr_value_bytes(life->rt, &life->low->values[v], d, &bytes);
    if (status != TSR_OK)
        return status;
    if (__builtin_add_overflow(device->input_bytes, bytes, &bytes))
        return tsr_fail(TSR_ERR_INVALID, "%s: the inputs of a graph exceed the address space",
                        life->low->values[v].name);
    *item_of(life, v, d) = 0;
    life->layout->inside_of[v * life->layout->n_devices + d] = device->input_bytes;
    device->input_bytes = bytes;
    device->items[0] = (tsr_item){.upper = TSR_MAX(life->low->n_instrs, 1), .bytes = bytes, .over = -1};
    device->n_items = 1;
    return TSR_OK;
}

/* Start the life of value `v` on device `d` at instruction `i`. */
static tsr_status define(lifetimes *life, int v, int d, int i)
{
    tsr_device_layout *device = &life->layout->devices[d];
    const tsr_value *value = &life->low->values[v];
    bool kept = value->flags & TSR_TENSOR_OUTPUT;
    int upper = kept ? life->low->n_instrs : TSR_MAX(*last_of(life, v, d), i) + 1;
    int operand = in_place_operand(life, i, d);
    tsr_item item = {.lower = i, .upper = upper, .over = -1};
    if (operand >= 0)
        item.over = *item_of(life, operand, d);
    tsr_status status = tsr_value_bytes(life->rt, value, d, &item.bytes);
    if (status != TSR_OK)
        return status;
    *item_of(life, v, d) = device->n_items;
    device->items[device->n_items++] = item;
    return TSR_OK;
}

/* A slot must hold the largest partial sum; each transfer has its own staging buffer for the whole step. */
static tsr_status define_workspace(lifetimes *life, int i, int d, tsr_reduce_type reduce)
{
    const tsr_instr *instr = &life->low->instrs[i];
    tsr_device_layout *device = &life->layout->devices[d];
    bool sends = instr->kind == TSR_OP_SEND;
    const tsr_value *value = &life->low->values[sends ? instr->in[0] : instr->out];
    int64_t cols = instr->kind == TSR_OP_COPY ? tsr_shard_map_count(value->map, d) : value->ne0;
    bool empty = !sends && instr->kind != TSR_OP_COPY && !tsr_device_set_has(value->contributors, d);
    size_t bytes, element = instr->kind == TSR_OP_COPY || sends ? sizeof(float) : tsr_reduce_bytes(reduce);
    if (!tsr_mul_size((size_t)cols, (size_t)value->ne1, &bytes) || !tsr_mul_size(bytes, element, &bytes) ||
        bytes > SIZE_MAX / 4)
        return tsr_fail(TSR_ERR_INVALID, "%s: [%lld, %lld] is too large", value->name, (long long)value->ne0,
                        (long long)value->ne1);
    bytes = tsr_align_up(bytes, life->rt->devices[d]->alignment);
    if (sends) {
        life->layout->staging_of[i] = device->staging_bytes;
        device->staging_bytes += bytes;
    } else if (!empty) {
        device->slot_bytes = TSR_MAX(device->slot_bytes, bytes);
        device->n_slots = TSR_MAX(device->n_slots, value->slot + 1);
    }
    return TSR_OK;
}

static tsr_status define_all(lifetimes *life, tsr_reduce_type reduce)
{
    tsr_status status = TSR_OK;
    const tsr_lowered *low = life->low;
    for (int v = 0; v < low->n_values; v++)
        for (int d = 0; d < life->layout->n_devices; d++)
            if ((low->values[v].flags & TSR_TENSOR_INPUT) && tsr_device_set_has(low->values[v].devices, d))
                TSR_TRY(define_input(life, v, d));
    for (int i = 0; i < low->n_instrs; i++) {
        const tsr_instr *instr = &low->instrs[i];
        bool partial = instr->out >= 0 && low->values[instr->out].sharding == TSR_SHARDING_PARTIAL;
        TSR_FOR_DEVICES(d, instr->devices) {
            if (partial || instr->kind == TSR_OP_SEND)
                TSR_TRY(define_workspace(life, i, d, reduce));
            else if (instr->out >= 0 && instr->part == 0)
                TSR_TRY(define(life, instr->out, d, i));
        }
    }
out:
    return status;
}

/* The devices whose slots are read by others: those of all-reduces and all-gathers of several devices. */
static void find_readers(lifetimes *life)
{
    for (int i = 0; i < life->low->n_instrs; i++) {
        const tsr_instr *instr = &life->low->instrs[i];
        const bool reads = instr->kind == TSR_OP_ALL_REDUCE || instr->kind == TSR_OP_ALL_GATHER;
        TSR_FOR_DEVICES(d, reads && tsr_device_set_count(instr->devices) > 1 ? instr->devices : 0)
            life->layout->devices[d].is_read = true;
    }
}

tsr_status tsr_layout_create(const tsr_runtime *rt, const tsr_lowered *lowered, tsr_reduce_type reduce,
                             int n_lanes, tsr_layout *layout_out)
{
    tsr_status status = TSR_OK;
    tsr_layout layout = {.n_devices = rt->n_devices, .n_values = lowered->n_values, .n_lanes = n_lanes};
    lifetimes life = {.rt = rt, .low = lowered, .layout = &layout};
    size_t n = (size_t)lowered->n_values * (size_t)rt->n_devices;

    TSR_TRY(tsr_mem_array(n, sizeof(int), "activation lifetimes", &life.last));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "activation places", &layout.item_of));
    TSR_TRY(tsr_mem_array(n, sizeof(size_t), "input places", &layout.inside_of));
    TSR_TRY(tsr_mem_array((size_t)lowered->n_instrs, sizeof(size_t), "transfer places", &layout.staging_of));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *layout.devices, "device layouts", &layout.devices));
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(tsr_mem_array((size_t)lowered->n_values, sizeof(tsr_item), "activation items",
                              &layout.devices[d].items));
    memset(layout.item_of, -1, n * sizeof(int));
    find_last_uses(&life);
    TSR_TRY(define_all(&life, reduce));
    find_readers(&life);
    *layout_out = layout;
    memset(&layout, 0, sizeof layout);
out:
    tsr_mem_free(life.last);
    tsr_layout_free(&layout);
    return status;
}

void tsr_layout_free(tsr_layout *layout)
{
    for (int d = 0; layout->devices && d < layout->n_devices; d++) {
        tsr_mem_free(layout->devices[d].items);
        tsr_mem_free(layout->devices[d].chunk_bytes);
    }
    tsr_mem_free(layout->devices);
    tsr_mem_free(layout->item_of);
    tsr_mem_free(layout->inside_of);
    tsr_mem_free(layout->staging_of);
    memset(layout, 0, sizeof *layout);
}

/* -- packing -- */

static bool same_shape(const tsr_device_layout *reserved, const tsr_device_layout *wanted)
{
    if (reserved->n_items != wanted->n_items)
        return false;
    for (int i = 0; i < wanted->n_items; i++)
        if (reserved->items[i].lower != wanted->items[i].lower ||
            reserved->items[i].upper != wanted->items[i].upper ||
            reserved->items[i].over != wanted->items[i].over ||
            reserved->items[i].bytes < wanted->items[i].bytes)
            return false;
    return true;
}

static tsr_status adopt(const tsr_device_layout *reserved, tsr_device_layout *device)
{
    tsr_status status =
        tsr_mem_array((size_t)reserved->n_chunks, sizeof(size_t), "arena chunks", &device->chunk_bytes);
    if (status != TSR_OK)
        return status;
    device->n_chunks = reserved->n_chunks;
    memcpy(device->chunk_bytes, reserved->chunk_bytes, (size_t)reserved->n_chunks * sizeof(size_t));
    device->bound_bytes = reserved->bound_bytes;
    for (int i = 0; i < device->n_items; i++) {
        device->items[i].chunk = reserved->items[i].chunk;
        device->items[i].offset = reserved->items[i].offset;
    }
    return TSR_OK;
}

static bool same_items(const tsr_device_layout *a, const tsr_device_layout *b)
{
    if (!same_shape(a, b))
        return false;
    for (int i = 0; i < a->n_items; i++)
        if (a->items[i].bytes != b->items[i].bytes)
            return false;
    return true;
}

/* A device before `d` with an identical packing problem (devices of equal shares have one); -1: none. */
static int find_twin(const tsr_runtime *rt, const tsr_layout *layout, int d)
{
    const tsr_device *device = rt->devices[d];
    for (int e = d - 1; e >= 0; e--)
        if (rt->devices[e]->alignment == device->alignment &&
            rt->devices[e]->max_alloc == device->max_alloc &&
            same_items(&layout->devices[e], &layout->devices[d]))
            return e;
    return -1;
}

tsr_status tsr_layout_pack(const tsr_runtime *rt, const tsr_layout *reserved, tsr_layout *layout)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < layout->n_devices; d++) {
        tsr_device_layout *device = &layout->devices[d];
        int twin;
        if (reserved && same_shape(&reserved->devices[d], device))
            TSR_TRY(adopt(&reserved->devices[d], device));
        else if ((twin = find_twin(rt, layout, d)) >= 0)
            TSR_TRY(adopt(&layout->devices[twin], device));
        else
            TSR_TRY(tsr_layout_pack_device(rt->devices[d], device));
    }
out:
    return status;
}

size_t tsr_layout_lane_bytes(const tsr_layout *layout, int device)
{
    return (size_t)(layout->n_lanes - 1) * layout->devices[device].input_bytes;
}

size_t tsr_layout_bound_bytes(const tsr_layout *layout, int device)
{
    return layout->devices[device].bound_bytes + tsr_layout_lane_bytes(layout, device);
}

size_t tsr_layout_arena_bytes(const tsr_layout *layout, int device)
{
    size_t bytes = tsr_layout_lane_bytes(layout, device);
    for (int c = 0; c < layout->devices[device].n_chunks; c++)
        bytes += layout->devices[device].chunk_bytes[c];
    return bytes;
}

size_t tsr_layout_slots_at(const tsr_layout *layout, int device, int lane)
{
    const tsr_device_layout *d = &layout->devices[device];
    return d->is_read ? (size_t)(lane * d->n_slots) * d->slot_bytes : 0;
}

size_t tsr_layout_staging_at(const tsr_layout *layout, int device, int lane)
{
    const tsr_device_layout *d = &layout->devices[device];
    const int n_slots = d->is_read ? layout->n_lanes * d->n_slots : d->n_slots;
    return (size_t)n_slots * d->slot_bytes + (size_t)lane * d->staging_bytes;
}

size_t tsr_layout_comm_bytes(const tsr_layout *layout, int device)
{
    return tsr_layout_staging_at(layout, device, layout->n_lanes);
}
