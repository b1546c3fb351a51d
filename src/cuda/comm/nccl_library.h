/* NCCL's functions, found at run time, and the translation of its results to statuses.
 *
 *     tsr_nccl_library nccl;
 *     TSR_TRY(tsr_nccl_library_load(&nccl));
 *     TSR_TRY(TSR_NCCL(&nccl, ncclGetUniqueId(&id)));
 *     TSR_TRY(TSR_NCCL_ON(&nccl, comm, ncclAllReduce(from, to, n, ncclInt64, ncclSum, comm, stream)));
 *
 * On failure the stored sentence names the call and has NCCL's own words; the caller prepends the device.
 * ncclInProgress counts as success: it is the result of calls on a non-blocking communicator, and the caller
 * waits for the end of the operation (nccl_clique.h). */
#ifndef TSR_CUDA_COMM_NCCL_LIBRARY_H
#define TSR_CUDA_COMM_NCCL_LIBRARY_H

#include <stdbool.h>

#include <nccl.h>

#include "core/status.h"

/* 2.18 is the first version whose communicators, in one process, are destroyed only after all of their ranks
 * are quiescent (commReclaim in its src/init.cc). Before, a rank's memory could be freed while others still
 * read it. */
#define TSR_NCCL_MIN_VERSION NCCL_VERSION(2, 18, 1)

/* From this version on several ranks may share a GPU, if the environment variable NCCL_MULTI_RANK_GPU_ENABLE
 * is 1. */
#define TSR_NCCL_SHARED_GPU_VERSION NCCL_VERSION(2, 30, 0)

/* ncclBfloat16, a name that older nccl.h have in C++ only. */
#define TSR_NCCL_BFLOAT16 ((ncclDataType_t)9)

#define TSR_NCCL_FUNCTIONS(F) \
    F(ncclGetVersion)         \
    F(ncclGetErrorString)     \
    F(ncclGetLastError)       \
    F(ncclGetUniqueId)        \
    F(ncclCommInitRankConfig) \
    F(ncclCommGetAsyncError)  \
    F(ncclCommAbort)          \
    F(ncclGroupStart)         \
    F(ncclGroupEnd)           \
    F(ncclAllReduce)          \
    F(ncclBroadcast)          \
    F(ncclSend)               \
    F(ncclRecv)

typedef struct tsr_nccl_library {
    int version; /* in the format of NCCL_VERSION_CODE */
#define TSR_NCCL_MEMBER(name) __typeof__(&name) name;
    TSR_NCCL_FUNCTIONS(TSR_NCCL_MEMBER)
#undef TSR_NCCL_MEMBER
} tsr_nccl_library;

/* TSR_ERR_UNSUPPORTED: libnccl.so.2 is not installed, is too old, or lacks a function. The library stays
 * loaded until the process ends, since it has threads of its own. */
tsr_status tsr_nccl_library_load(tsr_nccl_library *nccl_out);

/* Whether this process has loaded it, here or elsewhere. */
bool tsr_nccl_library_is_loaded(void);

/* `comm` NULL: none yet. `call` is the call's source text; only its name is used. */
tsr_status tsr_nccl_result(const tsr_nccl_library *nccl, ncclComm_t comm, ncclResult_t result,
                           const char *call);

#define TSR_NCCL(nccl, call)          tsr_nccl_result(nccl, NULL, (nccl)->call, #call)
#define TSR_NCCL_ON(nccl, comm, call) tsr_nccl_result(nccl, comm, (nccl)->call, #call)

#endif
