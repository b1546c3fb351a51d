/* The GGUF writer (gguf/writer.h). Keys and tensor descriptions are serialised when they are added, so a
 * header is two blocks of bytes. Of a tensor only the size is kept. */
#include "gguf/writer.h"

#include <errno.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "gguf/value.h"

typedef struct bytes {
    uint8_t *data;
    size_t n, capacity;
} bytes;

struct tsr_gguf_writer {
    uint32_t version;
    size_t alignment;
    bytes keys, tensors; /* serialised */
    uint64_t n_keys, n_tensors, data_bytes;
    bytes sizes; /* size_t [n_tensors] */
    bool out_of_memory;
    FILE *file;
    uint64_t current; /* the tensor whose data is put next */
    size_t done;      /* its bytes so far */
};

/* -- header -- */

static void add(tsr_gguf_writer *w, bytes *to, const void *data, size_t n)
{
    if (to->capacity - to->n < n) {
        size_t capacity = 2 * (to->capacity + n);
        uint8_t *grown = tsr_mem_realloc(to->data, capacity, 1);
        w->out_of_memory = w->out_of_memory || !grown;
        if (!grown)
            return;
        to->data = grown;
        to->capacity = capacity;
    }
    if (n > 0)
        memcpy(to->data + to->n, data, n); /* numbers are little-endian, like every machine this runs on */
    to->n += n;
}

static void add_u32(tsr_gguf_writer *w, bytes *to, uint32_t value)
{
    add(w, to, &value, sizeof value);
}

static void add_u64(tsr_gguf_writer *w, bytes *to, uint64_t value)
{
    add(w, to, &value, sizeof value);
}

static void add_string(tsr_gguf_writer *w, bytes *to, const char *text)
{
    add_u64(w, to, strlen(text));
    add(w, to, text, strlen(text));
}

static void add_key(tsr_gguf_writer *w, const char *key, tsr_gguf_value_type type)
{
    w->n_keys++;
    add_string(w, &w->keys, key);
    add_u32(w, &w->keys, type);
}

static void add_array_key(tsr_gguf_writer *w, const char *key, tsr_gguf_value_type type, size_t n)
{
    add_key(w, key, TSR_GGUF_ARRAY);
    add_u32(w, &w->keys, type);
    add_u64(w, &w->keys, n);
}

tsr_status tsr_gguf_writer_create(uint32_t version, tsr_gguf_writer **writer_out)
{
    tsr_gguf_writer *w;
    tsr_status status = TSR_NEW(&w, "a GGUF writer");
    if (status != TSR_OK)
        return status;
    w->version = version;
    w->alignment = 32;
    *writer_out = w;
    return TSR_OK;
}

void tsr_gguf_writer_destroy(tsr_gguf_writer *w)
{
    if (!w)
        return;
    tsr_mem_free(w->keys.data);
    tsr_mem_free(w->tensors.data);
    tsr_mem_free(w->sizes.data);
    tsr_mem_free(w);
}

void tsr_gguf_writer_value(tsr_gguf_writer *w, const char *key, tsr_gguf_value_type type, const void *value)
{
    add_key(w, key, type);
    add(w, &w->keys, value, tsr_gguf_value_bytes(type));
}

void tsr_gguf_writer_array(tsr_gguf_writer *w, const char *key, tsr_gguf_value_type type, const void *values,
                           size_t n)
{
    add_array_key(w, key, type, n);
    add(w, &w->keys, values, n * tsr_gguf_value_bytes(type));
}

void tsr_gguf_writer_string(tsr_gguf_writer *w, const char *key, const char *value)
{
    add_key(w, key, TSR_GGUF_STRING);
    add_string(w, &w->keys, value);
}

