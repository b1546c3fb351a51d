/* A GGUF writer for tests and benchmarks. Keys are serialised at once into a buffer; tensors are remembered
 * and produced when a file is written. */
#include "support/gguf_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/random.h"

enum {
    CHUNK_ELEMS = 4096, /* produced at a time; a multiple of every block */
    POOL_CHUNKS = 64    /* different chunks of a random tensor; larger ones repeat them */
};

struct buffer {
    uint8_t *data;
    size_t bytes, capacity;
};

struct tensor {
    char *name;
    tsr_type type;
    int n_dims;
    int64_t ne[4];
    int64_t elems;
    size_t bytes;
    void *data; /* NULL: normal random numbers, zeros if the deviation is 0 */
    uint64_t seed;
    float deviation;
};

struct gguf_writer {
    uint32_t version;
    size_t alignment;
    struct buffer keys;
    size_t n_keys;
    struct tensor *tensors;
    size_t n_tensors;
};

static void die(const char *what, const char *name)
{
    fprintf(stderr, "gguf_writer: %s: %s\n", name, what);
    exit(99);
}

static void *must(void *block)
{
    if (!block)
        die("out of memory", "model");
    return block;
}

static void append(struct buffer *buffer, const void *data, size_t bytes)
{
    if (buffer->capacity - buffer->bytes < bytes) {
        buffer->capacity = 2 * (buffer->capacity + bytes);
        buffer->data = must(realloc(buffer->data, buffer->capacity));
    }
    if (bytes > 0)
        memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
}

static void append_u32(struct buffer *buffer, uint32_t value)
{
    append(buffer, &value, sizeof value);
}

static void append_u64(struct buffer *buffer, uint64_t value)
{
    append(buffer, &value, sizeof value);
}

static void append_string(struct buffer *buffer, const char *text)
{
    append_u64(buffer, strlen(text));
    append(buffer, text, strlen(text));
}

static size_t number_bytes(tsr_gguf_value_type type)
{
    switch (type) {
    case TSR_GGUF_U8:
    case TSR_GGUF_I8:
    case TSR_GGUF_BOOL:
        return 1;
    case TSR_GGUF_U16:
    case TSR_GGUF_I16:
        return 2;
    case TSR_GGUF_U32:
    case TSR_GGUF_I32:
    case TSR_GGUF_F32:
        return 4;
    default:
        return 8;
    }
}

gguf_writer *gguf_writer_create(uint32_t version)
{
    gguf_writer *writer = must(calloc(1, sizeof *writer));
    writer->version = version;
    writer->alignment = 32;
    return writer;
}

void gguf_writer_destroy(gguf_writer *writer)
{
    if (!writer)
        return;
    for (size_t i = 0; i < writer->n_tensors; i++) {
        free(writer->tensors[i].name);
        free(writer->tensors[i].data);
    }
    free(writer->tensors);
    free(writer->keys.data);
    free(writer);
}

/* -- keys -- */

static void begin_key(gguf_writer *writer, const char *key, tsr_gguf_value_type type)
{
    writer->n_keys++;
    append_string(&writer->keys, key);
    append_u32(&writer->keys, type);
}

static void begin_array(gguf_writer *writer, const char *key, tsr_gguf_value_type type, size_t n)
{
    begin_key(writer, key, TSR_GGUF_ARRAY);
    append_u32(&writer->keys, type);
    append_u64(&writer->keys, n);
}

void gguf_writer_value(gguf_writer *writer, const char *key, tsr_gguf_value_type type, const void *value)
{
    begin_key(writer, key, type);
    append(&writer->keys, value, number_bytes(type));
}

void gguf_writer_array(gguf_writer *writer, const char *key, tsr_gguf_value_type type, const void *values,
                       size_t n)
{
    begin_array(writer, key, type, n);
    append(&writer->keys, values, n * number_bytes(type));
}

void gguf_writer_string(gguf_writer *writer, const char *key, const char *value)
{
    begin_key(writer, key, TSR_GGUF_STRING);
    append_string(&writer->keys, value);
}

