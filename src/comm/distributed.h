/* Collectives between the devices of several processes (core/processes.h).
 *
 * A collective between GPUs of one process is the one of a single process, where a communicator `inside` is
 * given and does not stage large sums; another one between GPUs is of `gpus`, where that is given and does
 * not stage it. Otherwise devices of one process have comm/local.h, and a GPU stages. In a collective between
 * processes the devices of each process add up first, one thread adds up with the other processes, and all
 * read the sum. Sums are integers, so the grouping does not change the bits. Transferred values go to other
 * processes once each (comm/handover.h). */
#ifndef TSR_COMM_DISTRIBUTED_H
#define TSR_COMM_DISTRIBUTED_H

#include "core/comm.h"
#include "core/processes.h"

/* Between devices[n_devices] (1..64) of the processes in tsr_device.process. Both are borrowed. `gpus`:
 * between all GPUs among them, NULL in every process or in none; `inside`: between the GPUs of this process,
 * or NULL. Both are owned by the new communicator, even if this call fails. Every process must make this
 * call, and create every collective, in the same order.
 *
 * NCCL's groups are made by all processes together, so all know who is served by `inside`: where that stages
 * large sums and there is NCCL, it is destroyed. */
tsr_status tsr_comm_distributed_create(tsr_processes *processes, tsr_device *const *devices, int n_devices,
                                       tsr_comm *gpus, tsr_comm *inside, tsr_comm **comm_out);

#endif
