/* The file of measured rates; see rates_file.h. */
#include "rates_file.h"

#include <errno.h>
#include <string.h>

#include "cache_file.h"

enum { N_TABLES = 7 };

/* A number for each type. */
typedef struct rate_table {
    const char *key;
    double *numbers; /* [TSR_RATE_TYPES] */
} rate_table;

static void tables_of(tsr_device_rates *rates, rate_table tables[N_TABLES])
{
    tables[0] = (rate_table){"read_bytes_per_s", rates->read_bytes_per_s};
    tables[1] = (rate_table){"flops_per_s", rates->flops_per_s};
    tables[2] = (rate_table){"product_ns", rates->product_ns};
    tables[3] = (rate_table){"partial_flops_per_s", rates->partial_flops_per_s};
    tables[4] = (rate_table){"expert_bytes_per_s", rates->expert_bytes_per_s};
    tables[5] = (rate_table){"expert_flops_per_s", rates->expert_flops_per_s};
    tables[6] = (rate_table){"byte_flops_per_s", rates->byte_flops_per_s};
}

static bool read_device(const json_t *object, int64_t date, tsr_device_rates *rates)
{
    bool good = tool_cache_number(object, "op_ns", &rates->op_ns) &&
                tool_cache_number(object, "sync_ns", &rates->sync_ns) &&
                tool_cache_number(object, "sync_bytes_per_s", &rates->sync_bytes_per_s) &&
                tool_cache_number(object, "load", &rates->load);
    rate_table tables[N_TABLES];
    tables_of(rates, tables);
    for (int t = 0; t < N_TABLES; t++)
        for (int i = 0; i < TSR_RATE_TYPES; i++)
            good = good && tool_cache_number(json_object_get(object, tables[t].key),
                                             tsr_type_name(tsr_rate_type(i)), &tables[t].numbers[i]);
    rates->measured = true;
    rates->measured_at = date;
    return good;
}

static bool read_entry(const tool_cache_key *key, int n_devices, tsr_device_rates *rates_out)
{
    int64_t date;
    json_t *devices = tool_cache_load(TOOL_RATES_FILE, key, &date);
    bool good = json_array_size(devices) == (size_t)n_devices;
    memset(rates_out, 0, (size_t)n_devices * sizeof *rates_out);
    for (int d = 0; good && d < n_devices; d++)
        good = read_device(json_array_get(devices, (size_t)d), date, &rates_out[d]);
    json_decref(devices);
    return good;
}

bool tool_rates_load(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                     int n_devices, tsr_device_rates *rates_out)
{
    tool_cache_key key;
    bool good = false;
    if (!tool_cache_key_of(processes, topo, list, &key))
        return false;
    if (tool_processes_is_first(processes))
        good = read_entry(&key, n_devices, rates_out);
    return tool_processes_share(processes, 0, rates_out, (size_t)n_devices * sizeof *rates_out) &&
           tool_processes_share(processes, 0, &good, sizeof good) && good;
}

static json_t *write_device(const tsr_device_rates *from)
{
    tsr_device_rates rates = *from;
    rate_table tables[N_TABLES];
    json_t *object = json_pack("{s:f, s:f, s:f, s:f}", "op_ns", rates.op_ns, "sync_ns", rates.sync_ns,
                               "sync_bytes_per_s", rates.sync_bytes_per_s, "load", rates.load);
    tables_of(&rates, tables);
    for (int t = 0; t < N_TABLES; t++) {
        json_t *numbers = json_object();
        for (int i = 0; i < TSR_RATE_TYPES; i++)
            json_object_set_new(numbers, tsr_type_name(tsr_rate_type(i)), json_real(tables[t].numbers[i]));
        json_object_set_new(object, tables[t].key, numbers);
    }
    return object;
}

bool tool_rates_save(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                     const tsr_device_list *all, const tsr_device_rates *rates)
{
    tool_cache_key key;
    errno = ECOMM;
    if (!tool_cache_key_of(processes, topo, list, &key))
        return false;
    if (!tool_processes_is_first(processes))
        return true;
    json_t *devices = json_array();
    for (int d = 0; d < all->n_devices; d++)
        json_array_append_new(devices, write_device(&rates[d]));
    return tool_cache_save(TOOL_RATES_FILE, &key, topo, all, devices);
}
