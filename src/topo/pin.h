/* Pins threads to processors, for thread teams. src/host does not depend on hwloc: the creator of a device
 * gives its team tsr_topo_pin_team_thread and a tsr_topo_team_pins, as a function and its `user`.
 *
 *     tsr_topo_team_pins pins = {pinner, &list->devices[0]};
 *     tsr_team_config team = {
 *         .n_threads = pins.desc->n_threads, .pin = tsr_topo_pin_team_thread, .pin_user = &pins}; */
#ifndef TSR_TOPO_PIN_H
#define TSR_TOPO_PIN_H

#include <tsr/device_list.h>
#include <tsr/topology.h>

#include "core/status.h"

typedef struct tsr_topo_pinner tsr_topo_pinner;

/* Takes a few milliseconds: hwloc binds through a loaded topology. */
tsr_status tsr_topo_pinner_create(tsr_topo_pinner **pinner_out);

/* Pinned threads stay pinned. NULL is fine. */
void tsr_topo_pinner_destroy(tsr_topo_pinner *pinner);

/* Pin the calling thread to any of pus[0..n_pus) (os indices). Any number of threads may call this
 * concurrently. TSR_ERR_UNSUPPORTED if the operating system refuses, e.g. processors that this process may
 * not use; the thread stays unpinned, which costs speed only. */
tsr_status tsr_topo_pin_thread(const tsr_topo_pinner *pinner, const int *pus, int n_pus);

/* The data that pins a team's threads; both must live until the team has started. */
typedef struct tsr_topo_team_pins {
    const tsr_topo_pinner *pinner;
    const tsr_device_desc *desc;
} tsr_topo_team_pins;

/* Pin the calling thread as thread number `thread` of a device; `team_pins` is a tsr_topo_team_pins. A
 * GPU's device has one thread, number 0, which may use any of its processors. */
tsr_status tsr_topo_pin_team_thread(void *team_pins, int thread);

#endif
