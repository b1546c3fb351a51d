/* The device side of the KV region: one stretch of address space per device and group of layers, and the
 * layout of a page in it. group.c decides which pages are used; this part knows where they are and makes
 * them usable. */
#ifndef TSR_ALLOC_KV_REGION_H
#define TSR_ALLOC_KV_REGION_H

#include "alloc/kv/config.h"
#include "core/device.h"

/* One layer's place inside a page of one device. */
typedef struct tsr_kv_part {
    size_t k_offset, v_offset;
    size_t k_bytes, v_bytes;
    size_t k_whole, v_whole; /* offsets of the same bytes in a whole page (tsr_kv_page_get()) */
    int64_t n_heads;         /* 0: the device does not hold the layer, or it is of another group */
} tsr_kv_part;

typedef struct tsr_kv_region {
    tsr_device *device;
    unsigned char *base; /* NULL: nothing on this device */
    size_t page_bytes;   /* a multiple of TSR_KV_PART_ALIGNMENT */
    size_t whole_bytes;  /* of a page with the heads of all devices, nothing between its parts */
    int n_layers;
    size_t reserved;    /* all pages, rounded up to the device's granularity */
    size_t committed;   /* the first bytes of it */
    tsr_kv_part *parts; /* [n_layers] */
} tsr_kv_region;

/* Lay out a page of the layers with this window, charge and reserve n_pages of it. The config has been
 * checked. Leaves a region that tsr_kv_region_close() accepts even when it fails. */
tsr_status tsr_kv_region_open(tsr_kv_region *region, tsr_device *device, const tsr_kv_config *config,
                              int64_t window, int n_pages);
void tsr_kv_region_close(tsr_kv_region *region);

/* Make pages 0 .. n_pages - 1 usable. */
tsr_status tsr_kv_region_commit(tsr_kv_region *region, int n_pages);

/* Take the last growth back: `committed` bytes remain, or more should even this fail. */
void tsr_kv_region_shrink(tsr_kv_region *region, size_t committed);

/* Give back what is committed behind pages 0 .. n_pages - 1. */
tsr_status tsr_kv_region_trim(tsr_kv_region *region, int n_pages);

/* Copy one page over another. */
tsr_status tsr_kv_region_copy_page(tsr_kv_region *region, int dst, int src);

/* Copy this device's part of a page to its place in whole[whole_bytes], and back. */
tsr_status tsr_kv_region_get_page(const tsr_kv_region *region, int page, unsigned char *whole);
tsr_status tsr_kv_region_put_page(tsr_kv_region *region, int page, const unsigned char *whole);

/* Copy the pages 0 .. n_pages - 1 that have references from the regions from[n_devices], which hold every
 * head, to to[n_devices], which hold the same layers, types and pages, their heads divided otherwise. All are
 * committed so far. Needs up to 1 MiB of host memory, or one layer's keys in a page. */
tsr_status tsr_kv_regions_move(const tsr_kv_region *to, const tsr_kv_region *from, int n_devices,
                               const int32_t *references, int n_pages);

#endif
