/** @file
 * Proportions into shards: tensor_split, granules, rounding, and the map of which device holds what.
 *
 * A tensor_split is an array of proportions in device order. It becomes shares (doubles that sum to 1), the
 * shares become granule counts for every class of tensors (attention, FFN, output), and the counts become a
 * shard map: which elements of the split axis each device holds. A granule is the smallest piece that may
 * move between devices; the rules are at tsr_granule_attention() and tsr_granule_ffn().
 *
 *     float split[TSR_MAX_DEVICES];
 *     int n_split;
 *     tsr_split_parse("3,1", split, TSR_MAX_DEVICES, &n_split);
 *     double shares[TSR_MAX_DEVICES];
 *     tsr_split_check(split, n_split, n_devices, shares);
 *     int64_t granule, counts[TSR_MAX_DEVICES];
 *     tsr_granule_ffn(n_ff, tsr_type_block_elems(TSR_TYPE_Q8_0), &granule);
 *     tsr_split_round(shares, n_devices, (n_ff + granule - 1) / granule, NULL, counts);
 *     tsr_shard_map map;
 *     tsr_shard_map_init(n_ff, granule, n_devices, counts, &map);
 *
 * All functions are arithmetic on values: no device, no file, no state. Any thread may call them. The results
 * are the same on every machine, since all decisions are made in integers. Functions return TSR_ERR_INVALID
 * for an argument out of its range and then do not write their outputs; other errors are named at the
 * function.
 */
#ifndef TSR_SPLIT_H
#define TSR_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** Most devices of a split, a device list, a plan or a runtime. */
#define TSR_MAX_DEVICES 64

/** Most classes that tsr_split_fit() balances together. */
#define TSR_SPLIT_MAX_CLASSES 4

/** Most granules that one class may have (2^31 - 1): more than any tensor has rows today. */
#define TSR_SPLIT_MAX_GRANULES INT64_C(2147483647)

/* -- tensor_split -- */

/** Read proportions from text: numbers separated by ',' or '/', blanks around them allowed ("3,1",
 * "0.5,0.25,0.25", "3/1", "1e2, 50"). The decimal point is '.' in every locale. Writes *n_out entries (at
 * least 1) to out[capacity]. Errors name the entry, counted from 1: an empty, negative or non-finite entry,
 * text that is not a number, or more than `capacity` (or TSR_MAX_DEVICES) entries. */
TSR_NODISCARD TSR_API tsr_status tsr_split_parse(const char *text, float *out, int capacity, int *n_out);

/** Turn tensor_split[n] into shares_out[n_devices] that sum to 1. NULL, n == 0 or all zeros: even shares.
 * Fewer entries than devices: the devices without one get 0 and are not used. More entries than devices, a
 * negative entry or one that is not finite: TSR_ERR_INVALID naming the entry, counted from 1. */
TSR_NODISCARD TSR_API tsr_status tsr_split_check(const float *tensor_split, int n, int n_devices,
                                                 double *shares_out);

/* -- rounding -- */

/** Round shares[n_devices] (>= 0, not all zero, any sum) to whole granules: count_out[n_devices] sums to
 * n_granules, and count_out[d] <= max_granules[d] where max_granules is not NULL (negative: no cap on that
 * device). A device with share 0 gets 0, always.
 *
 * With ideal[d] = share of d * n_granules, the result has these properties, in this order:
 *   1. max over d of |count[d] - ideal[d]| is the least of all assignments within the caps;
 *   2. if no cap binds, the result is the largest-remainder (Hamilton) assignment: each device gets
 *      floor(ideal), the granules left over go to the largest fractional parts, the lower device first in a
 *      tie. (That assignment has property 1.)
 *   3. if caps bind, the granules that capped devices cannot take go to the other devices in proportion to
 *      their shares, as far as 1 allows; granules left over go to the largest fractional parts.
 * Ideals are rounded to the nearest 2^-20 granule, so that equal values (3 * 1/6 and 1/2) tie.
 *
 * Examples: 8 granules at 49,51 -> 4,4. 4 at 24,24,16 (ideals 1.5, 1.5, 1) -> 2,1,1. 8 at 3,1 with caps 5,8
 * -> 5,3.
 *
 * TSR_ERR_MEMORY: the caps of the devices with a share hold fewer than n_granules; the message has the number
 * that is missing. */
