/* What tests of machine descriptions share. */
#ifndef TSR_TESTS_TOPOLOGY_H
#define TSR_TESTS_TOPOLOGY_H

#include <tsr/device_list.h>
#include <tsr/topology.h>

/* Everything that must hold between a topology's arrays, checked one plain statement at a time. NULL if it
 * holds, else which statement does not. */
const char *topology_fault(const tsr_topology *topo);

/* The same for a device list made of `topo`. */
const char *device_list_fault(const tsr_device_list *list, const tsr_topology *topo);

/* The machine of a file, with the cards that config.cards names; a file that does not load or does not hold
 * fails the test. */
tsr_topology *topology_load(const char *path, const char *cards);

/* Loads the file with each allocation failing once: an error then, and nothing left behind. */
void topology_check_allocations(const char *path);

#endif
