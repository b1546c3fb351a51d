/* A model's weights on its devices: views of the mapped file where a device can read host memory, otherwise
 * packed copies. A view is a pointer and a stride, for rows and for columns alike, so opening a model on host
 * devices reads none of its weights. */
#include "alloc/buffer/buffer.h"

#include "alloc/buffer/upload.h"
#include "core/mem.h"
#include "core/status.h"

/* A buffer that is being loaded. */
typedef struct loading {
    tsr_buffer *buffer;
    tsr_buffer_item *items; /* [n] */
    int n;
    const tsr_buffer_load_config *config;
    tsr_device_set viewing; /* devices with views of all sources that have views */
    tsr_upload_part *parts; /* of the copies that are being filled */
    int n_parts;
} loading;

/* Whether the item's shards can be views: a shard has one distance from part to part. */
static bool has_views(const tsr_buffer_item *item)
{
    return !item->placement.source.parts;
}

/* Whether the item's shard on a device is a view. */
static bool is_view(const loading *l, const tsr_buffer_item *item, int d)
{
    return tsr_device_set_has(l->viewing, d) && has_views(item);
}

/* A view of what is stored for an item on one device. */
static tsr_status view_item(tsr_buffer *buffer, int d, tsr_buffer_item *item)
{
    tsr_status status = TSR_OK;
    const tsr_source_layout *layout = &item->placement.source;
    tsr_window window = tsr_buffer_stored_window(item, d), last = window;
    size_t bytes = tsr_buffer_stored_bytes(item, d), row_stride;
    if (bytes == 0)
        return TSR_OK;
    /* From the first byte of the shard to the last, including other devices' columns in between. */
    last.row_begin = window.row_end - 1;
    const void *first = tsr_upload_source(item, window);
    const size_t span =
        (uintptr_t)tsr_upload_source(item, last) - (uintptr_t)first + tsr_window_width(item->tensor, window);
    const void *wrapped;
    TSR_TRY(tsr_buffer_add_wrapped(buffer, d, first, span, bytes, item->tensor->name, &wrapped));
    (void)tsr_placement_source_run(item->tensor, &item->placement, window.row_begin, 1, &row_stride);
    tsr_buffer_set_shards(
        item, d, (tsr_shard){(void *)wrapped, row_stride, layout->part_rows > 1 ? layout->part_stride : 0});
out:
    return status;
}

/* Views of the sources for the shards on one device; *all_out: for all of them. On failure no shard is a
 * view. */
static tsr_status view_device(loading *l, int d, bool *all_out)
{
    tsr_status status = TSR_OK;
    *all_out = true;
    for (int i = 0; i < l->n; i++) {
        if (has_views(&l->items[i]))
            TSR_TRY(view_item(l->buffer, d, &l->items[i]));
        else if (tsr_placement_bytes(l->items[i].tensor, &l->items[i].placement, d) > 0)
            *all_out = false;
    }
    l->viewing |= tsr_device_set_one(d);
out:
    for (int i = 0; i < l->n && status != TSR_OK; i++)
        l->items[i].shards[d] = (tsr_shard){0};
    return status;
}

/* -- parts that a device has already -- */

static bool same_window(tsr_window a, tsr_window b)
{
    return a.col_begin == b.col_begin && a.col_end == b.col_end && a.row_begin == b.row_begin &&
           a.row_end == b.row_end;
}

static tsr_window window_of(const tsr_buffer_item *item, int d)
{
    return tsr_placement_window(item->tensor, &item->placement, d);
}

/* The device's part of item i in the previous buffer; empty if there is none. */
static tsr_window previous_window(const loading *l, int i, int d)
{
    const tsr_tensor *previous = l->config->previous ? l->config->previous[i] : NULL;
    return previous && previous->shards ? tsr_placement_window(previous, &previous->placement, d)
                                        : (tsr_window){0};
}

/* Parts that twins share are counted twice here, and once in stored_bytes(). */
static size_t device_bytes(const loading *l, int d)
{
    size_t bytes = 0;
    for (int i = 0; i < l->n; i++)
        bytes += tsr_placement_bytes(l->items[i].tensor, &l->items[i].placement, d);
    return bytes;
}

