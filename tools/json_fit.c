/* A fit as JSON; see json_fit.h. */
#include "json_fit.h"

#include <stdint.h>

#include "json_plan.h"

static json_t *select_object(const tsr_fit_choice *choice)
{
    return json_pack("{s:I, s:s, s:s, s:i, s:i}", "n_ctx", (json_int_t)choice->n_ctx, "type_k",
                     tsr_type_name(choice->type_k), "type_v", tsr_type_name(choice->type_v), "n_cpu_moe",
                     choice->n_cpu_moe, "n_gpu_layers", choice->n_gpu_layers);
}

static json_t *wanted_devices(const tsr_fit *fit, int n)
{
    json_t *array = json_array();
    for (int d = 0; d < n; d++) {
        tsr_plan_device device;
        size_t missing;
        if (tsr_fit_wanted(fit, d, &device, &missing) != TSR_OK)
            continue;
        bool capped = device.memory_cap != SIZE_MAX;
        json_array_append_new(
            array,
            json_pack("{s:s, s:o, s:I, s:o, s:I, s:I}", "name", device.name, "bytes",
                      tool_json_bytes(device.bytes), "total_bytes", (json_int_t)device.total_bytes,
                      "memory_cap_bytes", capped ? json_integer((json_int_t)device.memory_cap) : json_null(),
                      "margin_bytes", (json_int_t)device.margin_bytes, "missing_bytes", (json_int_t)missing));
    }
    return array;
}

static json_t *step_object(const tsr_fit_step *step, int n_devices)
{
    json_t *devices = json_array();
    for (int d = 0; d < n_devices; d++)
        json_array_append_new(devices, json_integer((json_int_t)step->device_bytes[d]));
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:o}", "cut", tsr_fit_cut_name(step->cut), "text", step->text,
                     "before", select_object(&step->before), "after", select_object(&step->after),
                     "saved_bytes", (json_int_t)step->saved_bytes, "saved_device_bytes", devices);
}

json_t *tool_json_fit(const tsr_fit *fit, const char *model)
{
    tsr_fit_info info;
    tsr_fit_step step;
    json_t *steps = json_array();
    tsr_fit_get_info(fit, &info);
    for (int i = 0; tsr_fit_step_at(fit, i, &step); i++)
        json_array_append_new(steps, step_object(&step, info.n_devices));
    json_t *wanted = select_object(&info.wanted);
    json_object_set_new(wanted, "devices", wanted_devices(fit, info.n_devices));
    return json_pack("{s:o, s:o, s:o, s:o}", "wanted", wanted, "steps", steps, "chosen",
                     select_object(&info.chosen), "plan", tool_json_plan(tsr_fit_plan(fit), model));
}
