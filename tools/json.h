/* Machine-readable output, from the library's public structs. Key order is the order of writing. */
#ifndef TSR_TOOLS_JSON_H
#define TSR_TOOLS_JSON_H

#include <jansson.h>

#include <tsr/device_list.h>
#include <tsr/topology.h>

/* New references. Indices refer to the arrays of the same document; sizes are bytes, speeds bytes per
 * second. */
json_t *tool_json_topology(const tsr_topology *topo);
json_t *tool_json_devices(const tsr_device_list *list);

/* Print a document, release it, and return the exit code; `root` NULL means out of memory. */
int tool_json_print(const char *command, json_t *root);

#endif
