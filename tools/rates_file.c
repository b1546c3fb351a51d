/* The file of measured rates; see rates_file.h. */
#include "rates_file.h"

#include <string.h>

#include "cache_file.h"

static bool read_device(const json_t *object, int64_t date, tsr_device_rates *rates)
{
    bool good = tool_cache_number(object, "op_ns", &rates->op_ns) &&
                tool_cache_number(object, "sync_ns", &rates->sync_ns) &&
                tool_cache_number(object, "sync_bytes_per_s", &rates->sync_bytes_per_s) &&
                tool_cache_number(object, "load", &rates->load);
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        const char *type = tsr_type_name(tsr_rate_type(i));
        good = good &&
               tool_cache_number(json_object_get(object, "read_bytes_per_s"), type,
                                 &rates->read_bytes_per_s[i]) &&
               tool_cache_number(json_object_get(object, "flops_per_s"), type, &rates->flops_per_s[i]);
    }
    rates->measured = true;
    rates->measured_at = date;
    return good;
}

bool tool_rates_load(const tsr_topology *topo, const tsr_device_list *list, tsr_device_rates *rates_out)
{
    int64_t date;
    json_t *devices = tool_cache_load(TOOL_RATES_FILE, topo, list, &date);
    bool good = json_array_size(devices) == (size_t)list->n_devices;
    memset(rates_out, 0, (size_t)list->n_devices * sizeof *rates_out);
    for (int d = 0; good && d < list->n_devices; d++)
        good = read_device(json_array_get(devices, (size_t)d), date, &rates_out[d]);
    json_decref(devices);
    return good;
}

static json_t *write_device(const tsr_device_rates *rates)
{
    json_t *read = json_object(), *flops = json_object();
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        json_object_set_new(read, tsr_type_name(tsr_rate_type(i)), json_real(rates->read_bytes_per_s[i]));
        json_object_set_new(flops, tsr_type_name(tsr_rate_type(i)), json_real(rates->flops_per_s[i]));
    }
    return json_pack("{s:o, s:o, s:f, s:f, s:f, s:f}", "read_bytes_per_s", read, "flops_per_s", flops,
                     "op_ns", rates->op_ns, "sync_ns", rates->sync_ns, "sync_bytes_per_s",
                     rates->sync_bytes_per_s, "load", rates->load);
}

bool tool_rates_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_device_rates *rates)
{
    json_t *devices = json_array();
    for (int d = 0; d < list->n_devices; d++)
        json_array_append_new(devices, write_device(&rates[d]));
    return tool_cache_save(TOOL_RATES_FILE, topo, list, devices);
}
