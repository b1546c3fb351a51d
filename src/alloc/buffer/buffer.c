/* Buffers: regions of device memory, the shard records and maps of the tensors in them, and the list that
 * ties tensors and buffer together (alloc/buffer/buffer.h). */
#include "alloc/buffer/buffer.h"

#include <stdio.h>

#include "core/mem.h"
#include "core/status.h"

struct tsr_buffer_map {
    struct tsr_buffer_map *next;
    tsr_shard_map map;
};

struct tsr_buffer_block {
    struct tsr_buffer_block *next;
    tsr_shard shards[];
};

/* "tensor wq", "tensors blk.0.attn_q.weight to output.weight": a buffer's first and last tensor. */
static void describe_buffer(const tsr_tracked *tracked, char *text, size_t size)
{
    const tsr_buffer *buffer = TSR_TRACKED_OBJECT(tracked, tsr_buffer);
    const tsr_tensor *last = buffer->tensors, *first = last; /* the list begins with the last attached */
    while (first && first->buffer_next)
        first = first->buffer_next;
    if (!first)
        snprintf(text, size, "without tensors");
    else if (first == last)
        snprintf(text, size, "with tensor %s", first->name);
    else
        snprintf(text, size, "with tensors %s to %s", first->name, last->name);
}

static size_t live_bytes(const tsr_tracked *tracked, int device)
{
    return tsr_buffer_bytes(TSR_TRACKED_OBJECT(tracked, tsr_buffer), device);
}

static const tsr_tracked_kind buffer_kind = {"buffer", describe_buffer, live_bytes};

tsr_status tsr_buffer_create(tsr_runtime *rt, tsr_memory_owner owner, tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    tsr_buffer *buffer = NULL;

    TSR_TRY(TSR_NEW(&buffer, "a buffer"));
    buffer->rt = rt;
    buffer->owner = owner;
    buffer->main_device = -1;
    tsr_track(&rt->tracked, &buffer->tracked, &buffer_kind);
    *buffer_out = buffer;
out:
    return status;
}

void tsr_buffer_destroy(tsr_buffer *buffer)
{
    if (!buffer)
        return;
    tsr_untrack(&buffer->tracked);
    while (buffer->tensors)
        tsr_buffer_detach(buffer->tensors);
    tsr_buffer_drop_regions(buffer, 0);
    tsr_mem_free(buffer->regions);
    while (buffer->maps) {
        struct tsr_buffer_map *map = buffer->maps;
        buffer->maps = map->next;
        tsr_mem_free(map);
    }
    while (buffer->blocks) {
        struct tsr_buffer_block *block = buffer->blocks;
        buffer->blocks = block->next;
        tsr_mem_free(block);
    }
    tsr_mem_free(buffer);
}

tsr_status tsr_buffer_shards(tsr_buffer *buffer, int n, tsr_shard **shards_out)
{
    tsr_status status = TSR_OK;
    struct tsr_buffer_block *block = NULL;
    /* The header is no larger than one record, so one record more makes room for it. */
    _Static_assert(sizeof(struct tsr_buffer_block) <= sizeof(tsr_shard), "header fits a record");
    size_t count = (size_t)n * (size_t)buffer->rt->n_devices + 1;

    TSR_TRY(tsr_mem_array(count, sizeof(tsr_shard), "shard records", &block));
    block->next = buffer->blocks;
    buffer->blocks = block;
    *shards_out = block->shards;
out:
    return status;
}

tsr_status tsr_buffer_keep_map(tsr_buffer *buffer, const tsr_shard_map *map, const tsr_shard_map **kept_out)
{
    tsr_status status = TSR_OK;
    struct tsr_buffer_map *kept = buffer->maps;

    while (kept && !tsr_shard_map_equal(&kept->map, map))
        kept = kept->next;
    if (!kept) {
        TSR_TRY(TSR_NEW(&kept, "a shard map"));
        kept->map = *map;
        kept->next = buffer->maps;
        buffer->maps = kept;
    }
    *kept_out = &kept->map;
out:
    return status;
}

/* Room for one more region, so that recording the region cannot fail. */
static tsr_status make_room(tsr_buffer *buffer)
{
    return tsr_mem_grow(&buffer->regions, buffer->n_regions, &buffer->region_capacity, 8,
                        sizeof *buffer->regions, "the regions of a buffer");
}

