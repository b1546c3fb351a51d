/* Device memory. Large allocations and growing ones are mapped piece by piece where the driver can do that
 * (vmm.h), all else is cudaMalloc's, or, if the device was asked for it, managed memory; host memory is made
 * readable in place by wrap.c. All functions are those of struct tsr_device_ops.
 *
 * Why mappings: growing never copies, freeing does not stop the device, the physical bytes are known to the
 * granule, and a peer gets access to exactly what it must read. */
#ifndef TSR_CUDA_MEMORY_H
#define TSR_CUDA_MEMORY_H

#include "core/device.h"

/* Where the device has no virtual memory management: commits are only bookkeeping. */
enum { TSR_CUDA_PLAIN_GRANULARITY = 64 << 10 };

tsr_status tsr_cuda_alloc(tsr_device *device, size_t bytes, void **pointer_out);
void tsr_cuda_free(tsr_device *device, void *pointer, size_t bytes);
tsr_status tsr_cuda_reserve(tsr_device *device, size_t bytes, void **base_out);
void tsr_cuda_release(tsr_device *device, void *base, size_t bytes);
tsr_status tsr_cuda_commit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_cuda_decommit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_cuda_memory_info(tsr_device *device, size_t *free_out, size_t *total_out);

#endif
