/* The kernel that copies exact partial sums to pinned host memory as planes (core/quant/wire.h): 4 or 5 bytes
 * cross the link for a sum of 8. */
#ifndef TSR_CUDA_COMM_STAGING_STAGE_H
#define TSR_CUDA_COMM_STAGING_STAGE_H

#include <stdint.h>

#include "core/status.h"
#include "cuda/kernels/kernels.h"

TSR_BEGIN_DECLS

/* n sums from the device's memory; both are aligned for 16 bytes, and `pinned` has room for n integers. */
tsr_status tsr_cuda_stage_planes(const int64_t *sums, int64_t n, void *pinned, const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