tsr_status tsr_buffer_add_memory(tsr_buffer *buffer, int device, size_t bytes, const char *what,
                                 void **pointer_out)
{
    tsr_status status = TSR_OK;
    void *pointer;

    TSR_TRY(make_room(buffer));
    TSR_TRY(tsr_device_alloc(buffer->rt->devices[device], buffer->owner, bytes, what, &pointer));
    buffer->regions[buffer->n_regions++] =
        (tsr_buffer_region){.device = device, .pointer = pointer, .bytes = bytes, .charged = bytes};
    *pointer_out = pointer;
out:
    return status;
}

tsr_status tsr_buffer_add_wrapped(tsr_buffer *buffer, int device_index, const void *pointer, size_t bytes,
                                  size_t charged, const char *what, const void **wrapped_out)
{
    tsr_status status = TSR_OK;
    tsr_device *device = buffer->rt->devices[device_index];
    const void *wrapped;

    TSR_TRY(make_room(buffer));
    TSR_TRY(tsr_device_wrap(device, buffer->owner, pointer, bytes, charged, what, &wrapped));
    buffer->regions[buffer->n_regions++] = (tsr_buffer_region){.device = device_index,
                                                               .wrapped = true,
                                                               .pointer = (void *)wrapped,
                                                               .bytes = bytes,
                                                               .charged = charged};
    *wrapped_out = wrapped;
out:
    return status;
}

static void drop_region(tsr_buffer *buffer, const tsr_buffer_region *region)
{
    tsr_device *device = buffer->rt->devices[region->device];
    if (region->borrowed)
        return;
    if (region->wrapped)
        tsr_device_unwrap(device, buffer->owner, region->pointer, region->bytes, region->charged);
    else
        tsr_device_free(device, buffer->owner, region->pointer, region->bytes);
}

void tsr_buffer_drop_regions(tsr_buffer *buffer, int n_kept)
{
    while (buffer->n_regions > n_kept)
        drop_region(buffer, &buffer->regions[--buffer->n_regions]);
}

void tsr_buffer_drop_device(tsr_buffer *buffer, int device)
{
    int n = 0;
    for (tsr_tensor *tensor = buffer->tensors; tensor; tensor = tensor->buffer_next)
        tensor->shards[device] = (tsr_shard){0};
    for (int i = 0; i < buffer->n_regions; i++) {
        if (buffer->regions[i].device == device)
            drop_region(buffer, &buffer->regions[i]);
        else
            buffer->regions[n++] = buffer->regions[i];
    }
    buffer->n_regions = n;
}

tsr_status tsr_buffer_borrow(tsr_buffer *buffer, const tsr_buffer *from, int device)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < from->n_regions; i++) {
        if (from->regions[i].device != device)
            continue;
        TSR_TRY(make_room(buffer));
        buffer->regions[buffer->n_regions] = from->regions[i];
        buffer->regions[buffer->n_regions++].borrowed = true;
    }
out:
    return status;
}

void tsr_buffer_inherit(tsr_buffer *buffer, tsr_buffer *from)
{
    for (int i = 0; i < buffer->n_regions; i++) {
        tsr_buffer_region *mine = &buffer->regions[i];
        for (int k = 0; k < from->n_regions && mine->borrowed; k++)
            if (from->regions[k].device == mine->device && from->regions[k].pointer == mine->pointer &&
                !from->regions[k].borrowed) {
                from->regions[k].borrowed = true;
                mine->borrowed = false;
            }
    }
}

void tsr_buffer_attach(tsr_buffer *buffer, const tsr_buffer_item *item)
{
    tsr_tensor *tensor = item->tensor;
    tensor->rt = buffer->rt;
    tensor->placement = item->placement;
    tensor->shards = item->shards;
    tensor->buffer = buffer;
    tensor->buffer_next = buffer->tensors;
    tensor->buffer_link = &buffer->tensors;
    if (buffer->tensors)
        buffer->tensors->buffer_link = &tensor->buffer_next;
    buffer->tensors = tensor;
}

void tsr_buffer_detach(tsr_tensor *tensor)
{
    if (!tensor->buffer)
        return;
    *tensor->buffer_link = tensor->buffer_next;
    if (tensor->buffer_next)
        tensor->buffer_next->buffer_link = tensor->buffer_link;
    tensor->buffer_next = NULL;
    tensor->buffer_link = NULL;
    tensor->buffer = NULL;
    tensor->shards = NULL; /* the buffer owns the records */
    tensor->placement = (tsr_placement){0};
}

size_t tsr_buffer_bytes(const tsr_buffer *buffer, int device)
{
    size_t bytes = 0;
    for (int i = 0; i < buffer->n_regions; i++)
        if (buffer->regions[i].device == device)
            bytes += buffer->regions[i].charged;
    return bytes;
}

