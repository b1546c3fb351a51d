/* One thread per device; see nccl_announce.h. Pinned memory is only written: reading it would cost a round
 * trip over the bus before each collective. */
#include "cuda/comm/nccl_announce.h"

#include "cuda/api/check.h"
#include "cuda/api/launch.h"
#include "cuda/comm/memory_order.h"

static __global__ void nccl_announce_kernel(uint64_t others, uint64_t *counts, uint64_t *progress)
{
    const int other = (int)threadIdx.x;
    if (others >> other & 1)
        tsr_store_relaxed_u64(progress + other, ++counts[other]);
}

extern "C" tsr_status tsr_cuda_nccl_announce(uint64_t others, uint64_t *counts, uint64_t *progress,
                                             cudaStream_t stream)
{
    return tsr_cuda_result(
        TSR_LAUNCH(nccl_announce_kernel, dim3(1), dim3(64), 0, stream, others, counts, progress),
        "nccl_announce_kernel");
}
