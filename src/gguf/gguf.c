/* Opens a GGUF model of one or several files and joins its parts: keys come from the first file, tensors
 * from all of them, both with a name index. */
#include "gguf/gguf.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/mem.h"

/* The end of a multi-file model's file names: "-00001-of-00003.gguf". */
enum { SUFFIX_BYTES = 20, MAX_FILES = 65535 };

static void part_suffix(char text[SUFFIX_BYTES + 1], uint16_t file, uint16_t n_files)
{
    snprintf(text, SUFFIX_BYTES + 1, "-%05d-of-%05d.gguf", file + 1, n_files);
}

/* Read the split.* keys of one file; n_files is 1 without them. Tensor count: of all files, or -1. */
static tsr_status read_split_keys(const struct tsr_gguf_part *part, int *file_out, int *n_files_out,
                                  int64_t *n_tensors_out)
{
    uint64_t file = 0, n_files = 1, n_tensors;
    size_t at = 0;
    tsr_status status = tsr_gguf_part_u64(part, "split.count", &n_files, NULL);
    if (status == TSR_ERR_NOT_FOUND || (status == TSR_OK && n_files <= 1)) {
        *file_out = 0;
        *n_files_out = 1;
        *n_tensors_out = -1;
        return TSR_OK;
    }
    if (status == TSR_OK)
        status = tsr_gguf_part_u64(part, "split.no", &file, &at);
    if (status == TSR_ERR_NOT_FOUND)
        return tsr_fail(TSR_ERR_FORMAT, "%s: key \"split.no\" is missing though \"split.count\" is %llu",
                        part->path, (unsigned long long)n_files);
    if (status != TSR_OK)
        return status;
    if (n_files > MAX_FILES || file >= n_files)
        return tsr_gguf_fail(TSR_ERR_FORMAT, part->path, "key", "split.no", strlen("split.no"), at,
                             "file %llu (counted from 0) of %llu; up to %d files are supported",
                             (unsigned long long)file, (unsigned long long)n_files, MAX_FILES);
    status = tsr_gguf_part_u64(part, "split.tensors.count", &n_tensors, NULL);
    if (status != TSR_OK && status != TSR_ERR_NOT_FOUND)
        return status;
    *file_out = (int)file;
    *n_files_out = (int)n_files;
    *n_tensors_out = status == TSR_OK && n_tensors <= INT64_MAX ? (int64_t)n_tensors : -1;
    return TSR_OK;
}

/* Open files 1..n-1, whose names are derived from the first one's. */
static tsr_status open_sisters(tsr_gguf *gguf, int n_files, bool header_only)
{
    const char *first = gguf->parts[0].path;
    char *path = NULL;
    char suffix[SUFFIX_BYTES + 1];
    struct tsr_gguf_part *parts;
    tsr_status status = TSR_OK;
    size_t first_bytes = strlen(first);

    part_suffix(suffix, 0, (uint16_t)n_files);
    if (first_bytes < SUFFIX_BYTES || strcmp(first + first_bytes - SUFFIX_BYTES, suffix) != 0)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "%s: the name of the first of %d files must end in \"%s\" so that the others are found", first,
            n_files, suffix);
    path = tsr_mem_strdup(first);
    parts = tsr_mem_realloc(gguf->parts, (size_t)n_files, sizeof *parts);
    if (parts)
        gguf->parts = parts;
    if (!path || !parts) {
        status = tsr_fail(TSR_ERR_MEMORY, "out of host memory: the list of %d files of a model", n_files);
        goto out;
    }
    for (int i = 1; i < n_files; i++) {
        int file, n;
        int64_t n_tensors;
        part_suffix(path + first_bytes - SUFFIX_BYTES, (uint16_t)i, (uint16_t)n_files);
        TSR_TRY(tsr_gguf_part_open(path, i, header_only, &gguf->parts[i]));
        gguf->n_parts = i + 1;
        TSR_TRY(read_split_keys(&gguf->parts[i], &file, &n, &n_tensors));
        if (file != i || n != n_files) {
            status =
                tsr_fail(TSR_ERR_FORMAT, "%s: its keys name file %d of %d, not %d of %d as its file name",
                         path, file + 1, n, i + 1, n_files);
            goto out;
        }
    }
