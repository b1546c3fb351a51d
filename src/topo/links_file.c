/* Measured values of the link model, and the file they are kept in.
 *
 *     tsr-links 1
 *     machine 8f3a0c5d11e2b647
 *     all-reduce 4096 5210.0 GPU-8a56... GPU-9b67...      bytes, nanoseconds, devices
 *
 * Devices are named by what they are (a GPU's UUID, a host device's cores), not by their place in a --devices
 * text, so values survive another order. The machine's id changes with its processors, GPUs and driver. */
#include "topo/links.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 16384, MOST_VALUES = 1 << 16 };

/* ---- identity --------------------------------------------------------------------------------- */

/* FNV-1a, 64 bit. */
static void mix(uint64_t *hash, const char *text)
{
    do
        *hash = (*hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    while (*text++);
}

/* Files hold words: blanks in a key would end it. */
static void make_word(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text <= ' ')
            *text = '_';
}

void tsr_links_identify(const tsr_topology *topo, const tsr_device_list *devices, tsr_links *links)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char number[32];
    mix(&hash, topo->machine_name);
    mix(&hash, topo->driver_version);
    for (int i = 0; i < topo->n_packages; i++)
        mix(&hash, topo->packages[i].cpu_model);
    snprintf(number, sizeof number, "%d %d", topo->n_cores, topo->n_numa_nodes);
    mix(&hash, number);
    for (int i = 0; i < topo->n_gpus; i++) {
        mix(&hash, topo->gpus[i].name);
        mix(&hash, topo->gpus[i].bus_id);
    }
    snprintf(links->machine_id, sizeof links->machine_id, "%016" PRIx64, hash);
    for (int d = 0; d < devices->n_devices; d++) {
        const tsr_device_desc *desc = &devices->devices[d];
        const tsr_gpu *gpu = desc->gpu >= 0 ? &topo->gpus[desc->gpu] : NULL;
        const char *dot = strchr(desc->name, '.'); /* "cuda0.1": the second device on a GPU */
        if (gpu)
            snprintf(links->keys[d], TSR_LINKS_KEY_BYTES, "%.48s%.8s", *gpu->uuid ? gpu->uuid : gpu->bus_id,
                     dot ? dot : "");
        else
            snprintf(links->keys[d], TSR_LINKS_KEY_BYTES, "cpu%d+%dx%d", desc->n_pus > 0 ? desc->pus[0] : 0,
                     desc->n_cores, desc->n_threads);
        make_word(links->keys[d]);
    }
}

/* ---- values ----------------------------------------------------------------------------------- */

static uint64_t all_devices(const tsr_links *links)
{
    return links->n_devices >= 64 ? UINT64_MAX : (UINT64_C(1) << links->n_devices) - 1;
}

tsr_status tsr_links_set_measured(tsr_links *links, uint64_t device_mask, uint64_t bytes, double ns)
{
    device_mask &= all_devices(links);
    if ((device_mask & (device_mask - 1)) == 0 || !(ns > 0) || !isfinite(ns))
        return tsr_fail(TSR_ERR_INVALID,
                        "a measured all-reduce has two devices or more and takes a time, not %g ns", ns);
    int at = 0;
    while (at < links->n_measured &&
           (links->measured[at].mask < device_mask ||
            (links->measured[at].mask == device_mask && links->measured[at].bytes < bytes)))
        at++;
    bool replaces = at < links->n_measured && links->measured[at].mask == device_mask &&
                    links->measured[at].bytes == bytes;
    if (!replaces) {
        if (links->n_measured == MOST_VALUES)
            return tsr_fail(TSR_ERR_INVALID, "more than %d measured all-reduces; measure fewer sizes",
                            MOST_VALUES);
        tsr_measured *grown =
            tsr_mem_realloc(links->measured, (size_t)links->n_measured + 1, sizeof *links->measured);
        if (!grown)
            return tsr_fail(TSR_ERR_MEMORY, "out of host memory for measured all-reduces");
        links->measured = grown;
        memmove(&grown[at + 1], &grown[at], (size_t)(links->n_measured - at) * sizeof *grown);
        links->n_measured++;
    }
    links->measured[at] = (tsr_measured){.mask = device_mask, .bytes = bytes, .ns = ns};
    return TSR_OK;
}

/* On the line through two values. */
static double on_line(const tsr_measured *a, const tsr_measured *b, double bytes)
{
    double slope = (b->ns - a->ns) / ((double)b->bytes - (double)a->bytes);
    return a->ns + TSR_MAX(slope, 0) * (bytes - (double)a->bytes);
}

double tsr_links_measured_ns(const tsr_links *links, uint64_t mask, uint64_t bytes)
{
    int first = 0, end;
    mask &= all_devices(links);
    while (first < links->n_measured && links->measured[first].mask < mask)
        first++;
    for (end = first; end < links->n_measured && links->measured[end].mask == mask;)
        end++;
    const tsr_measured *m = links->measured;
    if (end == first)
        return -1;
    if (bytes <= m[first].bytes)
        return m[first].ns;
    for (int i = first + 1; i < end; i++)
        if (bytes <= m[i].bytes)
            return on_line(&m[i - 1], &m[i], (double)bytes);
    if (end - first >= 2)
        return TSR_MAX(on_line(&m[end - 2], &m[end - 1], (double)bytes), m[end - 1].ns);
    return m[first].ns * ((double)bytes / (double)TSR_MAX(m[first].bytes, 1)); /* one value: proportional */
}

