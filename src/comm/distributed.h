/* Collectives between the devices of several processes (core/processes.h).
 *
 * A collective between devices of one process is that process's own (comm/local.h), and costs what it costs
 * there. In one that others take part in, the devices of each process add up first, one thread of them then
 * adds up with the other processes, and all read the sum: integers, so nobody can tell how they were grouped.
 * Values that are handed over go from thread to thread. */
#ifndef TSR_COMM_DISTRIBUTED_H
#define TSR_COMM_DISTRIBUTED_H

#include "core/comm.h"
#include "core/processes.h"

/* Between devices[n_devices] (1..64), which are of the processes that they say (tsr_device.process). Both are
 * borrowed. Every process calls, and creates every collective, in the same order. */
tsr_status tsr_comm_distributed_create(tsr_processes *processes, tsr_device *const *devices, int n_devices,
                                       tsr_comm **comm_out);

#endif
