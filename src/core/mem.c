/* The library's own allocations; see mem.h for why they have one door. */
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

void *tsr_mem_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (!tsr_mul_size(count, size, &bytes))
        return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *tsr_mem_realloc(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (!tsr_mul_size(count, size, &bytes))
        return NULL;
    return realloc(block, bytes ? bytes : 1);
}

void tsr_mem_free(void *block)
{
    free(block);
}

char *tsr_mem_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tsr_mem_calloc(bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

tsr_status tsr_mem_array(size_t count, size_t size, const char *what, void *out_pointer)
{
    void *block = tsr_mem_calloc(count, size);
    if (!block)
        return tsr_fail(TSR_ERR_MEMORY,
                        "out of host memory: %zu x %zu bytes for %s; free memory or shrink the request",
                        count, size, what);
    memcpy(out_pointer, &block, sizeof block);
    return TSR_OK;
}
