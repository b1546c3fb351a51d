/* Host memory that kernels read in place, without a copy.
 *
 * Offered where no bus is crossed: on a GPU that has no memory but the host's (integrated), and on a GPU
 * that uses the host's page tables over a coherent link (Grace Hopper), which needs no preparation. Even
 * there weights are copied unless the device was opened with it: a mapped file has pages of 4 KiB, copies
 * have 2 MiB, and no measurement shows views to be as fast. A GPU that pages host memory in by faults
 * (pageable access without page tables) does not count. Everywhere else the bytes cross the bus on every
 * use, 20 to 50 times slower than the GPU's own memory: refused unless the device was opened with it, and
 * then the cost per token is logged.
 *
 * Without page tables, memory is registered with CUDA. Registration works on whole pages, and a page can be
 * registered once in a process, while neighbouring tensors share pages and several devices read one file. So
 * the devices of a runtime share a list of registrations, counted by use. Wrapped memory is never written:
 * upload and copy refuse it as their destination. */
#ifndef TSR_CUDA_MEMORY_WRAP_H
#define TSR_CUDA_MEMORY_WRAP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/device.h"

struct tsr_cuda_device;

/* Read the GPU's abilities. `forced`, `link_bytes_per_s`: see struct tsr_cuda_wrapping. `sibling`: a CUDA
 * device of the same runtime, which has the list already; NULL for the first. Close is fine after a failure,
 * and more than once. */
tsr_status tsr_cuda_wrapping_open(struct tsr_cuda_device *cuda, bool forced, double link_bytes_per_s,
                                  tsr_device *sibling);
void tsr_cuda_wrapping_close(struct tsr_cuda_device *cuda);

/* Functions of struct tsr_device_ops; called for one device of a runtime at a time. */
tsr_status tsr_cuda_wrap(tsr_device *device, const void *pointer, size_t bytes, const void **wrapped_out);
void tsr_cuda_unwrap(tsr_device *device, const void *wrapped, size_t bytes);

/* TSR_ERR_INVALID if [dst, dst + bytes) touches wrapped memory. */
tsr_status tsr_cuda_check_writable(const struct tsr_cuda_device *cuda, const void *dst, size_t bytes);

/* Log what reading the wrapped memory over the bus costs, if that has changed. */
void tsr_cuda_wrapping_tell(struct tsr_cuda_device *cuda);

#endif
