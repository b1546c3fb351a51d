/* Loads a description of another machine: finds its kind, reports the errors that can be named without
 * hwloc, then calls the reader of that kind: hwloc in a child process (child.c), or one of machine_file.h.
 * hwloc's files are checked first because hwloc reports only "invalid argument". */
#include <ctype.h>
#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tsr/machine.h>

#include "core/input/file.h"
#include "core/mem.h"
#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

static const char synthetic_prefix[] = "synthetic:";

/* Writing the files of an archive to a disk takes up to a minute. */
enum { ARCHIVE_DEADLINE_MS = 120 * 1000 };

/* The whole file, NUL-terminated. */
static tsr_status read_file(const char *path, char **text_out, size_t *bytes_out)
{
    tsr_status status = TSR_OK;
    char *text = NULL;
    size_t size, bytes = 0;
    int64_t file_bytes;
    int fd;
    status = tsr_file_open(path, &fd, &file_bytes);
    if (status != TSR_OK)
        return status;
    if (file_bytes > TSR_MACHINE_FILE_BYTES) {
        status = tsr_fail(TSR_ERR_FORMAT, "machine file '%s' has %lld bytes; the limit is %d", path,
                          (long long)file_bytes, TSR_MACHINE_FILE_BYTES);
        goto out;
    }
    size = (size_t)file_bytes;
    TSR_TRY(tsr_mem_array(size + 1, 1, "a machine file", &text));
    while (bytes < size) {
        ssize_t got = read(fd, text + bytes, size - bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = tsr_fail(TSR_ERR_IO, "cannot read machine file '%s': %s", path, strerror(errno));
            goto out;
        }
        if (got == 0)
            break;
        bytes += (size_t)got;
    }
    *text_out = text;
    *bytes_out = bytes;
    text = NULL;
out:
    tsr_mem_free(text);
    close(fd);
    return status;
}

/* The number in version="3.0" of the root element; format 1 has no version. */
static long xml_major_version(const char *root)
{
    size_t length = strcspn(root, ">");
    const char *attribute = strstr(root, "version=\"");
    if (!attribute || attribute >= root + length)
        return 1;
    return strtol(attribute + strlen("version=\""), NULL, 10);
}

static tsr_status check_hwloc_xml(const char *path, const char *text, size_t bytes)
{
    const char *root = tsr_xml_root_text(text);
    if (strstr(text, "<!ENTITY"))
        return tsr_fail(
            TSR_ERR_FORMAT,
            "machine file '%s' defines XML entities, which lstopo never does; write it again with lstopo",
            path);
    long newest = (long)(hwloc_get_api_version() >> 16); /* hwloc 2 reads formats 1 and 2 */
    long version = xml_major_version(root);
    if (version > newest)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "machine file '%s' has hwloc XML format %ld, and this build's hwloc reads up to %ld; write "
            "it again with `lstopo --export-xml-flags v2 machine.xml`",
            path, version, newest);
    if (!strstr(root, "</topology>"))
        return tsr_fail(TSR_ERR_FORMAT,
                        "machine file '%s' is cut off after %zu bytes: no closing </topology>; copy it again",
                        path, bytes);
    return TSR_OK;
}

static tsr_status load_unknown(const char *path, const char *text, size_t bytes)
{
    const char *root = strlen(text) == bytes ? tsr_xml_root_text(text) : NULL;
    if (!root)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "machine file '%s' is neither XML nor output of `nvidia-smi topo -m`; give a file that "
            "`lstopo machine.xml` wrote",
            path);
    return tsr_fail(
        TSR_ERR_FORMAT,
        "machine file '%s' begins with element '%.*s' instead of 'topology' (hwloc) or 'system' (NCCL); "
        "give a file that `lstopo machine.xml` wrote",
        path, (int)TSR_MIN(strcspn(root + 1, " \t\r\n/>"), (size_t)40), root + 1);
}

static tsr_status read_with_hwloc(tsr_topo_source_kind kind, const char *text, size_t bytes, const char *name,
                                  tsr_topology **topo_out)
{
    tsr_topo_source source = {.kind = kind, .text = text, .bytes = bytes, .name = name};
    return tsr_topo_read_in_child(&source, topo_out);
}

static tsr_status load_file(const char *path, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    char *text = NULL;
    size_t bytes = 0;
    TSR_TRY(read_file(path, &text, &bytes));
    switch (tsr_machine_kind_of(text, bytes)) {
    case TSR_MACHINE_HWLOC_XML:
        TSR_TRY(check_hwloc_xml(path, text, bytes));
        TSR_TRY(read_with_hwloc(TSR_TOPO_XML, text, bytes, path, topo_out));
        break;
    case TSR_MACHINE_NCCL_XML:
        TSR_TRY(tsr_topo_read_nccl_xml(text, bytes, path, topo_out));
        break;
    case TSR_MACHINE_NVIDIA_SMI:
        TSR_TRY(tsr_topo_read_nvidia_smi(text, bytes, path, topo_out));
        break;
    case TSR_MACHINE_ARCHIVE:
        TSR_TRY(tsr_topo_read_archive(path, ARCHIVE_DEADLINE_MS, topo_out));
        break;
    case TSR_MACHINE_UNKNOWN:
        TSR_TRY(load_unknown(path, text, bytes));
    }
out:
    tsr_mem_free(text);
    return status;
}

