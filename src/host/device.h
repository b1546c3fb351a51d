/* The host device: processor cores with their memory, as a tsr_device.
 *
 * A team of threads (host/team.h) executes ops with the kernels of one instruction set (host/kernels.h). The
 * communicator that an op names executes collectives. Weights in mapped files are used in place (wrap).
 * Nothing is allocated while a program runs, and no system call is made, except to sleep in a long wait. */
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
                        * With more threads than processors, waiting threads sleep immediately instead of
                        * polling first. */
    size_t memory_cap; /* bytes; 0 = no cap */
    int numa_node;     /* where memory is placed; -1 = on the node of the first thread to touch it */
    int duty_percent;  /* share of the time that its threads may work; 0 = 100 */
    const char *isa;   /* NULL = the best that this machine runs */

    /* Called once by every team thread, on that thread; NULL: threads run where the system puts them. A
     * failure is logged. The device then works, and waits as if its threads were not pinned. */
    tsr_status (*pin)(void *user, int thread);
    void *pin_user;

    tsr_watch *watch; /* over waits for the team; NULL: such waits have no end but their deadline */

    const tsr_logger *logger;      /* may be NULL; used during creation only */
    const tsr_kernel_set *kernels; /* NULL = by `isa`; tests pass their own */
} tsr_host_device_config;

/* TSR_ERR_UNSUPPORTED: unknown instruction set or not on this machine. TSR_ERR_MEMORY: the system refused
 * memory or a thread. */
tsr_status tsr_host_device_create(const tsr_host_device_config *config, tsr_device **device_out);

#endif
