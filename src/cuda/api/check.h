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

/* The result of a call about GPU `ordinal` instead of the current one. */
tsr_status tsr_cuda_result_of(int ordinal, cudaError_t error, const char *call);

/* Driver errors have the numbers and names of the runtime's. */
tsr_status tsr_cu_result(CUresult result, const char *call);

/* Whether `error` always means that the context is poisoned. (cudaErrorUnknown may mean it: then the context
 * is queried.) */
bool tsr_cuda_is_sticky(cudaError_t error);

/* A function of the driver API; NULL if the driver has none of that name. No context is created. */
cudaError_t tsr_cuda_entry_point(const char *name, void **function_out);

#ifdef __cplusplus
}
#endif

#endif
