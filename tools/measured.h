/* What is known of this machine's speed, for every command that plans: what was measured before, and what
 * descriptions say where nothing was. */
#ifndef TSR_TOOLS_MEASURED_H
#define TSR_TOOLS_MEASURED_H

#include <tsr/links.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

typedef struct tool_measured {
    tsr_device_rates rates[TSR_MAX_DEVICES];
    tsr_links *links;
} tool_measured;

/* Links between the devices, with what `tsr bench links` measured if they are this machine's. The caller
 * destroys them. */
tsr_status tool_measured_links(const tsr_topology *topo, const tsr_device_list *list, tsr_links **links_out);

/* Set config->rates and config->links, which point into `measured`, so that `tsr run` and `tsr plan` decide
 * alike. */
tsr_status tool_measured_apply(const tsr_topology *topo, const tsr_device_list *list, tool_measured *measured,
                               tsr_model_config *config);

/* Also after a failure; all zeros is fine. */
void tool_measured_free(tool_measured *measured);

#endif
