/** @file
 * GGUF model files, versions 2 and 3.
 *
 * Opening copies the headers of all files of the model into memory, checks every count, offset, size, string
 * and type before use, makes an index of keys and tensors, and maps the tensor data. No tensor is read, so
 * opening takes the same time for any size of weights (a few ms for a vocabulary of 128k tokens). Strings and
 * arrays point into the copy. They are valid until tsr_gguf_close() and are not NUL-terminated unless a
 * function says so.
 *
 * The file may change while it is open, also during tsr_gguf_open(). Keys, strings and tensor descriptions
 * stay as they were read. Tensor data is read from the file at each access: overwritten weights change
 * results, but never cause an access outside memory. A file must not shrink: reading a page beyond its end
 * raises SIGBUS, as with every memory map, and ends the process unless the caller handles that signal. A file
 * that is replaced by rename() stays as it was.
 *
 *     tsr_gguf *gguf;
 *     if (tsr_gguf_open("model.gguf", NULL, &gguf) != TSR_OK) ...
 *     uint64_t n_layers;
 *     if (tsr_gguf_get_u64(gguf, "llama.block_count", &n_layers) != TSR_OK) ...
 *     const tsr_gguf_tensor *w = tsr_gguf_find_tensor(gguf, "output.weight");
 *     tsr_gguf_close(gguf);
 *
 * A finished tsr_gguf is read-only: any number of threads may query it.
 */
#ifndef TSR_GGUF_H
#define TSR_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>
#include <tsr/types.h>

TSR_BEGIN_DECLS

/** An opened GGUF file, or all files of a model in several files; read-only. */
typedef struct tsr_gguf tsr_gguf;

/** A string inside the file: `bytes` bytes, UTF-8 by convention, not NUL-terminated. */
typedef struct tsr_gguf_string {
    const char *data; /**< [bytes], owned by the tsr_gguf */
    size_t bytes;     /**< length of `data` */
} tsr_gguf_string;

/** Value types as the file format numbers them. */
typedef enum tsr_gguf_value_type {
    TSR_GGUF_U8 = 0,
    TSR_GGUF_I8 = 1,
    TSR_GGUF_U16 = 2,
    TSR_GGUF_I16 = 3,
    TSR_GGUF_U32 = 4,
    TSR_GGUF_I32 = 5,
    TSR_GGUF_F32 = 6,
    TSR_GGUF_BOOL = 7,
    TSR_GGUF_STRING = 8,
    TSR_GGUF_ARRAY = 9,
    TSR_GGUF_U64 = 10,
    TSR_GGUF_I64 = 11,
    TSR_GGUF_F64 = 12
} tsr_gguf_value_type;

/** A tensor of a file. */
typedef struct tsr_gguf_tensor {
    const char *name; /**< NUL-terminated, owned by the tsr_gguf */
    tsr_type type;    /**< type of its elements */
    int n_dims;       /**< 1..4 */
    int64_t ne[4];    /**< ne[0] is contiguous; missing dimensions are 1 */
    size_t bytes;     /**< whole tensor */
    /** in the map, read-only, aligned to general.alignment, at least to 8 bytes; NULL if the file was opened
     * header_only and ends before the tensor does */
    const void *data;
    int file;        /**< index of the file, in a model in several files */
    uint64_t offset; /**< of data in that file */
} tsr_gguf_tensor;

/** How a file is opened. */
typedef struct tsr_gguf_config {
    size_t size;      /**< sizeof(tsr_gguf_config) */
    bool header_only; /**< accept a file that ends before its tensor data (planning needs no more) */
} tsr_gguf_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_gguf_config_init(tsr_gguf_config *config_out, size_t size);

/** The defaults: the file must hold its tensor data. */
static inline tsr_gguf_config tsr_gguf_config_default(void)
{
    tsr_gguf_config config;
    tsr_gguf_config_init(&config, sizeof config);
    return config;
}

