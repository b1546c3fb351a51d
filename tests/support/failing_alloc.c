/* Link-time replacements of the allocating functions; failing_alloc.h is the manual.
 *
 * With -Wl,--wrap=f the linker sends every call of f to __wrap_f and calls of __real_f to f. This works on
 * calls between object files only, which is why src/core keeps tsr_mem_calloc and its callers in two
 * files. */
#include "support/failing_alloc.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_int_fast64_t tried;      /* since failing_alloc_set */
static atomic_int_fast64_t fail_first; /* the allocations fail_first..fail_last fail, counted from 1 */
static atomic_int_fast64_t fail_last;  /* 0: none */
static atomic_bool fired;
static atomic_int_fast64_t live_blocks;
static atomic_int_fast64_t live_maps;

static void arm(int64_t first, int64_t last)
{
    atomic_store(&fail_last, 0); /* off while the rest changes */
    atomic_store(&tried, 0);
    atomic_store(&fired, false);
    atomic_store(&fail_first, first);
    atomic_store(&fail_last, last);
}

void failing_alloc_set(int64_t n)
{
    arm(n, n);
}

void failing_alloc_set_from(int64_t n)
{
    arm(n, n > 0 ? INT64_MAX : 0);
}

bool failing_alloc_fired(void)
{
    return atomic_load(&fired);
}

int64_t failing_alloc_count(void)
{
    return atomic_load(&tried);
}

int64_t failing_alloc_live(void)
{
    return atomic_load(&live_blocks);
}

int64_t failing_alloc_live_maps(void)
{
    return atomic_load(&live_maps);
}

/* Count one allocation; whether it is to fail. */
static bool must_fail(void)
{
    int64_t number = atomic_fetch_add(&tried, 1) + 1;
    if (number < atomic_load(&fail_first) || number > atomic_load(&fail_last))
        return false;
    atomic_store(&fired, true);
    return true;
}

/* The linker's names; no header declares them. */
void *__real_tsr_mem_calloc(size_t count, size_t size);
void *__wrap_tsr_mem_calloc(size_t count, size_t size);
void *__real_tsr_mem_realloc(void *block, size_t count, size_t size);
void *__wrap_tsr_mem_realloc(void *block, size_t count, size_t size);
void __real_tsr_mem_free(void *block);
void __wrap_tsr_mem_free(void *block);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t bytes);
int __wrap_munmap(void *address, size_t bytes);
int __real_mprotect(void *address, size_t bytes, int protection);
int __wrap_mprotect(void *address, size_t bytes, int protection);
int __real_posix_memalign(void **block_out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **block_out, size_t alignment, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

void *__wrap_tsr_mem_calloc(size_t count, size_t size)
{
    void *block = must_fail() ? NULL : __real_tsr_mem_calloc(count, size);
    if (block)
        atomic_fetch_add(&live_blocks, 1);
    return block;
}

void *__wrap_tsr_mem_realloc(void *block, size_t count, size_t size)
{
    void *grown = must_fail() ? NULL : __real_tsr_mem_realloc(block, count, size);
    if (grown && !block)
        atomic_fetch_add(&live_blocks, 1);
    return grown;
}

void __wrap_tsr_mem_free(void *block)
{
    if (block)
        atomic_fetch_sub(&live_blocks, 1);
    __real_tsr_mem_free(block);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (must_fail()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *map = __real_mmap(address, bytes, protection, flags, fd, offset);
    if (map != MAP_FAILED && !(flags & MAP_FIXED))
        atomic_fetch_add(&live_maps, 1);
    return map;
}

int __wrap_munmap(void *address, size_t bytes)
{
    int result = __real_munmap(address, bytes);
    if (result == 0)
        atomic_fetch_sub(&live_maps, 1);
    return result;
}

int __wrap_mprotect(void *address, size_t bytes, int protection)
{
    if (must_fail()) {
        errno = ENOMEM;
        return -1;
    }
    return __real_mprotect(address, bytes, protection);
}

int __wrap_posix_memalign(void **block_out, size_t alignment, size_t bytes)
{
    return must_fail() ? ENOMEM : __real_posix_memalign(block_out, alignment, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    if (must_fail()) {
        errno = ENOMEM;
        return NULL;
    }
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    return must_fail() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}
