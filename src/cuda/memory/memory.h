/* Device memory. Large allocations and growing ones are mapped piece by piece where the driver supports it
 * (vmm.h); other allocations are cudaMalloc's or, if the device was opened with it, managed memory. Host
 * memory is made readable in place by wrap.c. All functions are those of struct tsr_device_ops.
 *
 * Why mappings: growing never copies, freeing does not stop the device, the physical bytes are known to the
 * granule, and a peer gets access to exactly the memory that it must read. */
#ifndef TSR_CUDA_MEMORY_MEMORY_H
#define TSR_CUDA_MEMORY_MEMORY_H

#include "core/device.h"

struct tsr_cuda_device;

/* For devices without virtual memory management: commits are only bookkeeping. */
enum { TSR_CUDA_PLAIN_GRANULARITY = 64 << 10 };

/* cudaMalloc's rounding, as addresses of neighbours show. Not documented; only the accounting uses it. */
enum { TSR_CUDA_MALLOC_UNIT = 512 };

tsr_status tsr_cuda_alloc(tsr_device *device, tsr_memory_owner owner, size_t bytes, void **pointer_out);
void tsr_cuda_free(tsr_device *device, void *pointer, size_t bytes);
tsr_status tsr_cuda_reserve(tsr_device *device, size_t bytes, void **base_out);
void tsr_cuda_release(tsr_device *device, void *base, size_t bytes);
tsr_status tsr_cuda_commit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_cuda_decommit(tsr_device *device, void *base, size_t offset, size_t bytes);

/* Free and total bytes of the GPU, which is current. A GPU without memory of its own can have what the system
 * can give to any program: the driver counts cached files as used there, while the system drops them for an
 * allocation. */
tsr_status tsr_cuda_memory_now(const struct tsr_cuda_device *cuda, size_t *free_out, size_t *total_out);

/* Free bytes on the GPU of the current device; 0 if unknown. The difference before and after a library's call
 * is the library's memory, unless another process allocates at the same time. */
size_t tsr_cuda_free_bytes(void);

/* A few bytes that the runtime needs for itself, on the current device; accounted as such. */
tsr_status tsr_cuda_alloc_own(struct tsr_cuda_device *cuda, size_t bytes, void **pointer_out);
void tsr_cuda_free_own(struct tsr_cuda_device *cuda, void *pointer, size_t bytes);

tsr_status tsr_cuda_memory_info(tsr_device *device, size_t *free_out, size_t *total_out);

#endif
