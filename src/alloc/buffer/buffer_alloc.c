/* From tensors and their placements to allocations: one pass over the tensors per device either counts bytes
 * or allocates them, so that planned bytes are allocated bytes.
 *
 * Tensors follow each other in order, each at the device's alignment. A device with a largest allocation gets
 * several regions; a new region begins where the next tensor would not fit. The sum of bytes does not depend
 * on where the cuts fall, because every tensor's size is rounded up. */
#include "alloc/buffer/buffer.h"

#include "alloc/buffer/tensor.h"
#include "core/mem.h"
#include "core/status.h"

/* -- twins -- */

static bool is_empty(tsr_window w)
{
    return w.row_begin == w.row_end;
}

/* Whether two windows of a tensor make one window together. */
static bool touch(tsr_window a, tsr_window b)
{
    const bool rows = a.row_begin == b.row_begin && a.row_end == b.row_end;
    const bool cols = a.col_begin == b.col_begin && a.col_end == b.col_end;
    return !is_empty(a) && !is_empty(b) &&
           ((rows && a.col_begin <= b.col_end && b.col_begin <= a.col_end) ||
            (cols && a.row_begin <= b.row_end && b.row_begin <= a.row_end));
}

static tsr_window own_window(const tsr_buffer_item *item, int d)
{
    return tsr_placement_window(item->tensor, &item->placement, d);
}

tsr_window tsr_buffer_stored_window(const tsr_buffer_item *item, int d)
{
    const tsr_window a = own_window(item, d), b = item->twin ? own_window(item->twin, d) : (tsr_window){0};
    if (!touch(a, b))
        return a;
    if (item->second)
        return (tsr_window){0};
    return (tsr_window){TSR_MIN(a.col_begin, b.col_begin), TSR_MAX(a.col_end, b.col_end),
                        TSR_MIN(a.row_begin, b.row_begin), TSR_MAX(a.row_end, b.row_end)};
}

size_t tsr_buffer_stored_bytes(const tsr_buffer_item *item, int d)
{
    const tsr_window w = tsr_buffer_stored_window(item, d);
    return tsr_type_row_bytes(item->tensor->type, w.col_end - w.col_begin) *
           (size_t)(w.row_end - w.row_begin);
}

/* The shard of a window inside the stored one; without data, as on a measuring device, it stays without. Rows
 * of parts of several rows are not divided. */
static tsr_shard shard_in(const tsr_buffer_item *item, tsr_window stored, tsr_shard shard, tsr_window own)
{
    if (!shard.data)
        return shard;
    shard.data = (unsigned char *)shard.data + (size_t)(own.row_begin - stored.row_begin) * shard.row_stride +
                 tsr_type_row_bytes(item->tensor->type, own.col_begin - stored.col_begin);
    return shard;
}

void tsr_buffer_set_shards(const tsr_buffer_item *item, int d, tsr_shard shard)
{
    const tsr_window stored = tsr_buffer_stored_window(item, d), own = own_window(item, d);
    item->shards[d] = shard_in(item, stored, shard, own);
    if (item->twin && !item->second && touch(own, own_window(item->twin, d)))
        item->twin->shards[d] = shard_in(item, stored, shard, own_window(item->twin, d));
}

/* -- allocations -- */

/* Bytes of one shard, rounded up to the alignment. */
static tsr_status padded_bytes(const tsr_device *device, const tsr_buffer_item *item, size_t *bytes_out)
{
    size_t bytes = tsr_buffer_stored_bytes(item, device->index);
    if (bytes > device->max_alloc || bytes > SIZE_MAX - device->alignment ||
        tsr_align_up(bytes, device->alignment) > device->max_alloc)
        return tsr_fail(
            TSR_ERR_MEMORY,
            "device %s: tensor %s needs %zu bytes in one piece, one allocation holds at most %zu; "
            "give the device a smaller share",
            device->name, item->tensor->name, bytes, device->max_alloc);
    *bytes_out = tsr_align_up(bytes, device->alignment);
    return TSR_OK;
}

/* The items [begin, *end_out) that share a region, and its bytes. */
static tsr_status next_region(const tsr_device *device, const tsr_buffer_item *items, int n, int begin,
                              int *end_out, size_t *bytes_out)
{
    tsr_status status = TSR_OK;
    size_t total = 0, bytes = 0;
    int end = begin;

    for (; end < n; end++) {
        TSR_TRY(padded_bytes(device, &items[end], &bytes));
        if (bytes > device->max_alloc - total)
            break;
        total += bytes;
    }
    *end_out = end;
    *bytes_out = total;
out:
    return status;
}

static void fill_shards(const tsr_device *device, tsr_buffer_item *items, int n, unsigned char *cursor)
{
    for (int i = 0; i < n; i++) {
        tsr_buffer_item *item = &items[i];
        tsr_window window = tsr_buffer_stored_window(item, device->index);
        size_t bytes = tsr_buffer_stored_bytes(item, device->index);
        if (bytes == 0)
            continue;
        const size_t stride = tsr_type_row_bytes(item->tensor->type, window.col_end - window.col_begin);
        tsr_buffer_set_shards(item, device->index, (tsr_shard){.data = cursor, .row_stride = stride});
        cursor += tsr_align_up(bytes, device->alignment);
    }
}

tsr_status tsr_buffer_lay_out(tsr_buffer *buffer, tsr_device *device, tsr_buffer_item *items, int n,
                              size_t *bytes)
{
    tsr_status status = TSR_OK;
    size_t total = 0;

    for (int begin = 0, end; begin < n; begin = end) {
        size_t region_bytes;
        void *pointer = NULL;
        TSR_TRY(next_region(device, items, n, begin, &end, &region_bytes));
        if (!tsr_add_size(total, region_bytes, &total))
            return tsr_fail(TSR_ERR_MEMORY, "device %s: the tensors together exceed the address space",
                            device->name);
        if (!buffer || region_bytes == 0)
            continue;
        TSR_TRY(tsr_buffer_add_memory(buffer, device->index, region_bytes, "tensors", &pointer));
        fill_shards(device, items + begin, end - begin, pointer);
    }
    *bytes += total;
out:
    return status;
}

