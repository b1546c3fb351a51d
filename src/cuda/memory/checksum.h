/* Checksums of device memory, which verify uploads without copying them back over the bus. */
#ifndef TSR_CUDA_MEMORY_CHECKSUM_H
#define TSR_CUDA_MEMORY_CHECKSUM_H

#include "cuda/kernels/kernels.h"

struct tsr_device;

#ifdef __cplusplus
extern "C" {
#endif

/* Add the checksum (core/checksum.h) of n >= 1 bytes to *sum; both in device memory. Only enqueues. */
tsr_status tsr_cuda_checksum_launch(const void *bytes, size_t n, uint64_t *sum, const tsr_cuda_stream *s);

/* checksum() of struct tsr_device_ops. */
tsr_status tsr_cuda_checksum(struct tsr_device *device, const void *bytes, size_t n, uint64_t *sum_out);

#ifdef __cplusplus
}
#endif

#endif
