/* The ring of pinned buffers; see upload.h. */
#include "cuda/memory/upload.h"

#include <string.h>

#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/context/context.h"
#include "cuda/context/ring.h"
#include "cuda/memory/wrap.h"

tsr_status tsr_cuda_ring_create(tsr_cuda_device *cuda)
{
    tsr_status status = TSR_OK;
    tsr_cuda_ring *ring = &cuda->ring;
    TSR_TRY(tsr_pool_take(cuda->pinned, (size_t)TSR_CUDA_RING_SLOTS * TSR_CUDA_SLOT_BYTES, TSR_POOL_HOST,
                          "buffers for copies", &ring->block));
    for (int i = 0; i < TSR_CUDA_RING_SLOTS; i++) {
        ring->slots[i].data = (unsigned char *)ring->block->data + (size_t)i * TSR_CUDA_SLOT_BYTES;
        TSR_TRY(TSR_CUDA(cudaEventCreateWithFlags(&ring->slots[i].done, cudaEventDisableTiming)));
    }
out:
    return status;
}

void tsr_cuda_ring_destroy(tsr_cuda_device *cuda)
{
    for (int i = 0; i < TSR_CUDA_RING_SLOTS; i++)
        if (cuda->ring.slots[i].done)
            (void)cudaEventDestroy(cuda->ring.slots[i].done);
    tsr_pool_give(cuda->pinned, cuda->ring.block, TSR_POOL_HOST);
    cuda->ring = (tsr_cuda_ring){0};
}

/* Some rows of a 2-D copy, or a part of one row, that fit into a slot. */
typedef struct piece {
    size_t row, column, width, height;
} piece;

/* A 2-D copy in progress. */
typedef struct transfer {
    tsr_cuda_device *cuda;
    unsigned char *dst;
    const unsigned char *src;
    size_t dst_stride, src_stride, width, height;
    piece next;
} transfer;

/* Rows that are dense on both sides are one long row. */
static transfer begin_transfer(tsr_cuda_device *cuda, void *dst, size_t dst_stride, const void *src,
                               size_t src_stride, size_t width, size_t height)
{
    if (dst_stride == width && src_stride == width) {
        width *= height;
        height = 1;
        dst_stride = src_stride = width;
    }
    return (transfer){cuda, dst, src, dst_stride, src_stride, width, height, {0, 0, 0, 0}};
}

static bool next_piece(transfer *t, piece *piece_out)
{
    piece *p = &t->next;
    if (t->width == 0 || p->row >= t->height)
        return false;
    p->width = TSR_MIN(t->width - p->column, (size_t)TSR_CUDA_SLOT_BYTES);
    p->height = p->width == t->width ? TSR_MIN(TSR_CUDA_SLOT_BYTES / p->width, t->height - p->row) : 1;
    *piece_out = *p;
    p->column += p->width;
    if (p->column == t->width) {
        p->column = 0;
        p->row += p->height;
    }
    return true;
}

static void copy_rows(unsigned char *dst, size_t dst_stride, const unsigned char *src, size_t src_stride,
                      size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        memcpy(dst + row * dst_stride, src + row * src_stride, width);
}

/* Whether a taken slot can be used without waiting. */
static bool is_idle(tsr_cuda_slot *slot)
{
    if (!slot->busy)
        return true;
    slot->busy = cudaEventQuery(slot->done) != cudaSuccess;
    if (slot->busy)
        (void)cudaGetLastError(); /* "not ready" counts as an error */
    return !slot->busy;
}

/* The first slot that no other thread has and that can be used immediately; otherwise NULL. */
static tsr_cuda_slot *take_idle(tsr_cuda_ring *ring)
{
    for (int i = 0; i < TSR_CUDA_RING_SLOTS; i++) {
        tsr_cuda_slot *slot = &ring->slots[i];
        if (atomic_exchange(&slot->taken, true))
            continue;
        if (is_idle(slot))
            return slot;
        atomic_store(&slot->taken, false);
    }
    return NULL;
}

static void give_slot(tsr_cuda_slot *slot)
{
    if (slot)
        atomic_store(&slot->taken, false);
}

/* An idle slot; otherwise the next in turn, which is waited for. There are more slots than the
 * threads need together, so a round finds one. */
static tsr_status take_slot(tsr_cuda_device *cuda, tsr_cuda_slot **slot_out)
{
    tsr_status status = TSR_OK;
    tsr_cuda_ring *ring = &cuda->ring;
    tsr_cuda_slot *slot = take_idle(ring);
    if (!slot) {
        do
            slot = &ring->slots[atomic_fetch_add(&ring->next, 1) % TSR_CUDA_RING_SLOTS];
        while (atomic_exchange(&slot->taken, true));
        if (slot->busy)
            status = tsr_cuda_wait_event(cuda, slot->done);
    }
    if (status == TSR_OK) {
        slot->busy = false;
        *slot_out = slot;
    } else {
        give_slot(slot);
    }
    return status;
}

