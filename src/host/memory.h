/* Memory of host devices: anonymous maps, optionally placed on a NUMA node.
 *
 * Error messages have no device name; the device prepends its own. Node -1: each page is placed on the node
 * of the first thread to touch it. */
#ifndef TSR_HOST_MEMORY_H
#define TSR_HOST_MEMORY_H

#include <stddef.h>

#include "core/status.h"

/* Page size of the system: maps, commits and decommits are rounded to it. */
size_t tsr_host_page_bytes(void);

/* Zeroed pages, page-aligned, not resident before they are touched. Large allocations request huge pages. */
tsr_status tsr_host_memory_alloc(size_t bytes, int numa_node, void **pointer_out);
void tsr_host_memory_free(void *pointer, size_t bytes);

/* Address space without access rights until tsr_host_memory_commit(). */
tsr_status tsr_host_memory_reserve(size_t bytes, int numa_node, void **base_out);
void tsr_host_memory_release(void *base, size_t bytes);

/* Make whole pages of a reservation usable (zeroed if they are new), or return their memory to the system.
 * Doing either twice is fine. */
tsr_status tsr_host_memory_commit(void *base, size_t offset, size_t bytes);
tsr_status tsr_host_memory_decommit(void *base, size_t offset, size_t bytes);

#endif
