/* Devices wait for each other inside kernels, and the kernels that do so.
 *
 * A barrier: every block of such a kernel tells the same block of every other participant that it has come,
 * and waits for all of them. It comes at the beginning of a kernel. So what a device announces is that
 * everything enqueued before is done, and what it may do afterwards is read what the others wrote before.
 *
 * Order. Each announcement is a store with release, each look at one a load with acquire, both with the whole
 * system as their scope (memory_order.h). What earlier kernels of the stream wrote, with whichever threads,
 * happens before the kernel, hence before the release, and is visible to a thread that has seen the
 * announcement; __syncthreads() passes that on to its block. So plain loads of the partials come out right,
 * as long as they are not marked as read-only for the kernel's duration (no __ldg, no __restrict__).
 *
 * Counting. Meetings are counted per block and pair of devices: two devices take part in the same barriers in
 * the same order with as many blocks, so the k-th that one block knows is the k-th that the other knows,
 * whoever else takes part. Nothing is ever set back while programs run, hence a captured barrier can be
 * replayed. The number of blocks must follow from what the participants have in common, never from one
 * device's memory, alignment or neighbouring ops.
 *
 * Why nobody waits for ever.
 *  - All blocks of a kernel that meets must be on the GPU at once, since each waits for its own counterpart.
 *    They are the only work of their stream, so between GPUs it is enough that they fit.
 *  - Several devices on one GPU share it: one may wait while another still computes what is waited for. Each
 *    is given so few blocks that all waiting blocks together take no more than half of the GPU's
 *    multiprocessors (peer.c). Kernels that wait for nobody get through on the others; then the late device's
 *    waiting blocks fit as well.
 *  - Streams that share a hardware queue would start their kernels one after another, and the first would
 *    wait for the second. There are 8 queues by default (CUDA_DEVICE_MAX_CONNECTIONS), so more than 8 devices
 *    on one GPU are not offered these kernels, and whether the queues were in fact dealt out well is tried
 *    with a deadline before any program relies on it (comm/select.h), with captured graphs on the very
 *    streams that programs use.
 *  - A kernel's code may be loaded at its first launch, and loading may wait for the GPU to be idle. All
 *    kernels are loaded when a device is opened (kernels_load.cu).
 *  - Nothing that waits for the whole GPU (cudaMalloc, cudaFree, cudaDeviceSynchronize) is called between the
 *    launch of a program on the first device and on the last. */
#ifndef TSR_CUDA_COMM_MEET_H
#define TSR_CUDA_COMM_MEET_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "core/status.h"
#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* A block of 512 threads has 8 KiB of loads under way per partial that it reads. One direction of a current
 * NVLink wants about 450 GB/s times a round trip of a microsecond, which 32 blocks and two partials give;
 * NCCL, too, works with 32 channels at most. More blocks would only meet more often. */
enum { TSR_CUDA_MAX_PEERS = 64, TSR_CUDA_MAX_BARRIER_BLOCKS = 32 };

typedef struct tsr_cuda_barrier {
    int self, n_devices;
    int max_blocks;                         /* of a kernel that meets; the same for all participants */
    uint64_t participants;                  /* one bit per device; 0: nobody is waited for */
    uint64_t *sent;                         /* own memory: [block][device] barriers announced to it */
    const uint64_t *received;               /* own memory: [block][device] barriers it has announced */
    uint64_t *announce[TSR_CUDA_MAX_PEERS]; /* [device]: its `received`, from this device's column on */
    uint64_t *progress;                     /* pinned: copy of block 0's `sent`, for the host's messages */
    const uint32_t *aborted;                /* pinned: not 0: stop waiting */
} tsr_cuda_barrier;

/* Only meet. */
tsr_status tsr_cuda_barrier_wait(const tsr_cuda_barrier *barrier, cudaStream_t stream);

/* One-shot all-reduce: meet, then add up all parts (tsr_cuda_reduce). With `norm` its rows are normalised,
 * too: norm->x is reduction->y, and norm->y overlaps nothing but, element by element, y or the residual. */
tsr_status tsr_cuda_barrier_reduce(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                   const tsr_op_rms_norm *norm, const tsr_cuda_stream *s);

/* Two-shot all-reduce, in two kernels with a barrier each. In the first, contributor `part` of
 * reduction->n_parts adds up its share of the elements and leaves the sums, as f32, in that share of its own
 * partial, which nobody else reads then; -1: it has none. In the second everybody reads all sums. The parts
 * are aligned to 16 bytes. Same bits as one-shot. */
tsr_status tsr_cuda_barrier_reduce_share(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                         int part, const tsr_cuda_stream *s);
tsr_status tsr_cuda_barrier_gather_shares(const tsr_cuda_barrier *barrier,
                                          const tsr_cuda_reduction *reduction, const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
