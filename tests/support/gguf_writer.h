/* Writes GGUF files for tests and benchmarks, through src/gguf/writer.h. In addition this writer makes random
 * tensors, saves one model to several files, and ends the program on a failure.
 *
 *     gguf_writer *w = gguf_writer_create(3);
 *     gguf_writer_string(w, "general.architecture", "llama");
 *     gguf_writer_u32(w, "llama.block_count", 2);
 *     gguf_writer_tensor_normal(w, "output.weight", TSR_TYPE_Q8_0, 2, (int64_t[]){4096, 32000}, seed, 0.02f);
 *     gguf_writer_save(w, "model.gguf");
 *     gguf_writer_destroy(w);
 *
 * Keys and tensors appear in the file in the order of the calls. Random and zero tensors are made while they
 * are written, so a file may be larger than memory. Nothing is checked beyond what the writer itself needs:
 * some tests add two keys of one name. A failure (memory, disk, rows that are not whole blocks of the type)
 * prints a message and ends the program, because the test cannot continue without the file. */
#ifndef TSR_TESTS_GGUF_WRITER_H
#define TSR_TESTS_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/writer.h"

typedef struct gguf_writer gguf_writer;

/* `version` goes into the header as it is. */
gguf_writer *gguf_writer_create(uint32_t version);
void gguf_writer_destroy(gguf_writer *writer);

/* The writer of the file's keys, and short names for its functions (gguf/writer.h). */
tsr_gguf_writer *gguf_writer_keys(gguf_writer *writer);
#define gguf_writer_value(w, ...)   tsr_gguf_writer_value(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_array(w, ...)   tsr_gguf_writer_array(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_string(w, ...)  tsr_gguf_writer_string(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_strings(w, ...) tsr_gguf_writer_strings(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_u32(w, ...)     tsr_gguf_writer_u32(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_f32(w, ...)     tsr_gguf_writer_f32(gguf_writer_keys(w), __VA_ARGS__)
#define gguf_writer_bool(w, ...)    tsr_gguf_writer_bool(gguf_writer_keys(w), __VA_ARGS__)

/* Align tensor data to `alignment` bytes (32 unless called) and write key general.alignment. */
void gguf_writer_alignment(gguf_writer *writer, uint32_t alignment);

/* Tensors of n_dims extents. raw: bytes as they go into the file; f32: converted to `type`; normal: random
 * with mean 0 and the given standard deviation (large tensors repeat blocks of 4096 elements in random
 * order). Copied. */
void gguf_writer_tensor_raw(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                            const int64_t *ne, const void *data);
void gguf_writer_tensor_f32(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                            const int64_t *ne, const float *values);
void gguf_writer_tensor_zero(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                             const int64_t *ne);
void gguf_writer_tensor_normal(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                               const int64_t *ne, uint64_t seed, float deviation);

/* Write the file. A writer may be saved several times. */
void gguf_writer_save(const gguf_writer *writer, const char *path);

/* Write the header alone. With full_length the file is as long as it would be, its tensors are holes that
 * read as zeros and take no disk space. */
void gguf_writer_save_header(const gguf_writer *writer, const char *path, bool full_length);

/* Write PREFIX-00001-of-0000N.gguf and so on, the tensors dealt out in order, with the split.* keys. */
void gguf_writer_save_split(const gguf_writer *writer, const char *prefix, int n_files);

/* The file as a block of memory, to be released with free(). */
uint8_t *gguf_writer_bytes(const gguf_writer *writer, size_t *bytes_out);

#endif
