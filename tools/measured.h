/* The rates and links for all commands that plan: stored measurements, otherwise guesses from the
 * description. */
#ifndef TSR_TOOLS_MEASURED_H
#define TSR_TOOLS_MEASURED_H

#include <tsr/links.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

#include "processes.h"

typedef struct tool_measured {
    tsr_device_rates rates[TSR_MAX_DEVICES];
    tsr_links *links;
} tool_measured;

/* Links between the devices, with the values measured by `tsr bench links` if they are this machine's. The
 * caller destroys them. */
tsr_status tool_measured_links(const tsr_topology *topo, const tsr_device_list *list, tsr_links **links_out);

/* Set config->rates and config->links, which point into `measured`, so that `tsr run` and `tsr plan` make
 * the same decisions. */
tsr_status tool_measured_apply(const tsr_topology *topo, const tsr_device_list *list, tool_measured *measured,
                               tsr_model_config *config);

/* The same for the n_devices of several processes, of which `list` are this process's (NULL: unknown here).
 * Called in all processes, which get the same. Links are the runtime's. */
void tool_measured_apply_together(const tool_processes *processes, const tsr_topology *topo,
                                  const tsr_device_list *list, int n_devices, tool_measured *measured,
                                  tsr_model_config *config);

/* Also after a failure; all zeros is fine. */
void tool_measured_free(tool_measured *measured);

#endif
