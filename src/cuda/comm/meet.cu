/* Devices meet and do nothing else: the next kernel or copy on the stream starts when all have come, and
 * reads what the others wrote before. */
#include "cuda/comm/meet.cuh"

static __global__ void meet_kernel(const __grid_constant__ tsr_cuda_meeting meeting)
{
    tsr_barrier_wait(meeting);
}

extern "C" tsr_status tsr_cuda_meet(const tsr_cuda_meeting *meeting, cudaStream_t stream)
{
    return TSR_CUDA(TSR_LAUNCH(meet_kernel, dim3(1), dim3(TSR_CUDA_MAX_PEERS), 0, stream, *meeting));
}
