/* Counters of collectives inside streams: each device counts, in its own memory, how often it has come to a
 * collective with each other device, and copies the counts to pinned memory. From the copies the host finds
 * the devices that are missing; kernels that meet wait for the counts themselves (device_barrier.h). */
#ifndef TSR_CUDA_COMM_COUNTERS_H
#define TSR_CUDA_COMM_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/context/context.h"

enum { TSR_CUDA_MAX_COUNTERS = 64 }; /* devices; masks have one bit each */

typedef struct tsr_cuda_counters {
    tsr_cuda_device *const *devices; /* [n_devices], the communicator's; NULL: takes no part */
    int n_devices;
    size_t bytes;                            /* of one device's counts */
    uint64_t *counts[TSR_CUDA_MAX_COUNTERS]; /* in the device's memory */
    tsr_cuda_device *keeper;                 /* whose pinned pool has the block */
    tsr_pool_block *shared;
    uint64_t *progress; /* pinned: [device][other] times the one has come to the other */
    uint64_t *words;    /* pinned: for the communicator's own use */
} tsr_cuda_counters;

/* All zero, with `n_words` words. Zeroed counters and those created in part are fine to destroy. */
tsr_status tsr_cuda_counters_create(tsr_cuda_counters *counters, tsr_cuda_device *const *devices,
                                    int n_devices, size_t bytes, int n_words);
void tsr_cuda_counters_destroy(tsr_cuda_counters *counters);

/* Set counts and progress to zero after an abort: devices that left at different places have different
 * counts. Returns the first device that is lost, which keeps its counts; NULL: none is. */
const tsr_cuda_device *tsr_cuda_counters_reset(tsr_cuda_counters *counters);

/* Those of `participants` that device `index` waits for: that have come less often to it than it to them. */
uint64_t tsr_cuda_counters_missing(const tsr_cuda_counters *counters, uint64_t participants, int index);

#endif
