/* The memory of every activation of a lowered graph: lifetimes, in-place reuse, and the packing of each
 * device's arena.
 *
 * Programs in several *lanes* of one memory may be in flight together: a device runs them one after another,
 * but another device may be at an earlier or later one. So activations that only their own device accesses
 * are in the same arena for all lanes; every lane has its own inputs, which the host writes, and its own part
 * of the workspace, from which other devices read. */
#ifndef TSR_GRAPH_EMIT_LAYOUT_H
#define TSR_GRAPH_EMIT_LAYOUT_H

#include "graph/lower/lowered.h"

/* A value's piece of the arena, live during instructions [lower, upper). */
typedef struct tsr_item {
    int lower, upper;
    size_t bytes;
    int over; /* the operand's item that it may be written over; its life ends where this one starts; -1:
               * none */
    int chunk;
    size_t offset;
} tsr_item;

typedef struct tsr_device_layout {
    tsr_item *items;
    int n_items;
    size_t *chunk_bytes; /* [n_chunks] */
    int n_chunks;
    size_t bound_bytes;   /* max-live lower bound of the items */
    size_t input_bytes;   /* of the first item, in which all inputs are; 0: no inputs, no such item */
    bool is_read;         /* other devices read its slots, which every lane then has */
    int n_slots;          /* slots for partial sums (slots.h) */
    size_t slot_bytes;    /* each */
    size_t staging_bytes; /* bytes that this device sends in transfers */
} tsr_device_layout;

typedef struct tsr_layout {
    int n_devices, n_values, n_lanes;
    int *item_of;               /* [n_values][n_devices], -1 = not in that device's arena */
    size_t *inside_of;          /* [n_values][n_devices] offset of an input in the item of all inputs */
    size_t *staging_of;         /* [n_instrs] offset of a SEND's staging buffer behind the slots */
    tsr_device_layout *devices; /* [n_devices] */
} tsr_layout;

/* Find the items and their lifetimes, for n_lanes >= 1 lanes; nothing is packed yet. */
tsr_status tsr_layout_create(const tsr_runtime *rt, const tsr_lowered *lowered, tsr_reduce_type reduce,
                             int n_lanes, tsr_layout *layout_out);
void tsr_layout_free(tsr_layout *layout);

/* Give every item a chunk and an offset. `reserved` (may be NULL) is an earlier, packed layout. If it has
 * the same lifetimes and no smaller items, its offsets are used: valid, fast, and a smaller batch fits
 * memory that was reserved for a larger one. */
tsr_status tsr_layout_pack(const tsr_runtime *rt, const tsr_layout *reserved, tsr_layout *layout);

/* Pack one device's items into chunks no larger than the device allows. */
tsr_status tsr_layout_pack_device(const tsr_device *device, tsr_device_layout *layout);

/* Bytes of one device's arena and collective workspace, of all lanes. Inputs of lanes other than the first
 * are behind each other in memory of their own, tsr_layout_lane_bytes() in all. */
size_t tsr_layout_arena_bytes(const tsr_layout *layout, int device);
size_t tsr_layout_bound_bytes(const tsr_layout *layout, int device); /* which no arena can be smaller than */
size_t tsr_layout_lane_bytes(const tsr_layout *layout, int device);
size_t tsr_layout_comm_bytes(const tsr_layout *layout, int device);

/* Where a lane's slots, and its staging buffers, begin in the workspace. */
size_t tsr_layout_slots_at(const tsr_layout *layout, int device, int lane);
size_t tsr_layout_staging_at(const tsr_layout *layout, int device, int lane);

#endif
