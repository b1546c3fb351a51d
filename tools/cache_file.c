/* Files in the user's cache folder; see cache_file.h. */
#include "cache_file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <tsr/isa.h>
#include <tsr/version.h>

#include "json_file.h"
#include "replace_file.h"
#include "text.h"

#define DATE_FORMAT "%Y-%m-%dT%H:%M:%SZ" /* of UTC */

/* FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/). */
static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (h ^ 0xff) * UINT64_C(0x100000001b3); /* a separator between neighbouring texts */
}

/* The kernels of a host device without isa=. If TSR_ISA is wrong, nothing will be measured. */
static const char *default_isa(tsr_isa_list *list)
{
    return tsr_isa_discover(list) == TSR_OK ? list->levels[list->chosen].name : "";
}

/* Everything that the speed of this process's devices depends on. */
static uint64_t hash_devices(const tsr_topology *topo, const tsr_device_list *list)
{
    char number[64];
    struct utsname system = {.release = ""};
    tsr_isa_list isa;
    const char *preset = default_isa(&isa);
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    h = hash(h, TSR_VERSION_STRING);
    h = hash(h, topo->machine_name);
    h = hash(h, topo->driver_version);
    (void)uname(&system);
    h = hash(h, system.release);
    for (int p = 0; p < topo->n_packages; p++)
        h = hash(h, topo->packages[p].cpu_model);
    for (int d = 0; d < list->n_devices; d++) {
        const tsr_device_desc *desc = &list->devices[d];
        h = hash(h, tsr_device_kind_name(desc->kind));
        if (desc->gpu >= 0) {
            h = hash(h, topo->gpus[desc->gpu].name);
            h = hash(h, topo->gpus[desc->gpu].uuid);
            h = hash(h, topo->gpus[desc->gpu].bus_id);
        }
        snprintf(number, sizeof number, "%d threads %s duty %d%s%s", desc->n_threads,
                 *desc->isa || desc->gpu >= 0 ? desc->isa : preset, desc->duty_percent,
                 desc->wrap ? " wrap" : "", desc->managed ? " managed" : "");
        h = hash(h, number);
        for (int i = 0; i < desc->n_pus; i++) {
            snprintf(number, sizeof number, "%d", desc->pus[i]);
            h = hash(h, number);
        }
    }
    return h;
}

bool tool_cache_key_of(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                       tool_cache_key *key_out)
{
    uint64_t own[TSR_MAX_DEVICES], h = hash_devices(topo, list);
    own[tool_processes_rank(processes)] = h;
    if (!tool_processes_gather(processes, own, sizeof *own))
        return false;
    for (int r = 0; processes->transport && r < tool_processes_count(processes); r++) {
        char number[20];
        snprintf(number, sizeof number, "%016llx", (unsigned long long)own[r]);
        h = hash(r ? h : own[0], number);
    }
    snprintf(key_out->text, sizeof key_out->text, "%016llx", (unsigned long long)h);
    return true;
}

bool tool_cache_path(const char *file, char path[TOOL_PATH])
{
    return tool_user_path("XDG_CACHE_HOME", ".cache", file, path);
}

/* Whether the entry has a date that is not too old. A date in the future is from a clock that was set. */
static bool is_current(const json_t *entry, int64_t *date_out)
{
    struct tm date = {0};
    const char *text = json_string_value(json_object_get(entry, "date"));
    const char *end = text ? strptime(text, DATE_FORMAT, &date) : NULL;
    *date_out = (int64_t)timegm(&date);
    return end && !*end && (int64_t)time(NULL) - *date_out <= TOOL_CACHE_DAYS * INT64_C(86400);
}

json_t *tool_cache_load(const char *file, const tool_cache_key *key, int64_t *date_out)
{
    char path[TOOL_PATH];
    int64_t date;
    json_t *root = tool_cache_path(file, path) ? tool_json_load(path) : NULL;
    json_t *entry = json_object_get(root, key->text), *values = NULL;
    if (is_current(entry, &date))
        values = json_incref(json_object_get(entry, "values"));
    if (date_out)
        *date_out = date;
    json_decref(root);
    return values;
}

bool tool_cache_forget(const char *file)
{
    char path[TOOL_PATH];
    return !tool_cache_path(file, path) || unlink(path) == 0 || errno == ENOENT;
}

bool tool_cache_number(const json_t *object, const char *key, double *out)
{
    const json_t *number = json_object_get(object, key);
    *out = json_number_value(number);
    return json_is_number(number) && *out >= 0;
}

/* -- writing -- */

static bool write_json(FILE *file, const void *root)
{
    return json_dumpf(root, file, JSON_INDENT(1)) == 0;
}

static json_t *make_entry(const tsr_topology *topo, const tsr_device_list *list, json_t *values)
{
    json_t *devices = json_array();
    for (int d = 0; d < list->n_devices; d++)
        json_array_append_new(devices, json_string(list->devices[d].name));
    char date[32];
    time_t now = time(NULL);
    struct tm utc = {0};
    (void)gmtime_r(&now, &utc);
    strftime(date, sizeof date, DATE_FORMAT, &utc);
    return json_pack("{s:o, s:o, s:s, s:o, s:o}", "machine", tool_text_json(topo->machine_name), "driver",
                     tool_text_json(topo->driver_version), "date", date, "devices", devices, "values",
                     values);
}

bool tool_cache_save(const char *file, const tool_cache_key *key, const tsr_topology *topo,
                     const tsr_device_list *list, json_t *values)
{
    char path[TOOL_PATH];
    errno = ENOENT;
    if (!tool_cache_path(file, path) || !tool_make_folders(path)) {
        json_decref(values);
        return false;
    }
    json_t *root = tool_json_load(path);
    if (!root && errno == EINVAL) { /* not a regular file, such as a FIFO, to which writing would block */
        json_decref(values);
        return false;
    }
    if (!json_is_object(root)) { /* missing, or damaged */
        json_decref(root);
        root = json_object();
    }
    errno = ENOMEM;
    bool good = json_object_set_new(root, key->text, make_entry(topo, list, values)) == 0;
    good = good && tool_file_replace(path, write_json, root);
    json_decref(root);
    return good;
}
