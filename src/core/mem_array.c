/* Functions built on tsr_mem_calloc. They are not in mem.c because the tests replace tsr_mem_calloc at
 * link time, which affects only calls between object files. */
#include "core/mem.h"

#include <string.h>

char *tsr_mem_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tsr_mem_calloc(bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

static tsr_status fail_memory(size_t count, size_t size, const char *what)
{
    return tsr_fail(TSR_ERR_MEMORY,
                    "out of host memory: %zu x %zu bytes for %s; free memory or shrink the request", count,
                    size, what);
}

tsr_status tsr_mem_array(size_t count, size_t size, const char *what, void *out_pointer)
{
    void *block = tsr_mem_calloc(count, size);
    if (!block)
        return fail_memory(count, size, what);
    memcpy(out_pointer, &block, sizeof block);
    return TSR_OK;
}

tsr_status tsr_mem_grow(void *array_pointer, int n, int *capacity, int least, size_t size, const char *what)
{
    if (n < *capacity)
        return TSR_OK;
    void *block;
    int wanted = *capacity ? 2 * *capacity : least;
    memcpy(&block, array_pointer, sizeof block);
    block = tsr_mem_realloc(block, (size_t)wanted, size);
    if (!block)
        return fail_memory((size_t)wanted, size, what);
    memcpy(array_pointer, &block, sizeof block);
    *capacity = wanted;
    return TSR_OK;
}
