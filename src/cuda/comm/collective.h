/* The common first member of collectives of communicators that work in streams: a description that owns its
 * arrays. */
#ifndef TSR_CUDA_COMM_COLLECTIVE_H
#define TSR_CUDA_COMM_COLLECTIVE_H

#include "core/comm.h"
#include "cuda/context/context.h"

typedef struct tsr_cuda_collective {
    tsr_collective base;
    tsr_collective_desc desc; /* arrays are the two below */
    int64_t *begin;
    void **partial;
} tsr_cuda_collective;

/* Copy `desc`. A copy that failed may be freed. */
tsr_status tsr_cuda_collective_init(tsr_cuda_collective *collective, tsr_comm *comm,
                                    const tsr_collective_desc *desc);

/* Whether all participants still get access to each other's new memory, as far as they ever did
 * (memory/vmm.h). devices[i] is not NULL for participants. */
bool tsr_cuda_collective_reaches(tsr_cuda_device *const *devices, tsr_device_set participants);

/* The failure of a collective whose devices are not served; `why` has the reason and the remedy. */
tsr_status tsr_cuda_collective_refuse(const tsr_collective_desc *desc, const char *why);

/* collective_destroy() of struct tsr_comm_ops, for collectives that have nothing else to release. */
void tsr_cuda_collective_destroy(tsr_comm *comm, tsr_collective *collective);

#endif
