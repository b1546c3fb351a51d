/* A runtime whose devices are in several processes (tsr/transport.h): who has which, and what stands in for
 * those elsewhere. Without a transport none of this does anything. */
#ifndef TSR_RUNTIME_DISTRIBUTED_H
#define TSR_RUNTIME_DISTRIBUTED_H

#include <tsr/rates.h>
#include <tsr/runtime.h>
#include <tsr/topology.h>

#include "core/runtime.h"

/* rt->processes, if the config has a transport. Blocks until every process has come. */
tsr_status tsr_distributed_begin(tsr_runtime *rt, const tsr_runtime_config *config);

/* Who has how many devices, process after process. */
typedef struct tsr_distributed_counts {
    int n_of[TSR_MAX_DEVICES]; /* of each process */
    int first, n_all;          /* the index of this one's first, and how many there are */
} tsr_distributed_counts;

/* This process has n_here. TSR_ERR_INVALID where they are too many together. */
tsr_status tsr_distributed_count(const tsr_runtime *rt, int n_here, tsr_distributed_counts *counts_out);

/* The name of a device here, told apart from others' of the same name. */
void tsr_distributed_name(const tsr_runtime *rt, const char *name, char *full, size_t size);

/* rt->devices and rt->rates of other processes; those of this one, described in list[], are there. Warns of
 * cores that another process's devices use, too. */
tsr_status tsr_distributed_complete(tsr_runtime *rt, const tsr_device_desc *list,
                                    const tsr_distributed_counts *counts);

/* What was measured of the devices by their own processes, for all of them. */
tsr_status tsr_distributed_share_rates(tsr_runtime *rt, tsr_device_rates *rates);

#endif