static tsr_status load_root_dir(const char *path, tsr_topology **topo_out)
{
    char probe[4096];
    int used = snprintf(probe, sizeof probe, "%s/sys/devices/system/cpu", path);
    if (used < 0 || (size_t)used >= sizeof probe || access(probe, R_OK) != 0)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "directory '%s' does not contain sys/devices/system/cpu; give the root of a tree that "
            "hwloc-gather-topology wrote",
            path);
    return read_with_hwloc(TSR_TOPO_ROOT_DIR, path, strlen(path), path, topo_out);
}

static tsr_status load_path(const char *path, tsr_topology **topo_out)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return tsr_fail(errno == ENOENT || errno == ENOTDIR ? TSR_ERR_NOT_FOUND : TSR_ERR_IO,
                        "machine file '%s': %s; give an hwloc or NCCL XML file, `nvidia-smi topo -m` "
                        "text, a Linux root directory or 'synthetic:pack:2 core:4 pu:2'",
                        path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return load_root_dir(path, topo_out);
    return load_file(path, topo_out);
}

/* hwloc would build billions of objects before they could be counted, so the arities are multiplied first:
 * the numbers that follow a colon or stand alone, outside of (attributes) and [memory]. */
static tsr_status check_synthetic(const char *description, const char *name)
{
    int64_t product = 1;
    int depth = 0;
    for (const char *p = description; *p; p++) {
        depth += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
        bool begins = p == description || p[-1] == ':' || p[-1] == ' ';
        if (depth == 0 && begins && isdigit((unsigned char)*p)) {
            int64_t arity = strtoll(p, NULL, 10);
            if (arity > TSR_TOPO_MAX_OBJECTS || (product *= TSR_MAX(arity, 1)) > TSR_TOPO_MAX_OBJECTS)
                return tsr_fail(TSR_ERR_FORMAT,
                                "'%s' has more than %d processors; describe a smaller machine", name,
                                TSR_TOPO_MAX_OBJECTS);
        }
    }
    return TSR_OK;
}

static tsr_status load_synthetic(const char *path, tsr_topology **topo_out)
{
    const char *description = path + sizeof synthetic_prefix - 1;
    tsr_status status = check_synthetic(description, path);
    if (status != TSR_OK)
        return status;
    return read_with_hwloc(TSR_TOPO_SYNTHETIC, description, strlen(description), path, topo_out);
}

/* Log each note as a line of its own. */
static void log_notes(const tsr_topology *topo, const tsr_logger *logger)
{
    for (const char *line = topo->notes; *line; line += strcspn(line, "\n"), line += *line == '\n')
        tsr_log(logger, TSR_LOG_INFO, "%s: %.*s", topo->source, (int)strcspn(line, "\n"), line);
    if (*topo->gpu_note)
        tsr_log(logger, TSR_LOG_INFO, "%s: %s", topo->source, topo->gpu_note);
}

static tsr_status finish(tsr_topology *topo, const char *source, const tsr_topology_config *config)
{
    tsr_status status = TSR_OK;
    snprintf(topo->source, sizeof topo->source, "%s", source);
    topo->is_this_machine = false;
    TSR_TRY(tsr_topo_complete(topo, config->cards));
    tsr_log(&config->logger, TSR_LOG_INFO, "%s: %d NUMA node%s, %d core%s, %d PCI device%s, %d GPU%s",
            topo->source, topo->n_numa_nodes, tsr_plural(topo->n_numa_nodes), topo->n_cores,
            tsr_plural(topo->n_cores), topo->n_pci, tsr_plural(topo->n_pci), topo->n_gpus,
            tsr_plural(topo->n_gpus));
    log_notes(topo, &config->logger);
out:
    return status;
}

tsr_status tsr_topology_load(const char *path, const tsr_topology_config *config, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topology *topo = NULL;
    tsr_topology_config own;
    TSR_TRY(tsr_topo_config_read(config, &own));
    if (!path || !*path) {
        status = tsr_fail(TSR_ERR_INVALID, "no machine file was named; give its path, or call "
                                           "tsr_topology_discover() for this machine");
        goto out;
    }
    if (strncmp(path, synthetic_prefix, sizeof synthetic_prefix - 1) == 0)
        TSR_TRY(load_synthetic(path, &topo));
    else
        TSR_TRY(load_path(path, &topo));
    TSR_TRY(finish(topo, path, &own));
    *topo_out = topo;
    topo = NULL;
out:
    tsr_topology_destroy(topo);
    return status;
}

tsr_status tsr_topology_parse(const char *text, const tsr_topology_config *config, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topology *topo = NULL;
    tsr_topology_config own;
    TSR_TRY(tsr_topo_config_read(config, &own));
    if (!text) {
        status = tsr_fail(TSR_ERR_INVALID, "no machine was described; write e.g. '2x rtx3090 nvlink'");
        goto out;
    }
    TSR_TRY(tsr_topo_read_machine_spec(text, &topo));
    TSR_TRY(finish(topo, text, &own));
    *topo_out = topo;
    topo = NULL;
out:
    tsr_topology_destroy(topo);
    return status;
}
