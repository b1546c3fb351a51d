/* Collectives of a CUDA device that go through host memory: the partial is copied to pinned memory, the
 * device's host thread takes part in the collective as any host device does, with one thread, and the result
 * is read by the GPU from pinned memory. This works between any devices whatever, GPUs without peer access,
 * several devices on one GPU and host devices included.
 *
 * The host thread waits between two pieces of GPU work, rather than in a function that CUDA calls on the
 * stream (cudaLaunchHostFunc): CUDA may run such functions of all devices on one thread, one after another,
 * and the first to wait for another device would then wait for ever. */
#ifndef TSR_CUDA_COMM_STAGED_H
#define TSR_CUDA_COMM_STAGED_H

#include "core/comm.h"
#include "cuda/context/context.h"

/* One collective op of a program. */
typedef struct tsr_cuda_staged {
    tsr_op op;          /* with host pointers in place of the device's */
    const void *source; /* device memory that goes to the host before; NULL: nothing does */
    void *source_copy;  /* pinned */
    size_t source_bytes;
    const float *residual; /* device memory, added to what comes back; NULL: nothing is */
    float *result;         /* device memory; NULL: nothing comes back */
    float *result_copy;    /* pinned */
    int64_t n_result;
} tsr_cuda_staged;

/* A collective with others whose communicator cannot work in streams. */
bool tsr_cuda_is_staged(const tsr_op *op);

/* The form of each staged op among ops[0, n_ops), in order, and the block of the pinned pool that they share.
 * The device is current. Both are NULL where there is none. Frees nothing on failure but what it made. */
tsr_status tsr_cuda_staged_create(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops,
                                  tsr_cuda_staged **staged_out, tsr_pool_block **pinned_out);

/* Enqueue the copy to the host; enqueue the reading of what came back. Between the two the stream is waited
 * for and comm->run() called. */
tsr_status tsr_cuda_staged_begin(const tsr_cuda_staged *staged, cudaStream_t stream);
tsr_status tsr_cuda_staged_end(const tsr_cuda_staged *staged, const tsr_cuda_stream *s);

#endif
