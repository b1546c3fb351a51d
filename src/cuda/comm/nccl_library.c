/* Loading NCCL; see nccl_library.h. */
#include "cuda/comm/nccl_library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include <cuda_runtime.h>

#define LIBRARY "libnccl.so.2"

#ifdef TSR_CUDASIM

static tsr_status find_functions(tsr_nccl_library *nccl)
{
#define FIND(name) nccl->name = name;
    TSR_NCCL_FUNCTIONS(FIND)
#undef FIND
    return TSR_OK;
}

#else

/* A function of NCCL, or NULL and its name in *missing. */
static void *find(void *library, const char *name, const char **missing)
{
    void *found = dlsym(library, name);
    if (!found)
        *missing = name;
    return found;
}

/* A process that has loaded NCCL already, for instance Python with PyTorch, gets the same library: it has the
 * same soname. */
static tsr_status find_functions(tsr_nccl_library *nccl)
{
    const char *missing = NULL;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "NCCL is not usable: %s; install it, or name its folder in LD_LIBRARY_PATH",
                        dlerror());
#define FIND(name) *(void **)&nccl->name = find(library, #name, &missing);
    TSR_NCCL_FUNCTIONS(FIND)
#undef FIND
    dlclose(library); /* RTLD_NODELETE keeps it */
    if (missing)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "NCCL is not usable: " LIBRARY " has no %s; install 2.18 or newer", missing);
    return TSR_OK;
}

#endif

bool tsr_nccl_library_is_loaded(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

tsr_status tsr_nccl_library_load(tsr_nccl_library *nccl_out)
{
    tsr_status status = TSR_OK;
    tsr_nccl_library nccl = {0};
    TSR_TRY(find_functions(&nccl));
    TSR_TRY(TSR_NCCL(&nccl, ncclGetVersion(&nccl.version)));
    if (nccl.version < TSR_NCCL_MIN_VERSION)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "NCCL is not usable: it is version %d.%d.%d; install 2.18 or newer",
                        nccl.version / 10000, nccl.version / 100 % 100, nccl.version % 100);
    *nccl_out = nccl;
out:
    return status;
}

tsr_status tsr_nccl_result(const tsr_nccl_library *nccl, ncclComm_t comm, ncclResult_t result,
                           const char *call)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return TSR_OK;
    (void)cudaGetLastError(); /* NCCL's own CUDA calls may have left an error */
    const char *words = nccl->ncclGetLastError(comm);
    bool has_words = words && *words;
    /* The usual reason of a "system error" is a container with little shared memory, or none. */
    return tsr_fail(TSR_ERR_DEVICE, "%.*s failed: %s%s%s%s", (int)strcspn(call, "("), call,
                    nccl->ncclGetErrorString(result), has_words ? "; " : "", has_words ? words : "",
                    result == ncclSystemError ? "; NCCL needs room in /dev/shm, in a container for instance "
                                                "--shm-size=1g; NCCL_DEBUG=WARN shows its reason"
                                              : "");
}
