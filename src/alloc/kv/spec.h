/* The spec of a KV region, and the types that its parts share. */
#ifndef TSR_ALLOC_KV_SPEC_H
#define TSR_ALLOC_KV_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/kv.h>
#include <tsr/split.h>
#include <tsr/types.h>

#include "core/device_set.h"
#include "core/runtime.h"

enum { TSR_KV_PAGE_TOKENS = 32, TSR_KV_PART_ALIGNMENT = 64, TSR_KV_MAX_GROUPS = 4 };

/* A part of a recurrent layer's state: unit_bytes for each element of the map; with `whole`, all of the part
 * is one unit, and every device of the layer holds it. */
typedef struct tsr_kv_state_part {
    const tsr_shard_map *map; /* NULL: no part */
    size_t unit_bytes;
    bool whole;
} tsr_kv_state_part;

/* One layer: the devices that keep its KV heads, and the elements of a key and of a value. A device holds its
 * heads of the map if its bit is set, otherwise none. Every head must be on a device.
 *
 * With `whole` the layer has one KV head, and every device with elements of the map holds all of it: the map
 * is that of the query heads. With v_in_k a value is the first v_dim elements of its key, so values take no
 * memory of their own; both types must then be equal. v_dim 0: the layer has keys only. */
typedef struct tsr_kv_layer {
    tsr_device_set devices;
    const tsr_shard_map *kv_heads; /* extent: KV heads of the layer; read during creation only; NULL: the
                                    * layer has no KV heads */
    int64_t k_dim, v_dim;          /* whole blocks of type_k and type_v */
    int64_t window;                /* positions that a token sees, its own included; 0: all */
    bool whole, v_in_k;
    int64_t ratio; /* consecutive positions that have one key together; 0: 1. More only without a window */
    tsr_kv_state_part state[TSR_KV_MAX_STATES]; /* of a layer with a recurrence: its parts, in order */
} tsr_kv_layer;

typedef struct tsr_kv_spec {
    int n_layers;
    const tsr_kv_layer *layers; /* [n_layers], read during creation only */
    tsr_type type_k, type_v;    /* F32, F16, BF16, Q8_0 or Q4_0 */
    int64_t n_ctx;              /* tokens of all sequences together, and the longest sequence */
    int n_seq_max;
    int64_t n_batch; /* most tokens that a program adds; matters with windows only */
    int page_tokens; /* 0: TSR_KV_PAGE_TOKENS */
    bool keep_all;   /* groups with a window also keep all pages */
    bool no_alloc;   /* to ask for sizes only: nothing is charged or reserved on a device */
} tsr_kv_spec;

/* TSR_ERR_INVALID or _UNSUPPORTED names the layer and what is wrong. */
tsr_status tsr_kv_spec_check(const tsr_runtime *rt, const tsr_kv_spec *spec);

/* Pages of a group, of page_positions = page_tokens * ratio positions each. n_ctx tokens fit for any lengths
 * of the sequences: the number of pages is (n_ctx + n_seq_max * (page_positions - 1)) / page_positions
 * rounded down, the largest sum over sequences of ceil(length / page_positions). With a window it is at most
 * n_seq_max times the pages that window - 1 + n_batch consecutive positions touch. */
int64_t tsr_kv_n_pages(const tsr_kv_spec *spec, int64_t window, int64_t ratio);

static inline int64_t tsr_kv_ratio(const tsr_kv_layer *layer)
{
    return layer->ratio > 0 ? layer->ratio : 1;
}

/* Whether two layers belong to one group. */
static inline bool tsr_kv_alike(const tsr_kv_layer *a, const tsr_kv_layer *b)
{
    return a->window == b->window && tsr_kv_ratio(a) == tsr_kv_ratio(b);
}

/* The size of one layer's keys and values, in elements and bytes of one token; of all devices together. */
typedef struct tsr_kv_rows {
    int64_t k_dim, v_dim;
    size_t k_bytes, v_bytes; /* of one head; v_bytes is 0 if values are in keys */
    int64_t n_heads;
    bool whole, v_in_k;
} tsr_kv_rows;

tsr_kv_rows tsr_kv_rows_of(const tsr_kv_layer *layer, tsr_type type_k, tsr_type type_v);

/* KV heads of the layer on a device. */
int64_t tsr_kv_heads_on(const tsr_kv_layer *layer, int device);

/* Pages [first, end) of a sequence: the pages that a group keeps. */
typedef struct tsr_kv_span {
    int first, end;
} tsr_kv_span;

#endif
