/* Collectives of a CUDA device that go through host memory. The partial is copied to pinned memory (large
 * exact ones as planes, staging/), the device's host thread takes part in the collective like a host device
 * with one thread, and the GPU reads the result from pinned memory. This works between any
 * devices, including GPUs without peer access, several devices on one GPU and host devices.
 *
 * The host thread waits between two pieces of GPU work. Rejected: a host function on the stream
 * (cudaLaunchHostFunc). CUDA may run the functions of all devices on one thread, one after another, and the
 * first that waits for another device would never return. */
#ifndef TSR_CUDA_COMM_STAGED_H
#define TSR_CUDA_COMM_STAGED_H

#include "core/comm.h"
#include "cuda/context/context.h"

/* One collective op of a program. */
typedef struct tsr_cuda_staged {
    tsr_op op;          /* with host pointers in place of device pointers */
    const void *source; /* device memory that is copied to the host before the collective; NULL: none */
    void *source_copy;  /* pinned */
    size_t source_bytes;
    bool as_planes;        /* the copy is made of planes (staging/stage.h) */
    const float *residual; /* device memory, added to the result; NULL: none */
    float *result;         /* device memory; NULL: no result */
    float *result_copy;    /* pinned */
    int64_t n_result;
} tsr_cuda_staged;

/* Whether the op is a collective with other devices whose communicator cannot work in streams. */
bool tsr_cuda_is_staged(const tsr_op *op);

/* The staged form of each such op among ops[0, n_ops), in order, and the block of the pinned pool that they
 * share. The device is current. Both are NULL where there is none. On failure everything created here is
 * freed. */
tsr_status tsr_cuda_staged_create(tsr_cuda_device *cuda, const tsr_op *ops, int n_ops,
                                  tsr_cuda_staged **staged_out, tsr_pool_block **pinned_out);

/* Enqueue the copy to the host; enqueue the reading of the result. Between the two calls the caller waits for
 * the stream and calls comm->run(). */
tsr_status tsr_cuda_staged_begin(const tsr_cuda_staged *staged, const tsr_cuda_stream *s);
tsr_status tsr_cuda_staged_end(const tsr_cuda_staged *staged, const tsr_cuda_stream *s);

#endif
