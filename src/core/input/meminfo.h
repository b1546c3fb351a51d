/* How much memory the system has and could give to programs. */
#ifndef TSR_CORE_INPUT_MEMINFO_H
#define TSR_CORE_INPUT_MEMINFO_H

#include <stddef.h>

#include "core/status.h"

/* Total bytes of a NUMA node (-1: of the machine), and bytes that programs could have without swapping.
 * Cached files count as available, since the system drops them for programs. TSR_ERR_UNSUPPORTED if it is not
 * known. */
tsr_status tsr_meminfo(int numa_node, size_t *available_out, size_t *total_out);

#endif
