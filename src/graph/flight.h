/* Programs in flight: launched one after another, each without waiting for those before it.
 *
 * Every device runs its parts in the order of their launch, and a part may wait for other devices, so what is
 * launched on one device must in time be launched on all. Programs in flight together are in different lanes
 * (emit/layout.h).
 *
 *     tsr_flight flight = {.rt = rt};
 *     tsr_flight_begin(&flight, program);
 *     tsr_flight_launch(&flight, devices);      the program begun last, on these devices; perhaps again
 *     tsr_flight_wait(&flight, 1);              until at most one program, the newest, is in flight
 *     tsr_flight_wait(&flight, 0);
 *
 * A function that fails leaves nothing in flight: it has waited for the devices, after an abort of the
 * communicator where they would not have finished. */
#ifndef TSR_GRAPH_FLIGHT_H
#define TSR_GRAPH_FLIGHT_H

#include "graph/program.h"

/* A device's queue has room for more. */
enum { TSR_FLIGHT_MAX = 16 };

typedef struct tsr_flight {
    tsr_runtime *rt;
    int n; /* programs in flight */
    struct {
        tsr_program *program;
        tsr_device_set launched;
    } runs[TSR_FLIGHT_MAX]; /* oldest first */
} tsr_flight;

/* Add a program, at most TSR_FLIGHT_MAX; nothing is launched yet. */
tsr_status tsr_flight_begin(tsr_flight *flight, tsr_program *program);

/* Launch the newest program on those of `devices` where it is not yet. */
tsr_status tsr_flight_launch(tsr_flight *flight, tsr_device_set devices);

/* Wait until at most the n_left newest programs are in flight. Those that are no longer in flight have
 * succeeded. TSR_ERR_RANGE and the failures of tsr_program_run(). */
tsr_status tsr_flight_wait(tsr_flight *flight, int n_left);

/* Wait until nothing runs on `devices`; the programs stay in flight. */
tsr_status tsr_flight_wait_on(tsr_flight *flight, tsr_device_set devices);

/* After a failure elsewhere: launch what is not launched yet, and wait for everything. */
tsr_status tsr_flight_end(tsr_flight *flight);

/* From now on host devices end a program with TSR_ERR_CANCELLED after an op once *cancelled is true; NULL:
 * never, which is the initial state and must be set again before *cancelled ends. Nothing may run. Devices
 * are left out where the others would stay behind: in several processes, which know only of their own flag,
 * and beside two or more GPUs, since NCCL's communicators cannot be aborted and remain. */
void tsr_flight_cancel_by(tsr_runtime *rt, const _Atomic bool *cancelled);

#endif