TSR_NODISCARD TSR_API tsr_status tsr_split_round(const double *shares, int n_devices, int64_t n_granules,
                                                 const int64_t *max_granules, int64_t *count_out);

/** One class of tensors for tsr_split_fit(): the tensors that are divided by the same counts. */
typedef struct tsr_split_class {
    const char *name;     /**< for messages: "attention" */
    int64_t n_granules;   /**< 0..TSR_SPLIT_MAX_GRANULES */
    size_t granule_bytes; /**< device memory that one granule takes, over all layers, KV included */
    const double *shares; /**< [n_devices], as for tsr_split_round */
} tsr_split_class;

/** Memory of one device for tsr_split_fit(). */
typedef struct tsr_split_room {
    size_t capacity_bytes; /**< bytes that the device may hold; SIZE_MAX: no limit */
    size_t fixed_bytes; /**< bytes that do not depend on the counts: replicated tensors, arena, workspace */
    const char *name;   /**< for messages; NULL: "device" and its number */
} tsr_split_room;

/** Round several classes that share the devices' memory: count_out[k * n_devices + d] granules of class k on
 * device d, with fixed + sum over k of count * granule_bytes <= capacity on every device that has a share in
 * any class. Devices without a share get nothing.
 *
 *   1. If rounding every class on its own (tsr_split_round without caps) fits, that is the result.
 *   2. Otherwise the (fractional) targets of a device without enough memory are scaled down until they fill
 *      its capacity, all classes by one factor. The rest goes to the other devices in proportion to their
 *      shares. Among all assignments that fit, the result has the least largest deviation from the targets
 *      in bytes (|count - target| * granule_bytes over all classes and devices). This decides the class with
 *      the largest granules; then each other class in turn gets the least deviation in the room left.
 *   3. An assignment is found if one exists. (The search visits count vectors of all classes except the one
 *      with the smallest granules. Beyond 2^28 transitions, far more than real models need, the status is
 *      TSR_ERR_UNSUPPORTED.)
 *
 * TSR_ERR_MEMORY: no assignment fits; the message names the device and the bytes that are missing.
 * n_classes is 1..TSR_SPLIT_MAX_CLASSES. */
TSR_NODISCARD TSR_API tsr_status tsr_split_fit(const tsr_split_class *classes, int n_classes,
                                               const tsr_split_room *rooms, int n_devices,
                                               int64_t *count_out);

/* -- granules -- */

/** KV heads per attention granule. A KV head moves with its query group: n_head / n_head_kv query heads, that
 * is head_dim * n_head / n_head_kv columns of W_o. If a group is not a whole number of W_o's quantization
 * blocks (block_elems columns), a granule has as many groups as make whole blocks:
 *     block_elems / gcd(block_elems, group columns)
 * This number divides n_head_kv if the rows of W_o are whole blocks, so all granules are equal.
 *
 * Llama-3-8B in Q4_K: head_dim 128, 32 heads, 8 KV heads, blocks of 256: a group is 512 columns, 2 blocks:
 * 1 KV head. A model with head_dim 64, 9 heads, 3 KV heads in Q4_0 (blocks of 32): 192 columns, 1 KV head.
 * head_dim 48, 8 heads, 8 KV heads, Q8_0 (32): 48 columns, gcd 16: 2 KV heads, 96 columns, 3 blocks.
 *
 * TSR_ERR_INVALID: n_head is not a multiple of n_head_kv, or n_head * head_dim is not a multiple of
 * block_elems. */