void gguf_writer_strings(gguf_writer *writer, const char *key, const char *const *values, size_t n)
{
    begin_array(writer, key, TSR_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        append_string(&writer->keys, values[i]);
}

void gguf_writer_u32(gguf_writer *writer, const char *key, uint32_t value)
{
    gguf_writer_value(writer, key, TSR_GGUF_U32, &value);
}

void gguf_writer_f32(gguf_writer *writer, const char *key, float value)
{
    gguf_writer_value(writer, key, TSR_GGUF_F32, &value);
}

void gguf_writer_bool(gguf_writer *writer, const char *key, bool value)
{
    uint8_t byte = value;
    gguf_writer_value(writer, key, TSR_GGUF_BOOL, &byte);
}

void gguf_writer_alignment(gguf_writer *writer, uint32_t alignment)
{
    writer->alignment = alignment;
    gguf_writer_u32(writer, "general.alignment", alignment);
}

/* -- tensors -- */

static struct tensor *add_tensor(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                                 const int64_t *ne)
{
    writer->tensors = must(realloc(writer->tensors, (writer->n_tensors + 1) * sizeof *writer->tensors));
    struct tensor *tensor = &writer->tensors[writer->n_tensors++];
    *tensor = (struct tensor){.name = must(strdup(name)), .type = type, .n_dims = n_dims, .elems = 1};
    for (int d = 0; d < n_dims; d++) {
        tensor->ne[d] = ne[d];
        tensor->elems *= ne[d];
    }
    if (ne[0] % tsr_type_block_elems(type) != 0)
        die("a row is no multiple of its type's block", name);
    tensor->bytes = tsr_type_row_bytes(type, tensor->elems);
    return tensor;
}

void gguf_writer_tensor_raw(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                            const int64_t *ne, const void *data)
{
    struct tensor *tensor = add_tensor(writer, name, type, n_dims, ne);
    tensor->data = must(malloc(tensor->bytes));
    memcpy(tensor->data, data, tensor->bytes);
}

void gguf_writer_tensor_f32(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                            const int64_t *ne, const float *values)
{
    struct tensor *tensor = add_tensor(writer, name, type, n_dims, ne);
    tensor->data = must(malloc(tensor->bytes));
    if (tsr_type_from_f32(type, values, tensor->data, tensor->elems) != TSR_OK)
        die(tsr_last_error(), name);
}

void gguf_writer_tensor_zero(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                             const int64_t *ne)
{
    add_tensor(writer, name, type, n_dims, ne);
}

void gguf_writer_tensor_normal(gguf_writer *writer, const char *name, tsr_type type, int n_dims,
                               const int64_t *ne, uint64_t seed, float deviation)
{
    struct tensor *tensor = add_tensor(writer, name, type, n_dims, ne);
    tensor->seed = seed;
    tensor->deviation = deviation;
}

/* -- writing -- */

static void emit(FILE *file, const void *data, size_t bytes)
{
    if (bytes > 0 && fwrite(data, 1, bytes, file) != bytes)
        die("cannot write", "model");
}

static void emit_padding(FILE *file, size_t written, size_t alignment)
{
    static const char zeros[64];
    for (size_t left = (alignment - written % alignment) % alignment; left > 0;) {
        size_t n = left < sizeof zeros ? left : sizeof zeros;
        emit(file, zeros, n);
        left -= n;
    }
}

/* Encode the next chunk of a random tensor. */
static void make_chunk(const struct tensor *tensor, uint64_t *seed, void *chunk)
{
    float values[CHUNK_ELEMS];
    for (int i = 0; i < CHUNK_ELEMS; i++)
        values[i] = tensor->deviation * random_normal(seed);
    if (tsr_type_from_f32(tensor->type, values, chunk, CHUNK_ELEMS) != TSR_OK)
        die(tsr_last_error(), tensor->name);
}

static void emit_tensor(FILE *file, const struct tensor *tensor)
{
    if (tensor->data) {
        emit(file, tensor->data, tensor->bytes);
        return;
    }
    size_t chunk_bytes = tsr_type_row_bytes(tensor->type, CHUNK_ELEMS);
    uint8_t *pool = must(calloc(POOL_CHUNKS, chunk_bytes));
    uint64_t seed = tensor->seed;
    for (int64_t chunk = 0, done = 0; done < tensor->elems; chunk++) {
        int64_t n = tensor->elems - done < CHUNK_ELEMS ? tensor->elems - done : CHUNK_ELEMS;
        int64_t slot = chunk < POOL_CHUNKS ? chunk : (int64_t)random_below(&seed, POOL_CHUNKS);
        if (chunk < POOL_CHUNKS && tensor->deviation != 0)
            make_chunk(tensor, &seed, pool + (size_t)slot * chunk_bytes);
        emit(file, pool + (size_t)slot * chunk_bytes, tsr_type_row_bytes(tensor->type, n));
        done += n;
    }
    free(pool);
}

/* The header of a file with the given keys and tensors [begin, end). Returns the bytes of its tensors,
 * padding included. */
static uint64_t write_header(const gguf_writer *writer, FILE *file, const struct buffer *keys, size_t n_keys,
                             size_t begin, size_t end)
{
    struct buffer header = {0};
    uint64_t offset = 0;
    append(&header, "GGUF", 4);
    append_u32(&header, writer->version);
    append_u64(&header, end - begin);
    append_u64(&header, n_keys);
    append(&header, keys->data, keys->bytes);
    for (size_t i = begin; i < end; i++) {
        const struct tensor *tensor = &writer->tensors[i];
        append_string(&header, tensor->name);
        append_u32(&header, (uint32_t)tensor->n_dims);
        append(&header, tensor->ne, (size_t)tensor->n_dims * sizeof tensor->ne[0]);
        append_u32(&header, tensor->type);
        append_u64(&header, offset);
        offset += (tensor->bytes + writer->alignment - 1) / writer->alignment * writer->alignment;
    }
    emit(file, header.data, header.bytes);
    emit_padding(file, header.bytes, writer->alignment);
    free(header.data);
    return offset;
}

static void write_file(const gguf_writer *writer, FILE *file, const struct buffer *keys, size_t n_keys,
                       size_t begin, size_t end)
{
    write_header(writer, file, keys, n_keys, begin, end);
    for (size_t i = begin; i < end; i++) {
        emit_tensor(file, &writer->tensors[i]);
        emit_padding(file, writer->tensors[i].bytes, writer->alignment);
    }
}

static FILE *create_file(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        die("cannot create the file", path);
    return file;
}

static void close_file(FILE *file, const char *path)
{
    if (fclose(file) != 0)
        die("cannot write", path);
}

void gguf_writer_save(const gguf_writer *writer, const char *path)
{
    FILE *file = create_file(path);
    write_file(writer, file, &writer->keys, writer->n_keys, 0, writer->n_tensors);
    close_file(file, path);
}

void gguf_writer_save_header(const gguf_writer *writer, const char *path, bool full_length)
{
    FILE *file = create_file(path);
    uint64_t bytes = write_header(writer, file, &writer->keys, writer->n_keys, 0, writer->n_tensors);
    if (full_length && (fflush(file) != 0 || ftruncate(fileno(file), ftello(file) + (off_t)bytes) != 0))
        die("cannot write", path);
    close_file(file, path);
}

void gguf_writer_save_split(const gguf_writer *writer, const char *prefix, int n_files)
{
    size_t path_bytes = strlen(prefix) + 64;
    char *path = must(malloc(path_bytes));
    for (int i = 0; i < n_files; i++) {
        /* A writer of its own for this file's keys: all of them in the first one, split.* in each. */
        gguf_writer *part = gguf_writer_create(writer->version);
        uint16_t number = (uint16_t)i, count = (uint16_t)n_files;
        int32_t n_tensors = (int32_t)writer->n_tensors;
        if (i == 0) {
            append(&part->keys, writer->keys.data, writer->keys.bytes);
            part->n_keys = writer->n_keys;
        } else if (writer->alignment != 32) {
            gguf_writer_alignment(part, (uint32_t)writer->alignment);
        }
        gguf_writer_value(part, "split.no", TSR_GGUF_U16, &number);
        gguf_writer_value(part, "split.count", TSR_GGUF_U16, &count);
        gguf_writer_value(part, "split.tensors.count", TSR_GGUF_I32, &n_tensors);
        snprintf(path, path_bytes, "%s-%05d-of-%05d.gguf", prefix, i + 1, n_files);
        FILE *file = create_file(path);
        write_file(writer, file, &part->keys, part->n_keys, writer->n_tensors * (size_t)i / (size_t)n_files,
                   writer->n_tensors * (size_t)(i + 1) / (size_t)n_files);
        close_file(file, path);
        gguf_writer_destroy(part);
    }
    free(path);
}

uint8_t *gguf_writer_bytes(const gguf_writer *writer, size_t *bytes_out)
{
    char *data = NULL;
    FILE *file = must(open_memstream(&data, bytes_out));
    write_file(writer, file, &writer->keys, writer->n_keys, 0, writer->n_tensors);
    close_file(file, "a block of memory");
    return (uint8_t *)data;
}
