/* Measured links, kept from `tsr bench links` for `tsr plan`, `tsr run` and `tsr topo` (cache_file.h). */
#ifndef TSR_TOOLS_LINKS_FILE_H
#define TSR_TOOLS_LINKS_FILE_H

#include <stdbool.h>

#include <jansson.h>

#include <tsr/links.h>

#define TOOL_LINKS_FILE "links.json"

/* Record in `links` what was measured between these devices before; the number of values, 0 where there are
 * none. */
int tool_links_load(const tsr_topology *topo, const tsr_device_list *list, tsr_links *links);

/* Add or replace the entry. False where the file cannot be written: errno tells why. */
bool tool_links_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_links *links);

#endif