TSR_NODISCARD TSR_API tsr_status tsr_granule_attention(int64_t head_dim, int64_t n_head, int64_t n_head_kv,
                                                       int64_t block_elems, int64_t *kv_heads_out);

/** FFN columns per granule: lcm(block_elems, 128), but no more than n_ff; the last granule may be shorter.
 * 128 columns keep every device's kernels on whole vector strides and the counts small.
 *
 * n_ff 11008 in Q8_0 (32): 128 columns, 86 granules. n_ff 14336 in Q4_K (256): 256 columns, 56 granules.
 * n_ff 1000 in F16 (1): 128 columns, 8 granules, the last of 104.
 *
 * TSR_ERR_INVALID: n_ff is not a multiple of block_elems. */
TSR_NODISCARD TSR_API tsr_status tsr_granule_ffn(int64_t n_ff, int64_t block_elems, int64_t *columns_out);

/** Rows per granule of a matrix that is split by rows only (the output matrix). A row is whole blocks in
 * every type: vocabulary 32000 -> 32000 granules. */
#define TSR_GRANULE_ROWS 1

/* -- shard maps -- */

/** The part of one axis that each device holds; a plain value that may be copied and compared. */
typedef struct tsr_shard_map {
    int64_t extent;                     /**< elements on the split axis */
    int64_t granule;                    /**< elements per granule; the last granule may be shorter */
    int n_devices;                      /**< devices of `begin` */
    int64_t begin[TSR_MAX_DEVICES + 1]; /**< in granules: device d holds [begin[d], begin[d + 1]);
                                             begin[0] = 0, begin[n_devices] = all, ascending */
} tsr_shard_map;

/** A map that has counts[n_devices] granules in device order. extent >= 0, granule >= 1; the counts must be
 * >= 0 and sum to ceil(extent / granule). */
TSR_NODISCARD TSR_API tsr_status tsr_shard_map_init(int64_t extent, int64_t granule, int n_devices,
                                                    const int64_t *counts, tsr_shard_map *map_out);

/** Contiguous runs of layers: as tsr_split_round with n_items = n_layers, or n_layers + 1 where the last item
 * stands for the output matrix; max_items may be NULL. The result is a map of n_items elements, one per
 * granule: tsr_shard_map_device(&map, layer) is the layer's device. */
TSR_NODISCARD TSR_API tsr_status tsr_split_layers(const double *shares, int n_devices, int64_t n_items,
                                                  const int64_t *max_items, tsr_shard_map *map_out);

/** A map of another axis, of `extent` elements of which `granule` stay together: cut at the proportions of
 * `like`, at the nearest whole granule. Axes of different lengths are then divided alike. */
TSR_API void tsr_shard_map_scale(const tsr_shard_map *like, int64_t extent, int64_t granule,
                                 tsr_shard_map *map_out);

/** Whether both divide the same extent in the same way, granule size included. */
TSR_API bool tsr_shard_map_equal(const tsr_shard_map *a, const tsr_shard_map *b);

/** The device that holds element `index`, 0 <= index < extent; -1 outside. */
TSR_API int tsr_shard_map_device(const tsr_shard_map *map, int64_t index);

/** Granules on the whole axis. */
static inline int64_t tsr_shard_map_n_granules(const tsr_shard_map *map)
{
    return map->begin[map->n_devices];
}

/** First element of device d, 0 <= d <= n_devices (for n_devices: the extent). */
static inline int64_t tsr_shard_map_first(const tsr_shard_map *map, int d)
{
    /* Only the end of the last granule can be beyond the extent. */
    return map->begin[d] < tsr_shard_map_n_granules(map) ? map->begin[d] * map->granule : map->extent;
}

/** Elements of device d, 0 <= d < n_devices; 0 where it holds no granule. */
static inline int64_t tsr_shard_map_count(const tsr_shard_map *map, int d)
{
    return tsr_shard_map_first(map, d + 1) - tsr_shard_map_first(map, d);
}

TSR_END_DECLS
#endif
