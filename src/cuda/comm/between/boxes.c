/* See boxes.h. */
#include "cuda/comm/between/boxes.h"

#include <string.h>
#include <time.h>

#include "core/event.h"
#include "core/mem.h"
#include "cuda/api/check.h"
#include "cuda/comm/push/push.h"
#include "cuda/memory/memory.h"

/* CUDA cuts small allocations out of larger blocks, and a handle opens the whole block: the documentation of
 * cudaIpcGetMemHandle() advises multiples of 2 MiB. */
enum { EMPTY_BYTE = 0xff, PAGE = 4096, BLOCK_BYTES = 2 << 20, CLOSING_NS = 1000000000, SLEEP_NS = 200000 };

/* -- places -- */

static size_t state_at(const tsr_cuda_boxes *b)
{
    return (size_t)b->n * (size_t)b->n * sizeof(uint64_t);
}

static size_t boxes_at(const tsr_cuda_boxes *b)
{
    return (state_at(b) + sizeof(tsr_cuda_boxes_state) + PAGE - 1) / PAGE * PAGE;
}

void tsr_cuda_boxes_init(tsr_cuda_boxes *boxes, tsr_cuda_device *const *devices, int n, int max_blocks,
                         bool pinned)
{
    *boxes = (tsr_cuda_boxes){.devices = devices, .n = n, .pinned = pinned};
    if (n == 0)
        return;
    boxes->counts_bytes = (size_t)n * TSR_CUDA_MAX_BARRIER_BLOCKS * sizeof(uint64_t);
    const size_t used = boxes->counts_bytes + (size_t)tsr_cuda_push_inbox(n, max_blocks) * sizeof(uint64_t);
    const size_t unit = pinned ? PAGE : BLOCK_BYTES;
    boxes->bytes = (used + unit - 1) / unit * unit;
}

size_t tsr_cuda_boxes_segment_bytes(const tsr_cuda_boxes *boxes)
{
    return boxes_at(boxes) + (boxes->pinned ? boxes->bytes * (size_t)boxes->n : 0);
}

static unsigned char *in_segment(const tsr_cuda_boxes *b, unsigned char *segment, int i)
{
    return segment + boxes_at(b) + b->bytes * (size_t)i;
}

static unsigned char *box_of(const tsr_cuda_boxes *b, int self, int i)
{
    if (b->pinned)
        return in_segment(b, b->seen[self], i);
    return b->own[i] ? b->own[i] : b->others[self * b->n + i];
}

uint64_t *tsr_cuda_boxes_received(const tsr_cuda_boxes *boxes, int self, int i)
{
    return (uint64_t *)box_of(boxes, self, i);
}

uint64_t *tsr_cuda_boxes_inbox(const tsr_cuda_boxes *boxes, int self, int i)
{
    return (uint64_t *)(box_of(boxes, self, i) + boxes->counts_bytes);
}

uint64_t *tsr_cuda_boxes_progress(const tsr_cuda_boxes *boxes)
{
    return (uint64_t *)boxes->segment.data;
}

tsr_cuda_boxes_state *tsr_cuda_boxes_state_of(const tsr_cuda_boxes *boxes)
{
    return (tsr_cuda_boxes_state *)(boxes->segment.data + state_at(boxes));
}

/* -- opening -- */

/* The pages of a GPU's inbox are first touched, and so placed, by its own process. */
static void empty_pinned(const tsr_cuda_boxes *b, int i)
{
    unsigned char *box = in_segment(b, b->segment.data, i);
    memset(box, 0, b->counts_bytes);
    memset(box + b->counts_bytes, EMPTY_BYTE, b->bytes - b->counts_bytes);
}

static tsr_status make_on_device(tsr_cuda_boxes *b, int i)
{
    tsr_cuda_device *cuda = b->devices[i];
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    TSR_TRY(tsr_cuda_alloc_own(cuda, b->bytes, &b->own[i]));
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(b->own[i], EMPTY_BYTE, b->bytes, cuda->stream)));
    TSR_TRY(TSR_CUDA(cudaMemsetAsync(b->own[i], 0, b->counts_bytes, cuda->stream)));
    TSR_TRY(tsr_cuda_drain(cuda));
out:
    tsr_cuda_leave(cuda);
    return status == TSR_OK ? TSR_OK
                            : tsr_fail_in(status, "device %s: inbox of the collectives", cuda->base.name);
}

