/* Ranges of NVTX, NVIDIA's tools extension: while a trace is recorded, each span of a GPU's host thread is a
 * range as well, so that a profiler shows the kernels below the name of the program's part.
 *
 * NVTX 3 is a header of the CUDA toolkit. A profiler names its own library in NVTX_INJECTION64_PATH, which
 * the header loads at the first call; without a profiler, a call is a test of a pointer. Without a trace
 * there are no calls. A toolkit that lacks the header gives a library without ranges. */
#ifndef TSR_CUDA_LIBS_NVTX_H
#define TSR_CUDA_LIBS_NVTX_H

#include "core/op.h"

/* A range of the calling thread, named as the span: "mul_mat blk.3.ffn_up". Ranges nest. */
void tsr_nvtx_push(const tsr_op *op);
void tsr_nvtx_pop(void);

#endif
