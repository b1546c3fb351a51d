/* Loading cuBLASLt; see cublas_library.h. */
#include "cuda/libs/cublas_library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include <cuda_runtime.h>

/* The types and values used here are the same in all versions. The newest first: its kernels support the most
 * cards. It needs a driver as new. */
static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};

enum { N_NAMES = sizeof names / sizeof *names };

#ifdef TSR_CUDASIM

static tsr_status find_functions(tsr_cublas_library *lt)
{
    while (++lt->index < N_NAMES && !cudasim_cublas_has(names[lt->index]))
        ;
    if (lt->index >= N_NAMES)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "cuBLASLt is not usable: this simulated machine has none");
#define FIND(name) lt->name = name;
    TSR_CUBLAS_FUNCTIONS(FIND)
#undef FIND
    return TSR_OK;
}

#else

static tsr_status find_functions(tsr_cublas_library *lt)
{
    const char *missing = NULL;
    void *library = NULL;
    while (!library && ++lt->index < N_NAMES)
        library = dlopen(names[lt->index], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "cuBLASLt is not usable: %s; install it, or name its folder in LD_LIBRARY_PATH",
                        dlerror());
#define FIND(name)                               \
    *(void **)&lt->name = dlsym(library, #name); \
    missing = lt->name || missing ? missing : #name;
    TSR_CUBLAS_FUNCTIONS(FIND)
#undef FIND
    dlclose(library); /* RTLD_NODELETE keeps it */
    if (missing)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "cuBLASLt is not usable: the library has no %s; install 11.4 or newer", missing);
    return TSR_OK;
}

#endif

tsr_status tsr_cublas_library_next(tsr_cublas_library *lt)
{
    tsr_cublas_library next = {.index = lt->index};
    tsr_status status = find_functions(&next);
    if (status != TSR_OK)
        return status;
    next.version = next.cublasLtGetVersion();
    *lt = next;
    return TSR_OK;
}

tsr_status tsr_cublas_result(const tsr_cublas_library *lt, cublasStatus_t result, const char *call)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    (void)cudaGetLastError(); /* cuBLASLt's own CUDA calls may have left an error */
    bool unsuited = result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_NOT_INITIALIZED ||
                    result == CUBLAS_STATUS_ARCH_MISMATCH; /* the driver or the card is too old */
    return tsr_fail(result == CUBLAS_STATUS_ALLOC_FAILED ? TSR_ERR_MEMORY
                    : unsuited                           ? TSR_ERR_UNSUPPORTED
                                                         : TSR_ERR_DEVICE,
                    "%.*s failed: %s", (int)strcspn(call, "("), call, lt->cublasLtGetStatusName(result));
}