/* -- tensors of a context -- */

/* The placement that a buffer type gives a tensor; its map is written to *map. */
static tsr_status place_by_type(const tsr_tensor *tensor, const tsr_buffer_type *type, tsr_shard_map *map,
                                tsr_placement *placement_out)
{
    tsr_status status = TSR_OK;
    int64_t counts[TSR_MAX_DEVICES];
    tsr_placement placement = {.sharding = TSR_SHARDING_REPLICATED, .devices = type->devices};

    if (type->sharding == TSR_SHARDING_SPLIT && tsr_tensor_rows(tensor) > 1) {
        int64_t extent = type->axis == 0 ? tensor->ne[0] : tsr_tensor_rows(tensor);
        int64_t granule = type->granule;
        if (granule == 0)
            granule = type->axis == 0 ? tsr_type_block_elems(tensor->type) : 1;
        int64_t n_granules = extent / granule + (extent % granule != 0);
        TSR_TRY(tsr_split_round(type->shares, type->rt->n_devices, n_granules, NULL, counts));
        TSR_TRY(tsr_shard_map_init(extent, granule, type->rt->n_devices, counts, map));
        placement.sharding = TSR_SHARDING_SPLIT;
        placement.axis = type->axis;
        placement.map = map;
    }
    TSR_TRY(tsr_placement_check(tensor, &placement));
    *placement_out = placement;
out:
    return status;
}

/* The context's unallocated tensors as items whose maps belong to `buffer`. */
static tsr_status collect_items(tsr_context *context, const tsr_buffer_type *type, tsr_buffer *buffer,
                                tsr_buffer_item *items, int *n_out)
{
    tsr_status status = TSR_OK;
    tsr_shard *shards = NULL;
    int n = 0;

    TSR_TRY(tsr_buffer_shards(buffer, context->n_tensors, &shards));
    for (int i = 0; i < context->n_tensors; i++) {
        tsr_tensor *tensor = context->tensors[i];
        tsr_buffer_item *item = &items[n];
        tsr_shard_map map;
        if (tensor->shards)
            continue;
        item->tensor = tensor;
        item->shards = shards + (size_t)n * (size_t)context->rt->n_devices;
        TSR_TRY(place_by_type(tensor, type, &map, &item->placement));
        if (item->placement.map)
            TSR_TRY(tsr_buffer_keep_map(buffer, &map, &item->placement.map));
        n++;
    }
    *n_out = n;
out:
    return status;
}

/* Count or allocate. *buffer_out owns the memory or, when counting, only the records. */
static tsr_status measure_or_alloc(tsr_context *context, const tsr_buffer_type *type, bool allocate,
                                   size_t *bytes, tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = context->rt;
    tsr_buffer *buffer = NULL;
    tsr_buffer_item *items = NULL;
    int n = 0;

    TSR_TRY(tsr_buffer_create(rt, TSR_MEMORY_OTHER, &buffer));
    TSR_TRY(tsr_mem_array((size_t)context->n_tensors, sizeof *items, "a list of tensors", &items));
    TSR_TRY(collect_items(context, type, buffer, items, &n));
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(tsr_buffer_lay_out(allocate ? buffer : NULL, rt->devices[d], items, n, &bytes[d]));
    if (allocate) {
        buffer->main_device = type->main_device;
        for (int i = 0; i < n; i++)
            tsr_buffer_attach(buffer, &items[i]);
        *buffer_out = buffer;
        buffer = NULL; /* now the caller's */
    }
out:
    tsr_mem_free(items);
    tsr_buffer_destroy(buffer);
    return status;
}

static tsr_status check_arguments(const tsr_context *context, const tsr_buffer_type *type)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_context_status(context));
    if (!type)
        /* A type created in the argument list: the creation's message is kept. */
        return tsr_fail_in(TSR_ERR_INVALID, "the buffer type is NULL");
    if (type->rt != context->rt)
        return tsr_fail(TSR_ERR_INVALID, "the context and the buffer type belong to different runtimes");
out:
    return status;
}

tsr_status tsr_tensors_measure(tsr_context *context, const tsr_buffer_type *type, size_t *bytes_out)
{
    tsr_status status = TSR_OK;
    size_t bytes[TSR_MAX_DEVICES] = {0};

    TSR_TRY(check_arguments(context, type));
    if (!bytes_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_tensors_measure needs a place for the bytes");
    TSR_TRY(measure_or_alloc(context, type, false, bytes, NULL));
    for (int d = 0; d < context->rt->n_devices; d++)
        bytes_out[d] = bytes[d];
out:
    return status;
}

tsr_status tsr_tensors_alloc(tsr_context *context, const tsr_buffer_type *type, tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    size_t bytes[TSR_MAX_DEVICES] = {0};
    tsr_buffer *buffer = NULL;

    status = check_arguments(context, type);
    if (!context)
        return status;
    if (status == TSR_OK && !buffer_out)
        status = tsr_fail(TSR_ERR_INVALID, "tsr_tensors_alloc needs a place for the buffer");
    if (status == TSR_OK)
        status = measure_or_alloc(context, type, true, bytes, &buffer);
    TSR_TRY(tsr_processes_agree(context->rt->processes, status, "tsr_tensors_alloc"));
    *buffer_out = buffer;
    buffer = NULL; /* now the caller's */
out:
    tsr_buffer_destroy(buffer);
    return status;
}
