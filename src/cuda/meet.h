/* The kernel with which devices wait for each other. */
#ifndef TSR_CUDA_MEET_H
#define TSR_CUDA_MEET_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "core/status.h"

TSR_BEGIN_DECLS

enum { TSR_CUDA_MAX_PEERS = 64 };

/* Meetings are counted pair by pair: two devices take part in the same meetings in the same order, so the
 * k-th that one knows is the k-th that the other knows, whoever else takes part. Nothing is ever set back
 * while programs run, hence a captured meeting can be replayed. */
typedef struct tsr_cuda_meeting {
    int self;
    uint64_t participants;                  /* one bit per device */
    uint64_t *sent;                         /* own memory: [device] meetings announced to it */
    const uint64_t *received;               /* own memory: [device] meetings it has announced */
    uint64_t *announce[TSR_CUDA_MAX_PEERS]; /* where device r receives what this one announces */
    uint64_t *progress;                     /* pinned: copy of `sent`, for the host's messages */
    const uint32_t *aborted;                /* pinned: not 0: stop waiting */
} tsr_cuda_meeting;

/* Announce that all work enqueued on `stream` before is done and visible, and wait until every other
 * participant has announced the same. */
tsr_status tsr_cuda_meet(const tsr_cuda_meeting *meeting, cudaStream_t stream);

TSR_END_DECLS

#endif
