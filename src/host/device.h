/* The host device: processor cores with their memory, as a tsr_device.
 *
 * Ops are executed by a team of threads (host/team.h) with the kernels of one instruction set
 * (host/kernels.h); the collectives by the communicator that the ops name. Weights in mapped files are used
 * in place (wrap). Nothing is allocated and no system call is made while a program runs, except to sleep when
 * a wait turns out to be long. */
#ifndef TSR_HOST_DEVICE_H
#define TSR_HOST_DEVICE_H

#include "core/device.h"
#include "host/kernels.h"

/* Alignment of every tensor in a host device's memory: one cache line, one AVX-512 register. */
enum { TSR_HOST_ALIGNMENT = 64 };

typedef struct tsr_host_device_config {
    const char *name;  /* "host0"; copied, cut after 31 characters */
    int index;         /* in the runtime */
    int n_threads;     /* >= 1 */
    int total_threads; /* of all host devices that will run together, this one included; 0: only this one.
                          When there are more of them than processors, waiting threads sleep at once instead
                          of polling first. */
    size_t memory_cap; /* bytes; 0 = no cap */
    int numa_node;     /* to place memory on; -1 = wherever it is touched first */
    int duty_percent;  /* of the time that its threads may work; 0 = 100 */
    const char *isa;   /* NULL = the best this machine has */

    /* Called once by every team thread, on that thread; NULL: threads run where the system puts them. A
     * failure is logged; the device works, and waits as if it were not pinned. */
    tsr_status (*pin)(void *user, int thread);
    void *pin_user;

    const tsr_logger *logger;      /* may be NULL; used during creation only */
    const tsr_kernel_set *kernels; /* NULL = by `isa`; tests bring their own */
} tsr_host_device_config;

/* TSR_ERR_UNSUPPORTED: unknown instruction set or not on this machine. TSR_ERR_MEMORY: host memory or a
 * thread was refused. */
tsr_status tsr_host_device_create(const tsr_host_device_config *config, tsr_device **device_out);

#endif
