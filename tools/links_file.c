/* The file of measured links; see links_file.h. A value is an all-reduce, {"devices": [0, 1], "bytes":
 * 4096, "ns": 5210.0}, or a transfer, {"from": 0, "devices": [1], ...}; device numbers are indices in the
 * entry's own list. */
#include "links_file.h"

#include <math.h>

#include "cache_file.h"

/* `value` is unchanged if the object is not a value. */
static bool read_value(const json_t *object, tsr_links_value *value)
{
    const json_t *from = json_object_get(object, "from"), *devices = json_object_get(object, "devices");
    double bytes;
    if (!tool_cache_number(object, "bytes", &bytes) || !tool_cache_number(object, "ns", &value->ns) ||
        bytes > ldexp(1, 53) || (from && !json_is_integer(from)))
        return false;
    value->bytes = (uint64_t)bytes;
    value->from = from ? (int)json_integer_value(from) : -1;
    value->devices = 0;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *device = json_array_get(devices, i);
        if (!json_is_integer(device) || json_integer_value(device) < 0 || json_integer_value(device) > 63)
            return false;
        value->devices |= UINT64_C(1) << json_integer_value(device);
    }
    return true;
}

int tool_links_load(const tsr_topology *topo, const tsr_device_list *list, tsr_links *links)
{
    tool_cache_key key;
    const bool named = tool_cache_key_of(&(tool_processes){0}, topo, list, &key);
    json_t *values = named ? tool_cache_load(TOOL_LINKS_FILE, &key, NULL) : NULL;
    int n = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        tsr_links_value value;
        if (read_value(json_array_get(values, i), &value) && tsr_links_set_measured(links, &value) == TSR_OK)
            n++;
    }
    json_decref(values);
    return n;
}

static json_t *write_value(const tsr_links_value *value)
{
    json_t *object = json_object(), *devices = json_array();
    if (value->from >= 0)
        json_object_set_new(object, "from", json_integer(value->from));
    for (int d = 0; d < 64; d++)
        if (value->devices >> d & 1)
            json_array_append_new(devices, json_integer(d));
    json_object_set_new(object, "devices", devices);
    json_object_set_new(object, "bytes", json_integer((json_int_t)value->bytes));
    json_object_set_new(object, "ns", json_real(value->ns));
    return object;
}

bool tool_links_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_links *links)
{
    tool_cache_key key;
    json_t *values = json_array();
    for (int i = 0; i < tsr_links_n_measured(links); i++)
        json_array_append_new(values, write_value(tsr_links_measured(links, i)));
    return tool_cache_key_of(&(tool_processes){0}, topo, list, &key) &&
           tool_cache_save(TOOL_LINKS_FILE, &key, topo, list, values);
}
