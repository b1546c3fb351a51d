/* The allocation functions of mem.h. Functions built on them are in mem_array.c. */
#include "core/mem.h"

#include <stdlib.h>

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
