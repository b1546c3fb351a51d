/* A copy of a GGUF file with other keys and tensors. */
#ifndef TSR_TESTS_EDITED_FILE_H
#define TSR_TESTS_EDITED_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/types.h>

typedef enum file_edit_how {
    FILE_DROP = 1, /* the key or the tensor */
    FILE_U32,      /* a key of the number, new or instead of the file's */
    FILE_BOOL,
    FILE_U32S,   /* a key of the first n numbers */
    FILE_TENSOR, /* a new tensor [ne] of numbers in [-0.5, 0.5), or of `value` */
    FILE_COPY    /* a new tensor that is equal to the file's `from` */
} file_edit_how;

typedef struct file_edit {
    const char *name;
    file_edit_how how;
    uint32_t numbers[8];
    size_t n;
    int64_t ne[3]; /* the last ones 0: fewer dimensions */
    float value;   /* 0: element i is (i * 2654435761 mod 2^32 >> 16) / 65536 - 0.5 */
    tsr_type type; /* F32 unless given; I32: element i is number i mod n */
    tsr_type like; /* the numbers are rounded to those of this type; F32 unless given */
    const char *from;
} file_edit;

/* Write to `path` the file `from` with `edits`, which end with a name that is NULL. Prefixes of names that
 * end with '.' or '_' stand for all such tensors in FILE_DROP and FILE_COPY. */
void edited_file_write(const char *from, const file_edit *edits, const char *path);

#endif
