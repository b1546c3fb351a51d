/* The memory that a container's limits leave this process. hwloc reads a cgroup's processor sets but not
 * its memory limit, and a plan for the whole machine's memory would be ended by the kernel's out-of-memory
 * killer.
 *
 * /proc/self/cgroup names the process's group; the limits of this group and of all groups above it apply.
 * Inside a container the path may be the host's, while /sys/fs/cgroup shows the container's group as its
 * root. Then the files below the root are missing, and the root's own limit, which is always read,
 * applies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/topo.h"

enum { PATH_BYTES = 4096 };

/* The number in a limit file; UINT64_MAX for no limit ("max", or the number that version 1 writes) and for
 * no file. */
static uint64_t read_limit(const char *path)
{
    unsigned long long value = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    int got = fscanf(file, "%llu", &value);
    fclose(file);
    return got == 1 ? (uint64_t)value : UINT64_MAX;
}

/* The least limit from `group` up to the root. */
static uint64_t least_limit(const char *root, const char *hierarchy, const char *group, const char *file)
{
    char path[PATH_BYTES], rest[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    snprintf(rest, sizeof rest, "%s", group);
    for (;;) {
        size_t length = strlen(rest);
        while (length > 0 && rest[length - 1] == '/')
            rest[--length] = '\0';
        int used = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, hierarchy, rest, file);
        if (used > 0 && (size_t)used < sizeof path)
            least = TSR_MIN(least, read_limit(path));
        char *slash = strrchr(rest, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* Whether "memory" is one of the names in "cpu,memory". */
static bool lists_memory(const char *names)
{
    for (const char *p = names; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, "memory", 6) == 0 && (p[6] == ',' || p[6] == '\0'))
            return true;
    }
    return false;
}

uint64_t tsr_topo_cgroup_memory_limit(const char *root)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) { /* number:controllers:path; version 2 has 0 and no controllers */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        names++;
        if (!*names)
            least = TSR_MIN(least, least_limit(root, "", group, "memory.max"));
        else if (lists_memory(names))
            least = TSR_MIN(least, least_limit(root, "/memory", group, "memory.limit_in_bytes"));
    }
    fclose(file);
    return least == UINT64_MAX ? 0 : least;
}
