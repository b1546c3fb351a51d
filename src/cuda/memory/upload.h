/* Copies between host and device memory through a ring of pinned buffers.
 *
 * A GPU copies at full speed only from and to pinned memory, and overlaps with work of the host only then. So
 * pieces of 2 MiB go through the ring: while some are on the bus, the host fills or empties others. Several
 * threads may upload at the same time, each with its own buffer: one core copies memory slower than a PCIe
 * link of generation 4 or 5.
 *
 * The buffers, 16 MiB per device, are allocated when the device is opened. Pinning takes milliseconds and a
 * lock of the context, which a step of another device on the GPU would wait for. Single downloads, of logits,
 * use the first free buffer every time.
 *
 * Rows that are not dense on the host are gathered into the ring. Data from a mapped file has to pass through
 * pinned memory in any case, so gathering costs nothing, whatever the width, and a split along columns goes
 * over the bus as one dense copy per piece. Rejected: a 2-D copy from the host. It would break up into one
 * transaction per row, which for the usual rows of a few hundred bytes to a few KiB reaches a fraction of the
 * link's speed. */
#ifndef TSR_CUDA_MEMORY_UPLOAD_H
#define TSR_CUDA_MEMORY_UPLOAD_H

#include <stddef.h>

#include "core/device.h"

struct tsr_cuda_device;

/* The device is current. A ring that was created in part is fine to destroy. */
tsr_status tsr_cuda_ring_create(struct tsr_cuda_device *cuda);
void tsr_cuda_ring_destroy(struct tsr_cuda_device *cuda);

/* Functions of struct tsr_device_ops. An upload returns when the source has been read; the stream orders the
 * rest of the copy. */
tsr_status tsr_cuda_upload(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                           size_t src_stride, size_t width, size_t height);
tsr_status tsr_cuda_download(tsr_device *device, void *dst, size_t dst_stride, const void *src,
                             size_t src_stride, size_t width, size_t height);

#endif
