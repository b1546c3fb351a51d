/* The time of a transfer of activations, from the times of copies between two devices. */
#ifndef TSR_SPLIT_SEARCH_TRANSFER_H
#define TSR_SPLIT_SEARCH_TRANSFER_H

#include "core/device_set.h"
#include "core/mem.h"

/* The first of the devices that are on the machine of device d, which is one of them. */
static inline int tsr_transfer_first_there(const int *machine, tsr_device_set devices, int d)
{
    int first = tsr_device_set_first(devices);
    while (machine[first] != machine[d] || !tsr_device_set_has(devices, first))
        first++;
    return first;
}

/* From the lowest device of `from` to the devices of `to` that are not in `from`. On the sender's machine
 * each gets a copy from it. To every other machine there is one copy; those follow each other, and the
 * device that gets a copy passes it on to the others there. The last device counts. machine[] is of each
 * device, NULL if all are on one; copy_ns(user, a, b): of a copy. */
static inline double tsr_transfer_ns(const int *machine, tsr_device_set from, tsr_device_set to,
                                     double (*copy_ns)(const void *user, int from, int to), const void *user)
{
    const int sender = tsr_device_set_first(from);
    const tsr_device_set missing = to & ~from;
    double ns = 0, n_far = 0;
    TSR_FOR_DEVICES(d, machine ? missing : 0)
        n_far += machine[d] != machine[sender] && tsr_transfer_first_there(machine, missing, d) == d;
    TSR_FOR_DEVICES(d, missing) {
        if (!machine || machine[d] == machine[sender]) {
            ns = TSR_MAX(ns, copy_ns(user, sender, d));
            continue;
        }
        const int first = tsr_transfer_first_there(machine, missing, d);
        const double passed_ns = first == d ? 0 : copy_ns(user, first, d);
        ns = TSR_MAX(ns, n_far * copy_ns(user, sender, first) + passed_ns);
    }
    return ns;
}

#endif