bool tsr_buffer_has_copies(const tsr_buffer *buffer, int device)
{
    for (int i = 0; i < buffer->n_regions; i++)
        if (buffer->regions[i].device == device && !buffer->regions[i].wrapped)
            return true;
    return false;
}

static tsr_status wrap_whole(tsr_runtime *rt, int device, const void *pointer, size_t bytes,
                             tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    tsr_buffer *buffer = NULL;
    const void *wrapped;
    TSR_TRY(tsr_buffer_create(rt, TSR_MEMORY_OTHER, &buffer));
    TSR_TRY(tsr_buffer_add_wrapped(buffer, device, pointer, bytes, bytes, "the caller's memory", &wrapped));
    buffer->read_only = true;
    *buffer_out = buffer;
    buffer = NULL; /* now the caller's */
out:
    tsr_buffer_destroy(buffer);
    return status;
}

tsr_status tsr_buffer_from_ptr(tsr_runtime *rt, int device, const void *pointer, size_t bytes,
                               tsr_buffer **buffer_out)
{
    tsr_buffer *buffer = NULL;
    tsr_status status = TSR_OK;
    if (!rt || !pointer || bytes == 0 || !buffer_out)
        status =
            tsr_fail(TSR_ERR_INVALID, "tsr_buffer_from_ptr needs a runtime, memory of at least one byte and "
                                      "a place for the buffer");
    else if (device < 0 || device >= rt->n_devices)
        status = tsr_fail(TSR_ERR_INVALID, "tsr_buffer_from_ptr: there is no device %d; the runtime has %d",
                          device, rt->n_devices);
    if (!rt)
        return status;
    if (status == TSR_OK)
        status = wrap_whole(rt, device, pointer, bytes, &buffer);
    status = tsr_processes_agree(rt->processes, status, "tsr_buffer_from_ptr");
    if (status == TSR_OK)
        *buffer_out = buffer; /* now the caller's */
    else
        tsr_buffer_destroy(buffer);
    return status;
}

/* Bytes to which a type's elements (the widest field of its blocks) must be aligned. */
static size_t natural_alignment(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_F32:
    case TSR_TYPE_I32:
        return 4;
    case TSR_TYPE_I64:
        return 8;
    default:
        return 2; /* halves, and blocks that contain halves */
    }
}

static tsr_status check_place(const tsr_tensor *tensor, const tsr_buffer *buffer, size_t offset)
{
    if (!tensor || !buffer)
        return tsr_fail(TSR_ERR_INVALID, "tsr_tensor_place: %s is NULL; was its creation checked?",
                        tensor ? "the buffer" : "the tensor");
    const tsr_buffer_region *region = buffer->regions;
    if (buffer->n_regions != 1 || !region->wrapped)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor %s can be placed only into a buffer made by tsr_buffer_from_ptr",
                        tensor->name);
    if (tensor->rt != buffer->rt)
        return tsr_fail(TSR_ERR_INVALID, "tensor %s and the buffer belong to different runtimes",
                        tensor->name);
    if (tensor->shards)
        return tsr_fail(TSR_ERR_INVALID, "tensor %s is allocated already", tensor->name);
    size_t bytes = tsr_tensor_bytes(tensor);
    if (offset > region->bytes || bytes > region->bytes - offset)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor %s: %zu bytes at offset %zu do not fit a buffer of %zu bytes", tensor->name,
                        bytes, offset, region->bytes);
    size_t alignment = natural_alignment(tensor->type);
    if (((uintptr_t)region->pointer + offset) % alignment != 0)
        return tsr_fail(TSR_ERR_INVALID, "tensor %s: %s needs an address that is a multiple of %zu",
                        tensor->name, tsr_type_name(tensor->type), alignment);
    return TSR_OK;
}

tsr_status tsr_tensor_place(tsr_tensor *tensor, tsr_buffer *buffer, size_t offset)
{
    tsr_status status = TSR_OK;
    tsr_buffer_item item = {.tensor = tensor};

    TSR_TRY(check_place(tensor, buffer, offset));
    const tsr_buffer_region *region = buffer->regions;
    item.placement =
        (tsr_placement){.sharding = TSR_SHARDING_REPLICATED, .devices = tsr_device_set_one(region->device)};
    TSR_TRY(tsr_buffer_shards(buffer, 1, &item.shards));
    item.shards[region->device].data = (unsigned char *)region->pointer + offset;
    item.shards[region->device].row_stride = tsr_type_row_bytes(tensor->type, tensor->ne[0]);
    tsr_buffer_attach(buffer, &item);
out:
    return status;
}
