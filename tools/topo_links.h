/* What tsr topo --links shows. */
#ifndef TSR_TOOLS_TOPO_LINKS_H
#define TSR_TOOLS_TOPO_LINKS_H

#include <tsr/links.h>

/* Tables of how fast devices reach each other, and of all-reduces over all of them. */
tsr_status tool_print_links(const tsr_topology *topo, const tsr_device_list *list);

#endif
