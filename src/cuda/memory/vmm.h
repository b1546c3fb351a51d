/* Ranges of addresses of a GPU, backed granule by granule (cuMemMap) or, where the driver cannot do that, by
 * plain memory from the start; a commit then only zeroes it.
 *
 * A range belongs to one device. Its own GPU may always use it. A peer may use it only where the range is
 * shared (what collectives use is, weights and the KV region are not) and tsr_cuda_vmm_let_peer() was called:
 * cudaDeviceEnablePeerAccess gives access to cudaMalloc's memory only, a mapping needs cuMemSetAccess. That
 * can fail for a peer while the memory itself is good: the peer then becomes one of the device's lost_peers,
 * and no further collective relies on its access until all memory that is closed to the peer is freed.
 *
 * Callers make the device current and ensure that no work on the GPU uses memory that is unmapped. */
#ifndef TSR_CUDA_MEMORY_VMM_H
#define TSR_CUDA_MEMORY_VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct tsr_cuda_device;

typedef struct tsr_cuda_range {
    struct tsr_cuda_range *next; /* in the device's list */
    unsigned char *base;
    size_t bytes;       /* whole granules */
    bool shared;        /* peers get access */
    uint64_t closed_to; /* if shared: lost peers, which may not use it; a bit each, as in lost_peers */
    bool plain;         /* memory of cudaMalloc or managed memory; never mapped */
    bool whole;         /* one mapping of all; otherwise one per granule */
    bool *backed;       /* [bytes / granularity]; not used if `whole` */
} tsr_cuda_range;

/* Addresses without memory; `bytes` is rounded up. The range is in the device's list until it is destroyed,
 * which undoes its mappings. */
tsr_status tsr_cuda_range_create(struct tsr_cuda_device *cuda, size_t bytes, bool shared,
                                 tsr_cuda_range **range_out);

/* A range of `bytes` bytes (whole granules) of plain memory, which cudaFree() frees: the range owns the
 * memory from then on, unless this fails. */
tsr_status tsr_cuda_range_of_memory(struct tsr_cuda_device *cuda, void *memory, size_t bytes,
                                    tsr_cuda_range **range_out);

void tsr_cuda_range_destroy(struct tsr_cuda_device *cuda, tsr_cuda_range *range);

/* Forget all ranges of a device that was given up; its memory is lost. */
void tsr_cuda_ranges_abandon(struct tsr_cuda_device *cuda);

/* The range that begins at `base`; NULL if there is none. */
tsr_cuda_range *tsr_cuda_range_find(const struct tsr_cuda_device *cuda, const void *base);

/* Back all of a new range by one allocation; contents undefined. */
tsr_status tsr_cuda_range_fill(struct tsr_cuda_device *cuda, tsr_cuda_range *range);

/* Back granules in [begin, end) that have no memory with zeros, enqueued on the device's copy stream; after a
 * failure, none of them (plain memory may be zeroed). */
tsr_status tsr_cuda_range_commit(struct tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin,
                                 size_t end);

/* Release the memory of granules in [begin, end). After a failure the other granules are released
 * nevertheless. */
tsr_status tsr_cuda_range_decommit(struct tsr_cuda_device *cuda, tsr_cuda_range *range, size_t begin,
                                   size_t end);

/* From now on GPU `ordinal` may use this device's shared ranges, those that exist included. */
tsr_status tsr_cuda_vmm_let_peer(struct tsr_cuda_device *cuda, int ordinal);

#endif
