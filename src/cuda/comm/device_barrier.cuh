/* A barrier of devices inside a kernel, in one piece or as its two halves; see device_barrier.h. */
#ifndef TSR_CUDA_COMM_DEVICE_BARRIER_CUH
#define TSR_CUDA_COMM_DEVICE_BARRIER_CUH

#include "cuda/kernels/common.cuh"
#include "cuda/comm/device_barrier.h"
#include "cuda/comm/memory_order.h"

/* Polls between two reads of the abort flag, which is in host memory and costs a round trip over the bus. */
enum { TSR_LOOKS_PER_ABORT_LOOK = 256 };

/* Whether the calling thread announces to another device and waits for it. */
TSR_DEVICE bool tsr_barrier_is_mine(const tsr_cuda_barrier &m)
{
    const int other = (int)threadIdx.x;
    return other < m.n_devices && other != m.self && (m.participants >> other & 1);
}

/* Announce the block's arrival. The value is the number of arrivals so far, for tsr_barrier_await(); 0: this
 * thread does not wait. */
TSR_DEVICE uint64_t tsr_barrier_announce(const tsr_cuda_barrier &m)
{
    if (!tsr_barrier_is_mine(m))
        return 0;
    const int other = (int)threadIdx.x;
    const int64_t block = (int64_t)blockIdx.x * m.n_devices;
    const uint64_t count = m.sent[block + other] + 1;
    m.sent[block + other] = count;
    tsr_store_release_u64(m.announce[other] + block, count);
    if (blockIdx.x == 0)
        tsr_store_relaxed_u64(m.progress + other, count);
    return count;
}

/* Returns false if the wait was aborted. */
TSR_DEVICE bool tsr_barrier_await(const tsr_cuda_barrier &m, uint64_t count)
{
    const int other = (int)threadIdx.x;
    const int64_t block = (int64_t)blockIdx.x * m.n_devices;
    if (count == 0)
        return true;
    for (unsigned look = 1; tsr_load_acquire_u64(m.received + block + other) < count; look++) {
        if (look % TSR_LOOKS_PER_ABORT_LOOK == 0 && tsr_load_relaxed_u32(m.aborted) != 0)
            return false;
        tsr_spin_pause();
    }
    return true;
}

/* Called by all threads of all blocks, TSR_CUDA_MAX_PEERS or more threads per block. Each thread announces to
 * one device and waits for it. */
TSR_DEVICE void tsr_barrier_wait(const tsr_cuda_barrier &m)
{
    tsr_barrier_await(m, tsr_barrier_announce(m));
    __syncthreads(); /* for all warps */
}

#endif
