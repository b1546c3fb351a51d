/* Work in a stream that waits for a device of another process: nothing in the stream ends it when that device
 * does not come. So the host thread of the waiting device looks at the counters of arrivals (counters.h). */
#ifndef TSR_CUDA_COMM_LATE_H
#define TSR_CUDA_COMM_LATE_H

#include "core/device_set.h"
#include "core/processes.h"
#include "cuda/context/context.h"

/* When a device was first seen to have arrived so often at collectives. */
typedef struct tsr_cuda_late {
    uint64_t arrivals, since_ns;
} tsr_cuda_late;

/* For poll() of struct tsr_comm_ops: fails if the processes are lost, and loses them once `cuda` has made
 * `arrivals` for the limit of a step. `missing`: the devices that it waits for. */
tsr_status tsr_cuda_late_check(tsr_cuda_late *late, tsr_processes *processes, const tsr_cuda_device *cuda,
                               uint64_t arrivals, tsr_device_set missing);

#endif
