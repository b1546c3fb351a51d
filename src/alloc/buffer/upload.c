/* Parallel upload; see upload.h.
 *
 * Each device's parts are cut into pieces of whole rows, and its threads take the pieces in order. The lock
 * is held only to take a piece of many MiB or to record a failure, so waiting for the lock takes negligible
 * time. */
#include "alloc/buffer/upload.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/checksum.h"
#include "core/event.h"
#include "core/mem.h"
#include "core/status.h"

/* Bytes of a piece: a thread checks for a failure and reports progress once per piece. */
enum { PIECE_BYTES = 16 << 20, MAX_THREADS_PER_DEVICE = 8 };

/* Some rows of a part, `width` bytes each, source_stride apart in the source. */
typedef struct piece {
    const tsr_buffer_item *item;
    tsr_window window;
    size_t height, width, source_stride;
} piece;

/* A device's pieces that no thread has taken yet. */
typedef struct queue {
    tsr_device *device;
    const tsr_upload_part *parts;
    int n_parts, next_part;
    size_t next_row; /* of the part */
} queue;

typedef struct upload {
    bool verify;
    pthread_mutex_t lock; /* of the queues and the first failure */
    tsr_status status;
    char text[512];
    tsr_event changed; /* signals changes of the next three fields */
    _Atomic size_t done_bytes;
    _Atomic int n_running;
    _Atomic bool stop;
} upload;

typedef struct uploader {
    upload *upload;
    queue *queue;
    pthread_t thread;
    unsigned char *copy; /* bytes read back; NULL: no verification */
    size_t copy_bytes;
} uploader;

/* -- pieces -- */

const void *tsr_upload_source(const tsr_buffer_item *item, tsr_window window)
{
    return (const void *)(tsr_placement_source_row(item->tensor, &item->placement, item->source,
                                                   window.row_begin) +
                          tsr_type_row_bytes(item->tensor->type, window.col_begin));
}

unsigned char *tsr_upload_target(const tsr_buffer_item *item, tsr_window window, int device)
{
    const tsr_shard *shard = &item->shards[device];
    tsr_window all = tsr_placement_window(item->tensor, &item->placement, device);
    const ptrdiff_t cols = (ptrdiff_t)tsr_type_row_bytes(item->tensor->type, window.col_begin) -
                           (ptrdiff_t)tsr_type_row_bytes(item->tensor->type, all.col_begin);
    return (unsigned char *)shard->data +
           (ptrdiff_t)(window.row_begin - all.row_begin) * (ptrdiff_t)shard->row_stride + cols;
}

static bool next_piece(queue *q, piece *piece_out)
{
    for (; q->next_part < q->n_parts; q->next_part++, q->next_row = 0) {
        const tsr_upload_part *part = &q->parts[q->next_part];
        tsr_window window = part->window;
        size_t n_rows = tsr_window_height(window), width = tsr_window_width(part->item->tensor, window);
        if (q->next_row >= n_rows || width == 0)
            continue;
        size_t step = TSR_MAX((size_t)PIECE_BYTES / width, (size_t)1), stride;
        window.row_begin += (int64_t)q->next_row;
        size_t height =
            (size_t)tsr_placement_source_run(part->item->tensor, &part->item->placement, window.row_begin,
                                             (int64_t)TSR_MIN(step, n_rows - q->next_row), &stride);
        window.row_end = window.row_begin + (int64_t)height;
        *piece_out = (piece){part->item, window, height, width, stride};
        q->next_row += height;
        return true;
    }
    return false;
}

static bool take_piece(uploader *u, piece *piece_out)
{
    if (atomic_load(&u->upload->stop))
        return false;
    pthread_mutex_lock(&u->upload->lock);
    bool found = next_piece(u->queue, piece_out);
    pthread_mutex_unlock(&u->upload->lock);
    return found;
}

/* Read a mapped file's pages ahead, because page faults alone fetch little at a time. */
static void read_ahead(const unsigned char *begin, size_t bytes)
{
#ifdef MADV_WILLNEED
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)begin & ~(page - 1);
    (void)madvise((void *)from, (uintptr_t)begin + bytes - from, MADV_WILLNEED); /* failure is harmless */
#else
    (void)begin, (void)bytes;
#endif
}

/* Bytes of a device's largest piece. */
static size_t largest_piece(queue q)
{
    size_t bytes = 0;
    for (piece p; next_piece(&q, &p);)
        bytes = TSR_MAX(bytes, p.height * p.width);
    return bytes;
}

