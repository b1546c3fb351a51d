/* The kernel that reports to the host how far a device has come, for messages about late devices: NCCL does
 * not report it. */
#ifndef TSR_CUDA_COMM_NCCL_ANNOUNCE_H
#define TSR_CUDA_COMM_NCCL_ANNOUNCE_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "core/status.h"

TSR_BEGIN_DECLS

/* Count one more collective with each device in `others` (one bit each, at most 64): in `counts`, [device] in
 * the device's own memory, and in `progress`, its copy in pinned memory. */
tsr_status tsr_cuda_nccl_announce(uint64_t others, uint64_t *counts, uint64_t *progress, cudaStream_t stream);

TSR_END_DECLS

#endif
