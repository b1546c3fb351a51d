/* Buffers inside the library: what they are made of, and how the model loader makes one.
 *
 * A buffer is a list of regions (one allocation, or one wrapped piece of the caller's memory, each on one
 * device), the shard records of its tensors, and the shard maps that their placements borrow. It keeps an
 * intrusive list of its tensors, so that destroying it makes them unallocated, and destroying a tensor first
 * takes it off the list: neither order leaves a dangling pointer. */
#ifndef TSR_ALLOC_BUFFER_BUFFER_H
#define TSR_ALLOC_BUFFER_BUFFER_H

#include <tsr/buffer.h>

#include "core/tensor.h"

/* Where tensors go: the rule behind a tsr_buffer_type. */
struct tsr_buffer_type {
    tsr_buffer_type *next; /* in the runtime's cache */
    tsr_runtime *rt;
    tsr_sharding sharding; /* REPLICATED (over one device, perhaps) or SPLIT */
    int axis;              /* SPLIT */
    int64_t granule;       /* SPLIT; 0: one row, or one block of columns */
    int main_device;       /* read first; one of `devices` */
    uint64_t devices;      /* those with a share */
    double shares[TSR_MAX_DEVICES];
};

typedef struct tsr_buffer_region {
    int device;
    bool wrapped;   /* unwrap instead of free */
    bool borrowed;  /* another buffer's, which gives it back */
    void *pointer;  /* what the device gave */
    size_t bytes;   /* allocated or wrapped */
    size_t charged; /* against the device */
} tsr_buffer_region;

struct tsr_buffer {
    tsr_runtime *rt;
    tsr_tracked tracked;
    tsr_memory_owner owner;
    bool read_only;  /* memory that the library must not write, or weights that nobody may change */
    int main_device; /* tsr_tensor_get() reads copies there; -1: the first device that has one */
    tsr_buffer_region *regions;
    int n_regions, region_capacity;
    struct tsr_buffer_map *maps;     /* what placements borrow */
    struct tsr_buffer_block *blocks; /* what tensor->shards point into */
    tsr_tensor *tensors;             /* list through buffer_next */
};

/* One tensor on its way into a buffer. `shards` is [n_devices]; source is the whole tensor in host memory,
 * dense (weights only). */
typedef struct tsr_buffer_item {
    tsr_tensor *tensor;
    tsr_placement placement;
    const void *source;
    tsr_shard *shards;
} tsr_buffer_item;

tsr_status tsr_buffer_create(tsr_runtime *rt, tsr_memory_owner owner, tsr_buffer **buffer_out);

/* Zeroed shard records for n tensors, owned by the buffer: [n * n_devices]. */
tsr_status tsr_buffer_shards(tsr_buffer *buffer, int n, tsr_shard **shards_out);

/* A shard map owned by the buffer that equals *map; the same one for equal maps. */
tsr_status tsr_buffer_keep_map(tsr_buffer *buffer, const tsr_shard_map *map, const tsr_shard_map **kept_out);

/* Allocate `bytes` on a device, or wrap memory (charging `charged` bytes), as one more region. */
tsr_status tsr_buffer_add_memory(tsr_buffer *buffer, int device, size_t bytes, const char *what,
                                 void **pointer_out);
tsr_status tsr_buffer_add_wrapped(tsr_buffer *buffer, int device, const void *pointer, size_t bytes,
                                  size_t charged, const char *what, const void **wrapped_out);

/* Give back the regions from index `n_kept` on; those of one device. */
void tsr_buffer_drop_regions(tsr_buffer *buffer, int n_kept);
void tsr_buffer_drop_device(tsr_buffer *buffer, int device);

/* Have the regions that another buffer has on a device, too, which goes on to own them; and become the owner
 * of all that was borrowed from it, so that it can be destroyed. */
tsr_status tsr_buffer_borrow(tsr_buffer *buffer, const tsr_buffer *from, int device);
void tsr_buffer_inherit(tsr_buffer *buffer, tsr_buffer *from);

/* Whether any of the regions on a device is memory of its own rather than a view. */
bool tsr_buffer_has_copies(const tsr_buffer *buffer, int device);

/* Lay the items' shards on one device out one behind the other, aligned, in as few regions as max_alloc
 * allows; fills item->shards[device] and adds to *bytes what the device needs. With buffer == NULL nothing is
 * allocated and no shard is written: measuring and allocating are this one function. */
tsr_status tsr_buffer_lay_out(tsr_buffer *buffer, tsr_device *device, tsr_buffer_item *items, int n,
                              size_t *bytes);

/* Hand an item's placement and shards to its tensor. Cannot fail. */
void tsr_buffer_attach(tsr_buffer *buffer, const tsr_buffer_item *item);

/* Make a tensor unallocated; nothing happens if it is. To be called before a tensor's memory is freed. */
void tsr_buffer_detach(tsr_tensor *tensor);

/* Reports bytes copied so far and in all; called on the calling thread, now and then, never with less than
 * before, and at the end with all. */
typedef void (*tsr_buffer_progress)(size_t done_bytes, size_t total_bytes, void *user);

enum {
    TSR_LOAD_COPY = 1, /* copies on all devices, views on none */
    /* compare copies with their source: by checksums that the device makes, else read back */
    TSR_LOAD_VERIFY = 2
};

typedef struct tsr_buffer_load_config {
    unsigned flags;
    tsr_memory_owner owner;
    tsr_buffer_progress progress; /* NULL: nobody listens */
    void *user;
    const tsr_buffer *previous_buffer; /* NULL, or where the same tensors lie under another split */
    tsr_tensor *const *previous;       /* [n] they, in the same order; NULL for one that is not there */
    uint64_t deferred;                 /* devices whose shards tsr_buffer_fill() makes */
} tsr_buffer_load_config;

/* Put n tensors on the devices as their placements say: sources[i] is tensor i, whole and dense, in read-only
 * memory (a mapped file) that outlives the buffer.
 *
 * Without TSR_LOAD_COPY every shard is a view of the source (device->ops->wrap) on devices that do not
 * prefer copies; no byte of it is touched, and exactly the shard's bytes are charged. A device that prefers
 * copies, or answers TSR_ERR_UNSUPPORTED, gets them: packed, dense shards at the device's alignment, uploaded
 * to all devices at once (alloc/buffer/upload.h). On measuring devices sources may be NULL (views are then
 * fake addresses).
 *
 * A buffer can be made after a previous one of the same tensors, which goes on to exist beside it: a device
 * whose part of every tensor stays the same borrows its regions (tsr_buffer_inherit()), and what others have
 * as copies of their new shards is copied on the device and not uploaded.
 *
 * Fills tensor->rt, ->placement (maps are copied into the buffer), ->shards and ->buffer; tensors may be any,
 * of a context or not. Those of no context: destroy the buffer or detach them before freeing them. The
 * tensors are read-only from then on. On failure no tensor has changed. */
tsr_status tsr_buffer_load(tsr_runtime *rt, tsr_tensor *const *tensors, const tsr_placement *placements,
                           const void *const *sources, int n, const tsr_buffer_load_config *config,
                           tsr_buffer **buffer_out);

/* Give the tensors of such a buffer, in the same order, their copies on devices that have nothing of them:
 * because of config.deferred, or since tsr_buffer_drop_device(). On failure these have nothing again. */
tsr_status tsr_buffer_fill(tsr_buffer *buffer, tsr_tensor *const *tensors, const void *const *sources, int n,
                           uint64_t devices, unsigned flags);

#endif
