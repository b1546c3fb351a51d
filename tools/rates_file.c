/* See rates_file.h. */
#include "rates_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <tsr/version.h>

/* FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/). */
static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (h ^ 0xff) * UINT64_C(0x100000001b3); /* so that neighbours do not run together */
}

/* Everything that speed depends on, as one name. */
static void entry_name(const tsr_topology *topo, const tsr_device_list *list, char name[20])
{
    char number[64];
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    h = hash(h, TSR_VERSION_STRING);
    h = hash(h, topo->machine_name);
    h = hash(h, topo->driver_version);
    for (int p = 0; p < topo->n_packages; p++)
        h = hash(h, topo->packages[p].cpu_model);
    for (int d = 0; d < list->n_devices; d++) {
        const tsr_device_desc *desc = &list->devices[d];
        h = hash(h, tsr_device_kind_name(desc->kind));
        if (desc->gpu >= 0)
            h = hash(h, topo->gpus[desc->gpu].uuid);
        snprintf(number, sizeof number, "%d threads", desc->n_threads);
        h = hash(h, number);
        for (int i = 0; i < desc->n_pus; i++) {
            snprintf(number, sizeof number, "%d", desc->pus[i]);
            h = hash(h, number);
        }
    }
    snprintf(name, 20, "%016llx", (unsigned long long)h);
}

bool tool_rates_path(char path[TOOL_PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (cache && *cache)
        n = snprintf(path, TOOL_PATH, "%s/tsr/rates.json", cache);
    else if (home && *home)
        n = snprintf(path, TOOL_PATH, "%s/.cache/tsr/rates.json", home);
    else
        return false;
    return n < TOOL_PATH;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_number(const json_t *object, const char *key, double *out)
{
    const json_t *number = json_object_get(object, key);
    *out = json_number_value(number);
    return json_is_number(number) && *out >= 0;
}

static bool read_device(const json_t *object, tsr_device_rates *rates)
{
    bool good = read_number(object, "op_ns", &rates->op_ns) &&
                read_number(object, "sync_ns", &rates->sync_ns) &&
                read_number(object, "sync_bytes_per_s", &rates->sync_bytes_per_s);
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        const char *type = tsr_type_name(tsr_rate_type(i));
        good = good &&
               read_number(json_object_get(object, "read_bytes_per_s"), type, &rates->read_bytes_per_s[i]) &&
               read_number(json_object_get(object, "flops_per_s"), type, &rates->flops_per_s[i]);
    }
    rates->measured = true;
    return good;
}

bool tool_rates_load(const tsr_topology *topo, const tsr_device_list *list, tsr_device_rates *rates_out)
{
    char path[TOOL_PATH], name[20];
    json_t *root = tool_rates_path(path) ? json_load_file(path, 0, NULL) : NULL;
    entry_name(topo, list, name);
    const json_t *devices = json_object_get(root, name);
    bool good = json_array_size(devices) == (size_t)list->n_devices;
    memset(rates_out, 0, (size_t)list->n_devices * sizeof *rates_out);
    for (int d = 0; good && d < list->n_devices; d++)
        good = read_device(json_array_get(devices, (size_t)d), &rates_out[d]);
    json_decref(root);
    return good;
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *write_device(const tsr_device_rates *rates)
{
    json_t *read = json_object(), *flops = json_object();
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        json_object_set_new(read, tsr_type_name(tsr_rate_type(i)), json_real(rates->read_bytes_per_s[i]));
        json_object_set_new(flops, tsr_type_name(tsr_rate_type(i)), json_real(rates->flops_per_s[i]));
    }
    return json_pack("{s:o, s:o, s:f, s:f, s:f}", "read_bytes_per_s", read, "flops_per_s", flops, "op_ns",
                     rates->op_ns, "sync_ns", rates->sync_ns, "sync_bytes_per_s", rates->sync_bytes_per_s);
}

/* Every folder that `path` lies in. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made)
            return false;
    }
    return true;
}

/* Whole or not at all: under another name first. */
static bool write_file(const json_t *root, const char *path)
{
    char draft[TOOL_PATH + 16];
    snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid());
    if (json_dump_file(root, draft, JSON_INDENT(1)) == 0 && rename(draft, path) == 0)
        return true;
    int error = errno;
    unlink(draft);
    errno = error;
    return false;
}

bool tool_rates_save(const tsr_topology *topo, const tsr_device_list *list, const tsr_device_rates *rates)
{
    char path[TOOL_PATH], name[20];
    errno = ENOENT;
    if (!tool_rates_path(path) || !make_folders(path))
        return false;
    json_t *root = json_load_file(path, 0, NULL), *devices = json_array();
    if (!json_is_object(root)) { /* none yet, or spoiled */
        json_decref(root);
        root = json_object();
    }
    for (int d = 0; d < list->n_devices; d++)
        json_array_append_new(devices, write_device(&rates[d]));
    entry_name(topo, list, name);
    json_object_set_new(root, name, devices);
    bool good = write_file(root, path);
    json_decref(root);
    return good;
}
