/* The state of a communicator of between.h. */
#ifndef TSR_CUDA_COMM_BETWEEN_STATE_H
#define TSR_CUDA_COMM_BETWEEN_STATE_H

#include "core/comm.h"
#include "cuda/comm/between/boxes.h"
#include "cuda/comm/between/neighbours.h"
#include "cuda/comm/counters.h"
#include "cuda/comm/push/push.h"

/* GPUs of this process's machine have a place, which is their number in kernels. */
typedef struct between_comm {
    tsr_comm base; /* gpus: NCCL, or NULL */
    tsr_processes *processes;
    tsr_cuda_neighbours neighbours;
    tsr_device_set members; /* the GPUs of this machine; none if this process has none */
    int n, max_blocks;
    size_t scratch_bytes;                         /* the same on all devices */
    tsr_cuda_device *devices[TSR_CUDA_MAX_PEERS]; /* [place]; NULL: of another process */
    tsr_cuda_counters counters;                   /* of barriers: [block][n] sent */
    tsr_cuda_boxes boxes;
    uint32_t *aborted; /* pinned */
    tsr_cuda_late late[TSR_CUDA_MAX_PEERS];
} between_comm;

/* A sum of `participants`, of which `contributors` have a part, as a device pushes it. */
tsr_cuda_push tsr_between_push(const between_comm *comm, int device, tsr_device_set participants,
                               tsr_device_set contributors);

/* First sums of all GPUs of the machine, compared with what they must be; see probe.c. */
tsr_status tsr_between_probe(between_comm *comm);

#endif
