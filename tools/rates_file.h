/* Measured rates, kept from `tsr bench` for `tsr plan` and `tsr run`: a JSON file in the user's cache, one
 * entry per machine and set of devices. Another driver, other cores or another version of the library make
 * another entry. */
#ifndef TSR_TOOLS_RATES_FILE_H
#define TSR_TOOLS_RATES_FILE_H

#include <stdbool.h>

#include <tsr/rates.h>
#include <tsr/topology.h>

enum { TOOL_PATH = 4096 };

/* $XDG_CACHE_HOME/tsr/rates.json, or below ~/.cache; false where there is neither. */
bool tool_rates_path(char path[TOOL_PATH]);

/* rates_out[list->n_devices] as measured before; false where they are not in the file, or it cannot be read.
 */
bool tool_rates_load(const tsr_topology *topo, const tsr_device_list *list, tsr_device_rates *rates_out);

/* Add or replace an entry. False where the file cannot be written: errno tells why. */
bool tool_rates_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_device_rates *rates);

#endif
