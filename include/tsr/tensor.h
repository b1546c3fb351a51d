/** @file
 * Tensors: named arrays of up to four dimensions whose bytes may be divided over the devices of a runtime.
 *
 * A context owns the descriptions of tensors; a buffer (tsr/buffer.h) owns their bytes. Life story: make the
 * tensors, allocate all of them together in a buffer type, fill them, use them in graphs, destroy the buffer
 * and the context.
 *
 *     tsr_context *ctx;
 *     tsr_context_create(rt, &ctx);
 *     tsr_tensor *up = tsr_tensor_2d(ctx, TSR_TYPE_Q8_0, 4096, 11008, "ffn_up");    (11008 rows of 4096)
 *     tsr_tensors_alloc(ctx, tsr_split_buffer_type(rt, 0, split, 2), &weights);
 *     tsr_tensor_set(up, rows, 0, tsr_tensor_bytes(up));                    (scattered to its shards)
 *     ...
 *     tsr_buffer_destroy(weights);
 *     tsr_context_destroy(ctx);
 *
 * Shapes follow GGUF: ne[0] is the contiguous dimension (columns), a row is ne[0] elements, and the logical
 * layout is dense: row r starts at byte r * tsr_type_row_bytes(type, ne[0]). Outer dimensions multiply the
 * rows: a tensor of ne = {K, M, E, 1} has M * E rows.
 *
 * A context, its tensors and its runtime are used by one thread at a time; getters of tensors that are
 * already allocated may overlap.
 */
#ifndef TSR_TENSOR_H
#define TSR_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** Opened devices: tsr/runtime.h. */
typedef struct tsr_runtime tsr_runtime;
/** Owns tensors whose memory is allocated together. */
typedef struct tsr_context tsr_context;
/** A logical tensor; its elements are on one device or spread over several. */
typedef struct tsr_tensor tsr_tensor;

/** How a tensor's value is spread over the devices. */
typedef enum tsr_sharding {
    TSR_SHARDING_NONE = 0,   /**< not placed yet */
    TSR_SHARDING_REPLICATED, /**< each device of a set (of one, perhaps) has all of it */
    TSR_SHARDING_SPLIT,      /**< divided along an axis: 1 = rows, 0 = columns */
    TSR_SHARDING_PARTIAL     /**< the value is the sum over the devices */
} tsr_sharding;

/** "none", "replicated", "split", "partial"; never NULL. */
TSR_API const char *tsr_sharding_name(tsr_sharding sharding);

/** An empty context for tensors on `rt`, which must outlive it. */
TSR_NODISCARD TSR_API tsr_status tsr_context_create(tsr_runtime *rt, tsr_context **context_out);

/** NULL is fine. Destroys its tensors, but not their buffers (destroy these before or after). */
TSR_API void tsr_context_destroy(tsr_context *context);

/** A new tensor of the given extents (each at least 1; ne0 whole blocks of the type), not allocated yet. The
 * name is copied (at most 63 bytes; NULL: "") and used in messages. The tensor lives as long as its context.
 *
 * NULL on failure, with the sentence in tsr_last_error(). The failure also sticks to the context: its first
 * one is what tsr_context_status() and tsr_tensors_alloc() report from then on, so a caller may make many
 * tensors and check once. */
TSR_API tsr_tensor *tsr_tensor_1d(tsr_context *context, tsr_type type, int64_t ne0, const char *name);
/** A tensor of two dimensions; see tsr_tensor_1d(). */
TSR_API tsr_tensor *tsr_tensor_2d(tsr_context *context, tsr_type type, int64_t ne0, int64_t ne1,
                                  const char *name);
/** A tensor of three dimensions; see tsr_tensor_1d(). */
TSR_API tsr_tensor *tsr_tensor_3d(tsr_context *context, tsr_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                                  const char *name);

/** TSR_OK if every tensor of the context was made, otherwise the first failure; tsr_last_error() then has its
 * sentence again. */
TSR_NODISCARD TSR_API tsr_status tsr_context_status(const tsr_context *context);

/** Name of the tensor. The getters below never fail; `tensor` must not be NULL. */
TSR_API const char *tsr_tensor_name(const tsr_tensor *tensor);
TSR_API tsr_type tsr_tensor_type(const tsr_tensor *tensor);      /**< type of its elements */
TSR_API const int64_t *tsr_tensor_ne(const tsr_tensor *tensor);  /**< [4], ends with the tensor */
TSR_API int64_t tsr_tensor_n_rows(const tsr_tensor *tensor);     /**< ne[1] * ne[2] * ne[3] */
TSR_API int64_t tsr_tensor_n_elements(const tsr_tensor *tensor); /**< ne[0] * rows */
TSR_API size_t tsr_tensor_bytes(const tsr_tensor *tensor);       /**< of the logical dense tensor */

/** How the tensor is spread over the devices. */
TSR_API tsr_sharding tsr_tensor_sharding(const tsr_tensor *tensor);
TSR_API int tsr_tensor_split_axis(const tsr_tensor *tensor); /**< 0 or 1; -1 unless split */

/** Bytes of the tensor's shard or copy on a device, without alignment; 0 for an index that is no device. */
TSR_API size_t tsr_tensor_device_bytes(const tsr_tensor *tensor, int device);

/** Copy `bytes` bytes of the logical dense tensor, from byte `offset` on, out of `data` into its shards
 * (every copy, if it is replicated), or out of its shards into `data` (replicated: from the buffer's main
 * device if that has a copy, otherwise from the first device that has one). Both ends must be at whole blocks
 * of the type (whole elements, for plain types); beyond that any range will do, whatever the split. The call
 * blocks until the bytes have arrived. On a runtime that only measures, nothing is copied.
 *
 * Works for allocated tensors of a context and for computed ones of a compiled graph alike. TSR_ERR_INVALID:
 * the range is out of the tensor or cuts a block, the tensor is not allocated (of a graph, only the inputs
 * that lead to an output and the outputs are, once it is compiled), its memory is only borrowed
 * (tsr_buffer_from_ptr, weights of a model: those are never written), or it holds partial sums. When a device
 * fails (TSR_ERR_DEVICE...) part of the bytes may have been copied. */
TSR_NODISCARD TSR_API tsr_status tsr_tensor_set(tsr_tensor *tensor, const void *data, size_t offset,
                                                size_t bytes);
/** Read a tensor; see tsr_tensor_set(). */
TSR_NODISCARD TSR_API tsr_status tsr_tensor_get(const tsr_tensor *tensor, void *data, size_t offset,
                                                size_t bytes);

TSR_END_DECLS
#endif
