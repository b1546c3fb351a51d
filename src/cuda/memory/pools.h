/* The functions below the pools of a CUDA device: points in its streams, and pinned host memory.
 *
 * Pinning costs up to a millisecond per call, and other processes cannot use pinned pages. So buffers for
 * copies, staged collectives and kernels' reports to the host come from one pool per device (cuda->pinned).
 * Blocks are given back to it only when no work uses them. */
#ifndef TSR_CUDA_MEMORY_POOLS_H
#define TSR_CUDA_MEMORY_POOLS_H

#include "core/device.h"

struct tsr_cuda_device;

tsr_status tsr_cuda_pinned_open(struct tsr_cuda_device *cuda);
void tsr_cuda_pinned_close(struct tsr_cuda_device *cuda);

/* Functions of struct tsr_device_ops. */
tsr_status tsr_cuda_stream_mark(tsr_device *device, int stream, void **point);
bool tsr_cuda_stream_passed(tsr_device *device, void *point);
tsr_status tsr_cuda_stream_wait(tsr_device *device, int stream, void *point);
void tsr_cuda_stream_drop(tsr_device *device, void *point);
tsr_status tsr_cuda_pin(tsr_device *device, size_t bytes, tsr_pool_block **block_out);
void tsr_cuda_unpin(tsr_device *device, tsr_pool_block *block);
void tsr_cuda_trim(tsr_device *device);

#endif
