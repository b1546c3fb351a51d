/* cuBLASLt's functions, found at run time, and the translation of its results to statuses.
 *
 *     tsr_cublas_library lt = {.index = -1};
 *     do {
 *         TSR_TRY(tsr_cublas_library_next(&lt));
 *         status = TSR_CUBLAS(&lt, cublasLtCreate(&handle));
 *     } while (status == TSR_ERR_UNSUPPORTED);
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
    int index;      /* among the versions that are looked for, the newest first; -1: none yet */
    size_t version; /* 10000 * major + 100 * minor + patch */
#define TSR_CUBLAS_MEMBER(name) __typeof__(&name) name;
    TSR_CUBLAS_FUNCTIONS(TSR_CUBLAS_MEMBER)
#undef TSR_CUBLAS_MEMBER
} tsr_cublas_library;

/* The next older library that is installed: libcublasLt.so.13, 12 or 11. The driver may be too old for a
 * newer one, which shows when a handle is created. TSR_ERR_UNSUPPORTED: there is none, or it lacks a
 * function. The library stays loaded until the process ends. */
tsr_status tsr_cublas_library_next(tsr_cublas_library *lt);

/* TSR_ERR_UNSUPPORTED for features that the library, the driver or the card lacks; TSR_ERR_MEMORY,
 * TSR_ERR_DEVICE. `call` is the call's source text; only its name is used. */
tsr_status tsr_cublas_result(const tsr_cublas_library *lt, cublasStatus_t result, const char *call);

#define TSR_CUBLAS(lt, call) tsr_cublas_result(lt, (lt)->call, #call)

#endif
