/* cuBLASLt's functions, found at run time, and the translation of its results to statuses.
 *
 *     tsr_cublas_library lt;
 *     TSR_TRY(tsr_cublas_library_load(&lt));
 *     TSR_TRY(TSR_CUBLAS(&lt, cublasLtCreate(&handle)));
 *
 * On failure the stored sentence names the call; the caller prepends the device. */
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

/* TSR_ERR_UNSUPPORTED: libcublasLt.so.13, 12 and 11 are not installed, or lack a function. The library stays
 * loaded until the process ends. */
tsr_status tsr_cublas_library_load(tsr_cublas_library *lt_out);

/* TSR_ERR_UNSUPPORTED for features that the library, the driver or the card lacks; TSR_ERR_MEMORY,
 * TSR_ERR_DEVICE. `call` is the call's source text; only its name is used. */
tsr_status tsr_cublas_result(const tsr_cublas_library *lt, cublasStatus_t result, const char *call);

#define TSR_CUBLAS(lt, call) tsr_cublas_result(lt, (lt)->call, #call)

#endif
