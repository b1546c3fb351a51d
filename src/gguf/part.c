/* Opens one file of a model: parses it, maps it, places its tensors, and formats its errors. */
#include "gguf/part.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/input/file.h"
#include "core/mem.h"
#include "gguf/value.h"

enum { SHOWN_PATH_BYTES = 300, SHOWN_NAME_BYTES = 80 };

tsr_status tsr_gguf_fail(tsr_status status, const char *path, const char *subject, const char *name,
                         size_t name_bytes, size_t at, const char *format, ...)
{
    char sentence[512], shown[SHOWN_NAME_BYTES + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);

    /* The end of a long path is more informative than its beginning. */
    size_t path_bytes = strlen(path);
    const char *dots = path_bytes > SHOWN_PATH_BYTES ? "..." : "";
    path += path_bytes > SHOWN_PATH_BYTES ? path_bytes - SHOWN_PATH_BYTES : 0;

    if (!name)
        return tsr_fail(status, "%s%s: %s at byte %zu: %s", dots, path, subject, at, sentence);
    size_t n = TSR_MIN(name_bytes, (size_t)SHOWN_NAME_BYTES);
    memcpy(shown, name, n);
    tsr_clean_text(shown, n, ""); /* here, since a zero byte would end the name in the sentence */
    shown[n] = '\0';
    return tsr_fail(status, "%s%s: %s \"%s%s\" at byte %zu: %s", dots, path, subject, shown,
                    n < name_bytes ? "..." : "", at, sentence);
}

/* A read-only descriptor of the file, and its length. *fd_out is closed by the caller, also on failure. */
static tsr_status open_file(struct tsr_gguf_part *part, int *fd_out)
{
    int64_t bytes;
    tsr_status status = tsr_file_open(part->path, fd_out, &bytes);
    if (status != TSR_OK)
        return status;
    if (bytes == 0)
        return tsr_fail(TSR_ERR_FORMAT, "%s: at byte 0: the file is empty", part->path);
    if ((uint64_t)bytes > PTRDIFF_MAX)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %lld bytes do not fit into this machine's address space",
                        part->path, (long long)bytes);
    part->bytes = (size_t)bytes;
    return TSR_OK;
}

/* Map the whole file read-only, so that tensors keep the file's alignment. Pages are loaded on access. */
static tsr_status map_file(struct tsr_gguf_part *part, int fd)
{
    void *map = mmap(NULL, part->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return tsr_fail(TSR_ERR_IO, "cannot map %s (%zu bytes): %s", part->path, part->bytes,
                        strerror(errno));
#ifdef MADV_HUGEPAGE
    /* Linux then uses huge pages where the file system supports them, so weights need fewer TLB entries; a
     * hint only. */
    (void)madvise(map, part->bytes, MADV_HUGEPAGE);
#endif
    part->map = map;
    return TSR_OK;
}

tsr_status tsr_gguf_part_open(const char *path, int file, bool header_only, struct tsr_gguf_part *part_out)
{
    tsr_status status = TSR_OK;
    struct tsr_gguf_part part = {.path = tsr_mem_strdup(path)};
    int fd = -1;

    if (!part.path)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory: a copy of the path %s", path);
    TSR_TRY(open_file(&part, &fd));
    TSR_TRY(tsr_gguf_part_parse(&part, fd));
    TSR_TRY(map_file(&part, fd));
    TSR_TRY(tsr_gguf_part_place(&part, header_only));
    for (size_t i = 0; i < part.n_records; i++)
        part.records[i].tensor.file = file;
    *part_out = part;
    memset(&part, 0, sizeof part); /* owned by the caller now */
out:
    if (fd >= 0)
        close(fd);
    tsr_gguf_part_close(&part);
    return status;
}

void tsr_gguf_part_close(struct tsr_gguf_part *part)
{
    for (size_t i = 0; i < part->n_keys; i++)
        tsr_mem_free(part->keys[i].string_at);
    tsr_gguf_index_destroy(&part->key_index);
    tsr_mem_free(part->keys);
    tsr_mem_free(part->records);
    tsr_mem_free(part->names);
    tsr_mem_free(part->header);
    if (part->map)
        munmap((void *)part->map, part->bytes);
    tsr_mem_free(part->path);
    memset(part, 0, sizeof *part);
}

tsr_status tsr_gguf_part_u64(const struct tsr_gguf_part *part, const char *name, uint64_t *value_out,
                             size_t *at_out)
{
    const struct tsr_gguf_key *key = tsr_gguf_index_find(&part->key_index, name);
    if (!key)
        return TSR_ERR_NOT_FOUND;
    if (key->is_array || !tsr_gguf_value_u64(key->type, key->data, value_out))
        return tsr_gguf_fail(TSR_ERR_FORMAT, part->path, "key", name, strlen(name), key->at,
                             "it must be an integer that is not negative, not %s%s",
                             key->is_array ? "an array of " : "this ", tsr_gguf_value_type_name(key->type));
    if (at_out)
        *at_out = key->at;
    return TSR_OK;
}
