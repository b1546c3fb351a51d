/* The barrier alone: the next kernel or copy on the stream starts when all participants have arrived, and may
 * read what they wrote before. */
#include "cuda/comm/device_barrier.cuh"

static __global__ void barrier_kernel(const __grid_constant__ tsr_cuda_barrier barrier)
{
    tsr_barrier_wait(barrier);
}

extern "C" tsr_status tsr_cuda_barrier_wait(const tsr_cuda_barrier *barrier, cudaStream_t stream)
{
    return TSR_CUDA(TSR_LAUNCH(barrier_kernel, dim3(1), dim3(TSR_CUDA_MAX_PEERS), 0, stream, *barrier));
}
