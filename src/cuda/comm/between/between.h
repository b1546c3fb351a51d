/* Collectives by kernels between GPUs of different processes of a machine.
 *
 * They are the pushed sums of push/push.h: a GPU writes into the inboxes of others and reads only its own, so
 * the inboxes and their counts of arrivals are all that processes share. They are in the GPUs' memory, shared
 * by CUDA's interprocess handles, or in host memory that the processes of the machine map and register. The
 * kernels, the order of sums and the bits are those of a single process. All GPUs of a group push to each
 * other, also those of one process: there is no hierarchy.
 *
 * A transfer is a sum with one part. A gather is one sum with one part for each device.
 *
 * Which collectives kernels serve follows from what all processes know, so that they need not be measured
 * together: those between GPUs of one machine. Where NCCL is there as well it has the large sums of more than
 * TSR_BETWEEN_MOST devices: of n exact sums each of P devices pushes 4 n (P - 1) bytes, and in NCCL's ring it
 * sends 16 n (P - 1) / P, so kernels of up to 4 devices write no more. Small sums are a matter of latency. */
#ifndef TSR_CUDA_COMM_BETWEEN_BETWEEN_H
#define TSR_CUDA_COMM_BETWEEN_BETWEEN_H

#include <tsr/log.h>

#include "core/comm.h"

/* The most devices whose large sums are pushed where NCCL is there. */
enum { TSR_BETWEEN_MOST = 4 };

typedef struct tsr_comm_between_config {
    tsr_processes *processes;
    const tsr_logger *logger; /* may be NULL */
    bool pinned; /* inboxes in host memory, for GPUs without access to each other's; otherwise in their own */
    bool named;  /* also where processes share a GPU, whose kernels then take turns: it works, slowly */
} tsr_comm_between_config;

/* For the GPUs among devices[n_devices], which must outlive the communicator. A call of all processes, with
 * the same outcome in each, which is probed: every pair has exchanged parts. *comm_out is NULL if no machine
 * has GPUs of several processes. *needs_nccl_out: whether there are collectives that NCCL should serve if it
 * can. TSR_ERR_UNSUPPORTED with the reason, or a failure of a device or of memory in one of the processes. */
tsr_status tsr_comm_between_create(tsr_device *const *devices, int n_devices,
                                   const tsr_comm_between_config *config, bool *needs_nccl_out,
                                   tsr_comm **comm_out);

/* Give it a communicator of NCCL for what kernels do not serve; owned by it. */
void tsr_comm_between_add(tsr_comm *comm, tsr_comm *nccl);

#endif