static size_t bytes_of(queue q)
{
    size_t bytes = 0;
    for (piece p; next_piece(&q, &p);)
        bytes += p.height * p.width;
    return bytes;
}

/* -- one piece -- */

static tsr_status compare(const uploader *u, const piece *p, const unsigned char *data, size_t stride,
                          const unsigned char *source, size_t source_stride)
{
    tsr_device *device = u->queue->device;
    tsr_window all = tsr_buffer_stored_window(p->item, device->index);
    size_t first = (size_t)(p->window.row_begin - all.row_begin);
    tsr_status status = device->ops->download(device, u->copy, p->width, data, stride, p->width, p->height);
    for (size_t row = 0; row < p->height && status == TSR_OK; row++) {
        const unsigned char *is = u->copy + row * p->width, *was = source + row * source_stride;
        size_t at = 0;
        if (memcmp(is, was, p->width) == 0)
            continue;
        while (is[at] == was[at])
            at++;
        status =
            tsr_fail(TSR_ERR_DEVICE,
                     "device %s: tensor %s was read back changed: byte %zu of row %zu is 0x%02x instead of "
                     "0x%02x; the device's memory or its link is not reliable",
                     device->name, p->item->tensor->name, at, first + row, is[at], was[at]);
    }
    return status;
}

static uint64_t source_sum(const piece *p, const unsigned char *source, size_t source_stride)
{
    tsr_checksum sum = {0};
    if (source_stride == p->width)
        tsr_checksum_add(&sum, source, p->height * p->width);
    else
        for (size_t row = 0; row < p->height; row++)
            tsr_checksum_add(&sum, source + row * source_stride, p->width);
    return tsr_checksum_end(&sum);
}

/* Compare checksums if the device computes them and rows have no gaps; on a difference read back, to find the
 * byte. */
static tsr_status verify(const uploader *u, const piece *p, const unsigned char *data, size_t stride,
                         const unsigned char *source, size_t source_stride)
{
    tsr_status status = TSR_OK;
    tsr_device *device = u->queue->device;
    uint64_t there, here;
    if (!device->ops->checksum || stride != p->width)
        return compare(u, p, data, stride, source, source_stride);
    TSR_TRY(device->ops->checksum(device, data, p->height * p->width, &there));
    here = source_sum(p, source, source_stride);
    if (there == here)
        goto out;
    TSR_TRY(compare(u, p, data, stride, source, source_stride));
    status =
        tsr_fail(TSR_ERR_DEVICE,
                 "device %s: tensor %s was read back unchanged, but the device computes another checksum; "
                 "the device's memory is not reliable",
                 device->name, p->item->tensor->name);
out:
    return status;
}

static tsr_status upload_piece(const uploader *u, const piece *p)
{
    tsr_status status = TSR_OK;
    tsr_device *device = u->queue->device;
    const size_t source_stride = p->source_stride;
    size_t stride = p->item->shards[device->index].row_stride;
    if (device->elsewhere) /* the device's own process reads the file */
        return TSR_OK;
    const unsigned char *source = tsr_upload_source(p->item, p->window);
    unsigned char *data = tsr_upload_target(p->item, p->window, device->index);
    read_ahead(source, (p->height - 1) * source_stride + p->width);
    TSR_TRY(device->ops->upload(device, data, stride, source, source_stride, p->width, p->height));
    if (u->copy)
        TSR_TRY(verify(u, p, data, stride, source, source_stride));
out:
    return status;
}

/* -- threads -- */

static void fail_upload(upload *up, tsr_status status)
{
    pthread_mutex_lock(&up->lock);
    if (up->status == TSR_OK) {
        up->status = status;
        snprintf(up->text, sizeof up->text, "%s", tsr_last_error());
    }
    pthread_mutex_unlock(&up->lock);
    atomic_store(&up->stop, true);
}

static void *run_uploader(void *argument)
{
    uploader *u = argument;
    upload *up = u->upload;
    piece p;
    while (take_piece(u, &p)) {
        tsr_status status = upload_piece(u, &p);
        if (status == TSR_OK)
            atomic_fetch_add(&up->done_bytes, p.height * p.width);
        else
            fail_upload(up, status);
        tsr_event_notify(&up->changed);
    }
    atomic_fetch_sub(&up->n_running, 1);
    tsr_event_notify(&up->changed);
    return NULL;
}

/* The caller's thread waits for progress since its last report, or for the end. */
typedef struct watch {
    upload *upload;
    size_t told_bytes;
} watch;

