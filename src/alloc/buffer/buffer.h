/* Buffers inside the library: their parts, and how the model loader makes one.
 *
 * A buffer is a list of regions (one allocation, or one wrapped piece of the caller's memory, each on one
 * device), the shard records of its tensors, and the shard maps that the tensors' placements borrow. A buffer
 * keeps an intrusive list of its tensors. Destroying the buffer makes the tensors unallocated; destroying a
 * tensor takes the tensor off the list. So neither order leaves a dangling pointer. */
#ifndef TSR_ALLOC_BUFFER_BUFFER_H
#define TSR_ALLOC_BUFFER_BUFFER_H

#include <tsr/buffer.h>

#include "core/tensor.h"

/* The rule for placing tensors behind a tsr_buffer_type. */
struct tsr_buffer_type {
    tsr_buffer_type *next; /* in the runtime's cache */
    tsr_runtime *rt;
    tsr_sharding sharding;  /* REPLICATED (over one device, perhaps) or SPLIT */
    int axis;               /* SPLIT */
    int64_t granule;        /* SPLIT; 0: one row, or one block of columns */
    int main_device;        /* read first; one of `devices` */
    tsr_device_set devices; /* devices with a share */
    double shares[TSR_MAX_DEVICES];
};

typedef struct tsr_buffer_region {
    int device;
    bool wrapped;   /* unwrap instead of free */
    bool borrowed;  /* owned by another buffer, which frees it */
    void *pointer;  /* as returned by the device */
    size_t bytes;   /* allocated or wrapped */
    size_t charged; /* bytes of the device's accounting */
} tsr_buffer_region;

struct tsr_buffer {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_memory_owner owner;
    bool read_only;  /* memory that the library must not write, or loaded weights */
    int main_device; /* tsr_tensor_get() reads copies there; -1: the first device that has one */
    tsr_buffer_region *regions;
    int n_regions, region_capacity;
    struct tsr_buffer_map *maps;     /* borrowed by placements */
    struct tsr_buffer_block *blocks; /* tensor->shards points into these */
    tsr_tensor *tensors;             /* list through buffer_next */
};

/* One tensor that is being placed in a buffer. `shards` is [n_devices]; source is the whole tensor in host
 * memory, laid out as placement.source says (weights only). */
typedef struct tsr_buffer_item {
    tsr_tensor *tensor;
    tsr_placement placement;
    const void *source;
    tsr_shard *shards;
    const struct tsr_buffer_item *twin; /* the same tensor under another split; NULL: none */
    bool second;                        /* of two twins */
} tsr_buffer_item;

/* The elements that are stored for an item on a device. Twins whose windows overlap or touch there share one
 * piece of memory with the elements of both, which is the first twin's; the second twin then stores
 * nothing. */
tsr_window tsr_buffer_stored_window(const tsr_buffer_item *item, int device);
size_t tsr_buffer_stored_bytes(const tsr_buffer_item *item, int device);

/* `stored` is the shard of the stored window: set the item's shard, and that of a twin that shares it. */
void tsr_buffer_set_shards(const tsr_buffer_item *item, int device, tsr_shard stored);

tsr_status tsr_buffer_create(tsr_runtime *rt, tsr_memory_owner owner, tsr_buffer **buffer_out);

/* Zeroed shard records for n tensors, owned by the buffer: [n * n_devices]. */
tsr_status tsr_buffer_shards(tsr_buffer *buffer, int n, tsr_shard **shards_out);

/* A shard map owned by the buffer that equals *map; equal maps share one copy. */
tsr_status tsr_buffer_keep_map(tsr_buffer *buffer, const tsr_shard_map *map, const tsr_shard_map **kept_out);

/* Allocate `bytes` on a device, or wrap memory (charging `charged` bytes), as one more region. */
tsr_status tsr_buffer_add_memory(tsr_buffer *buffer, int device, size_t bytes, const char *what,
                                 void **pointer_out);
tsr_status tsr_buffer_add_wrapped(tsr_buffer *buffer, int device, const void *pointer, size_t bytes,
                                  size_t charged, const char *what, const void **wrapped_out);

/* Free the regions from index `n_kept` on, or the regions of one device. */
void tsr_buffer_drop_regions(tsr_buffer *buffer, int n_kept);
void tsr_buffer_drop_device(tsr_buffer *buffer, int device);