/** Open a model. Of a model in several files, `path` is the first file ("...-00001-of-00003.gguf"). The other
 * files are in the same directory. Their tensors follow in file order; keys are read from the first file
 * only. `config` may be NULL. The call reads headers from disk and may block on that. TSR_ERR_IO: a file
 * cannot be opened or mapped. TSR_ERR_FORMAT: a file is not well-formed GGUF (the message names file, key or
 * tensor, and byte). TSR_ERR_UNSUPPORTED: another version, a big-endian file, arrays of arrays, or a tensor
 * type of unknown size. TSR_ERR_INVALID: `path` is not the first file of the model. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_open(const char *path, const tsr_gguf_config *config,
                                               tsr_gguf **gguf_out);

/** NULL is fine. No pointer obtained from `gguf` is valid afterwards. */
TSR_API void tsr_gguf_close(tsr_gguf *gguf);

TSR_API const char *tsr_gguf_path(const tsr_gguf *gguf); /**< as given to tsr_gguf_open() */
TSR_API int tsr_gguf_version(const tsr_gguf *gguf);      /**< of the format: 2 or 3 */
/** files of the model; 1 for a model in one file */
TSR_API int tsr_gguf_n_files(const tsr_gguf *gguf);
TSR_API size_t tsr_gguf_file_bytes(const tsr_gguf *gguf); /**< all files together */

TSR_API int64_t tsr_gguf_n_tensors(const tsr_gguf *gguf); /**< of all files together */
TSR_API const tsr_gguf_tensor *tsr_gguf_tensor_at(const tsr_gguf *gguf,
                                                  int64_t index); /**< NULL out of range */
TSR_API const tsr_gguf_tensor *tsr_gguf_find_tensor(const tsr_gguf *gguf,
                                                    const char *name); /**< NULL if absent */

TSR_API int64_t tsr_gguf_n_keys(const tsr_gguf *gguf); /**< of the first file */
TSR_API const char *tsr_gguf_key_at(const tsr_gguf *gguf,
                                    int64_t index); /**< NUL-terminated; NULL out of range */
/** whether the first file has the key */
TSR_API bool tsr_gguf_has_key(const tsr_gguf *gguf, const char *key);
/** The type of a key's value; TSR_GGUF_ARRAY for any array (tsr_gguf_get_array() says of what).
 * TSR_ERR_NOT_FOUND. */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_type(const tsr_gguf *gguf, const char *key,
                                                   tsr_gguf_value_type *type_out);
/** "u32", "string", ...: the format's names, in lower case; "?" for a value that is no type. */
TSR_API const char *tsr_gguf_value_type_name(tsr_gguf_value_type type);

/** An integer. Every integer type is converted if the value fits. TSR_ERR_NOT_FOUND: no such key.
 * TSR_ERR_FORMAT: the value has another type or does not fit. */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_u64(const tsr_gguf *gguf, const char *key, uint64_t *value_out);
/** An integer or float, rounded to the nearest double; errors as tsr_gguf_get_u64(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_f64(const tsr_gguf *gguf, const char *key, double *value_out);
/** A bool; errors as tsr_gguf_get_u64(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_bool(const tsr_gguf *gguf, const char *key, bool *value_out);
/** A string; errors as tsr_gguf_get_u64(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_string(const tsr_gguf *gguf, const char *key,
                                                     tsr_gguf_string *value_out);

/** Element type and number of elements of an array. The next three functions read one element in constant
 * time. Errors as tsr_gguf_get_u64(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_get_array(const tsr_gguf *gguf, const char *key,
                                                    tsr_gguf_value_type *type_out, int64_t *n_out);
/** One string of an array. Errors as tsr_gguf_get_u64(); TSR_ERR_INVALID: the index is out of range. */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_array_string(const tsr_gguf *gguf, const char *key, int64_t index,
                                                       tsr_gguf_string *value_out);
/** One number of an array as double; errors as tsr_gguf_array_string(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_array_f64(const tsr_gguf *gguf, const char *key, int64_t index,
                                                    double *value_out);
/** One integer of an array, or a bool as 0 or 1; errors as tsr_gguf_array_string(). */
TSR_NODISCARD TSR_API tsr_status tsr_gguf_array_i64(const tsr_gguf *gguf, const char *key, int64_t index,
                                                    int64_t *value_out);

TSR_END_DECLS
#endif
