/* Finds an entry of an array by its name in constant time. */
#ifndef TSR_GGUF_INDEX_H
#define TSR_GGUF_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

/* `entries` is an array of elements of `stride` bytes, each beginning with a `const char *` name.
 * Borrowed. */
struct tsr_gguf_index {
    const void *entries;
    size_t stride;
    uint32_t *slots; /* hash table: 1 + position in entries, 0 = empty */
    size_t mask;     /* slots - 1, where slots is a power of two */
};

/* Fill an index over n entries. On TSR_ERR_FORMAT two entries have the same name, *duplicate_out is the
 * position of the second one, and the caller writes the message. TSR_ERR_MEMORY. After a failure nothing
 * has to be released. */
tsr_status tsr_gguf_index_create(const void *entries, size_t stride, size_t n,
                                 struct tsr_gguf_index *index_out, size_t *duplicate_out);

/* The entry of that name or NULL. An index of all zeros is empty. */
const void *tsr_gguf_index_find(const struct tsr_gguf_index *index, const char *name);

void tsr_gguf_index_destroy(struct tsr_gguf_index *index);

#endif
