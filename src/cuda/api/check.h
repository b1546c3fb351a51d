/* From CUDA's error codes to tsr_status: every call of theirs passes through one of these macros.
 *
 *     TSR_TRY(TSR_CUDA(cudaMalloc(&pointer, bytes)));
 *
 * On failure the stored sentence names the call, the thread's current device and CUDA's own words, and CUDA's
 * pending last error is cleared, so that it cannot surface in somebody else's call. A fault that poisons the
 * context (an illegal address in a kernel, say) gives TSR_ERR_DEVICE_LOST, since nothing on that device will
 * work again in this process; running out of memory gives TSR_ERR_MEMORY. Callers that know more (which
 * tensor, how many bytes) put it in front with tsr_fail_in().
 *
 * For calls whose failure is an answer (cudaStreamQuery's cudaErrorNotReady) test the code first. */
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

/* `call` is the call's source text; what follows the name is dropped from the sentence. */
tsr_status tsr_cuda_result(cudaError_t error, const char *call);

/* Driver errors have the numbers and names of the runtime's. */
tsr_status tsr_cu_result(CUresult result, const char *call);

/* Whether `error` always means that the context is poisoned. (cudaErrorUnknown may: on that the context is
 * asked.) */
bool tsr_cuda_is_sticky(cudaError_t error);

/* Make `ordinal` the calling thread's current device and say which one was; pop makes that one current
 * again. Every entry into src/cuda from outside is such a pair, so the caller's device is left as found. pop
 * cannot fail in a way anyone could act on, hence returns nothing; it forgets CUDA's error. */
tsr_status tsr_cuda_push_device(int ordinal, int *previous_out);
void tsr_cuda_pop_device(int previous);

#ifdef __cplusplus
}
#endif

#endif