/* borrow: use the regions of `from` on a device; `from` still owns them. inherit: take over all regions that
 * were borrowed from `from`, so that `from` can be destroyed. */
tsr_status tsr_buffer_borrow(tsr_buffer *buffer, const tsr_buffer *from, int device);
void tsr_buffer_inherit(tsr_buffer *buffer, tsr_buffer *from);

/* Whether any region on a device is a copy rather than a view. */
bool tsr_buffer_has_copies(const tsr_buffer *buffer, int device);

/* Lay out the items' shards on one device one after another, aligned, in as few regions as max_alloc
 * permits. Fills item->shards[device] and adds the device's bytes to *bytes. buffer NULL: only count;
 * nothing is allocated, no shard is written. One function counts and allocates, so planned bytes are
 * allocated bytes. */
tsr_status tsr_buffer_lay_out(tsr_buffer *buffer, tsr_device *device, tsr_buffer_item *items, int n,
                              size_t *bytes);

/* Set a tensor's placement and shards to those of its item. Cannot fail. */
void tsr_buffer_attach(tsr_buffer *buffer, const tsr_buffer_item *item);

/* Make a tensor unallocated; an unallocated tensor stays as it is. Call this before freeing a tensor. */
void tsr_buffer_detach(tsr_tensor *tensor);

/* Reports the bytes copied so far and the total. Runs on the calling thread. done_bytes never decreases; the
 * last call reports the total. */
typedef void (*tsr_buffer_progress)(size_t done_bytes, size_t total_bytes, void *user);

enum {
    TSR_LOAD_COPY = 1, /* copies on all devices, views on none */
    /* compare copies with their source: by checksums of the device, otherwise by reading back */
    TSR_LOAD_VERIFY = 2,
    /* the tensors of the second half of the list are those of the first half under another split */
    TSR_LOAD_TWINS = 4
};

typedef struct tsr_buffer_load_config {
    unsigned flags;
    tsr_memory_owner owner;
    tsr_buffer_progress progress; /* NULL: no progress callback */
    void *user;
    const tsr_buffer *previous_buffer; /* NULL, or the buffer of the same tensors under another split */
    tsr_tensor *const *previous;       /* [n] its tensors, in the same order; NULL: not in it */
    tsr_device_set deferred;           /* devices that tsr_buffer_fill() fills afterwards */
} tsr_buffer_load_config;

/* Put n tensors on the devices according to their placements. sources[i] is the whole tensor i in
 * read-only memory (a mapped file) that outlives the buffer.
 *
 * Without TSR_LOAD_COPY every shard is a view of the source (device->ops->wrap) on devices that do not prefer
 * copies, except where the parts of a source have no common distance (tsr_source_layout). Making a view
 * touches no byte of the source and charges exactly the shard's bytes. A device that prefers copies, or whose
 * wrap returns TSR_ERR_UNSUPPORTED, gets copies: packed, dense shards at the device's alignment, uploaded to
 * all devices in parallel (alloc/buffer/upload.h). On dry-run devices sources may be NULL; views are then
 * fake addresses.
 *
 * With a previous buffer of the same tensors both buffers exist during the switch. A device whose part of
 * every tensor is unchanged borrows the previous regions (tsr_buffer_inherit()). On other devices, the part
 * of a new shard that the previous copies contain is copied on the device instead of uploaded.
 *
 * Fills tensor->rt, ->placement (maps are copied into the buffer), ->shards and ->buffer. Tensors need no
 * context; before freeing a tensor without one, destroy the buffer or detach the tensor. Loaded tensors are
 * read-only. On failure no tensor has changed. */
tsr_status tsr_buffer_load(tsr_runtime *rt, tsr_tensor *const *tensors, const tsr_placement *placements,
                           const void *const *sources, int n, const tsr_buffer_load_config *config,
                           tsr_buffer **buffer_out);

/* Fill the copies of a loaded buffer on devices that have none, because of config.deferred or
 * tsr_buffer_drop_device(). `tensors` are in the order of tsr_buffer_load(). On failure the devices have no
 * copies, as before the call. */
tsr_status tsr_buffer_fill(tsr_buffer *buffer, tsr_tensor *const *tensors, const void *const *sources, int n,
                           tsr_device_set devices, unsigned flags);

#endif
