/** @file
 * Buffers: the bytes of tensors on devices, and the buffer types that say how tensors are divided.
 *
 * A buffer type is a rule ("whole, on device 1", "rows divided 3:1"); a buffer is memory that was laid out by
 * one. All tensors of a context are allocated together, after their bytes are known:
 *
 *     const tsr_buffer_type *bt = tsr_split_buffer_type(rt, 0, split, 2);
 *     size_t bytes[2];
 *     tsr_tensors_measure(ctx, bt, bytes);          (allocates nothing)
 *     tsr_tensors_alloc(ctx, bt, &buffer);          (exactly these bytes, or nothing and a status)
 *     ...
 *     tsr_buffer_destroy(buffer);
 *
 * Per device one allocation is made, or as few as fit where the device limits the size of one. Every tensor
 * starts at the device's alignment. A device with a zero share gets no tensor and no byte.
 *
 * Buffer types belong to the runtime: they are never freed by the caller, equal arguments give the same
 * pointer, and all of them end with the runtime. The runtime, its buffer types and buffers are used by one
 * thread at a time.
 */
#ifndef TSR_BUFFER_H
#define TSR_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>
#include <tsr/tensor.h>

TSR_BEGIN_DECLS

/** How tensors are divided over the devices; belongs to its runtime. */
typedef struct tsr_buffer_type tsr_buffer_type;
/** Memory on the devices that was laid out by a buffer type. */
typedef struct tsr_buffer tsr_buffer;

/* -- buffer types: NULL on failure, with the sentence in tsr_last_error() -- */

/** Whole tensors on one device. */
TSR_API const tsr_buffer_type *tsr_device_buffer_type(tsr_runtime *rt, int device);

/** A whole copy of each tensor on every device of the runtime. */
TSR_API const tsr_buffer_type *tsr_replicated_buffer_type(tsr_runtime *rt);

/** Rows divided over the devices in the proportions tensor_split[n], row by row (largest remainders, as
 * tsr_split_round). tensor_split is read as tsr_split_check() says: NULL or all zeros means even shares;
 * entries beyond n are zero; a device with share zero gets nothing at all. Tensors of one row (norm weights,
 * biases) are not divided: every device with a share gets a copy.
 *
 * main_device: of tensors that have several copies, the device that tsr_tensor_get() reads. It changes no
 * placement. If it has no share, the first device that has one takes its place. */
TSR_API const tsr_buffer_type *tsr_split_buffer_type(tsr_runtime *rt, int main_device,
                                                     const float *tensor_split, int n);

/** How tsr_split_buffer_type_ex() divides tensors. */
typedef struct tsr_split_buffer_config {
    size_t size;     /**< sizeof(tsr_split_buffer_config) */
    int axis;        /**< 1: rows are divided, 0: columns */
    int64_t granule; /**< rows or columns that stay together; for columns whole blocks of each tensor's type
                          (checked when tensors are allocated); 0: one row, or one block of columns */
    int main_device; /**< as for tsr_split_buffer_type */
    const float *tensor_split; /**< [n_tensor_split], copied; NULL: even */
    int n_tensor_split;        /**< 0: even shares */
} tsr_split_buffer_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_split_buffer_config_init(tsr_split_buffer_config *config_out, size_t size);

/** The defaults: rows, one at a time, in even shares; main device 0. */
static inline tsr_split_buffer_config tsr_split_buffer_config_default(void)
{
    tsr_split_buffer_config config;
    tsr_split_buffer_config_init(&config, sizeof config);
    return config;
}

/** The general form: rows or columns, and the granule. A product of two divided matrices (first by rows, then
 * by columns: the two halves of an FFN) needs equal granules and tensor_split in both. */
TSR_API const tsr_buffer_type *tsr_split_buffer_type_ex(tsr_runtime *rt,
                                                        const tsr_split_buffer_config *config);

/* -- tensors of a context -- */

/** Bytes that tsr_tensors_alloc() would take on each device: bytes_out[n devices of the runtime]. Counts the
 * tensors that have no memory yet, with alignment. Same errors as tsr_tensors_alloc, memory aside. */
TSR_NODISCARD TSR_API tsr_status tsr_tensors_measure(tsr_context *context, const tsr_buffer_type *type,
                                                     size_t *bytes_out);

/** Allocate every tensor of the context that has no memory yet. The contents are undefined. The buffer is the
 * caller's, who may destroy it before or after the context. On failure nothing is allocated and no tensor
 * has changed.
 *
 * TSR_ERR_MEMORY names the device and the bytes it lacks, or the tensor whose part is larger than one
 * allocation of the device may be. TSR_ERR_INVALID: the granule cuts a tensor's blocks, or the context has a
 * failure (tsr_context_status). */
TSR_NODISCARD TSR_API tsr_status tsr_tensors_alloc(tsr_context *context, const tsr_buffer_type *type,
                                                   tsr_buffer **buffer_out);

/* -- buffers -- */

/** Use the caller's memory on a device without a copy; tensors are put into it with tsr_tensor_place(). The
 * memory must stay as it is (mapped, and registered with CUDA if the caller registered it) until the buffer
 * is destroyed, which does not free it; the library never writes it, and tsr_tensor_set() on what is placed
 * in it is TSR_ERR_INVALID. Host devices use it directly; GPUs where they share the host's memory or read it
 * coherently. TSR_ERR_UNSUPPORTED for other GPUs, unless their devices text says wrap=1: then every use
 * crosses the bus, and the log reports the cost. */
TSR_NODISCARD TSR_API tsr_status tsr_buffer_from_ptr(tsr_runtime *rt, int device, const void *pointer,
                                                     size_t bytes, tsr_buffer **buffer_out);

/** Say that an unallocated tensor is the tsr_tensor_bytes() dense bytes at `offset` of a buffer made by
 * tsr_buffer_from_ptr(). The address must suit the type (4 bytes for F32, 2 for F16, BF16 and blocks). */
TSR_NODISCARD TSR_API tsr_status tsr_tensor_place(tsr_tensor *tensor, tsr_buffer *buffer, size_t offset);

/** Free the memory; its tensors become unallocated. NULL is fine. No program that uses them may run. */
TSR_API void tsr_buffer_destroy(tsr_buffer *buffer);

/** Bytes that the buffer takes on a device, alignment included; 0 for a device it does not use. */
TSR_API size_t tsr_buffer_bytes(const tsr_buffer *buffer, int device);

TSR_END_DECLS
#endif