static size_t stored_bytes(const loading *l, int d)
{
    size_t bytes = 0;
    for (int i = 0; i < l->n; i++)
        bytes += tsr_buffer_stored_bytes(&l->items[i], d);
    return bytes;
}

/* Whether the device's part of every tensor is unchanged and the previous buffer has nothing else. */
static bool is_unchanged(const loading *l, int d)
{
    size_t before = 0;
    if (!l->config->previous_buffer)
        return false;
    for (int i = 0; i < l->n; i++)
        if (!same_window(window_of(&l->items[i], d), previous_window(l, i, d)))
            return false;
    for (const tsr_tensor *t = l->config->previous_buffer->tensors; t; t = t->buffer_next)
        before += tsr_placement_bytes(t, &t->placement, d);
    return before == device_bytes(l, d);
}

static tsr_status borrow_device(loading *l, int d)
{
    for (int i = 0; i < l->n; i++)
        if (l->config->previous[i] && l->config->previous[i]->shards)
            l->items[i].shards[d] = l->config->previous[i]->shards[d];
    return tsr_buffer_borrow(l->buffer, l->config->previous_buffer, d);
}

static tsr_window common_window(tsr_window a, tsr_window b)
{
    tsr_window both = {TSR_MAX(a.col_begin, b.col_begin), TSR_MIN(a.col_end, b.col_end),
                       TSR_MAX(a.row_begin, b.row_begin), TSR_MIN(a.row_end, b.row_end)};
    bool empty = both.col_begin >= both.col_end || both.row_begin >= both.row_end;
    return empty ? (tsr_window){0} : both;
}

static void add_part(loading *l, const tsr_buffer_item *item, tsr_window w)
{
    if (w.col_begin < w.col_end && w.row_begin < w.row_end)
        l->parts[l->n_parts++] = (tsr_upload_part){item, w};
}

/* List the parts of an item to upload: all but `kept`, the part that the device has. */
static void add_missing(loading *l, const tsr_buffer_item *item, tsr_window all, tsr_window kept)
{
    if (kept.row_begin == kept.row_end) {
        add_part(l, item, all);
        return;
    }
    add_part(l, item, (tsr_window){all.col_begin, all.col_end, all.row_begin, kept.row_begin});
    add_part(l, item, (tsr_window){all.col_begin, all.col_end, kept.row_end, all.row_end});
    add_part(l, item, (tsr_window){all.col_begin, kept.col_begin, kept.row_begin, kept.row_end});
    add_part(l, item, (tsr_window){kept.col_end, all.col_end, kept.row_begin, kept.row_end});
}

/* Copy `kept` from the previous shard to the new one. */
static tsr_status keep_part(const loading *l, int i, int d, tsr_window kept)
{
    const tsr_buffer_item *item = &l->items[i];
    tsr_device *device = l->buffer->rt->devices[d];
    const tsr_tensor *previous = l->config->previous[i];
    const tsr_buffer_item was = {(tsr_tensor *)previous, previous->placement, NULL, previous->shards};
    return device->ops->copy(device, tsr_upload_target(item, kept, d), item->shards[d].row_stride,
                             tsr_upload_target(&was, kept, d), previous->shards[d].row_stride,
                             tsr_window_width(item->tensor, kept), tsr_window_height(kept));
}

/* The part of a new shard that is copied from the previous one. Of a view of a source in parts nothing is:
 * there, rows have no common distance. */
static tsr_window kept_window(const loading *l, int i, int d, tsr_window all)
{
    const tsr_tensor *previous = l->config->previous[i];
    if (previous && previous->shards && previous->shards[d].part_stride > 0)
        return (tsr_window){0};
    return common_window(all, previous_window(l, i, d));
}

/* Copy the parts of new shards that the device has, and list the rest for upload. With TSR_LOAD_VERIFY all
 * parts are uploaded, because verifying compares each copy with its source. */