out:
    tsr_mem_free(path);
    return status;
}

/* One array of all files' tensors; with a single file, that file's own. */
static tsr_status join_tensors(tsr_gguf *gguf, int64_t expected)
{
    size_t n = 0;
    for (int i = 0; i < gguf->n_parts; i++)
        n += gguf->parts[i].n_records;
    if (expected >= 0 && (uint64_t)expected != n)
        return tsr_fail(TSR_ERR_FORMAT,
                        "%s: key \"split.tensors.count\" is %lld, but the files contain %zu tensors",
                        gguf->parts[0].path, (long long)expected, n);
    tsr_status status = tsr_mem_array(n, sizeof *gguf->tensors, "a model's tensor list", &gguf->tensors);
    if (status != TSR_OK)
        return status;
    for (int i = 0; i < gguf->n_parts; i++) {
        for (size_t k = 0; k < gguf->parts[i].n_records; k++)
            gguf->tensors[gguf->n_tensors++] = gguf->parts[i].records[k].tensor;
    }
    return TSR_OK;
}

/* The byte at which a joined tensor's description starts, for an error message. */
static size_t described_at(const tsr_gguf *gguf, size_t tensor)
{
    int file = 0;
    for (; tensor >= gguf->parts[file].n_records; file++)
        tensor -= gguf->parts[file].n_records;
    return gguf->parts[file].records[tensor].at;
}

static tsr_status index_tensors(tsr_gguf *gguf)
{
    size_t duplicate;
    tsr_status status = tsr_gguf_index_create(gguf->tensors, sizeof *gguf->tensors, gguf->n_tensors,
                                              &gguf->tensor_index, &duplicate);
    if (status == TSR_ERR_FORMAT) {
        const tsr_gguf_tensor *tensor = &gguf->tensors[duplicate];
        return tsr_gguf_fail(status, gguf->parts[tensor->file].path, "tensor", tensor->name,
                             strlen(tensor->name), described_at(gguf, duplicate),
                             "a previous tensor has the same name");
    }
    return status;
}

size_t tsr_gguf_config_init(tsr_gguf_config *config_out, size_t size)
{
    const tsr_gguf_config defaults = {0};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

tsr_status tsr_gguf_open(const char *path, const tsr_gguf_config *config, tsr_gguf **gguf_out)
{
    tsr_gguf_config own = tsr_gguf_config_default();
    tsr_gguf *gguf = NULL;
    tsr_status status = TSR_OK;
    int file, n_files;
    int64_t n_tensors;

    if (!path || !gguf_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_gguf_open: path and gguf_out must not be NULL");
    TSR_TRY(tsr_config_read("tsr_gguf_config", config, sizeof own, &own, sizeof own));

    TSR_TRY(TSR_NEW(&gguf, "a model file"));
    TSR_TRY(TSR_NEW(&gguf->parts, "a model file"));
    TSR_TRY(tsr_gguf_part_open(path, 0, own.header_only, &gguf->parts[0]));
    gguf->n_parts = 1;
    TSR_TRY(read_split_keys(&gguf->parts[0], &file, &n_files, &n_tensors));
    if (file != 0) {
        char suffix[SUFFIX_BYTES + 1];
        part_suffix(suffix, 0, (uint16_t)n_files);
        status =
            tsr_fail(TSR_ERR_INVALID, "%s: this is file %d of %d of a model; open the first file (...%s)",
                     path, file + 1, n_files, suffix);
        goto out;
    }
    if (n_files > 1)
        TSR_TRY(open_sisters(gguf, n_files, own.header_only));
    TSR_TRY(join_tensors(gguf, n_tensors));
    TSR_TRY(index_tensors(gguf));
    *gguf_out = gguf;
    gguf = NULL; /* owned by the caller now */
out:
    tsr_gguf_close(gguf);
    return status;
}

void tsr_gguf_close(tsr_gguf *gguf)
{
    if (!gguf)
        return;
    tsr_gguf_index_destroy(&gguf->tensor_index);
    tsr_mem_free(gguf->tensors);
    for (int i = 0; i < gguf->n_parts; i++)
        tsr_gguf_part_close(&gguf->parts[i]);
    tsr_mem_free(gguf->parts);
    tsr_mem_free(gguf);
}
