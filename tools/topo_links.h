/* The output of tsr topo --links. */
#ifndef TSR_TOOLS_TOPO_LINKS_H
#define TSR_TOOLS_TOPO_LINKS_H

#include <jansson.h>

#include <tsr/links.h>

/* Tables of the links between devices, and of all-reduces over all of them. */
void tool_print_links(const tsr_links *links, const tsr_device_list *list);

/* The pairs as an array, a new reference. */
json_t *tool_json_links(const tsr_links *links);

#endif
