/* Writing GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3.
 *
 *     tsr_gguf_writer *w;
 *     TSR_TRY(tsr_gguf_writer_create(3, &w));
 *     tsr_gguf_writer_string(w, "general.architecture", "llama");
 *     TSR_TRY(tsr_gguf_writer_tensor(w, "output.weight", TSR_TYPE_Q8_0, 2, (int64_t[]){4096, 32000}));
 *     TSR_TRY(tsr_gguf_writer_begin(w, file));               (the header)
 *     ... TSR_TRY(tsr_gguf_writer_put(w, rows, bytes)); ...  (data of all tensors, in order, in any pieces)
 *     TSR_TRY(tsr_gguf_writer_end(w));
 *     tsr_gguf_writer_destroy(w);
 *
 * Keys and tensors are in the file in the order of the calls. Data is streamed, so a file can be larger than
 * memory. Names are not checked: a key or a tensor that is added twice is twice in the file. */
#ifndef TSR_GGUF_WRITER_H
#define TSR_GGUF_WRITER_H

#include <stdio.h>

#include <tsr/gguf.h>

typedef struct tsr_gguf_writer tsr_gguf_writer;

tsr_status tsr_gguf_writer_create(uint32_t version, tsr_gguf_writer **writer_out);
void tsr_gguf_writer_destroy(tsr_gguf_writer *writer); /* NULL is fine */

/* Add a key; copied. `value` and `values` point to numbers of the given type (bool: one byte each). If memory
 * is short, tsr_gguf_writer_begin() returns TSR_ERR_MEMORY. */
void tsr_gguf_writer_value(tsr_gguf_writer *writer, const char *key, tsr_gguf_value_type type,
                           const void *value);
void tsr_gguf_writer_array(tsr_gguf_writer *writer, const char *key, tsr_gguf_value_type type,
                           const void *values, size_t n);
void tsr_gguf_writer_string(tsr_gguf_writer *writer, const char *key, const char *value);
void tsr_gguf_writer_strings(tsr_gguf_writer *writer, const char *key, const char *const *values, size_t n);

/* Add all keys of `from`, and align as it does. */
void tsr_gguf_writer_keys_of(tsr_gguf_writer *writer, const tsr_gguf_writer *from);

static inline void tsr_gguf_writer_u32(tsr_gguf_writer *writer, const char *key, uint32_t value)
{
    tsr_gguf_writer_value(writer, key, TSR_GGUF_U32, &value);
}

static inline void tsr_gguf_writer_f32(tsr_gguf_writer *writer, const char *key, float value)
{
    tsr_gguf_writer_value(writer, key, TSR_GGUF_F32, &value);
}

static inline void tsr_gguf_writer_bool(tsr_gguf_writer *writer, const char *key, bool value)
{
    tsr_gguf_writer_value(writer, key, TSR_GGUF_BOOL, &(uint8_t){value});
}

/* Align tensor data to `alignment` bytes (a power of two; 32 by default) and add the key general.alignment.
 * Call this before the first tensor. */
void tsr_gguf_writer_alignment(tsr_gguf_writer *writer, uint32_t alignment);

/* Add a tensor of n_dims extents. TSR_ERR_INVALID: an extent is not positive, a row is no multiple of the
 * type's block, or the bytes cannot be counted. */
tsr_status tsr_gguf_writer_tensor(tsr_gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                                  const int64_t *ne);

/* Bytes of all tensors, padding included. */
uint64_t tsr_gguf_writer_data_bytes(const tsr_gguf_writer *writer);

/* Write the header to `file` (borrowed until tsr_gguf_writer_end(); it need not be seekable), then the data;
 * padding is added where a tensor ends. end() flushes the file. TSR_ERR_IO, with errno: writing failed.
 * TSR_ERR_INVALID: more data, or at the end less, than the tensors have. */
tsr_status tsr_gguf_writer_begin(tsr_gguf_writer *writer, FILE *file);
tsr_status tsr_gguf_writer_put(tsr_gguf_writer *writer, const void *data, size_t bytes);
tsr_status tsr_gguf_writer_end(tsr_gguf_writer *writer);

#endif
