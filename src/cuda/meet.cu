/* Devices meet: one block, one thread per device. Each thread tells its device and waits for it; the next
 * kernel on the stream starts when all have come, and reads what the others wrote before. */
#include "cuda/meet.h"

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/memory_order.h"

/* Looks between two looks at the abort flag, which lies in host memory and costs a trip over the bus. */
enum { LOOKS_PER_ABORT_LOOK = 256 };

static __global__ void meet(tsr_cuda_meeting m)
{
    int other = (int)threadIdx.x;
    if (other == m.self || !(m.participants >> other & 1))
        return;
    uint64_t count = m.sent[other] + 1;
    m.sent[other] = count;
    tsr_store_relaxed_u64(m.progress + other, count);
    __threadfence_system(); /* what the device wrote comes before its announcement, for all devices */
    tsr_store_release_u64(m.announce[other], count);
    for (unsigned look = 1; tsr_load_acquire_u64(m.received + other) < count; look++) {
        if (look % LOOKS_PER_ABORT_LOOK == 0 && tsr_load_relaxed_u32(m.aborted) != 0)
            return;
        tsr_spin_pause();
    }
}

tsr_status tsr_cuda_meet(const tsr_cuda_meeting *meeting, cudaStream_t stream)
{
    return TSR_CUDA(TSR_LAUNCH(meet, dim3(1), dim3(TSR_CUDA_MAX_PEERS), 0, stream, *meeting));
}
