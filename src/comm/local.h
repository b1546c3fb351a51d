/* Collectives between host devices of one process, through shared memory.
 *
 * An all-reduce costs one synchronisation: every rank publishes that its partial is ready, waits until all
 * have, and adds up all partials itself. Large all-reduces between three or more ranks take two: each rank
 * adds up its part of the elements, then all read the sums. No locks, no allocation, and no system call
 * except to sleep when a wait is long. */
#ifndef TSR_COMM_LOCAL_H
#define TSR_COMM_LOCAL_H

#include "core/comm.h"

/* For devices 0..n_devices-1 (1..64), whose buffers every rank can read. */
tsr_status tsr_comm_local_create(int n_devices, tsr_comm **comm_out);

#endif
