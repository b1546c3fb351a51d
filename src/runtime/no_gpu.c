/* The GPUs of a build without the CUDA device. */
#include "core/gpu.h"

#ifndef TSR_WITH_CUDA
tsr_status tsr_gpu_probe(tsr_gpu *gpus, int max, int *n_out)
{
    (void)gpus, (void)max, (void)n_out;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "this build has no CUDA");
}
#endif
