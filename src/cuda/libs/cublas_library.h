/* cuBLASLt's functions, found at run time, and the way from its results to statuses.
 *
 *     tsr_cublas_library lt;
 *     TSR_TRY(tsr_cublas_library_load(&lt));
 *     TSR_TRY(TSR_CUBLAS(&lt, cublasLtCreate(&handle)));
 *
 * On failure the stored sentence names the call; the caller puts the device in front. */
#ifndef TSR_CUDA_LIBS_CUBLAS_LIBRARY_H
#define TSR_CUDA_LIBS_CUBLAS_LIBRARY_H

#include <cublasLt.h>

#include "core/status.h"

#define TSR_CUBLAS_FUNCTIONS(F)             \
    F(cublasLtGetVersion)                   \
    F(cublasLtGetStatusName)                \
    F(cublasLtCreate)                       \
    F(cublasLtDestroy)                      \
    F(cublasLtMatmulDescCreate)             \
    F(cublasLtMatmulDescDestroy)            \
    F(cublasLtMatmulDescSetAttribute)       \
    F(cublasLtMatrixLayoutCreate)           \
    F(cublasLtMatrixLayoutDestroy)          \
    F(cublasLtMatmulPreferenceCreate)       \
    F(cublasLtMatmulPreferenceDestroy)      \
    F(cublasLtMatmulPreferenceSetAttribute) \
    F(cublasLtMatmulAlgoGetHeuristic)       \
    F(cublasLtMatmul)

typedef struct tsr_cublas_library {
    size_t version; /* 10000 * major + 100 * minor + patch */
#define TSR_CUBLAS_MEMBER(name) __typeof__(&name) name;
    TSR_CUBLAS_FUNCTIONS(TSR_CUBLAS_MEMBER)
#undef TSR_CUBLAS_MEMBER
} tsr_cublas_library;

/* TSR_ERR_UNSUPPORTED: there is no libcublasLt.so.13, 12 or 11, or it lacks a function. It stays loaded until
 * the process ends. */
tsr_status tsr_cublas_library_load(tsr_cublas_library *lt_out);

/* TSR_ERR_UNSUPPORTED for what the library, the driver or the card has not; TSR_ERR_MEMORY, TSR_ERR_DEVICE.
 * `call` is the call's source text; what follows the name is dropped. */
tsr_status tsr_cublas_result(const tsr_cublas_library *lt, cublasStatus_t result, const char *call);

#define TSR_CUBLAS(lt, call) tsr_cublas_result(lt, (lt)->call, #call)

#endif
