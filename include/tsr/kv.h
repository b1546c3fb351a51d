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
 *     tsr_kv_save(kv, NULL, 0, model, "conversation.kv");                  (see tsr_kv_load())
 *     tsr_kv_destroy(kv);                                                  (after the graphs)
 *
 * Sequences are numbered from 0 and are empty at first. They grow with tsr_kv_inputs_append(). All memory is
 * reserved and counted when the region is created, and committed as sequences grow.
 *
 * A layer may also have states, of the ops of tsr/states.h: numbers that every token of a sequence changes,
 * instead of keys of each position. A step reads a sequence's states and writes them elsewhere, so a step
 * that failed, and the last step that ran, can be undone; older states are lost.
 *
 * The functions return TSR_ERR_INVALID for a region that is NULL and for a sequence that does not exist. One
 * thread at a time uses a region, together with its runtime; no program that uses the region may run then.
 */
#ifndef TSR_KV_H
#define TSR_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>
#include <tsr/tensor.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** Keys and values of all sequences. */
typedef struct tsr_kv tsr_kv;

/** The most states of a layer. */
enum { TSR_KV_MAX_STATES = 18 };

/** A state of a layer: F32 numbers of each sequence. The ops of tsr/states.h say which states they need. */
typedef struct tsr_kv_state_config {
    /** A weight that is divided as the state is: by rows, or a vector along its elements. A weight that is
     * replicated: every device of the layer has the whole state. Read like wk */
    const tsr_tensor *like;
    int64_t n; /**< numbers for each row of `like` (each element of a vector), at least 1 */
} tsr_kv_state_config;

/** One layer of a region: keys and values, states, or both. */
typedef struct tsr_kv_layer_config {
    /** The weight whose product is the layer's keys: k_dim rows for each KV head, allocated, and divided by
     * rows between heads, or whole on one device. Only its place is read, and only by tsr_kv_create(). NULL:
     * the layer has states only */
    const tsr_tensor *wk;
    int64_t k_dim;  /**< elements of a head's key: whole blocks of type_k */
    int64_t v_dim;  /**< elements of a head's value: whole blocks of type_v. 0, with `whole`: keys only */
    int64_t window; /**< positions that a token sees, its own included; 0: all. Layers with a window
                               keep window - 1 + n_batch positions of a sequence */
    /** One KV head for all query heads, which every device with a part of wk has whole. wk is then any weight
     * that is divided like the queries, W_q for example, or replicated */
    bool whole;
    /** A value is the first v_dim elements of its key: values take no memory, and type_v is type_k */
    bool v_in_k;
    int64_t ratio; /**< consecutive positions that have one key together; 0: 1. More only without a window */
    const tsr_kv_state_config *states; /**< [n_states], read like `layers`; NULL: none */
    int n_states;                      /**< 0 .. TSR_KV_MAX_STATES */
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
    bool swa_full;   /**< layers with a window keep all positions, so that any length can be cut to */
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
 * TSR_ERR_UNSUPPORTED: another type, values in keys of another type, a head that is no whole number of its
 * blocks, or more than 4 different windows and ratios. TSR_ERR_MEMORY names the device and the bytes. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out);

/** The bytes that tsr_kv_create() with this config would reserve and charge on each device:
 * bytes_out[n_devices], as tsr_kv_reserved_bytes() has them then. No memory of a device is used. Errors are
 * those of tsr_kv_create(), except that devices have any amount of memory. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_measure(tsr_runtime *rt, const tsr_kv_config *config,
                                                size_t *bytes_out);

/** NULL is fine. Programs of graphs that use the region must not run afterwards. */
TSR_API void tsr_kv_destroy(tsr_kv *kv);

/** Tokens of a sequence; 0 if it does not exist. */
TSR_API int64_t tsr_kv_length(const tsr_kv *kv, int seq);

/** The shortest length, other than 0, that a sequence can be cut to; 0: any length. More than 0 in regions
 * with windows and without swa_full, where the last n_batch tokens can be cut off, one of a sequence that
 * was loaded from a file; and with states, where the length is that before the last step; lengths between
 * that and the present one are then not possible either. */
TSR_API int64_t tsr_kv_min_length(const tsr_kv *kv, int seq);

/** Shorten a sequence to its first `length` tokens. TSR_ERR_INVALID also if it has fewer tokens, or if it
 * cannot be cut to `length` (tsr_kv_min_length()). */
TSR_NODISCARD TSR_API tsr_status tsr_kv_trim(tsr_kv *kv, int seq, int64_t length);

/** Make a sequence empty. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_remove(tsr_kv *kv, int seq);

/** Make the empty sequence `to` a copy of `from` that shares its pages of 32 tokens; only the last page is
 * copied, once one of the two grows. TSR_ERR_INVALID also if `to` is not empty. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_fork(tsr_kv *kv, int from, int to);

/** Return unused memory to the devices: pages in use move to the beginning of the region, and the memory
 * behind them is decommitted. If a copy fails, its status; no page is lost. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_compact(tsr_kv *kv);

/** Save sequences seqs[n_seqs], in this order, to a file; seqs NULL: all that are not empty. What was
 * appended last must have run. Keys, values and states are saved; shared pages are stored once. The file
 * does not depend on how heads and states are divided. `model` is a number that the caller chooses for the
 * weights and the graph: tsr_kv_load() refuses a file of another number. An existing file is replaced only
 * after the new file is complete and on the disk; an interrupted save leaves the existing file as it was
 * (and perhaps a file `path`.XXXXXX). TSR_ERR_INVALID also if `path` is NULL. TSR_ERR_IO, TSR_ERR_MEMORY;
 * TSR_ERR_DEVICE: a device cannot be read. Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_save(tsr_kv *kv, const int *seqs, int n_seqs, uint64_t model,
                                             const char *path);

/** Load all sequences of a file. Sequence number i of the file becomes sequence seqs[i], and n_seqs must be
 * the number of sequences in the file; seqs NULL: each gets the number that it had. The sequences must be
 * empty before; shared pages are shared again. Layers with dimensions, windows and states, type_k, type_v
 * and `model` must be those of the region that was saved; devices, heads on each, n_ctx, n_batch and
 * n_seq_max may be others. On failure the sequences are empty. TSR_ERR_FORMAT: not a file of sequences, a
 * damaged one, or one whose pages have other sizes. TSR_ERR_INVALID: the file is of another `model` or of
 * other types, or a sequence is not empty or does not exist. TSR_ERR_FULL: no room. TSR_ERR_UNSUPPORTED: a
 * file of another version of the format. TSR_ERR_NOT_FOUND, TSR_ERR_IO, TSR_ERR_MEMORY, TSR_ERR_DEVICE.
 * Blocks until done. */
TSR_NODISCARD TSR_API tsr_status tsr_kv_load(tsr_kv *kv, const int *seqs, int n_seqs, uint64_t model,
                                             const char *path);

/** Bytes of the region on a device: reserved when it was created, which is what the device's memory was
 * charged, and committed of these so far. 0 for an index that is no device. */
TSR_API size_t tsr_kv_reserved_bytes(const tsr_kv *kv, int device);
TSR_API size_t tsr_kv_committed_bytes(const tsr_kv *kv, int device); /**< see tsr_kv_reserved_bytes() */

TSR_END_DECLS
#endif