void tsr_gguf_writer_strings(tsr_gguf_writer *w, const char *key, const char *const *values, size_t n)
{
    add_array_key(w, key, TSR_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        add_string(w, &w->keys, values[i]);
}

void tsr_gguf_writer_keys_of(tsr_gguf_writer *w, const tsr_gguf_writer *from)
{
    w->alignment = from->alignment;
    w->n_keys += from->n_keys;
    add(w, &w->keys, from->keys.data, from->keys.n);
}

void tsr_gguf_writer_alignment(tsr_gguf_writer *w, uint32_t alignment)
{
    w->alignment = alignment;
    tsr_gguf_writer_u32(w, "general.alignment", alignment);
}

tsr_status tsr_gguf_writer_tensor(tsr_gguf_writer *w, const char *name, tsr_type type, int n_dims,
                                  const int64_t *ne)
{
    int64_t elems = 1, size;
    bool counts = ne[0] % tsr_type_block_elems(type) == 0;
    for (int d = 0; d < n_dims && counts; d++)
        counts = ne[d] > 0 && !__builtin_mul_overflow(elems, ne[d], &elems);
    counts = counts && !__builtin_mul_overflow(elems, (int64_t)tsr_type_block_bytes(type), &size);
    if (!counts)
        return tsr_fail(
            TSR_ERR_INVALID,
            "tensor %s cannot be written: its extents must be positive and at most 2^63 bytes, and its "
            "rows whole blocks of %lld elements (%s)",
            name, (long long)tsr_type_block_elems(type), tsr_type_name(type));
    size_t n_bytes = tsr_type_row_bytes(type, elems);
    w->n_tensors++;
    add_string(w, &w->tensors, name);
    add_u32(w, &w->tensors, (uint32_t)n_dims);
    add(w, &w->tensors, ne, (size_t)n_dims * sizeof *ne);
    add_u32(w, &w->tensors, type);
    add_u64(w, &w->tensors, w->data_bytes);
    add(w, &w->sizes, &n_bytes, sizeof n_bytes);
    w->data_bytes += (n_bytes + w->alignment - 1) / w->alignment * w->alignment;
    return TSR_OK;
}

uint64_t tsr_gguf_writer_data_bytes(const tsr_gguf_writer *w)
{
    return w->data_bytes;
}

/* -- writing -- */

static tsr_status emit(tsr_gguf_writer *w, const void *data, size_t n)
{
    if (n > 0 && fwrite(data, 1, n, w->file) != n)
        return tsr_fail(TSR_ERR_IO, "cannot write a GGUF file: %s", strerror(errno));
    return TSR_OK;
}

static tsr_status emit_padding(tsr_gguf_writer *w, size_t written)
{
    static const char zeros[64];
    tsr_status status = TSR_OK;
    for (size_t left = (w->alignment - written % w->alignment) % w->alignment, n; left > 0; left -= n) {
        n = TSR_MIN(left, sizeof zeros);
        TSR_TRY(emit(w, zeros, n));
    }
out:
    return status;
}

tsr_status tsr_gguf_writer_begin(tsr_gguf_writer *w, FILE *file)
{
    tsr_status status = TSR_OK;
    bytes start = {0};
    add(w, &start, "GGUF", 4);
    add_u32(w, &start, w->version);
    add_u64(w, &start, w->n_tensors);
    add_u64(w, &start, w->n_keys);
    w->file = file;
    w->current = w->done = 0;
    if (w->out_of_memory)
        TSR_TRY(tsr_fail(TSR_ERR_MEMORY, "out of host memory for the header of a GGUF file"));
    TSR_TRY(emit(w, start.data, start.n));
    TSR_TRY(emit(w, w->keys.data, w->keys.n));
    TSR_TRY(emit(w, w->tensors.data, w->tensors.n));
    TSR_TRY(emit_padding(w, start.n + w->keys.n + w->tensors.n));
out:
    tsr_mem_free(start.data);
    return status;
}

tsr_status tsr_gguf_writer_put(tsr_gguf_writer *w, const void *data, size_t n)
{
    tsr_status status = TSR_OK;
    const uint8_t *from = data;
    for (size_t piece; n > 0; n -= piece, from += piece) {
        if (w->current == w->n_tensors)
            return tsr_fail(TSR_ERR_INVALID, "%zu bytes more than the tensors of a GGUF file have", n);
        size_t size = ((size_t *)w->sizes.data)[w->current];
        piece = TSR_MIN(n, size - w->done);
        TSR_TRY(emit(w, from, piece));
        w->done += piece;
        if (w->done == size) {
            TSR_TRY(emit_padding(w, size));
            w->current++;
            w->done = 0;
        }
    }
out:
    return status;
}

tsr_status tsr_gguf_writer_end(tsr_gguf_writer *w)
{
    if (w->current < w->n_tensors)
        return tsr_fail(TSR_ERR_INVALID, "tensor %llu of %llu of a GGUF file lacks data",
                        (unsigned long long)w->current, (unsigned long long)w->n_tensors);
    if (fflush(w->file) != 0)
        return tsr_fail(TSR_ERR_IO, "cannot write a GGUF file: %s", strerror(errno));
    return TSR_OK;
}
