/* tsr_tensor_set and tsr_tensor_get: any byte range of the logical dense tensor, scattered to or gathered
 * from its shards.
 *
 * A byte range of a row-major matrix is at most three rectangles: the tail of its first row, whole rows, the
 * head of its last row. A device's part is a rectangle too. So a transfer is one 2-D copy of an intersection
 * per device and rectangle, for every sharding, type and stride. */
#include <tsr/tensor.h>

#include <string.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "core/status.h"

/* Rows [row_begin, row_end) and, within each, bytes [begin, end). */
typedef struct rectangle {
    size_t row_begin, row_end, begin, end;
} rectangle;

/* One call's host side: `data` is byte `offset` of the logical tensor. */
typedef struct transfer {
    const tsr_tensor *tensor;
    size_t row_bytes, offset;
    const unsigned char *from; /* set */
    unsigned char *to;         /* get */
} transfer;

/* The byte range [offset, offset + bytes) as rectangles; returns their number. */
static int cut_range(size_t row_bytes, size_t offset, size_t bytes, rectangle parts[3])
{
    int n = 0;
    size_t end = offset + bytes;
    size_t row = offset / row_bytes;
    if (offset % row_bytes != 0) {
        size_t row_end = TSR_MIN(end, (row + 1) * row_bytes);
        parts[n++] = (rectangle){row, row + 1, offset % row_bytes, row_end - row * row_bytes};
        row++;
    }
    size_t last = end / row_bytes;
    if (row < last) {
        parts[n++] = (rectangle){row, last, 0, row_bytes};
        row = last;
    }
    if (row == last && end > row * row_bytes)
        parts[n++] = (rectangle){row, row + 1, 0, end - row * row_bytes};
    return n;
}

static rectangle intersect(rectangle a, rectangle b)
{
    return (rectangle){TSR_MAX(a.row_begin, b.row_begin), TSR_MIN(a.row_end, b.row_end),
                       TSR_MAX(a.begin, b.begin), TSR_MIN(a.end, b.end)};
}

/* The rectangle that a device holds. */
static rectangle held_by(const tsr_tensor *tensor, int index)
{
    tsr_window window = tsr_placement_window(tensor, &tensor->placement, index);
    return (rectangle){(size_t)window.row_begin, (size_t)window.row_end,
                       tsr_type_row_bytes(tensor->type, window.col_begin),
                       tsr_type_row_bytes(tensor->type, window.col_end)};
}

static void set_pinned(const tsr_shard *shard, size_t at, const unsigned char *from, size_t stride,
                       size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        memcpy(shard->pinned + at + row * shard->row_stride, from + row * stride, width);
}

/* An input in pinned memory is uploaded before it is read, since no program may have copied it yet. */
static tsr_status copy_part(const transfer *t, int index, rectangle part)
{
    tsr_status status = TSR_OK;
    tsr_device *device = t->tensor->rt->devices[index];
    const tsr_shard *shard = &t->tensor->shards[index];
    rectangle held = held_by(t->tensor, index);
    rectangle both = intersect(held, part);
    if (both.row_begin >= both.row_end || both.begin >= both.end)
        return TSR_OK;

    size_t width = both.end - both.begin, height = both.row_end - both.row_begin;
    size_t host_at = both.row_begin * t->row_bytes + both.begin - t->offset;
    size_t held_at = (both.row_begin - held.row_begin) * shard->row_stride + both.begin - held.begin;
    unsigned char *on_device = (unsigned char *)shard->data + held_at;
    size_t host_stride = t->row_bytes, device_stride = shard->row_stride;
    if (width == host_stride && width == device_stride) { /* one piece */
        width *= height;
        height = 1;
        host_stride = device_stride = width;
    }
    if (t->from && shard->pinned) {
        set_pinned(shard, held_at, t->from + host_at, host_stride, width, height);
        return TSR_OK;
    }
    if (shard->pinned && shard->pinned + held_at != on_device)
        TSR_TRY(device->ops->upload(device, on_device, device_stride, shard->pinned + held_at, device_stride,
                                    width, height));
    if (t->from)
        return device->ops->upload(device, on_device, device_stride, t->from + host_at, host_stride, width,
                                   height);
    return tsr_device_fetch(device, t->to + host_at, host_stride, on_device, device_stride, width, height);
out:
    return status;
}

