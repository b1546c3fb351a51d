/* A model with its matrices in another type:
 *
 *     build/bench/requantize FROM.gguf TO.gguf TYPE [--draw]
 *
 * FROM is one file, and TO another; vectors stay as they are, and so do all keys: general.file_type is still
 * that of FROM. With --draw, of Q8_0 matrices: the model is made as it may have been before it was quantized.
 * Each weight is drawn evenly from the numbers that Q8_0 rounds to the weight's code; the largest of a block,
 * which gives the block its scale, stays. Quantized again the model is FROM to the bit, so its distance from
 * FROM is what rounding to Q8_0 adds, as far as rounding errors are even. That replaces weights in F32 that
 * are not at hand. bench/activations uses it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tsr/types.h>

#include "gguf/gguf.h"
#include "support/opened.h"

enum { BLOCK = 32, MOST_CODE = 127 };

static const char *to_path;

/* SplitMix64 (Steele, Lea, Flood, 2014). */
static uint64_t draw(void)
{
    static uint64_t state;
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Replace a block's multiples of its scale by numbers that round to them. */
static void unround(float *block)
{
    float largest = 0;
    for (int i = 0; i < BLOCK; i++)
        largest = fmaxf(largest, fabsf(block[i]));
    const float scale = largest / MOST_CODE;
    for (int i = 0; i < BLOCK; i++) {
        const float part = (float)(draw() >> 40) / (float)(1 << 24) - 0.5F;
        const float x = block[i] + 0.998F * part * scale;
        if (fabsf(block[i]) < largest)
            block[i] = x;
    }
}

static void fail(const char *what)
{
    fprintf(stderr, "requantize: %s\n", what);
    exit(1);
}

static void fail_file(const char *what, const char *path)
{
    fprintf(stderr, "requantize: cannot %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* TO open for writing. It must not be FROM, whose weights are read from a mapping of that file. */
static FILE *create(const char *from, const char *to)
{
    struct stat a, b;
    if (stat(from, &a) != 0)
        fail_file("read", from);
    if (stat(to, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        fail("FROM and TO are the same file; give TO another path");
    FILE *file = fopen(to, "wb");
    if (!file)
        fail_file("write", to);
    return file;
}

static void put(FILE *file, const void *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, file) != n)
        fail_file("write", to_path);
}

static void pad(FILE *file, size_t alignment)
{
    while ((size_t)ftell(file) % alignment)
        put(file, "", 1);
}

static int64_t elements(const tsr_gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static tsr_type type_of(const tsr_gguf_tensor *t, tsr_type type)
{
    return t->n_dims < 2 || t->ne[0] % tsr_type_block_elems(type) ? t->type : type;
}

/* The descriptions of tensors, behind the keys. */
static void put_descriptions(FILE *file, const tsr_gguf *from, tsr_type type)
{
    const size_t alignment = from->parts->alignment;
    uint64_t at = 0;
    for (size_t i = 0; i < from->n_tensors; i++) {
        const tsr_gguf_tensor *t = &from->tensors[i];
        const tsr_type as = type_of(t, type);
        const uint64_t n_name = strlen(t->name);
        const uint32_t n_dims = (uint32_t)t->n_dims, number = (uint32_t)as;
        put(file, &n_name, sizeof n_name);
        put(file, t->name, n_name);
        put(file, &n_dims, sizeof n_dims);
        put(file, t->ne, n_dims * sizeof *t->ne);
        put(file, &number, sizeof number);
        put(file, &at, sizeof at);
        const size_t bytes = tsr_type_row_bytes(as, elements(t));
        at += (bytes + alignment - 1) / alignment * alignment;
    }
}

static void put_tensor(FILE *file, const tsr_gguf_tensor *t, tsr_type type, bool drawn)
{
    const int64_t n = elements(t);
    const size_t bytes = tsr_type_row_bytes(type, n);
    float *values = malloc((size_t)n * sizeof *values);
    void *encoded = malloc(bytes);
    if (!values || !encoded)
        fail("out of memory");
    bench_check(tsr_type_to_f32(t->type, t->data, values, n));
    for (int64_t i = 0; drawn && t->type == TSR_TYPE_Q8_0 && i < n; i += BLOCK)
        unround(values + i);
    bench_check(tsr_type_from_f32(type, values, encoded, n));
    put(file, encoded, bytes);
    free(values);
    free(encoded);
}

int main(int argc, char **argv)
{
    tsr_gguf *from;
    tsr_type type;
    const bool drawn = argc == 5 && strcmp(argv[4], "--draw") == 0;
    if (argc != 4 && !drawn)
        fail("usage: requantize FROM.gguf TO.gguf TYPE [--draw]");
    to_path = argv[2];
    bench_check(tsr_type_parse(argv[3], &type));
    bench_check(tsr_gguf_open(argv[1], NULL, &from));
    const struct tsr_gguf_part *part = from->parts;
    if (from->n_parts != 1 || from->n_tensors == 0)
        fail("FROM must be one file with tensors");
    FILE *file = create(argv[1], to_path);
    put(file, part->header, part->records[0].at);
    put_descriptions(file, from, type);
    for (size_t i = 0; i < from->n_tensors; i++) {
        pad(file, part->alignment);
        put_tensor(file, &from->tensors[i], type_of(&from->tensors[i], type), drawn);
    }
    pad(file, part->alignment);
    if (fclose(file) != 0)
        fail_file("write", to_path);
    tsr_gguf_close(from);
    return 0;
}
