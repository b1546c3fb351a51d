/* The output of tsr topo about the kernels of host devices on this machine. */
#ifndef TSR_TOOLS_TOPO_ISA_H
#define TSR_TOOLS_TOPO_ISA_H

#include <jansson.h>

#include <tsr/isa.h>

void tool_print_isa(const tsr_isa_list *list);

/* A new reference. */
json_t *tool_json_isa(const tsr_isa_list *list);

#endif