/* Copy between a slot, where rows are dense, and device memory. */
static tsr_status enqueue_piece(tsr_cuda_device *cuda, tsr_cuda_slot *slot, void *dst, size_t dst_stride,
                                const void *src, size_t src_stride, const piece *p, enum cudaMemcpyKind kind)
{
    tsr_status status = TSR_OK;
    if (p->height == 1 || (dst_stride == p->width && src_stride == p->width))
        TSR_TRY(TSR_CUDA(cudaMemcpyAsync(dst, src, p->width * p->height, kind, cuda->copies)));
    else
        TSR_TRY(TSR_CUDA(
            cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, p->width, p->height, kind, cuda->copies)));
    if (kind == cudaMemcpyHostToDevice) /* a download is waited for */
        atomic_store(&cuda->copies_pending, true);
    status = TSR_CUDA(cudaEventRecord(slot->done, cuda->copies));
    slot->busy = status == TSR_OK;
    if (status != TSR_OK) /* the slot must not be used while the copy runs */
        (void)!tsr_cuda_quiesce(cuda);
out:
    return status;
}

static tsr_status upload_piece(const transfer *t, const piece *p)
{
    tsr_status status = TSR_OK;
    tsr_cuda_slot *slot = NULL;
    TSR_TRY(take_slot(t->cuda, &slot));
    copy_rows(slot->data, p->width, t->src + p->row * t->src_stride + p->column, t->src_stride, p->width,
              p->height);
    TSR_TRY(enqueue_piece(t->cuda, slot, t->dst + p->row * t->dst_stride + p->column, t->dst_stride,
                          slot->data, p->width, p, cudaMemcpyHostToDevice));
out:
    give_slot(slot);
    return status;
}

tsr_status tsr_cuda_upload(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                           size_t src_stride, size_t width, size_t height)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    transfer t = begin_transfer(cuda, dst, dst_stride, src, src_stride, width, height);
    piece p;
    tsr_status status =
        height ? tsr_cuda_check_writable(cuda, dst, (height - 1) * dst_stride + width) : TSR_OK;
    if (status == TSR_OK)
        status = tsr_cuda_enter_to_copy(cuda);
    if (status != TSR_OK)
        return status;
    while (status == TSR_OK && next_piece(&t, &p))
        status = upload_piece(&t, &p);
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s: upload", device->name);
}

/* A piece that is copied to the host; slot NULL: none. */
typedef struct arrival {
    tsr_cuda_slot *slot;
    piece piece;
} arrival;

static tsr_status finish_download(const transfer *t, arrival *a)
{
    tsr_status status = TSR_OK;
    if (!a->slot)
        return TSR_OK;
    const piece *p = &a->piece;
    TSR_TRY(tsr_cuda_wait_event(t->cuda, a->slot->done));
    a->slot->busy = false;
    copy_rows(t->dst + p->row * t->dst_stride + p->column, t->dst_stride, a->slot->data, p->width, p->width,
              p->height);
out:
    give_slot(a->slot);
    a->slot = NULL;
    return status;
}

tsr_status tsr_cuda_download(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                             size_t src_stride, size_t width, size_t height)
{
    tsr_cuda_device *cuda = tsr_cuda(device);
    transfer t = begin_transfer(cuda, dst, dst_stride, src, src_stride, width, height);
    arrival last = {0}, next = {0};
    tsr_status status = tsr_cuda_enter_to_copy(cuda);
    tsr_trace *trace = device->clock.trace;
    const uint64_t begin = trace ? tsr_clock_ns() : 0;
    if (status != TSR_OK)
        return status;
    while (next_piece(&t, &next.piece)) {
        const piece *p = &next.piece;
        TSR_TRY(take_slot(cuda, &next.slot));
        TSR_TRY(enqueue_piece(cuda, next.slot, next.slot->data, p->width,
                              t.src + p->row * t.src_stride + p->column, t.src_stride, p,
                              cudaMemcpyDeviceToHost));
        TSR_TRY(finish_download(&t, &last));
        last = next;
        next.slot = NULL;
    }
    TSR_TRY(finish_download(&t, &last));
out:
    if (trace)
        tsr_trace_add(trace, TSR_SPAN_COPY, "download", NULL, begin, tsr_clock_ns());
    give_slot(last.slot);
    give_slot(next.slot);
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK : tsr_fail_in(status, "device %s: download", device->name);
}
