/* Collectives between the devices of several processes (core/processes.h).
 *
 * A collective between devices of one process runs as in a single process (comm/local.h), at the same
 * cost. In a collective between processes the devices of each process add up first, one thread adds up
 * with the other processes, and all read the sum. Sums are integers, so the grouping does not change the
 * bits. Transferred values go from thread to thread. */
#ifndef TSR_COMM_DISTRIBUTED_H
#define TSR_COMM_DISTRIBUTED_H

#include "core/comm.h"
#include "core/processes.h"

/* Between devices[n_devices] (1..64) of the processes in tsr_device.process. Both are borrowed. Every
 * process must make this call, and create every collective, in the same order. */
tsr_status tsr_comm_distributed_create(tsr_processes *processes, tsr_device *const *devices, int n_devices,
                                       tsr_comm **comm_out);

#endif
