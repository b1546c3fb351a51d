/* Translation of CUDA's error codes into tsr_status: every CUDA call passes through one of these macros.
 *
 *     TSR_TRY(TSR_CUDA(cudaMalloc(&pointer, bytes)));
 *
 * On failure the stored sentence names the call, the thread's current device and CUDA's own words. CUDA's
 * pending last error is cleared, so that a later, unrelated call does not report it. A fault that poisons the
 * context (an illegal address in a kernel, say) gives TSR_ERR_DEVICE_LOST, since nothing on that device will
 * work again in this process. Running out of memory gives TSR_ERR_MEMORY. Callers prepend details (which
 * tensor, how many bytes) with tsr_fail_in().
 *
 * For calls whose failure is a result (cudaStreamQuery's cudaErrorNotReady) test the code first. */
#ifndef TSR_CUDA_API_CHECK_H
#define TSR_CUDA_API_CHECK_H

#include <stdbool.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The runtime API, the driver API: the value is a tsr_status. */
#define TSR_CUDA(call) tsr_cuda_result((call), #call)
#define TSR_CU(call)   tsr_cu_result((call), #call)

/* `call` is the call's source text; the sentence has only its name. */
tsr_status tsr_cuda_result(cudaError_t error, const char *call);

/* Driver errors have the numbers and names of the runtime's. */
tsr_status tsr_cu_result(CUresult result, const char *call);

/* Whether `error` always means that the context is poisoned. (cudaErrorUnknown may mean it: then the context
 * is queried.) */
bool tsr_cuda_is_sticky(cudaError_t error);

/* Make `ordinal` the calling thread's current device and return the previous one; pop makes the previous one
 * current again. Every entry into src/cuda from outside is such a pair, so the caller's device does not
 * change. pop returns no status, since a caller could not act on its failure; it clears CUDA's error. */
tsr_status tsr_cuda_push_device(int ordinal, int *previous_out);
void tsr_cuda_pop_device(int previous);

#ifdef __cplusplus
}
#endif

#endif