/* The devices of a transfer: all that hold the tensor; only one for reading an unsplit tensor. */
static tsr_device_set devices_of(const tsr_tensor *tensor, bool reading)
{
    tsr_device_set devices = tensor->placement.devices;
    if (!reading || tensor->placement.sharding == TSR_SHARDING_SPLIT)
        return devices;
    int main_device = tensor->buffer ? tensor->buffer->main_device : -1;
    if (main_device >= 0 && tsr_device_set_has(devices, main_device))
        return tsr_device_set_one(main_device);
    return devices & (~devices + 1); /* the lowest bit */
}

static tsr_status transfer_run(const transfer *t, size_t bytes)
{
    tsr_status status = TSR_OK;
    rectangle parts[3];
    int n_parts = cut_range(t->row_bytes, t->offset, bytes, parts);
    tsr_device_set devices = devices_of(t->tensor, t->to != NULL);

    for (int d = 0; d < t->tensor->rt->n_devices; d++)
        for (int i = 0; i < n_parts && tsr_device_set_has(devices, d); i++)
            TSR_TRY(copy_part(t, d, parts[i]));
out:
    return status;
}

static tsr_status check_transfer(const tsr_tensor *tensor, const void *data, size_t offset, size_t bytes,
                                 const char *call)
{
    if (!tensor)
        return tsr_fail(TSR_ERR_INVALID, "%s: the tensor is NULL; was its creation checked?", call);
    if (!tensor->shards || tensor->placement.sharding == TSR_SHARDING_NONE)
        return tsr_fail(TSR_ERR_INVALID,
                        "%s: tensor %s has no memory; allocate its context or compile its graph first (which "
                        "keeps outputs, and inputs that lead to one)",
                        call, tensor->name);
    if (tensor->placement.sharding == TSR_SHARDING_PARTIAL)
        return tsr_fail(
            TSR_ERR_INVALID,
            "%s: tensor %s holds one partial sum per device; mark it as an output of its graph to "
            "have them added",
            call, tensor->name);
    for (int d = 0; d < tensor->rt->n_devices; d++)
        if (tensor->shards[d].part_stride > 0)
            return tsr_fail(
                TSR_ERR_UNSUPPORTED,
                "%s: on device %s tensor %s is a view of a file, where its parts are apart; load it "
                "as a copy",
                call, tensor->rt->devices[d]->name, tensor->name);
    size_t whole = tsr_tensor_bytes(tensor), block = tsr_type_block_bytes(tensor->type);
    if (offset > whole || bytes > whole - offset)
        return tsr_fail(TSR_ERR_INVALID, "%s: %zu bytes at offset %zu exceed tensor %s, which has %zu", call,
                        bytes, offset, tensor->name, whole);
    if (offset % block != 0 || bytes % block != 0)
        return tsr_fail(
            TSR_ERR_INVALID,
            "%s: %zu bytes at offset %zu cut a block of tensor %s; %s comes in blocks of %zu bytes", call,
            bytes, offset, tensor->name, tsr_type_name(tensor->type), block);
    if (!data && bytes > 0)
        return tsr_fail(TSR_ERR_INVALID, "%s: the data of tensor %s is NULL", call, tensor->name);
    return TSR_OK;
}

tsr_status tsr_tensor_set(tsr_tensor *tensor, const void *data, size_t offset, size_t bytes)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_transfer(tensor, data, offset, bytes, "tsr_tensor_set"));
    if (tensor->buffer && tensor->buffer->read_only)
        return tsr_fail(
            TSR_ERR_INVALID,
            "tsr_tensor_set: tensor %s is in read-only memory (a mapped file, memory of the caller, or "
            "a model's weights)",
            tensor->name);
    if (bytes > 0) {
        transfer t = {tensor, tsr_type_row_bytes(tensor->type, tensor->ne[0]), offset, data, NULL};
        TSR_TRY(transfer_run(&t, bytes));
    }
out:
    return status;
}

/* The processes exchange the first part that is read, or this call's own outcome if nothing is. */
tsr_status tsr_tensor_get(const tsr_tensor *tensor, void *data, size_t offset, size_t bytes)
{
    tsr_status status = check_transfer(tensor, data, offset, bytes, "tsr_tensor_get");
    if (!tensor)
        return status;
    if (status != TSR_OK || bytes == 0)
        return tsr_processes_agree(tensor->rt->processes, status, "tsr_tensor_get");
    transfer t = {tensor, tsr_type_row_bytes(tensor->type, tensor->ne[0]), offset, NULL, data};
    return tsr_processes_end(tensor->rt->processes, transfer_run(&t, bytes));
}
