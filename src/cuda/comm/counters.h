/* Counters of collectives inside streams. Each device counts, in its own memory, its arrivals at collectives
 * with each other device, and copies the counts to pinned memory. From the copies the host finds the missing
 * devices. Kernels with a barrier wait for the counts themselves (device_barrier.h). */
#ifndef TSR_CUDA_COMM_COUNTERS_H
#define TSR_CUDA_COMM_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#include "core/device_set.h"
#include "core/processes.h"
#include "cuda/context/context.h"

enum { TSR_CUDA_MAX_COUNTERS = 64 }; /* devices; masks have one bit each */

typedef struct tsr_cuda_counters {
    tsr_cuda_device *const
        *devices; /* [n_devices], of the communicator; NULL: not a member of this process */
    int n_devices;
    size_t bytes;                            /* of one device's counts */
    uint64_t *counts[TSR_CUDA_MAX_COUNTERS]; /* in the device's memory */
    tsr_cuda_device *keeper;                 /* the device whose pinned pool has the block */
    tsr_pool_block *shared;
    uint64_t *progress; /* pinned: [device][other] arrivals of `device` at collectives with `other` */
    uint64_t *words;    /* pinned: for the communicator's use */
} tsr_cuda_counters;

/* Counters that are zero, with `n_words` words. Zeroed and partly created counters may be destroyed. */
tsr_status tsr_cuda_counters_create(tsr_cuda_counters *counters, tsr_cuda_device *const *devices,
                                    int n_devices, size_t bytes, int n_words);
void tsr_cuda_counters_destroy(tsr_cuda_counters *counters);

/* Reset counts and progress to zero after an abort: devices that left at different places have different
 * counts. Returns the first lost device, which keeps its counts; NULL: none is lost. */
const tsr_cuda_device *tsr_cuda_counters_reset(tsr_cuda_counters *counters);

/* How often device `index` has arrived at collectives, counted once for each other device. */
uint64_t tsr_cuda_counters_arrivals(const tsr_cuda_counters *counters, int index);

/* The devices of `participants` that device `index` waits for: that have arrived less often than `index`. If
 * there are none in this process, those of other processes. */
tsr_device_set tsr_cuda_counters_missing(const tsr_cuda_counters *counters, tsr_device_set participants,
                                         int index);

/* When a device was first seen to have arrived so often at collectives. */
typedef struct tsr_cuda_late {
    uint64_t arrivals, since_ns;
} tsr_cuda_late;

/* For work in a stream that waits for a device of another process: nothing in the stream ends it when that
 * device does not come. Called by poll() of struct tsr_comm_ops: fails if the processes are lost, and loses
 * them once `cuda` has had this number of `arrivals` for the limit of a step. `missing`: the devices that it
 * waits for. */
tsr_status tsr_cuda_late_check(tsr_cuda_late *late, tsr_processes *processes, const tsr_cuda_device *cuda,
                               uint64_t arrivals, tsr_device_set missing);

#endif
