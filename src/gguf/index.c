/* A name index: open addressing with linear probing over a table at most half full. */
#include "gguf/index.h"

#include <string.h>

#include "core/mem.h"

static const char *name_of(const struct tsr_gguf_index *index, uint32_t slot)
{
    const char *name;
    memcpy(&name, (const char *)index->entries + (size_t)(slot - 1) * index->stride, sizeof name);
    return name;
}

/* FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/), folded so that all of it affects the low
 * bits. */
static uint64_t hash(const char *name)
{
    uint64_t value = 0xcbf29ce484222325u;
    for (; *name; name++)
        value = (value ^ (unsigned char)*name) * 0x100000001b3u;
    return value ^ value >> 32;
}

/* The slot that holds `name`, or the empty slot for it. */
static uint32_t *slot_for(const struct tsr_gguf_index *index, const char *name)
{
    size_t at = (size_t)hash(name) & index->mask;
    while (index->slots[at] && strcmp(name_of(index, index->slots[at]), name) != 0)
        at = (at + 1) & index->mask;
    return &index->slots[at];
}

tsr_status tsr_gguf_index_create(const void *entries, size_t stride, size_t n,
                                 struct tsr_gguf_index *index_out, size_t *duplicate_out)
{
    struct tsr_gguf_index index = {.entries = entries, .stride = stride};
    size_t n_slots = 16;
    if (n > UINT32_MAX / 4)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%zu names in one model; the limit is %u", n, UINT32_MAX / 4);
    while (n_slots < 2 * n)
        n_slots *= 2;
    tsr_status status = tsr_mem_array(n_slots, sizeof *index.slots, "a model's name index", &index.slots);
    if (status != TSR_OK)
        return status;
    index.mask = n_slots - 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t *slot = slot_for(&index, name_of(&index, (uint32_t)(i + 1)));
        if (*slot) {
            *duplicate_out = i;
            tsr_gguf_index_destroy(&index);
            return TSR_ERR_FORMAT;
        }
        *slot = (uint32_t)(i + 1);
    }
    *index_out = index;
    return TSR_OK;
}

const void *tsr_gguf_index_find(const struct tsr_gguf_index *index, const char *name)
{
    if (!index->slots)
        return NULL;
    uint32_t slot = *slot_for(index, name);
    return slot ? (const char *)index->entries + (size_t)(slot - 1) * index->stride : NULL;
}

void tsr_gguf_index_destroy(struct tsr_gguf_index *index)
{
    tsr_mem_free(index->slots);
    memset(index, 0, sizeof *index);
}
