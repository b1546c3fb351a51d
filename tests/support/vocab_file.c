/* A writer of key-only GGUF files, version 3: magic, version, 0 tensors, the number of keys, then each key as
 * name, type, value. Numbers are written as this machine has them, which must be little-endian as the format
 * is. */
#include "support/vocab_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct vocab_file {
    FILE *out;
    char path[64];
    uint64_t n_keys;
};

static const long n_keys_offset = 4 + 4 + 8;

static void put(vocab_file *file, const void *data, size_t bytes)
{
    assert_int_equal(fwrite(data, 1, bytes, file->out), bytes);
}

static void put_u32(vocab_file *file, uint32_t value)
{
    put(file, &value, sizeof value);
}

static void put_u64(vocab_file *file, uint64_t value)
{
    put(file, &value, sizeof value);
}

static void put_string(vocab_file *file, const char *text)
{
    put_u64(file, strlen(text));
    put(file, text, strlen(text));
}

static void put_key(vocab_file *file, const char *key, tsr_gguf_value_type type)
{
    put_string(file, key);
    put_u32(file, (uint32_t)type);
    file->n_keys++;
}

static void put_array(vocab_file *file, const char *key, tsr_gguf_value_type type, size_t n)
{
    put_key(file, key, TSR_GGUF_ARRAY);
    put_u32(file, (uint32_t)type);
    put_u64(file, n);
}

vocab_file *vocab_file_begin(void)
{
    vocab_file *file = calloc(1, sizeof *file);
    assert_non_null(file);
    strcpy(file->path, "/tmp/tsr_vocab_XXXXXX");
    int fd = mkstemp(file->path);
    assert_true(fd >= 0);
    file->out = fdopen(fd, "wb");
    assert_non_null(file->out);
    put(file, "GGUF", 4);
    put_u32(file, 3);
    put_u64(file, 0);
    put_u64(file, 0); /* the number of keys, once it is known */
    return file;
}

void vocab_file_string(vocab_file *file, const char *key, const char *value)
{
    put_key(file, key, TSR_GGUF_STRING);
    put_string(file, value);
}

void vocab_file_u32(vocab_file *file, const char *key, uint32_t value)
{
    put_key(file, key, TSR_GGUF_U32);
    put_u32(file, value);
}

void vocab_file_bool(vocab_file *file, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(file, key, TSR_GGUF_BOOL);
    put(file, &byte, 1);
}

void vocab_file_strings(vocab_file *file, const char *key, const char *const *values, size_t n)
{
    put_array(file, key, TSR_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_string(file, values[i]);
}

void vocab_file_u8s(vocab_file *file, const char *key, const uint8_t *values, size_t n)
{
    put_array(file, key, TSR_GGUF_U8, n);
    put(file, values, n);
}

void vocab_file_i32s(vocab_file *file, const char *key, const int32_t *values, size_t n)
{
    put_array(file, key, TSR_GGUF_I32, n);
    put(file, values, n * sizeof *values);
}

void vocab_file_f32s(vocab_file *file, const char *key, const float *values, size_t n)
{
    put_array(file, key, TSR_GGUF_F32, n);
    put(file, values, n * sizeof *values);
}

tsr_gguf *vocab_file_open(vocab_file *file)
{
    tsr_gguf *gguf = NULL;
    assert_int_equal(fseek(file->out, n_keys_offset, SEEK_SET), 0);
    put_u64(file, file->n_keys);
    assert_int_equal(fclose(file->out), 0);
    tsr_status status = tsr_gguf_open(file->path, NULL, &gguf);
    if (status != TSR_OK)
        print_error("%s\n", tsr_last_error());
    unlink(file->path);
    free(file);
    assert_int_equal(status, TSR_OK);
    return gguf;
}
