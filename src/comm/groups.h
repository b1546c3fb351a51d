/* The groups of a communicator between processes (comm/distributed.h): for each set of devices that add up
 * or gather together, the transport's group of their processes, and the memory that their sums are sent
 * from.
 *
 * Two groups may have the same processes and other devices. Within a group the order of collectives is that
 * of the program; programs of disjoint devices run at the same time, so they must not share a group.
 *
 * A group is made with the first collective of its devices and kept until the communicator is destroyed: a
 * program compiled again for another shape has the same sets of devices. It is made by all processes of the
 * runtime, in the same order, those without any of the devices too, because only all of them together know
 * that none has failed before; then the members alone join it in the transport.
 *
 *     tsr_groups groups = {.processes = processes, .devices = devices, .here = here};
 *     const tsr_group *group;
 *     TSR_TRY(tsr_groups_find(&groups, participants, &group));     // collective
 *     transport->sum(transport->user, group->handle, group->words, n, TSR_TRANSPORT_I32, &transfer);
 *     ...
 *     tsr_groups_free(&groups);
 *
 * One thread at a time. */
#ifndef TSR_COMM_GROUPS_H
#define TSR_COMM_GROUPS_H

#include <stdint.h>

#include "comm/reduce.h"
#include "core/comm.h"
#include "core/processes.h"

typedef struct tsr_group {
    tsr_device_set devices;
    void *handle;    /* the transport's; NULL: this process has none of the devices */
    uint32_t *words; /* [TSR_NARROW_WORDS + TSR_NARROW_MOST], words, then high words (comm/narrow.h). Shared
                      * by the collectives of the group. NULL as `handle` */
} tsr_group;

/* The first three members are the creator's, and borrowed. The rest is zero at first. */
typedef struct tsr_groups {
    tsr_processes *processes;
    tsr_device *const *devices; /* of all processes, process after process */
    tsr_device_set here;        /* devices of this process */
    tsr_group *list;
    int n;
} tsr_groups;

/* The processes of these devices, ascending; returns their number. */
int tsr_groups_processes(const tsr_groups *groups, tsr_device_set devices, int ranks[TSR_MAX_RANKS]);

/* The group of the devices, which is made if this is their first collective. Every process makes this call,
 * in the same order. *group_out is valid until the next call.
 *
 * TSR_ERR_MEMORY in every process where one has no memory. Blocks until the other processes have arrived; a
 * process that does not arrive, or a transport that fails, loses the processes (TSR_ERR_DEVICE_LOST). */
tsr_status tsr_groups_find(tsr_groups *groups, tsr_device_set devices, const tsr_group **group_out);

/* Leave all groups and free their memory; not collective. All zeros is fine. */
void tsr_groups_free(tsr_groups *groups);

#endif
