/* A GGUF writer for tests and benchmarks, over src/gguf/writer.h: it remembers tensors and makes their data
 * when a file is written, and ends the program on a failure. */
#include "support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/random.h"

enum {
    CHUNK_ELEMS = 4096, /* produced at a time; a multiple of every block */
    POOL_CHUNKS = 64    /* different chunks of a random tensor; larger ones repeat them */
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
    tsr_gguf_writer *keys;
    uint32_t alignment; /* 0: the default */
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

static void check(tsr_status status, const char *name)
{
    if (status != TSR_OK)
        die(tsr_last_error(), name);
}

gguf_writer *gguf_writer_create(uint32_t version)
{
    gguf_writer *writer = must(calloc(1, sizeof *writer));
    writer->version = version;
    check(tsr_gguf_writer_create(version, &writer->keys), "model");
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
    tsr_gguf_writer_destroy(writer->keys);
    free(writer);
}

tsr_gguf_writer *gguf_writer_keys(gguf_writer *writer)
{
    return writer->keys;
}

void gguf_writer_alignment(gguf_writer *writer, uint32_t alignment)
{
    writer->alignment = alignment;
    tsr_gguf_writer_alignment(writer->keys, alignment);
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

/* Encode the next chunk of a random tensor. */
static void make_chunk(const struct tensor *tensor, uint64_t *seed, void *chunk)
{
    float values[CHUNK_ELEMS];
    for (int i = 0; i < CHUNK_ELEMS; i++)
        values[i] = tensor->deviation * random_normal(seed);
    if (tsr_type_from_f32(tensor->type, values, chunk, CHUNK_ELEMS) != TSR_OK)
        die(tsr_last_error(), tensor->name);
}

static void put_tensor(tsr_gguf_writer *file, const struct tensor *tensor)
{
    if (tensor->data) {
        check(tsr_gguf_writer_put(file, tensor->data, tensor->bytes), tensor->name);
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
        const uint8_t *data = pool + (size_t)slot * chunk_bytes;
        check(tsr_gguf_writer_put(file, data, tsr_type_row_bytes(tensor->type, n)), tensor->name);
        done += n;
    }
    free(pool);
}

/* Begin a file with the keys and tensors [begin, end): its header. */
static tsr_gguf_writer *begin_file(const gguf_writer *writer, const tsr_gguf_writer *keys, FILE *file,
                                   size_t begin, size_t end)
{
    tsr_gguf_writer *w;
    check(tsr_gguf_writer_create(writer->version, &w), "model");
    tsr_gguf_writer_keys_of(w, keys);
    for (size_t i = begin; i < end; i++) {
        const struct tensor *t = &writer->tensors[i];
        check(tsr_gguf_writer_tensor(w, t->name, t->type, t->n_dims, t->ne), t->name);
    }
    check(tsr_gguf_writer_begin(w, file), "model");
    return w;
}

static void write_file(const gguf_writer *writer, const tsr_gguf_writer *keys, FILE *file, size_t begin,
                       size_t end)
{
    tsr_gguf_writer *w = begin_file(writer, keys, file, begin, end);
    for (size_t i = begin; i < end; i++)
        put_tensor(w, &writer->tensors[i]);
    check(tsr_gguf_writer_end(w), "model");
    tsr_gguf_writer_destroy(w);
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
    write_file(writer, writer->keys, file, 0, writer->n_tensors);
    close_file(file, path);
}

void gguf_writer_save_header(const gguf_writer *writer, const char *path, bool full_length)
{
    FILE *file = create_file(path);
    tsr_gguf_writer *w = begin_file(writer, writer->keys, file, 0, writer->n_tensors);
    off_t bytes = (off_t)tsr_gguf_writer_data_bytes(w);
    if (full_length && (fflush(file) != 0 || ftruncate(fileno(file), ftello(file) + bytes) != 0))
        die("cannot write", path);
    tsr_gguf_writer_destroy(w);
    close_file(file, path);
}

/* The keys of file `i` of a split: all keys in the first file, split.* in each. */
static tsr_gguf_writer *keys_of_part(const gguf_writer *writer, int i, int n_files)
{
    tsr_gguf_writer *keys;
    check(tsr_gguf_writer_create(writer->version, &keys), "model");
    if (i == 0)
        tsr_gguf_writer_keys_of(keys, writer->keys);
    else if (writer->alignment)
        tsr_gguf_writer_alignment(keys, writer->alignment);
    tsr_gguf_writer_value(keys, "split.no", TSR_GGUF_U16, &(uint16_t){(uint16_t)i});
    tsr_gguf_writer_value(keys, "split.count", TSR_GGUF_U16, &(uint16_t){(uint16_t)n_files});
    tsr_gguf_writer_value(keys, "split.tensors.count", TSR_GGUF_I32, &(int32_t){(int32_t)writer->n_tensors});
    return keys;
}

void gguf_writer_save_split(const gguf_writer *writer, const char *prefix, int n_files)
{
    size_t path_bytes = strlen(prefix) + 64;
    char *path = must(malloc(path_bytes));
    for (int i = 0; i < n_files; i++) {
        tsr_gguf_writer *keys = keys_of_part(writer, i, n_files);
        snprintf(path, path_bytes, "%s-%05d-of-%05d.gguf", prefix, i + 1, n_files);
        FILE *file = create_file(path);
        write_file(writer, keys, file, writer->n_tensors * (size_t)i / (size_t)n_files,
                   writer->n_tensors * (size_t)(i + 1) / (size_t)n_files);
        close_file(file, path);
        tsr_gguf_writer_destroy(keys);
    }
    free(path);
}

uint8_t *gguf_writer_bytes(const gguf_writer *writer, size_t *bytes_out)
{
    char *data = NULL;
    FILE *file = must(open_memstream(&data, bytes_out));
    write_file(writer, writer->keys, file, 0, writer->n_tensors);
    close_file(file, "a block of memory");
    return (uint8_t *)data;
}
