/** @file
 * KV regions: the keys and values of all sequences, for engines that build their own graphs.
 *
 * A region has the layers of a model. Each device keeps the KV heads whose rows of W_k it has, so a caller
 * divides only its weights: where a weight of keys is, its keys are, too. Keys and values are stored in
 * pages, which sequences share after a fork; the region keeps the tables of pages. Values in a region are the
 * same bits for every split.
 *
 *     tsr_kv_layer_config layers[N_LAYERS];
 *     for (int l = 0; l < N_LAYERS; l++)
 *         layers[l] = (tsr_kv_layer_config){.wk = wk[l], .k_dim = 128, .v_dim = 128};
 *     tsr_kv_config config = tsr_kv_config_default();
 *     config.layers = layers;
 *     config.n_layers = N_LAYERS;
 *     config.n_ctx = 4096;
 *     tsr_kv_create(rt, &config, &kv);
 *     tsr_kv_inputs *inputs = tsr_graph_kv_inputs(graph, kv, n_tokens);    (tsr/ops.h: graphs that use it)
 *     ...
 *     tsr_kv_trim(kv, 0, shorter);                                         (undo the last tokens)
 *     tsr_kv_destroy(kv);                                                  (after the graphs)
 *
 * Sequences are numbered from 0 and are empty at first. They grow with tsr_kv_inputs_append(). All memory is
 * reserved and counted when the region is created, and committed as sequences grow.
 *
 * The functions return TSR_ERR_INVALID for a region that is NULL and for a sequence that does not exist. One
 * thread at a time uses a region, together with its runtime; no program that uses the region may run then.
 */
#ifndef TSR_KV_H
#define TSR_KV_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>
#include <tsr/tensor.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** Keys and values of all sequences. */
typedef struct tsr_kv tsr_kv;

/** One layer of a region. */
typedef struct tsr_kv_layer_config {
    /** The weight whose product is the layer's keys: k_dim rows for each KV head, allocated, and divided by
     * rows between heads, or whole on one device. Only its place is read, and only by tsr_kv_create() */
    const tsr_tensor *wk;
    int64_t k_dim;  /**< elements of a head's key: whole blocks of type_k */
    int64_t v_dim;  /**< elements of a head's value: whole blocks of type_v */
    int64_t window; /**< positions that a token sees, its own included; 0: all. Layers with a window
                               keep window - 1 + n_batch positions of a sequence */
} tsr_kv_layer_config;

/** The size of a region. */
typedef struct tsr_kv_config {
    size_t size;                       /**< sizeof(tsr_kv_config) */
    const tsr_kv_layer_config *layers; /**< [n_layers], read by tsr_kv_create() only */
    int n_layers;                      /**< entries of `layers` */
    tsr_type type_k;                   /**< of keys: F32, F16, BF16, Q8_0 or Q4_0 */
    tsr_type type_v;                   /**< of values: the same */
    int64_t n_ctx;                     /**< tokens of all sequences together, and of the longest one */
    int64_t n_batch; /**< most tokens of one step, and so what layers with a window can undo */
    int n_seq_max;   /**< sequences 0 .. n_seq_max - 1 */
} tsr_kv_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_kv_config_init(tsr_kv_config *config_out, size_t size);

/** The defaults: F16, one sequence, n_batch 512; no layers and no n_ctx, which the caller sets. */
static inline tsr_kv_config tsr_kv_config_default(void)
{
    tsr_kv_config config;
    tsr_kv_config_init(&config, sizeof config);
    return config;
}

/** Make a region on the devices of `rt`, which must outlive it. TSR_ERR_INVALID: an argument is out of its
 * range, a weight is not allocated or is not divided between heads; the message names the layer.
 * TSR_ERR_UNSUPPORTED: another type, a head that is no whole number of its blocks, or more than 4 different
 * windows. TSR_ERR_MEMORY names the device and the bytes. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out);

/** NULL is fine. Programs of graphs that use the region must not run afterwards. */
TSR_API void tsr_kv_destroy(tsr_kv *kv);

/** Tokens of a sequence; 0 if it does not exist. */
TSR_API int64_t tsr_kv_length(const tsr_kv *kv, int seq);

/** The shortest length, other than 0, that a sequence can be cut to; 0: any length. More than 0 in regions
 * with windows only, where the last n_batch tokens can be cut off. */
TSR_API int64_t tsr_kv_min_length(const tsr_kv *kv, int seq);

/** Shorten a sequence to its first `length` tokens. TSR_ERR_INVALID also if it has fewer tokens, or if
 * `length` is less than tsr_kv_min_length() and not 0. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_trim(tsr_kv *kv, int seq, int64_t length);

/** Make a sequence empty. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_remove(tsr_kv *kv, int seq);

/** Make the empty sequence `to` a copy of `from` that shares its pages of 32 tokens; only the last page is
 * copied, once one of the two grows. TSR_ERR_INVALID also if `to` is not empty. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_fork(tsr_kv *kv, int from, int to);

/** Return unused memory to the devices: pages in use move to the beginning of the region, and the memory
 * behind them is decommitted. If a copy fails, its status; no page is lost. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_compact(tsr_kv *kv);

/** Bytes of the region on a device: reserved when it was created, which is what the device's memory was
 * charged, and committed of these so far. 0 for an index that is no device. */
TSR_API size_t tsr_kv_reserved_bytes(const tsr_kv *kv, int device);
TSR_API size_t tsr_kv_committed_bytes(const tsr_kv *kv, int device); /**< see tsr_kv_reserved_bytes() */

TSR_END_DECLS
#endif
