/* A runtime whose devices are in several processes (tsr/transport.h): which process has which device, and
 * the stand-ins for devices of other processes. Without a transport these functions do nothing. */
#ifndef TSR_RUNTIME_DISTRIBUTED_H
#define TSR_RUNTIME_DISTRIBUTED_H

#include <tsr/rates.h>
#include <tsr/runtime.h>
#include <tsr/topology.h>

#include "core/runtime.h"

/* Numbers of devices per process. */
typedef struct tsr_distributed_counts {
    int n_of[TSR_MAX_DEVICES]; /* of each process */
    int first, n_all;          /* index of this process's first device, and the total */
} tsr_distributed_counts;

/* This process has n_here devices. TSR_ERR_INVALID if the total is too large. */
tsr_status tsr_distributed_count(const tsr_runtime *rt, int n_here, tsr_distributed_counts *counts_out);

/* A name of a local device that is unique among all processes. */
void tsr_distributed_name(const tsr_runtime *rt, const char *name, char *full, size_t size);

/* Complete rt->devices and rt->rates with those of other processes; the local ones, described in list[],
 * must exist. Warns of cores that another process's devices use, too. */
tsr_status tsr_distributed_complete(tsr_runtime *rt, const tsr_device_desc *list,
                                    const tsr_distributed_counts *counts);

/* The links between the devices of all processes, in rt->links, as tsr_plan_create() has them for machines
 * that are described. `network` (NULL: the kernel's, otherwise 10 Gb/s Ethernet) joins processes on different
 * machines; topo and list[] are of this process. TSR_ERR_INVALID: no network, or another one in some
 * process. */
tsr_status tsr_distributed_link(tsr_runtime *rt, const char *network, const tsr_topology *topo,
                                const tsr_device_list *list, const tsr_distributed_counts *counts);

/* Share the rates that each process measured of its devices with all processes. */
tsr_status tsr_distributed_share_rates(tsr_runtime *rt, tsr_device_rates *rates);

#endif
