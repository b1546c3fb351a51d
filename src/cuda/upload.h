/* Copies between host and device memory through pinned buffers.
 *
 * A GPU copies at full speed only from and to pinned memory, and only then while the host does something
 * else. So pieces of 4 MiB go through two pinned buffers: while one is on the bus, the host fills or empties
 * the other. Rows that are not dense on the host are gathered on the way, so that a split along columns costs
 * one copy per piece instead of one per row. */
#ifndef TSR_CUDA_UPLOAD_H
#define TSR_CUDA_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>

#include "core/device.h"

enum { TSR_CUDA_RING_SLOTS = 2, TSR_CUDA_SLOT_BYTES = 4 << 20 };

typedef struct tsr_cuda_slot {
    unsigned char *data; /* pinned */
    cudaEvent_t done;
    bool busy; /* until `done` has happened */
} tsr_cuda_slot;

typedef struct tsr_cuda_ring {
    tsr_cuda_slot slots[TSR_CUDA_RING_SLOTS];
    int next;
} tsr_cuda_ring;

struct tsr_cuda_device;

/* The device is current. A ring that was created in part is fine to destroy. */
tsr_status tsr_cuda_ring_create(tsr_cuda_ring *ring);
void tsr_cuda_ring_destroy(tsr_cuda_ring *ring);

/* As in struct tsr_device_ops. An upload returns when the source has been read; the rest of its way is
 * ordered by the stream. */
tsr_status tsr_cuda_upload(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                           size_t src_stride, size_t width, size_t height);
tsr_status tsr_cuda_download(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                             size_t src_stride, size_t width, size_t height);

#endif
