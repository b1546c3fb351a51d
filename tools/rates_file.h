/* Measured rates, stored by `tsr bench` for `tsr plan` and `tsr run` (cache_file.h). */
#ifndef TSR_TOOLS_RATES_FILE_H
#define TSR_TOOLS_RATES_FILE_H

#include <stdbool.h>

#include <tsr/rates.h>
#include <tsr/topology.h>

#define TOOL_RATES_FILE "rates.json"

/* Read stored rates into rates_out[list->n_devices]; false if the file has none or cannot be read. */
bool tool_rates_load(const tsr_topology *topo, const tsr_device_list *list, tsr_device_rates *rates_out);

/* Add or replace an entry. False if the file cannot be written; errno has the reason. */
bool tool_rates_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_device_rates *rates);

#endif
