/* Collectives between CUDA devices, of one process or several, by NCCL, which detects the machine's links
 * and is fast for large messages.
 *
 * NCCL is loaded when the communicator is created (nccl_library.h). Every device is a rank, served by
 * its own host thread. Communicators are non-blocking, so that a rank that never arrives costs a
 * deadline and not the process. Operations are enqueued on the devices' own streams and captured into
 * their programs' graphs. Sums are of int64 fixed point or of f32, as the collective says; in fixed
 * point the bits are those of every other implementation of core/comm.h. */
#ifndef TSR_CUDA_COMM_NCCL_H
#define TSR_CUDA_COMM_NCCL_H

#include <tsr/log.h>

#include "core/comm.h"

typedef struct tsr_comm_nccl_config {
    uint64_t timeout_ns;      /* for connecting, at creation and in reset(); 0 = 30 s */
    const tsr_logger *logger; /* may be NULL; copied */
    tsr_processes *processes; /* of the devices' runtime; NULL: a single one */
} tsr_comm_nccl_config;

/* For the CUDA devices among devices[n_devices] (1 to 64), which must outlive the communicator, with
 * devices[i]->index == i. `config` may be NULL. With several processes devices elsewhere are stand-ins, and
 * this function, collective_create() and reset() are calls of all processes, with the same outcome in each.
 *
 * TSR_ERR_UNSUPPORTED, with a sentence that gives the reason, where NCCL cannot serve these devices and
 * another implementation should: it is not installed, too old, or refuses several devices on one GPU.
 * TSR_ERR_TIMEOUT names the devices that did not arrive; TSR_ERR_DEVICE, TSR_ERR_DEVICE_LOST,
 * TSR_ERR_MEMORY. Blocks until every rank is connected and a first sum is correct: seconds.
 *
 * NCCL allocates memory of every device for itself, which no plan contains: a device's memory cap is
 * lowered to the remainder.
 *
 * Participants that are not all devices get an NCCL group of their own when the first such collective is
 * created; the group is kept.
 *
 * abort() destroys NCCL's communicators; reset() creates new ones. If that fails, for instance because a
 * device is lost, enqueue() and collective_create() return that failure from then on. Programs captured
 * before are captured again (`epoch` in core/comm.h). */
tsr_status tsr_comm_nccl_create(tsr_device *const *devices, int n_devices, const tsr_comm_nccl_config *config,
                                tsr_comm **comm_out);

#endif
