/* A barrier of devices inside kernels, and the kernels that contain it.
 *
 * The barrier: every block of such a kernel announces its arrival to the same block of every other
 * participant, and waits for all of them. The first announcement is at the beginning of a kernel. So it says
 * that everything enqueued before has finished, and after the barrier a device may read what the other
 * participants wrote before. Most kernels wait at once; those that push (push/push.h) announce and wait once
 * per round, and add up in between.
 *
 * Order. Each announcement is a store with release, each poll a load with acquire, both with system scope
 * (memory_order.h). The writes of earlier kernels of the stream, by any threads, happen before the kernel,
 * hence before the release, and are visible to a thread that has seen the announcement; __syncthreads()
 * extends this to its block. So plain loads of the partials are correct, as long as they are not marked as
 * read-only for the kernel's duration (no __ldg, no __restrict__).
 *
 * Counting. Barriers are counted per block and pair of devices. Two devices take part in the same barriers in
 * the same order with as many blocks, so the k-th barrier of one block is the k-th of its counterpart,
 * regardless of the other participants. Counters are never reset while programs run, hence a captured barrier
 * can be replayed. The number of blocks must follow from values that all participants have in common, never
 * from one device's memory, alignment or neighbouring ops.
 *
 * Deadlock freedom.
 *  - All blocks of a kernel with a barrier must be resident on the GPU, since each waits for its counterpart.
 *    They are the only work of their stream, so between GPUs it is enough that they fit.
 *  - Several devices may share one GPU: one may wait for another that still computes. Each device gets so few
 *    blocks that all waiting blocks together take at most half of the GPU's multiprocessors (peer.c). Kernels
 *    without a barrier run on the other half and finish; then the late device's waiting blocks fit as well.
 *  - Streams that share a hardware queue would start their kernels one after another, and the first would
 *    wait for the second. There are 8 queues by default (CUDA_DEVICE_MAX_CONNECTIONS) and two streams per
 *    device, so more than 4 devices on one GPU do not get these kernels (peer_probe.c). Whether the streams
 *    have separate queues is probed with a deadline before any program relies on it (comm/select.h), with
 *    captured graphs on the streams of the programs.
 *  - A launch that finds about a thousand others before it waits with a lock of the context, which the other
 *    devices' launches need. Programs without a graph wait for their stream before that (program.c).
 *  - A kernel's code may be loaded at its first launch, and loading may wait for the GPU to be idle. All
 *    kernels are loaded when a device is opened (kernels_load.cu).
 *  - No function that waits for the whole GPU (cudaMalloc, cudaFree, cudaDeviceSynchronize) is called between
 *    the launch of a program on the first device and on the last. */
#ifndef TSR_CUDA_COMM_DEVICE_BARRIER_H
#define TSR_CUDA_COMM_DEVICE_BARRIER_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "core/status.h"
#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* A block of 512 threads has 8 KiB of loads in flight per partial that it reads. To fill one direction of a
 * current NVLink takes about 450 GB/s times a round trip of a microsecond in flight: 32 blocks and two
 * partials. NCCL, too, uses 32 channels at most. More blocks would only mean more announcements. */
enum { TSR_CUDA_MAX_PEERS = 64, TSR_CUDA_MAX_BARRIER_BLOCKS = 32 };

typedef struct tsr_cuda_barrier {
    int self, n_devices;
    int max_blocks;                         /* of a kernel with a barrier; the same for all participants */
    uint64_t participants;                  /* one bit per device; 0: no waiting */
    uint64_t *sent;                         /* own memory: [block][device] barriers announced to the device */
    const uint64_t *received;               /* [block][device] barriers announced by the device, in own or in
                                             * pinned host memory */
    uint64_t *announce[TSR_CUDA_MAX_PEERS]; /* [device]: its `received`, from this device's column on */
    uint64_t *progress;                     /* pinned: copy of block 0's `sent`, for the host's messages */
    const uint32_t *aborted;                /* pinned: not 0: stop waiting */
} tsr_cuda_barrier;

/* The barrier alone. */
tsr_status tsr_cuda_barrier_wait(const tsr_cuda_barrier *barrier, cudaStream_t stream);

/* One-shot all-reduce: a barrier, then the sum of all parts (tsr_cuda_reduce). With `norm` the rows of the
 * sum are normalised, too: norm->x is reduction->y, and norm->y overlaps nothing but, element by element, y
 * or the residual. */
tsr_status tsr_cuda_barrier_reduce(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                   const tsr_op_rms_norm *norm, const tsr_cuda_stream *s);

/* Two-shot all-reduce, in two kernels with a barrier each. In the first, contributor `part` of
 * reduction->n_parts adds up its share of the elements and stores the sums, as f32, in that share of its own
 * partial, which no other device reads in this kernel; part -1: no share. In the second every device reads
 * all sums. The parts are aligned to 16 bytes. Same bits as one-shot. */
tsr_status tsr_cuda_barrier_reduce_share(const tsr_cuda_barrier *barrier, const tsr_cuda_reduction *reduction,
                                         int part, const tsr_cuda_stream *s);
tsr_status tsr_cuda_barrier_gather_shares(const tsr_cuda_barrier *barrier,
                                          const tsr_cuda_reduction *reduction, const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
