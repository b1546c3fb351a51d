/* Capturing launches into a CUDA graph. */
#ifndef TSR_CUDA_CONTEXT_CAPTURE_H
#define TSR_CUDA_CONTEXT_CAPTURE_H

#include <cuda_runtime.h>

#include "core/status.h"

struct tsr_cuda_device;

/* Capture what `enqueue` enqueues on `stream` into a graph that is ready to be launched; NULL on failure. The
 * device is current. The caller owns the graph (cudaGraphExecDestroy()). */
tsr_status tsr_cuda_capture(struct tsr_cuda_device *cuda, tsr_status (*enqueue)(void *what), void *what,
                            cudaGraphExec_t *graph_out);

#endif
