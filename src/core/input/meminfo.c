/* See meminfo.h. proc(5) describes the files. */
#include "core/input/meminfo.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

/* The kB figure of the line that contains `field` in a meminfo file (machine: "MemFree: 1 kB", node:
 * "Node 0 MemFree: 1 kB"), in bytes; 0 if there is none. */
static size_t meminfo_bytes(const char *path, const char *field)
{
    char line[160];
    unsigned long long kib = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (kib == 0 && fgets(line, sizeof line, file)) {
        const char *found = strstr(line, field);
        if (found && sscanf(found + strlen(field), "%llu", &kib) != 1)
            kib = 0;
    }
    fclose(file);
    return (size_t)kib * 1024;
}

tsr_status tsr_meminfo(int numa_node, size_t *available_out, size_t *total_out)
{
    char path[96] = "/proc/meminfo";
    if (numa_node >= 0)
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", numa_node);
    size_t total = meminfo_bytes(path, "MemTotal:");
    size_t available = meminfo_bytes(path, "MemAvailable:");
    if (available == 0) /* node files do not have that line */
        available = meminfo_bytes(path, "MemFree:") + meminfo_bytes(path, "Inactive(file):");
#if defined(_SC_PHYS_PAGES) && defined(_SC_AVPHYS_PAGES)
    if (total == 0) { /* no such file on this system */
        long pages = sysconf(_SC_PHYS_PAGES), free_pages = sysconf(_SC_AVPHYS_PAGES);
        total = pages > 0 ? (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
        available = free_pages > 0 ? (size_t)free_pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
    }
#endif
    if (total == 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "cannot find how much memory the system has");
    *total_out = total;
    *available_out = TSR_MIN(available, total);
    return TSR_OK;
}
