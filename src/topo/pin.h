/* Pins threads to processors, for thread teams. src/host does not depend on topo: the creator of a device
 * gives its team tsr_topo_pin_team_thread, and the device's description as `user`.
 *
 *     tsr_device_desc *desc = &list->devices[0];
 *     tsr_team_config team = {
 *         .n_threads = desc->n_threads, .pin = tsr_topo_pin_team_thread, .pin_user = desc}; */
#ifndef TSR_TOPO_PIN_H
#define TSR_TOPO_PIN_H

#include <tsr/device_list.h>

#include "core/status.h"

/* Pin the calling thread to any of pus[0..n_pus) (os indices). TSR_ERR_UNSUPPORTED if the operating system
 * refuses, e.g. processors that this process may not use; the thread stays unpinned, which costs speed
 * only. */
tsr_status tsr_topo_pin_thread(const int *pus, int n_pus);

/* Pin the calling thread as thread number `thread` of a device; `desc` is a tsr_device_desc, only read. A
 * GPU's device has one thread, number 0, which may use any of its processors. */
tsr_status tsr_topo_pin_team_thread(void *desc, int thread);

#endif
