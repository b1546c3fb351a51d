/* Memory of host devices: anonymous maps, placed on a NUMA node where one is asked for.
 *
 * Every function that fails writes a message without a device name; the device puts its own in front. Node -1
 * means: wherever the thread that touches a page first runs. */
#ifndef TSR_HOST_MEMORY_H
#define TSR_HOST_MEMORY_H

#include <stddef.h>

#include "core/status.h"

/* Page size of the system: what map sizes, commits and decommits are rounded to. */
size_t tsr_host_page_bytes(void);

/* Zeroed pages, page-aligned, not resident before they are touched; large ones ask for huge pages. */
tsr_status tsr_host_memory_alloc(size_t bytes, int numa_node, void **pointer_out);
void tsr_host_memory_free(void *pointer, size_t bytes);

/* Address space that nobody may touch yet. */
tsr_status tsr_host_memory_reserve(size_t bytes, int numa_node, void **base_out);
void tsr_host_memory_release(void *base, size_t bytes);

/* Make whole pages of a reservation usable (zeroed if they are new), or give their memory back. Doing either
 * twice is fine. */
tsr_status tsr_host_memory_commit(void *base, size_t offset, size_t bytes);
tsr_status tsr_host_memory_decommit(void *base, size_t offset, size_t bytes);

/* Bytes of the node (-1: of the whole machine), and those that can be had without swapping: free plus what
 * the page cache would give back. */
tsr_status tsr_host_memory_info(int numa_node, size_t *free_out, size_t *total_out);

#endif