tsr_status tsr_cuda_boxes_make(tsr_cuda_boxes *boxes)
{
    tsr_status status = TSR_OK;
    if (!boxes->pinned && !boxes->others && boxes->n > 0)
        TSR_TRY(tsr_mem_array((size_t)boxes->n * (size_t)boxes->n, sizeof *boxes->others,
                              "inboxes of other processes", &boxes->others));
    for (int i = 0; i < boxes->n; i++)
        if (boxes->devices[i] && boxes->pinned)
            empty_pinned(boxes, i);
        else if (boxes->devices[i])
            TSR_TRY(make_on_device(boxes, i));
out:
    return status;
}

tsr_status tsr_cuda_boxes_address(tsr_cuda_boxes *boxes)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < boxes->n; i++) {
        if (!boxes->devices[i])
            continue;
        if (!boxes->segment.keeper)
            TSR_TRY(tsr_cuda_segment_register(&boxes->segment, boxes->devices[i]));
        TSR_TRY(tsr_cuda_segment_address(&boxes->segment, boxes->devices[i], &boxes->seen[i]));
    }
out:
    return status;
}

tsr_status tsr_cuda_boxes_handle(const tsr_cuda_boxes *boxes, int i, cudaIpcMemHandle_t *handle_out)
{
    tsr_status status = tsr_cuda_enter(boxes->devices[i]);
    if (status != TSR_OK)
        return status;
    status = TSR_CUDA(cudaIpcGetMemHandle(handle_out, boxes->own[i]));
    tsr_cuda_leave(boxes->devices[i]);
    return status;
}

tsr_status tsr_cuda_boxes_open(tsr_cuda_boxes *boxes, int i, const cudaIpcMemHandle_t *handle)
{
    for (int self = 0; self < boxes->n; self++) {
        tsr_cuda_device *cuda = boxes->devices[self];
        if (!cuda)
            continue;
        tsr_status status = tsr_cuda_enter(cuda);
        if (status == TSR_OK) {
            status = TSR_CUDA(cudaIpcOpenMemHandle(&boxes->others[self * boxes->n + i], *handle,
                                                   cudaIpcMemLazyEnablePeerAccess));
            tsr_cuda_leave(cuda);
        }
        if (status != TSR_OK)
            return tsr_fail_in(status, "device %s: memory of another process", cuda->base.name);
    }
    return TSR_OK;
}

/* -- closing -- */

/* False: a GPU was given up, or this is a child process. */
static bool close_others(tsr_cuda_boxes *b, int self)
{
    tsr_cuda_device *cuda = b->devices[self];
    if (!tsr_cuda_enter_to_release(cuda))
        return false;
    for (int i = 0; i < b->n; i++)
        if (b->others[self * b->n + i])
            (void)cudaIpcCloseMemHandle(b->others[self * b->n + i]);
    (void)cudaGetLastError();
    tsr_cuda_leave(cuda);
    return true;
}

/* Memory that another process has open shall not be freed (cudaIpcCloseMemHandle()). A process that has ended
 * does not close it any more, so the wait is short. */
static void wait_for_others(const tsr_cuda_boxes *b, int n_processes)
{
    uint32_t *closed = &tsr_cuda_boxes_state_of(b)->closed;
    const uint64_t deadline_ns = tsr_deadline_ns(CLOSING_NS);
    __atomic_fetch_add(closed, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(closed, __ATOMIC_ACQUIRE) < (uint32_t)n_processes && tsr_clock_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
}

void tsr_cuda_boxes_close(tsr_cuda_boxes *boxes, int n_processes)
{
    bool alive = boxes->others && boxes->segment.data;
    for (int i = 0; i < boxes->n && boxes->others; i++)
        if (boxes->devices[i])
            alive = close_others(boxes, i) && alive;
    if (alive)
        wait_for_others(boxes, n_processes);
    for (int i = 0; i < boxes->n; i++)
        if (boxes->own[i] && tsr_cuda_enter_to_release(boxes->devices[i])) {
            tsr_cuda_free_own(boxes->devices[i], boxes->own[i], boxes->bytes);
            (void)cudaGetLastError();
            tsr_cuda_leave(boxes->devices[i]);
        }
    tsr_cuda_segment_close(&boxes->segment);
    tsr_mem_free(boxes->others);
    boxes->others = NULL;
}
