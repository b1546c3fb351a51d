/* A model's weights on its devices: views of the mapped file where a device can read it, packed copies where
 * not. A view is a pointer and a stride, for rows and for columns alike, so opening a model on host devices
 * reads none of its weights. */
#include "alloc/buffer.h"

#include "core/mem.h"
#include "core/status.h"

/* Bytes uploaded between two reports of progress. */
enum { PROGRESS_BYTES = 16 << 20 };

typedef struct upload_progress {
    tsr_weights_progress report; /* NULL: nobody listens */
    void *user;
    size_t done, total;
} upload_progress;

static void advance(upload_progress *progress, size_t bytes)
{
    progress->done += bytes;
    if (progress->report)
        progress->report(progress->done, progress->total, progress->user);
}

/* Address of a device's first element in the source. Integers, because on a measuring device the source may
 * be NULL, to which C allows no offset. */
static const void *source_of(const tsr_buffer_item *item, tsr_window window)
{
    size_t row_bytes = tsr_type_row_bytes(item->tensor->type, item->tensor->ne[0]);
    return (const void *)((uintptr_t)item->source + (size_t)window.row_begin * row_bytes +
                          tsr_type_row_bytes(item->tensor->type, window.col_begin));
}

/* Views of the sources for every shard on one device. */
static tsr_status view_device(tsr_buffer *buffer, int d, tsr_buffer_item *items, int n)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < n; i++) {
        tsr_buffer_item *item = &items[i];
        tsr_window window = tsr_placement_window(item->tensor, &item->placement, d);
        size_t bytes = tsr_placement_bytes(item->tensor, &item->placement, d);
        if (bytes == 0)
            continue;
        /* From the first byte held to the last, the other devices' columns in between included. */
        size_t row_bytes = tsr_type_row_bytes(item->tensor->type, item->tensor->ne[0]);
        size_t width = tsr_type_row_bytes(item->tensor->type, window.col_end - window.col_begin);
        size_t span = (size_t)(window.row_end - window.row_begin - 1) * row_bytes + width;
        const void *wrapped;
        TSR_TRY(tsr_buffer_add_wrapped(buffer, d, source_of(item, window), span, bytes, item->tensor->name,
                                       &wrapped));
        item->shards[d] = (tsr_shard){(void *)wrapped, row_bytes};
    }
out:
    return status;
}

/* Upload one shard, some rows at a time. */
static tsr_status upload_shard(tsr_device *device, const tsr_buffer_item *item, upload_progress *progress)
{
    tsr_status status = TSR_OK;
    tsr_window window = tsr_placement_window(item->tensor, &item->placement, device->index);
    const tsr_shard *shard = &item->shards[device->index];
    size_t n_rows = (size_t)(window.row_end - window.row_begin);
    if (n_rows == 0)
        return TSR_OK;
    size_t width = shard->row_stride;
    size_t src_stride = tsr_type_row_bytes(item->tensor->type, item->tensor->ne[0]);
    const unsigned char *src = source_of(item, window);
    size_t step = TSR_MAX((size_t)PROGRESS_BYTES / width, (size_t)1);

    for (size_t row = 0; row < n_rows; row += step) {
        size_t height = TSR_MIN(step, n_rows - row);
        TSR_TRY(device->ops->upload(device, (unsigned char *)shard->data + row * width, width,
                                    src + row * src_stride, src_stride, width, height));
        advance(progress, height * width);
    }
out:
    return status;
}

static tsr_status copy_device(tsr_buffer *buffer, int d, tsr_buffer_item *items, int n,
                              upload_progress *progress)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = buffer->rt;
    size_t bytes = 0;

    TSR_TRY(tsr_buffer_lay_out(buffer, rt->devices[d], items, n, &bytes));
    for (int i = 0; i < n && !rt->no_alloc; i++)
        TSR_TRY(upload_shard(rt->devices[d], &items[i], progress));
out:
    return status;
}

static tsr_status load_device(tsr_buffer *buffer, int d, tsr_buffer_item *items, int n, bool copy,
                              upload_progress *progress)
{
    tsr_status status = TSR_ERR_UNSUPPORTED;
    int n_kept = buffer->n_regions;

    if (!copy && !buffer->rt->devices[d]->prefers_copies) {
        status = view_device(buffer, d, items, n);
        if (status == TSR_ERR_UNSUPPORTED) {
            tsr_buffer_drop_regions(buffer, n_kept);
            tsr_fail_clear();
        }
    }
    if (status == TSR_ERR_UNSUPPORTED)
        status = copy_device(buffer, d, items, n, progress);
    else if (status == TSR_OK)
        for (int i = 0; i < n; i++)
            progress->done += tsr_placement_bytes(items[i].tensor, &items[i].placement, d);
    return status;
}

static tsr_status make_items(tsr_buffer *buffer, tsr_tensor *const *tensors, const tsr_placement *placements,
                             const void *const *sources, int n, tsr_buffer_item *items)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = buffer->rt;
    tsr_shard *shards = NULL;

    TSR_TRY(tsr_buffer_shards(buffer, n, &shards));
    for (int i = 0; i < n; i++) {
        if (tensors[i]->rt != rt || tensors[i]->shards)
            return tsr_fail(TSR_ERR_INVALID, "tensor %s belongs to another runtime or is allocated already",
                            tensors[i]->name);
        if (!rt->no_alloc && !(sources && sources[i]))
            return tsr_fail(TSR_ERR_INVALID,
                            "tensor %s has no data; was its file opened for its header only?",
                            tensors[i]->name);
        items[i] = (tsr_buffer_item){tensors[i], placements[i], sources ? sources[i] : NULL,
                                     shards + (size_t)i * (size_t)rt->n_devices};
        TSR_TRY(tsr_placement_check(tensors[i], &placements[i]));
        if (placements[i].sharding == TSR_SHARDING_SPLIT)
            TSR_TRY(tsr_buffer_keep_map(buffer, placements[i].map, &items[i].placement.map));
        else
            items[i].placement.map = NULL;
    }
out:
    return status;
}

tsr_status tsr_weights_create(tsr_runtime *rt, tsr_tensor *const *tensors, const tsr_placement *placements,
                              const void *const *sources, int n, bool copy, tsr_memory_owner owner,
                              tsr_weights_progress progress, void *user, tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    tsr_buffer *buffer = NULL;
    tsr_buffer_item *items = NULL;
    upload_progress uploads = {.report = progress, .user = user};

    TSR_TRY(tsr_buffer_create(rt, owner, &buffer));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *items, "a list of weights", &items));
    TSR_TRY(make_items(buffer, tensors, placements, sources, n, items));
    for (int d = 0; d < rt->n_devices; d++)
        for (int i = 0; i < n; i++)
            uploads.total += tsr_placement_bytes(tensors[i], &placements[i], d);
    for (int d = 0; d < rt->n_devices; d++)
        TSR_TRY(load_device(buffer, d, items, n, copy, &uploads));
    advance(&uploads, 0);

    buffer->read_only = true;
    for (int i = 0; i < n; i++)
        tsr_buffer_attach(buffer, &items[i]);
    *buffer_out = buffer;
    buffer = NULL; /* now the caller's */
out:
    tsr_mem_free(items);
    tsr_buffer_destroy(buffer);
    return status;
}