/* ---- files ------------------------------------------------------------------------------------ */

static tsr_status default_path(const tsr_links *links, bool make, char path[PATH_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/'; /* the specification: relative ones are to be ignored */
    if (!given && (!home || !*home))
        return tsr_fail(TSR_ERR_IO,
                        "no folder for measured links: set XDG_CACHE_HOME or HOME, or name a file");
    int used = snprintf(path, PATH_BYTES, "%s%s", given ? cache : home, given ? "" : "/.cache");
    if (used > 0 && used < PATH_BYTES - 64) {
        if (make)
            (void)mkdir(path, 0700);
        used += snprintf(path + used, (size_t)(PATH_BYTES - used), "/tsr");
        if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
            return tsr_fail(TSR_ERR_IO, "cannot make folder '%s': %s", path, strerror(errno));
        used += snprintf(path + used, (size_t)(PATH_BYTES - used), "/links-%s.txt", links->machine_id);
    }
    if (used < 0 || used >= PATH_BYTES - 64)
        return tsr_fail(TSR_ERR_IO, "the path of the cache folder is too long");
    return TSR_OK;
}

/* Written beside it and renamed, so that an interrupted write leaves the old file. */
tsr_status tsr_links_save(const tsr_links *links, const char *path)
{
    tsr_status status = TSR_OK;
    char place[PATH_BYTES], fresh[PATH_BYTES + 32];
    FILE *file = NULL;
    if (!path)
        TSR_TRY(default_path(links, true, place));
    path = path ? path : place;
    int used = snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    file = used > 0 && (size_t)used < sizeof fresh ? fopen(fresh, "we") : NULL;
    if (!file) {
        status = tsr_fail(TSR_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
        goto out;
    }
    fprintf(file, "tsr-links 1\nmachine %s\n", links->machine_id);
    for (int i = 0; i < links->n_measured; i++) {
        const tsr_measured *m = &links->measured[i];
        fprintf(file, "all-reduce %" PRIu64 " %.1f", m->bytes, m->ns);
        for (int d = 0; d < links->n_devices; d++)
            if (m->mask >> d & 1)
                fprintf(file, " %s", links->keys[d]);
        fprintf(file, "\n");
    }
    bool written = !ferror(file);
    written = fclose(file) == 0 && written;
    if (!written || rename(fresh, path) != 0) {
        status = tsr_fail(TSR_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
        (void)remove(fresh);
    }
out:
    return status;
}

/* Devices at the end of a line. Not all there: another --devices text measured it, mask 0. */
static uint64_t mask_of(const tsr_links *links, char *names)
{
    uint64_t mask = 0;
    char *rest = NULL;
    for (char *word = strtok_r(names, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        int d = 0;
        while (d < links->n_devices && strcmp(links->keys[d], word) != 0)
            d++;
        if (d == links->n_devices)
            return 0;
        mask |= UINT64_C(1) << d;
    }
    return mask;
}

static tsr_status read_line(tsr_links *links, char *line, const char *path, int number, int *n)
{
    uint64_t bytes;
    double ns;
    int used = 0;
    if (sscanf(line, "all-reduce %" SCNu64 " %lf %n", &bytes, &ns, &used) != 2 || used == 0 || !(ns > 0) ||
        !isfinite(ns))
        return tsr_fail(TSR_ERR_FORMAT,
                        "'%s', line %d: no measured all-reduce; remove the file and measure again", path,
                        number);
    uint64_t mask = mask_of(links, line + used);
    if ((mask & (mask - 1)) == 0)
        return TSR_OK;
    ++*n;
    return tsr_links_set_measured(links, mask, bytes, ns);
}

tsr_status tsr_links_load(tsr_links *links, const char *path, int *n_out)
{
    tsr_status status = TSR_OK;
    char place[PATH_BYTES], machine[32] = "";
    char *line = NULL;
    FILE *file = NULL;
    int n = 0;
    if (!path)
        TSR_TRY(default_path(links, false, place));
    path = path ? path : place;
    TSR_TRY(tsr_mem_array(LINE_BYTES, 1, "a line of a file", &line));
    file = fopen(path, "re");
    if (!file && errno != ENOENT) {
        status = tsr_fail(TSR_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
        goto out;
    }
    for (int number = 1; file && fgets(line, LINE_BYTES, file); number++) {
        if (number == 1 && strcmp(line, "tsr-links 1\n") != 0) {
            status =
                tsr_fail(TSR_ERR_FORMAT, "'%s' is no file of measured links, or of another version", path);
            goto out;
        }
        if (number == 2 &&
            (sscanf(line, "machine %31s", machine) != 1 || strcmp(machine, links->machine_id) != 0))
            break; /* of another machine or driver */
        if (number > 2)
            TSR_TRY(read_line(links, line, path, number, &n));
    }
    if (n_out)
        *n_out = n;
out:
    if (file)
        fclose(file);
    tsr_mem_free(line);
    return status;
}