static bool has_news(void *what)
{
    watch *w = what;
    return atomic_load(&w->upload->done_bytes) != w->told_bytes || atomic_load(&w->upload->n_running) == 0;
}

static void report_progress(upload *up, const tsr_upload_config *config)
{
    watch w = {.upload = up};
    bool ended;
    do {
        tsr_event_wait(&up->changed, has_news, &w, 0, TSR_FOREVER);
        ended = atomic_load(&up->n_running) == 0;
        size_t done = atomic_load(&up->done_bytes);
        if (done != w.told_bytes && config->progress)
            config->progress(config->done_bytes + done, config->total_bytes, config->user);
        w.told_bytes = done;
    } while (!ended);
}

static void run_uploaders(upload *up, uploader *uploaders, int n, const tsr_upload_config *config)
{
    int n_started = 0;
    atomic_store(&up->n_running, n);
    for (; n_started < n; n_started++)
        if (pthread_create(&uploaders[n_started].thread, NULL, run_uploader, &uploaders[n_started]) != 0)
            break;
    if (n_started < n) {
        (void)!tsr_fail(TSR_ERR_MEMORY, "the system refused a thread for uploading weights");
        fail_upload(up, TSR_ERR_MEMORY);
        atomic_fetch_sub(&up->n_running, n - n_started);
    }
    report_progress(up, config);
    for (int i = 0; i < n_started; i++)
        pthread_join(uploaders[i].thread, NULL);
}

/* The least of n_uploaders, the number of pieces, and the device's share of the processors. One thread when
 * verifying, because reading back uses one thread. */
static int count_threads(const upload *up, const queue *q, int n_jobs)
{
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t n_pieces = bytes_of(*q) / PIECE_BYTES + 1;
    int n = TSR_MAX(up->verify ? 1 : q->device->n_uploaders, 1);
    n = TSR_MIN(n, TSR_MAX((int)n_cpus / n_jobs, 1));
    n = TSR_MIN(n, MAX_THREADS_PER_DEVICE);
    return (size_t)n < n_pieces ? n : (int)n_pieces;
}

static tsr_status make_uploaders(upload *up, queue *queues, int n_jobs, uploader *uploaders, int *n_out)
{
    tsr_status status = TSR_OK;
    int n = 0;
    for (int j = 0; j < n_jobs; j++)
        for (int k = count_threads(up, &queues[j], n_jobs); k > 0; k--) {
            uploader *u = &uploaders[n++];
            *u = (uploader){.upload = up, .queue = &queues[j]};
            if (!up->verify)
                continue;
            u->copy_bytes = largest_piece(queues[j]);
            if (u->copy_bytes > 0)
                TSR_TRY(tsr_mem_array(u->copy_bytes, 1, "the read-back of an upload", &u->copy));
        }
    *n_out = n;
out:
    return status;
}

tsr_status tsr_upload_weights(const tsr_upload_job *jobs, int n_jobs, const tsr_upload_config *config)
{
    tsr_status status = TSR_OK;
    upload up = {.verify = config->verify};
    queue *queues = NULL;
    uploader *uploaders = NULL;
    int n = 0, n_most = n_jobs * MAX_THREADS_PER_DEVICE;
    if (n_jobs == 0)
        return TSR_OK;
    if (!tsr_event_init(&up.changed))
        return tsr_fail(TSR_ERR_MEMORY, "the system refused an event for uploading weights");
    pthread_mutex_init(&up.lock, NULL);
    TSR_TRY(tsr_mem_array((size_t)n_jobs, sizeof *queues, "an upload", &queues));
    TSR_TRY(tsr_mem_array((size_t)n_most, sizeof *uploaders, "an upload", &uploaders));
    for (int j = 0; j < n_jobs; j++)
        queues[j] = (queue){.device = jobs[j].device, .parts = jobs[j].parts, .n_parts = jobs[j].n_parts};
    TSR_TRY(make_uploaders(&up, queues, n_jobs, uploaders, &n));
    run_uploaders(&up, uploaders, n, config);
    status = up.status;
    if (status != TSR_OK)
        tsr_fail_store("%s", up.text);
out:
    for (int j = 0; j < n_jobs; j++)
        tsr_device_trim(jobs[j].device);
    for (int i = 0; uploaders && i < n_most; i++)
        tsr_mem_free(uploaders[i].copy);
    tsr_mem_free(uploaders);
    tsr_mem_free(queues);
    pthread_mutex_destroy(&up.lock);
    tsr_event_destroy(&up.changed);
    return status;
}