static tsr_status fill_device(loading *l, int d, tsr_upload_job *job)
{
    tsr_status status = TSR_OK;
    const tsr_buffer *previous = l->config->previous_buffer;
    bool keeps = previous && tsr_buffer_has_copies(previous, d) && !(l->config->flags & TSR_LOAD_VERIFY);
    int begin = l->n_parts;
    for (int i = 0; i < l->n; i++) {
        if (is_view(l, &l->items[i], d))
            continue;
        tsr_window all = tsr_buffer_stored_window(&l->items[i], d);
        tsr_window kept = keeps ? kept_window(l, i, d, all) : (tsr_window){0};
        if (kept.row_begin < kept.row_end)
            TSR_TRY(keep_part(l, i, d, kept));
        add_missing(l, &l->items[i], all, kept);
    }
    *job = (tsr_upload_job){l->buffer->rt->devices[d], l->parts + begin, l->n_parts - begin};
out:
    return status;
}

/* -- loading -- */

/* Allocate memory for the shards on one device that are no views. */
static tsr_status lay_out_copies(loading *l, int d)
{
    tsr_status status = TSR_OK;
    tsr_buffer_item *copies = NULL;
    size_t bytes = 0;
    int n = 0;
    TSR_TRY(tsr_mem_array((size_t)l->n, sizeof *copies, "a list of weights", &copies));
    for (int i = 0; i < l->n; i++)
        if (!is_view(l, &l->items[i], d))
            copies[n++] = l->items[i];
    TSR_TRY(tsr_buffer_lay_out(l->buffer, l->buffer->rt->devices[d], copies, n, &bytes));
out:
    tsr_mem_free(copies);
    return status;
}

/* Allocate memory for one device's shards, or make views. *copied_out: some of the memory must be filled. */
static tsr_status load_device(loading *l, int d, bool *copied_out)
{
    tsr_status status = TSR_OK;
    tsr_buffer *buffer = l->buffer;
    int n_kept = buffer->n_regions;
    bool all;
    tsr_device *device = buffer->rt->devices[d];

    *copied_out = false;
    if (is_unchanged(l, d))
        return borrow_device(l, d);
    if (!(l->config->flags & TSR_LOAD_COPY) && !device->prefers_copies) {
        status = view_device(l, d, &all);
        if (status == TSR_ERR_UNSUPPORTED) {
            tsr_log(&buffer->rt->logger, TSR_LOG_INFO, "device %s gets copies of the weights: %s",
                    device->name, tsr_last_error());
            tsr_buffer_drop_regions(buffer, n_kept);
            tsr_fail_clear();
        } else if (status != TSR_OK || all) {
            return status;
        }
    }
    *copied_out = true;
    return lay_out_copies(l, d);
}

static size_t part_bytes(const tsr_upload_job *job)
{
    size_t bytes = 0;
    for (int i = 0; i < job->n_parts; i++)
        bytes += tsr_window_width(job->parts[i].item->tensor, job->parts[i].window) *
                 tsr_window_height(job->parts[i].window);
    return bytes;
}

/* Fill the copies on `devices`, in parallel. */
static tsr_status fill_copies(loading *l, tsr_device_set devices, tsr_upload_config *config)
{
    tsr_status status = TSR_OK;
    tsr_runtime *rt = l->buffer->rt;
    tsr_upload_job *jobs = NULL;
    int n_jobs = 0, n_copied = 0, most = l->config->previous ? 4 : 1; /* parts of an item */
    size_t bytes = 0;

    for (int d = 0; d < rt->n_devices; d++)
        n_copied += tsr_device_set_has(devices, d);
    if (n_copied == 0 || rt->no_alloc)
        goto out;
    TSR_TRY(tsr_mem_array((size_t)n_copied, sizeof *jobs, "uploads", &jobs));
    TSR_TRY(tsr_mem_array((size_t)n_copied * (size_t)l->n * (size_t)most, sizeof *l->parts, "uploads",
                          &l->parts));
    TSR_FOR_DEVICES(d, devices) {
        TSR_TRY(fill_device(l, d, &jobs[n_jobs]));
        bytes += part_bytes(&jobs[n_jobs]);
        n_jobs += jobs[n_jobs].n_parts > 0;
    }
    config->done_bytes -= bytes;
    tsr_log(&rt->logger, TSR_LOG_DEBUG, "%zu bytes of weights are copied from the file", bytes);
    TSR_TRY(tsr_upload_weights(jobs, n_jobs, config));
out:
    tsr_mem_free(l->parts);
    tsr_mem_free(jobs);
    l->parts = NULL;
    l->n_parts = 0;
    return status;
}

