/* The device side of the KV region: one range of addresses per device and group of layers, and the layout of
 * a page. group.c decides which pages are used; region.c computes their addresses and commits them. */
#ifndef TSR_ALLOC_KV_REGION_H
#define TSR_ALLOC_KV_REGION_H

#include "alloc/kv/spec.h"
#include "core/device.h"

/* One layer's place inside a page of one device. */
typedef struct tsr_kv_part {
    size_t k_offset, v_offset;
    size_t k_bytes, v_bytes;
    size_t k_whole, v_whole; /* offsets of the same bytes in a whole page (tsr_kv_page_get()) */
    int64_t n_heads;         /* 0: the device does not hold the layer, or the layer is in another group */
    bool repeated;           /* an earlier device holds the same heads */
} tsr_kv_part;

typedef struct tsr_kv_region {
    tsr_device *device;
    unsigned char *base; /* NULL: no pages on this device */
    size_t page_bytes;   /* a multiple of TSR_KV_PART_ALIGNMENT */
    size_t whole_bytes;  /* of a page with the heads of all devices, without gaps */
    int n_layers;
    size_t reserved;    /* all pages, rounded up to the device's granularity */
    size_t committed;   /* of these, from the start */
    tsr_kv_part *parts; /* [n_layers] */
} tsr_kv_region;

/* Lay out a page of the layers with the window and the ratio of `like`, charge and reserve n_pages of it,
 * unless the spec has no_alloc. The spec must be valid; tsr_kv_region_close() accepts the region even after a
 * failure. */
tsr_status tsr_kv_region_open(tsr_kv_region *region, tsr_device *device, const tsr_kv_spec *spec,
                              const tsr_kv_layer *like, int n_pages);

/* Charge and reserve n_pages of a region whose layout is known; with no_alloc only `reserved` is set. */
tsr_status tsr_kv_region_reserve(tsr_kv_region *region, int n_pages, bool no_alloc);
void tsr_kv_region_close(tsr_kv_region *region);

/* Commit pages 0 .. n_pages - 1. */
tsr_status tsr_kv_region_commit(tsr_kv_region *region, int n_pages);

/* Undo the last growth: `committed` bytes remain, or more if decommitting fails. */
void tsr_kv_region_shrink(tsr_kv_region *region, size_t committed);

/* Decommit everything behind pages 0 .. n_pages - 1. */
tsr_status tsr_kv_region_trim(tsr_kv_region *region, int n_pages);

/* Copy one page over another. */
tsr_status tsr_kv_region_copy_page(tsr_kv_region *region, int dst, int src);

/* Copy this device's part of a page to its place in whole[whole_bytes], and back. */
tsr_status tsr_kv_region_get_page(const tsr_kv_region *region, int page, unsigned char *whole);
tsr_status tsr_kv_region_put_page(tsr_kv_region *region, int page, const unsigned char *whole);

/* Copy the pages of 0 .. n_pages - 1 with references from the regions from[n_devices] to to[n_devices].
 * `from` must hold every head; `to` has the same layers, types and page numbers under another split. The
 * pages must be committed in both. Needs up to 1 MiB of host memory, or one layer's keys in a page if
 * larger. */
tsr_status tsr_kv_regions_move(const tsr_kv_region *to, const tsr_kv_region *from, int n_devices,
                               const int32_t *references, int n_pages);

#endif
