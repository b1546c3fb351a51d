/* What the collectives of communicators that work in streams begin with: a description with arrays of its
 * own. */
#ifndef TSR_CUDA_COMM_COLLECTIVE_H
#define TSR_CUDA_COMM_COLLECTIVE_H

#include "core/comm.h"

typedef struct tsr_cuda_collective {
    tsr_collective base;
    tsr_collective_desc desc; /* arrays are the two below */
    int64_t *begin;
    void **partial;
} tsr_cuda_collective;

/* A copy of `desc`. One that failed is fine to free. */
tsr_status tsr_cuda_collective_init(tsr_cuda_collective *collective, tsr_comm *comm,
                                    const tsr_collective_desc *desc);

/* As struct tsr_comm_ops has it, for collectives that have nothing else to release. */
void tsr_cuda_collective_destroy(tsr_comm *comm, tsr_collective *collective);

#endif
