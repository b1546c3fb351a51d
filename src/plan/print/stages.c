/* The stages of a plan: consecutive layers on the same devices. */
#include <stdio.h>

#include "core/mem.h"
#include "plan/names.h"
#include "plan/plan.h"
#include "plan/print/text.h"

/* Devices of a layer; with offload its attention and its FFN may be in two places. */
static tsr_device_set devices_of(const tsr_model_split *split, int64_t layer)
{
    return tsr_model_split_group(split, TSR_BLOCK_ATTENTION, layer)->devices |
           tsr_model_split_group(split, TSR_BLOCK_FFN, layer)->devices;
}

bool tsr_plan_stage_at(const tsr_plan *plan, int index, tsr_plan_stage *stage_out)
{
    const tsr_model_split *split = &plan->split;
    tsr_device_set output = split->groups[split->output_group].devices;
    int64_t first = 0, end = 0;
    if (index < 0)
        return false;
    for (int i = 0; first < split->n_layers; i++, first = end) {
        tsr_device_set devices = devices_of(split, first);
        for (end = first; end < split->n_layers && devices_of(split, end) == devices; end++)
            continue;
        if (i == index)
            *stage_out = (tsr_plan_stage){.devices = devices, .first_layer = first, .n_layers = end - first};
        if (i == index)
            return true;
        if (end == split->n_layers && i + 1 == index && output != devices) {
            *stage_out = (tsr_plan_stage){.devices = output, .first_layer = end};
            return true;
        }
    }
    return false;
}

void tsr_plan_put_stages(const tsr_plan_printer *p)
{
    tsr_plan_stage s;
    for (int i = 0; tsr_plan_stage_at(p->plan, i, &s); i++) {
        char names[512] = "", layers[64] = "the output";
        tsr_plan_append_names(p->plan->devices, p->plan->info.n_devices, s.devices, ", ", names,
                              sizeof names);
        if (s.n_layers > 1)
            snprintf(layers, sizeof layers, "layers %lld to %lld", (long long)s.first_layer,
                     (long long)(s.first_layer + s.n_layers - 1));
        else if (s.n_layers == 1)
            snprintf(layers, sizeof layers, "layer %lld", (long long)s.first_layer);
        tsr_plan_put_wrapped(p, "Stage %d: %s on %s", i + 1, layers, names);
    }
}
