/* Host memory by mmap; see memory.h.
 *
 * Everything is a private anonymous map. Placement on a NUMA node is a property of the address range (mbind),
 * set before the range is touched, so it does not matter which thread touches a page first. Huge pages and
 * placement are hints: a system without them has slower memory. */
#include "host/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#endif

#include "core/mem.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024 }; /* x86-64, and arm64 with 4 KiB pages */

size_t tsr_host_page_bytes(void)
{
    long bytes = sysconf(_SC_PAGESIZE);
    return bytes > 0 ? (size_t)bytes : 4096;
}

/* Prefer a node, not require it: a full node makes memory slower, not unavailable. */
static void prefer_node(void *base, size_t bytes, int numa_node)
{
#ifdef __linux__
    enum { BITS_PER_WORD = 8 * sizeof(unsigned long), MAX_NODES = 1024 };
    unsigned long nodes[MAX_NODES / BITS_PER_WORD] = {0};
    if (numa_node < 0 || numa_node >= MAX_NODES)
        return;
    nodes[(size_t)numa_node / BITS_PER_WORD] = 1ul << ((size_t)numa_node % BITS_PER_WORD);
    syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, (unsigned long)MAX_NODES, 0u);
#else
    (void)base, (void)bytes, (void)numa_node;
#endif
}

static tsr_status map_pages(size_t bytes, int protection, int flags, int numa_node, void **base_out)
{
    void *base = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_ERR_MEMORY, "the system refused %zu bytes of memory (%s)", bytes,
                        strerror(errno));
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE_BYTES)
        madvise(base, bytes, MADV_HUGEPAGE);
#endif
    prefer_node(base, bytes, numa_node);
    *base_out = base;
    return TSR_OK;
}

tsr_status tsr_host_memory_alloc(size_t bytes, int numa_node, void **pointer_out)
{
    return map_pages(bytes, PROT_READ | PROT_WRITE, 0, numa_node, pointer_out);
}

void tsr_host_memory_free(void *pointer, size_t bytes)
{
    if (pointer)
        munmap(pointer, bytes);
}

tsr_status tsr_host_memory_reserve(size_t bytes, int numa_node, void **base_out)
{
    return map_pages(bytes, PROT_NONE, MAP_NORESERVE, numa_node, base_out);
}

void tsr_host_memory_release(void *base, size_t bytes)
{
    tsr_host_memory_free(base, bytes);
}

tsr_status tsr_host_memory_commit(void *base, size_t offset, size_t bytes)
{
    if (bytes && mprotect((char *)base + offset, bytes, PROT_READ | PROT_WRITE) != 0)
        return tsr_fail(TSR_ERR_MEMORY, "the system refused to commit %zu bytes (%s)", bytes,
                        strerror(errno));
    return TSR_OK;
}

tsr_status tsr_host_memory_decommit(void *base, size_t offset, size_t bytes)
{
    char *start = (char *)base + offset;
    if (bytes == 0)
        return TSR_OK;
#ifdef __linux__
    /* Private anonymous pages read as zero after MADV_DONTNEED, and the range keeps its node. */
    bool gone = madvise(start, bytes, MADV_DONTNEED) == 0 && mprotect(start, bytes, PROT_NONE) == 0;
#else
    /* Elsewhere MADV_DONTNEED may keep the contents: put fresh pages in their place. */
    bool gone = mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                     0) != MAP_FAILED;
#endif
    if (!gone)
        return tsr_fail(TSR_ERR_DEVICE, "the system refused to decommit %zu bytes (%s)", bytes,
                        strerror(errno));
    return TSR_OK;
}
