/* Host memory for the library's own bookkeeping. Every allocation in the library goes through these three
 * functions, so a test can make the n-th one fail (the test programs replace them at link time, with the
 * linker's --wrap). Memory that belongs to a device goes through struct tsr_device_ops instead. */
#ifndef TSR_CORE_MEM_H
#define TSR_CORE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Zeroed array of `count` elements of `size` bytes; NULL on overflow or shortage. Count 0 allocates one
 * byte. Freed with tsr_mem_free. */
void *tsr_mem_calloc(size_t count, size_t size);

/* As realloc(), with the product checked; the new part is not zeroed. The old block survives a failure. */
void *tsr_mem_realloc(void *block, size_t count, size_t size);

void tsr_mem_free(void *block);

/* A copy of a string, NULL on shortage. */
char *tsr_mem_strdup(const char *text);

/* tsr_mem_calloc that reports TSR_ERR_MEMORY with the byte count and `what` in the message. */
tsr_status tsr_mem_array(size_t count, size_t size, const char *what, void *out_pointer);

/* Make room for one more element in an array of n elements of `size` bytes. A full array is reallocated with
 * twice its *capacity, or with `least` elements if the capacity is 0. array_pointer: address of the pointer
 * to the array. A failure is reported as by tsr_mem_array and changes nothing. */
tsr_status tsr_mem_grow(void *array_pointer, int n, int *capacity, int least, size_t size, const char *what);

/* One zeroed object for a pointer: TSR_TRY(TSR_NEW(&session, "a session")). */
#define TSR_NEW(out_pointer, what) tsr_mem_array(1, sizeof **(out_pointer), what, out_pointer)

/* a * b and a + b into *out; false on overflow. */
static inline bool tsr_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool tsr_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Round up to a power-of-two alignment. The caller ensures that it cannot overflow. */
static inline size_t tsr_align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

/* The greatest common divisor of two positive numbers. */
static inline int64_t tsr_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#define TSR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TSR_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
