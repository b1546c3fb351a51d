/* Rates and links for planning; see measured.h. */
#include "measured.h"

#include "links_file.h"
#include "rates_file.h"

tsr_status tool_measured_links(const tsr_topology *topo, const tsr_device_list *list, tsr_links **links_out)
{
    tsr_status status = tsr_links_create(topo, list, links_out);
    if (status == TSR_OK && topo->is_this_machine)
        tool_links_load(topo, list, *links_out);
    return status;
}

tsr_status tool_measured_apply(const tsr_topology *topo, const tsr_device_list *list, tool_measured *measured,
                               tsr_model_config *config)
{
    tsr_status status = tool_measured_links(topo, list, &measured->links);
    config->plan.links = measured->links;
    if (topo->is_this_machine &&
        tool_rates_load(&(tool_processes){0}, topo, list, list->n_devices, measured->rates))
        config->plan.rates = measured->rates;
    return status;
}

void tool_measured_apply_together(const tool_processes *processes, const tsr_topology *topo,
                                  const tsr_device_list *list, int n_devices, tool_measured *measured,
                                  tsr_model_config *config)
{
    const tsr_device_list none = {0};
    if (tool_rates_load(processes, topo, list ? list : &none, n_devices, measured->rates))
        config->plan.rates = measured->rates;
}

void tool_measured_free(tool_measured *measured)
{
    tsr_links_destroy(measured->links);
    measured->links = NULL;
}
