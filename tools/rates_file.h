/* Measured rates, stored by `tsr bench` for `tsr plan` and `tsr run` (cache_file.h). */
#ifndef TSR_TOOLS_RATES_FILE_H
#define TSR_TOOLS_RATES_FILE_H

#include <stdbool.h>

#include <tsr/rates.h>
#include <tsr/topology.h>

#include "processes.h"

#define TOOL_RATES_FILE "rates.json"

/* `list` has the devices of this process, rates are of the n_devices of all processes: the first has the
 * file, and all call these functions. */

/* Read stored rates into rates_out[n_devices]; false if the file has none or cannot be read. */
bool tool_rates_load(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                     int n_devices, tsr_device_rates *rates_out);

/* Add or replace an entry; `all` describes the n_devices. False if the file cannot be written; errno has the
 * reason. */
bool tool_rates_save(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                     const tsr_device_list *all, const tsr_device_rates *rates);

#endif
