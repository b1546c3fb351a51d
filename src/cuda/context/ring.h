/* The ring of pinned buffers for copies between host and device memory; memory/upload.h says why there is
 * one. */
#ifndef TSR_CUDA_CONTEXT_RING_H
#define TSR_CUDA_CONTEXT_RING_H

#include <stdatomic.h>
#include <stdbool.h>

#include <cuda_runtime.h>

#include "core/pool.h"

enum {
    TSR_CUDA_SLOT_BYTES = 2 << 20,
    TSR_CUDA_UPLOADERS = 4, /* at about 10 GB/s a core, most of a PCIe 5 x16 link (63 GB/s) */
    /* each thread fills one slot while another one is on the bus */
    TSR_CUDA_RING_SLOTS = 2 * TSR_CUDA_UPLOADERS
};

typedef struct tsr_cuda_slot {
    unsigned char *data; /* in the ring's block */
    cudaEvent_t done;
    bool busy;          /* until `done` has completed */
    _Atomic bool taken; /* by the thread that fills or empties it */
} tsr_cuda_slot;

typedef struct tsr_cuda_ring {
    tsr_pool_block *block; /* of the pinned pool */
    tsr_cuda_slot slots[TSR_CUDA_RING_SLOTS];
    _Atomic unsigned next;
} tsr_cuda_ring;

#endif
