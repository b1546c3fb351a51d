/* The kernel sets of this build, and those that this machine runs. */
#ifndef TSR_HOST_KERNELS_H
#define TSR_HOST_KERNELS_H

#include "core/status.h"
#include "host/kernel_set.h"

/* A set that this build has, and whether this machine can run it. */
typedef struct tsr_kernel_level {
    const tsr_kernel_set *set;
    const char *lacking; /* user-readable reason, static; NULL: the set runs */
} tsr_kernel_level;

enum { TSR_KERNEL_LEVELS = 8 }; /* at most */

/* Store all sets of this build, best first; returns their number. The last set is "generic". Any thread. */
int tsr_kernel_levels(tsr_kernel_level levels[TSR_KERNEL_LEVELS]);

/* The best set for this machine, or the named one; NULL when the name is unknown or the machine lacks it. Any
 * thread. */
const tsr_kernel_set *tsr_kernel_set_select(const char *isa);

/* tsr_kernel_set_select() with an error, which says why there is none and which sets there are.
 * TSR_ERR_INVALID: this build has none of the name; TSR_ERR_UNSUPPORTED: this machine lacks it. */
tsr_status tsr_kernel_set_find(const char *isa, const tsr_kernel_set **set_out);

#endif
