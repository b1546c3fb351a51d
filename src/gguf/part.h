/* One file of a GGUF model: its header copied, parsed and checked, its tensor data mapped, but not yet joined
 * with the others.
 *
 * The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian:
 *     "GGUF", u32 version, u64 tensor count, u64 key count,
 *     keys:    string name, u32 value type, value
 *     tensors: string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset in the data section
 *     padding to general.alignment (32 if there is no such key), data section
 * A string is u64 length and bytes; an array is u32 element type, u64 count and elements. */
#ifndef TSR_GGUF_PART_H
#define TSR_GGUF_PART_H

#include <tsr/gguf.h>

#include "core/status.h"
#include "gguf/index.h"

struct tsr_gguf_key {
    const char *name; /* first member, as tsr_gguf_index requires */
    bool is_array;
    uint32_t type;       /* a tsr_gguf_value_type; for arrays, that of the elements */
    int64_t n;           /* elements; 1 for a scalar */
    const uint8_t *data; /* the first element, in the header; a string starts with its length */
    size_t *string_at;   /* array of strings: offsets of the strings from `data`; otherwise NULL */
    size_t at, data_at;  /* bytes of the file where the key and its first element start */
    size_t name_at;      /* offset of its name in the part's `names` */
};

struct tsr_gguf_record {
    tsr_gguf_tensor tensor; /* first member, with the name first in it, as tsr_gguf_index requires */
    uint64_t data_at;       /* offset in the data section */
    size_t at;              /* byte of the file where the description starts */
    size_t name_at;         /* offset of its name in the part's `names` */
};

struct tsr_gguf_part {
    char *path;
    size_t bytes;       /* of the file when it was opened */
    uint8_t *header;    /* a copy of the file's beginning, through the tensor descriptions */
    const uint8_t *map; /* of the whole file, for tensor data only */
    uint32_t version;
    struct tsr_gguf_key *keys;
    size_t n_keys;
    struct tsr_gguf_index key_index; /* over keys */
    struct tsr_gguf_record *records;
    size_t n_records;
    char *names;       /* all names, each NUL-terminated */
    size_t alignment;  /* of tensor data within the file */
    size_t data_start; /* byte of the file where the data section starts */
};

/* Parse and map a file. `file` is its number within the model. After a failure nothing has to be released. */
tsr_status tsr_gguf_part_open(const char *path, int file, bool header_only, struct tsr_gguf_part *part_out);

/* A part of all zeros is fine. */
void tsr_gguf_part_close(struct tsr_gguf_part *part);

/* Read header, keys and tensor descriptions of the open file `fd`, which has part->bytes bytes, into the part
 * (parse.c). The part owns the allocations, also after a failure. */
tsr_status tsr_gguf_part_parse(struct tsr_gguf_part *part, int fd);

/* Set the data of every record, and check that it is inside the file, aligned and without overlap
 * (layout.c). */
tsr_status tsr_gguf_part_place(struct tsr_gguf_part *part, bool header_only);

/* The integer value of a key; *at_out, unless NULL, is the byte where the key starts. TSR_ERR_NOT_FOUND
 * without a message if there is no such key, TSR_ERR_FORMAT if it is not an integer >= 0. */
tsr_status tsr_gguf_part_u64(const struct tsr_gguf_part *part, const char *name, uint64_t *value_out,
                             size_t *at_out);

/* Store `file: subject "name" at byte n: sentence` and return `status`. `subject` is "header", "key" or
 * "tensor"; the name has name_bytes bytes and is printed shortened; NULL if unknown. */
tsr_status tsr_gguf_fail(tsr_status status, const char *path, const char *subject, const char *name,
                         size_t name_bytes, size_t at, const char *format, ...) TSR_PRINTF(7, 8);

#endif
