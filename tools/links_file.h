/* Measured links, stored by `tsr bench links` for `tsr plan`, `tsr run` and `tsr topo` (cache_file.h). */
#ifndef TSR_TOOLS_LINKS_FILE_H
#define TSR_TOOLS_LINKS_FILE_H

#include <stdbool.h>

#include <jansson.h>

#include <tsr/links.h>

#define TOOL_LINKS_FILE "links.json"

/* Record the stored values of these devices in `links`; returns their number. */
int tool_links_load(const tsr_topology *topo, const tsr_device_list *list, tsr_links *links);

/* Add or replace the entry. False if the file cannot be written; errno has the reason. */
bool tool_links_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_links *links);

#endif
