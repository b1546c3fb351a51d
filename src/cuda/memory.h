/* Device memory: plain allocations, address space that is backed piece by piece (cuMemMap), and host memory
 * made readable in place (cudaHostRegister). All functions are those of struct tsr_device_ops. */
#ifndef TSR_CUDA_MEMORY_H
#define TSR_CUDA_MEMORY_H

#include "core/device.h"

/* Where the device has no virtual memory management: commits are only bookkeeping. */
enum { TSR_CUDA_PLAIN_GRANULARITY = 64 << 10 };

/* Stretches of address space, and which of their granules are backed. */
typedef struct tsr_cuda_reservation tsr_cuda_reservation;

/* Host memory registered for wrap(). */
typedef struct tsr_cuda_registrations {
    struct tsr_cuda_registration *list;
    int n_wraps; /* all are unregistered when the last wrap goes */
} tsr_cuda_registrations;

tsr_status tsr_cuda_alloc(tsr_device *device, size_t bytes, void **pointer_out);
void tsr_cuda_free(tsr_device *device, void *pointer, size_t bytes);
tsr_status tsr_cuda_reserve(tsr_device *device, size_t bytes, void **base_out);
void tsr_cuda_release(tsr_device *device, void *base, size_t bytes);
tsr_status tsr_cuda_commit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_cuda_decommit(tsr_device *device, void *base, size_t offset, size_t bytes);
tsr_status tsr_cuda_memory_info(tsr_device *device, size_t *free_out, size_t *total_out);
tsr_status tsr_cuda_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out);
void tsr_cuda_unwrap(tsr_device *device, const void *wrapped, size_t bytes);

#endif
