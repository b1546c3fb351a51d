/* A model's weights on its devices: views of the mapped file where a device can read it, packed copies where
 * not. A view is a pointer and a stride, for rows and for columns alike, so opening a model on host devices
 * reads none of its weights. */
#include "alloc/buffer.h"

#include "alloc/upload.h"
#include "core/mem.h"
#include "core/status.h"

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
        TSR_TRY(tsr_buffer_add_wrapped(buffer, d, tsr_upload_source(item, window), span, bytes,
                                       item->tensor->name, &wrapped));
        item->shards[d] = (tsr_shard){(void *)wrapped, row_bytes};
    }
out:
    return status;
}

/* Make room for one device's shards, or views of them. *copied_out: the room is to be filled. */
static tsr_status load_device(tsr_buffer *buffer, int d, tsr_buffer_item *items, int n, bool copy,
                              bool *copied_out)
{
    tsr_status status = TSR_ERR_UNSUPPORTED;
    int n_kept = buffer->n_regions;
    size_t bytes = 0;
    tsr_device *device = buffer->rt->devices[d];

    if (!copy && !device->prefers_copies) {
        status = view_device(buffer, d, items, n);
        if (status == TSR_ERR_UNSUPPORTED) {
            tsr_log(&buffer->rt->logger, TSR_LOG_INFO, "device %s gets copies of the weights: %s",
                    device->name, tsr_last_error());
            tsr_buffer_drop_regions(buffer, n_kept);
            tsr_fail_clear();
        }
    }
    *copied_out = status == TSR_ERR_UNSUPPORTED;
    return *copied_out ? tsr_buffer_lay_out(buffer, device, items, n, &bytes) : status;
}

static size_t device_bytes(const tsr_buffer_item *items, int n, int d)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += tsr_placement_bytes(items[i].tensor, &items[i].placement, d);
    return bytes;
}

/* All devices; what is copied is copied at once. */
static tsr_status load_devices(tsr_buffer *buffer, tsr_buffer_item *items, int n, unsigned flags,
                               tsr_weights_progress progress, void *user)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = buffer->rt;
    tsr_upload_job *jobs = NULL;
    tsr_upload_config config = {.verify = flags & TSR_WEIGHTS_VERIFY, .progress = progress, .user = user};
    int n_jobs = 0;
    bool copied;

    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *jobs, "uploads", &jobs));
    for (int d = 0; d < rt->n_devices; d++) {
        size_t bytes = device_bytes(items, n, d);
        config.total_bytes += bytes;
        TSR_TRY(load_device(buffer, d, items, n, flags & TSR_WEIGHTS_COPY, &copied));
        if (copied && bytes > 0 && !rt->no_alloc)
            jobs[n_jobs++] = (tsr_upload_job){rt->devices[d], items, n};
        else
            config.done_bytes += bytes;
    }
    TSR_TRY(tsr_upload_weights(jobs, n_jobs, &config));
    if (progress)
        progress(config.total_bytes, config.total_bytes, user);
out:
    tsr_mem_free(jobs);
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
                              const void *const *sources, int n, unsigned flags, tsr_memory_owner owner,
                              tsr_weights_progress progress, void *user, tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    tsr_buffer *buffer = NULL;
    tsr_buffer_item *items = NULL;

    TSR_TRY(tsr_buffer_create(rt, owner, &buffer));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *items, "a list of weights", &items));
    TSR_TRY(make_items(buffer, tensors, placements, sources, n, items));
    TSR_TRY(load_devices(buffer, items, n, flags, progress, user));

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