/* All devices. */
static tsr_status load_devices(loading *l)
{
    tsr_status status = TSR_OK;
    tsr_upload_config config = {.verify = l->config->flags & TSR_LOAD_VERIFY,
                                .progress = l->config->progress,
                                .user = l->config->user};
    tsr_device_set copies = 0;
    bool copied;

    for (int d = 0; d < l->buffer->rt->n_devices; d++) {
        size_t bytes = stored_bytes(l, d);
        if (tsr_device_set_has(l->config->deferred, d))
            continue;
        TSR_TRY(load_device(l, d, &copied));
        config.total_bytes += bytes;
        copies |= copied && bytes > 0 ? tsr_device_set_one(d) : 0;
    }
    config.done_bytes = config.total_bytes;
    TSR_TRY(fill_copies(l, copies, &config));
    if (config.progress)
        config.progress(config.total_bytes, config.total_bytes, config.user);
out:
    return status;
}

/* Each item of the first half and its like in the second half are twins. */
static void pair_twins(tsr_buffer_item *items, int n)
{
    for (int i = 0; i < n / 2; i++) {
        items[i].twin = &items[n / 2 + i];
        items[n / 2 + i].twin = &items[i];
        items[n / 2 + i].second = true;
    }
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

tsr_status tsr_buffer_load(tsr_runtime *rt, tsr_tensor *const *tensors, const tsr_placement *placements,
                           const void *const *sources, int n, const tsr_buffer_load_config *config,
                           tsr_buffer **buffer_out)
{
    tsr_status status = TSR_OK;
    loading l = {.n = n, .config = config};

    TSR_TRY(tsr_buffer_create(rt, config->owner, &l.buffer));
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *l.items, "a list of weights", &l.items));
    TSR_TRY(make_items(l.buffer, tensors, placements, sources, n, l.items));
    if (config->flags & TSR_LOAD_TWINS)
        pair_twins(l.items, n);
    TSR_TRY(load_devices(&l));

    l.buffer->read_only = true;
    for (int i = 0; i < n; i++)
        tsr_buffer_attach(l.buffer, &l.items[i]);
    *buffer_out = l.buffer;
    l.buffer = NULL; /* now the caller's */
out:
    tsr_mem_free(l.items);
    tsr_buffer_destroy(l.buffer);
    return status;
}

tsr_status tsr_buffer_fill(tsr_buffer *buffer, tsr_tensor *const *tensors, const void *const *sources, int n,
                           tsr_device_set devices, unsigned flags)
{
    tsr_status status = TSR_OK;
    const tsr_buffer_load_config config = {.flags = flags};
    tsr_upload_config upload = {.verify = flags & TSR_LOAD_VERIFY};
    loading l = {.buffer = buffer, .n = n, .config = &config};
    size_t bytes = 0;

    TSR_TRY(tsr_mem_array((size_t)n, sizeof *l.items, "a list of weights", &l.items));
    for (int i = 0; i < n; i++)
        l.items[i] = (tsr_buffer_item){tensors[i], tensors[i]->placement, sources[i], tensors[i]->shards};
    if (flags & TSR_LOAD_TWINS)
        pair_twins(l.items, n);
    TSR_FOR_DEVICES(d, devices)
        TSR_TRY(tsr_buffer_lay_out(buffer, buffer->rt->devices[d], l.items, n, &bytes));
    TSR_TRY(fill_copies(&l, devices, &upload));
out:
    tsr_mem_free(l.items);
    if (status != TSR_OK)
        TSR_FOR_DEVICES(d, devices)
            tsr_buffer_drop_device(buffer, d);
    return status;
}
