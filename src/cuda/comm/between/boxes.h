/* The inboxes of push/push.h, each after its counts of arrivals, where GPUs of different processes write into
 * them. Those of a GPU are one allocation that holds nothing else, so no other memory is open to other
 * processes. */
#ifndef TSR_CUDA_COMM_BETWEEN_BOXES_H
#define TSR_CUDA_COMM_BETWEEN_BOXES_H

#include "core/processes.h"
#include "cuda/comm/between/segment.h"
#include "cuda/comm/device_barrier.h"
#include "cuda/context/context.h"

typedef struct tsr_cuda_boxes {
    tsr_cuda_device *const *devices; /* [n], the GPUs of a machine; NULL: of another process */
    int n;
    size_t bytes, counts_bytes; /* of one box; of the counts at its begin */
    tsr_cuda_segment segment;   /* [n][n] progress of barriers, a tsr_cuda_boxes_state, boxes if `pinned` */
    bool pinned;                /* boxes are in the segment; otherwise in the memory of their GPUs */
    unsigned char *seen[TSR_CUDA_MAX_PEERS]; /* [n] the segment's address on a GPU of this process */
    void *own[TSR_CUDA_MAX_PEERS];           /* [n] boxes in memory of GPUs of this process */
    void **others;                           /* [n][n] a box of another process, on a GPU of this one */
} tsr_cuda_boxes;

/* In the segment, for all processes of the machine. */
typedef struct tsr_cuda_boxes_state {
    uint32_t failed; /* a process has failed in the first sums */
    uint32_t closed; /* processes that have no box of another one open any more */
} tsr_cuda_boxes_state;

/* Sizes, for n GPUs and kernels of max_blocks blocks. */
void tsr_cuda_boxes_init(tsr_cuda_boxes *boxes, tsr_cuda_device *const *devices, int n, int max_blocks,
                         bool pinned);
size_t tsr_cuda_boxes_segment_bytes(const tsr_cuda_boxes *boxes);

/* In this order, with an agreement of all processes after each, for the segment that all have open. make:
 * the boxes of this process's GPUs, empty; address: on these GPUs; handle: what lets other processes open the
 * box of GPU i; open: that of GPU i of another process. */
tsr_status tsr_cuda_boxes_make(tsr_cuda_boxes *boxes);
tsr_status tsr_cuda_boxes_address(tsr_cuda_boxes *boxes);
tsr_status tsr_cuda_boxes_handle(const tsr_cuda_boxes *boxes, int i, cudaIpcMemHandle_t *handle_out);
tsr_status tsr_cuda_boxes_open(tsr_cuda_boxes *boxes, int i, const cudaIpcMemHandle_t *handle);

/* n_processes: those of the machine. A box is freed when the others have closed it, or a second after. */
void tsr_cuda_boxes_close(tsr_cuda_boxes *boxes, int n_processes);

/* Addresses on GPU `self` of this process: counts of arrivals at GPU i, and its inbox. */
uint64_t *tsr_cuda_boxes_received(const tsr_cuda_boxes *boxes, int self, int i);
uint64_t *tsr_cuda_boxes_inbox(const tsr_cuda_boxes *boxes, int self, int i);

/* On the host. */
uint64_t *tsr_cuda_boxes_progress(const tsr_cuda_boxes *boxes);
tsr_cuda_boxes_state *tsr_cuda_boxes_state_of(const tsr_cuda_boxes *boxes);

#endif
