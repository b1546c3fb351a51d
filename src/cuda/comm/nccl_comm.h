/* The state of a communicator over NCCL. nccl.c creates and destroys it, nccl_ops.c enqueues with it. */
#ifndef TSR_CUDA_COMM_NCCL_COMM_H
#define TSR_CUDA_COMM_NCCL_COMM_H

#include "core/comm.h"
#include "cuda/comm/collective.h"
#include "cuda/comm/counters.h"
#include "cuda/comm/nccl_clique.h"
#include "cuda/comm/nccl_library.h"
#include "cuda/context/context.h"

enum { TSR_NCCL_MAX_RANKS = 64 };

/* The NCCL communicators of some devices; they are replaced after an abort. */
typedef struct nccl_group {
    struct nccl_group *next;
    tsr_device_set members;
    tsr_nccl_clique *clique; /* NULL: could not be created again, or has no member in this process */
} nccl_group;

typedef struct nccl_comm {
    tsr_comm base;
    tsr_nccl_library nccl;
    tsr_logger logger;
    uint64_t timeout_ns;
    tsr_cuda_device *devices[TSR_NCCL_MAX_RANKS]; /* NULL: not a member of this process */
    size_t taken[TSR_NCCL_MAX_RANKS]; /* bytes that NCCL took of the devices' memory when it connected them */
    size_t caps[TSR_NCCL_MAX_RANKS];  /* the devices' previous memory caps; 0: not changed */
    size_t scratch_bytes;             /* the same on all devices */
    tsr_cuda_counters counters;       /* [other] collectives with `other`, see nccl_announce.h */
    nccl_group *groups;
    tsr_device_set members, here; /* the devices that NCCL connects, and those of them in this process */
    tsr_processes *processes;
    int process[TSR_NCCL_MAX_RANKS]; /* of each device */
    tsr_cuda_late late[TSR_NCCL_MAX_RANKS];
    tsr_nccl_clique *retired; /* aborted, perhaps not yet released by NCCL */
    _Atomic bool aborted;
    tsr_status broken; /* why there are no communicators any more; TSR_OK: there are */
    char broken_text[512];
} nccl_comm;

typedef struct nccl_collective {
    tsr_cuda_collective as;
    nccl_group *group; /* NULL: of one device alone */
} nccl_collective;

#endif
