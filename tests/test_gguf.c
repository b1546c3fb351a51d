/* The GGUF reader: keys, tensors, and what opening costs. See test_gguf_refused.c for what it refuses,
 * test_gguf_split.c for models of several files, test_gguf_damage.c for random damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "gguf/writer.h"
#include "support/failing_alloc.h"
#include "support/gguf_open.h"
#include "support/memory_file.h"
#include "support/synth_model.h"

/* -- keys -- */

static gguf_writer *keys_of_all_kinds(void)
{
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_value(writer, "u8", TSR_GGUF_U8, &(uint8_t){200});
    gguf_writer_value(writer, "i8", TSR_GGUF_I8, &(int8_t){-100});
    gguf_writer_value(writer, "u16", TSR_GGUF_U16, &(uint16_t){60000});
    gguf_writer_value(writer, "i16", TSR_GGUF_I16, &(int16_t){-30000});
    gguf_writer_value(writer, "u32", TSR_GGUF_U32, &(uint32_t){4000000000u});
    gguf_writer_value(writer, "i32", TSR_GGUF_I32, &(int32_t){-2000000000});
    gguf_writer_value(writer, "u64", TSR_GGUF_U64, &(uint64_t){UINT64_MAX});
    gguf_writer_value(writer, "i64", TSR_GGUF_I64, &(int64_t){INT64_MIN});
    gguf_writer_value(writer, "small i64", TSR_GGUF_I64, &(int64_t){7});
    gguf_writer_f32(writer, "f32", 0.1f);
    gguf_writer_value(writer, "f64", TSR_GGUF_F64, &(double){0.1});
    gguf_writer_bool(writer, "yes", true);
    gguf_writer_bool(writer, "no", false);
    gguf_writer_string(writer, "text", "Grüße");
    gguf_writer_string(writer, "empty text", "");
    gguf_writer_strings(writer, "texts", (const char *[]){"a", "", "ccc"}, 3);
    gguf_writer_strings(writer, "no texts", NULL, 0);
    gguf_writer_array(writer, "shorts", TSR_GGUF_I16, (int16_t[]){-1, 2, -3}, 3);
    gguf_writer_array(writer, "floats", TSR_GGUF_F32, (float[]){0.5f, -1.5f}, 2);
    gguf_writer_array(writer, "bools", TSR_GGUF_BOOL, (uint8_t[]){1, 0}, 2);
    gguf_writer_array(writer, "large", TSR_GGUF_U64, (uint64_t[]){1, UINT64_MAX}, 2);
    return writer;
}

static void integers_convert_where_the_value_fits(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    const struct {
        const char *key;
        uint64_t value;
    } fitting[] = {{"u8", 200}, {"u16", 60000}, {"u32", 4000000000u}, {"u64", UINT64_MAX}, {"small i64", 7}};
    for (size_t i = 0; i < sizeof fitting / sizeof fitting[0]; i++) {
        uint64_t value = 0;
        assert_int_equal(tsr_gguf_get_u64(gguf, fitting[i].key, &value), TSR_OK);
        assert_true(value == fitting[i].value);
    }
    const char *const others[] = {"i8", "i16", "i32", "i64", "f32", "f64", "yes", "text", "texts", "shorts"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        uint64_t value = 99;
        assert_int_equal(tsr_gguf_get_u64(gguf, others[i], &value), TSR_ERR_FORMAT);
        assert_int_equal(value, 99);
        assert_non_null(strstr(tsr_last_error(), others[i]));
    }
    tsr_gguf_close(gguf);
}

static void every_number_reads_as_a_double(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    const struct {
        const char *key;
        double value;
    } expected[] = {{"u8", 200},   {"i8", -100},    {"u16", 60000},   {"i16", -30000},       {"u32", 4e9},
                    {"i32", -2e9}, {"u64", 0x1p64}, {"i64", -0x1p63}, {"f32", (double)0.1f}, {"f64", 0.1}};
    double value = 0;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_int_equal(tsr_gguf_get_f64(gguf, expected[i].key, &value), TSR_OK);
        assert_true(value == expected[i].value);
    }
    assert_int_equal(tsr_gguf_get_f64(gguf, "yes", &value), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_get_f64(gguf, "text", &value), TSR_ERR_FORMAT);
    tsr_gguf_close(gguf);
}

static void strings_and_bools_are_read_as_they_are(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    tsr_gguf_string text;
    bool flag = false;
    assert_int_equal(tsr_gguf_get_string(gguf, "text", &text), TSR_OK);
    assert_int_equal(text.bytes, strlen("Grüße"));
    assert_memory_equal(text.data, "Grüße", text.bytes);
    assert_int_equal(tsr_gguf_get_string(gguf, "empty text", &text), TSR_OK);
    assert_int_equal(text.bytes, 0);
    assert_int_equal(tsr_gguf_get_string(gguf, "u8", &text), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_get_string(gguf, "texts", &text), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_get_bool(gguf, "yes", &flag), TSR_OK);
    assert_true(flag);
    assert_int_equal(tsr_gguf_get_bool(gguf, "no", &flag), TSR_OK);
    assert_false(flag);
    assert_int_equal(tsr_gguf_get_bool(gguf, "u8", &flag), TSR_ERR_FORMAT);
    tsr_gguf_close(gguf);
}

static void arrays_are_read_by_index(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    tsr_gguf_value_type type;
    tsr_gguf_string text;
    int64_t n, integer;
    double number;
    assert_int_equal(tsr_gguf_get_array(gguf, "texts", &type, &n), TSR_OK);
    assert_int_equal(type, TSR_GGUF_STRING);
    assert_int_equal(n, 3);
    assert_int_equal(tsr_gguf_array_string(gguf, "texts", 2, &text), TSR_OK);
    assert_int_equal(text.bytes, 3);
    assert_memory_equal(text.data, "ccc", 3);
    assert_int_equal(tsr_gguf_array_string(gguf, "texts", 1, &text), TSR_OK);
    assert_int_equal(text.bytes, 0);
    assert_int_equal(tsr_gguf_get_array(gguf, "no texts", &type, &n), TSR_OK);
    assert_int_equal(n, 0);
    assert_int_equal(tsr_gguf_array_i64(gguf, "shorts", 2, &integer), TSR_OK);
    assert_int_equal(integer, -3);
    assert_int_equal(tsr_gguf_array_f64(gguf, "shorts", 1, &number), TSR_OK);
    assert_true(number == 2);
    assert_int_equal(tsr_gguf_array_f64(gguf, "floats", 1, &number), TSR_OK);
    assert_true(number == -1.5);
    assert_int_equal(tsr_gguf_array_i64(gguf, "bools", 0, &integer), TSR_OK);
    assert_int_equal(integer, 1);
    assert_int_equal(tsr_gguf_array_i64(gguf, "large", 0, &integer), TSR_OK);
    assert_int_equal(integer, 1);
    tsr_gguf_close(gguf);
}

static void wrong_array_reads_are_refused(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    tsr_gguf_value_type type;
    tsr_gguf_string text;
    int64_t integer = 99;
    double number;
    assert_int_equal(tsr_gguf_array_string(gguf, "texts", 3, &text), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_array_string(gguf, "texts", -1, &text), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_array_string(gguf, "no texts", 0, &text), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_array_string(gguf, "shorts", 0, &text), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_array_i64(gguf, "floats", 0, &integer), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_array_i64(gguf, "large", 1, &integer), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_array_i64(gguf, "u8", 0, &integer), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_array_f64(gguf, "texts", 0, &number), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_get_array(gguf, "u8", &type, &integer), TSR_ERR_FORMAT);
    assert_int_equal(tsr_gguf_get_array(gguf, "nothing", &type, &integer), TSR_ERR_NOT_FOUND);
    assert_int_equal(integer, 99);
    tsr_gguf_close(gguf);
}

static void keys_are_found_and_listed(void **state)
{
    (void)state;
    tsr_gguf *gguf = gguf_writer_open(keys_of_all_kinds());
    uint64_t value;
    assert_int_equal(tsr_gguf_n_keys(gguf), 21);
    for (int64_t i = 0; i < tsr_gguf_n_keys(gguf); i++)
        assert_true(tsr_gguf_has_key(gguf, tsr_gguf_key_at(gguf, i)));
    assert_string_equal(tsr_gguf_key_at(gguf, 0), "u8");
    assert_null(tsr_gguf_key_at(gguf, 21));
    assert_null(tsr_gguf_key_at(gguf, -1));
    assert_false(tsr_gguf_has_key(gguf, "u"));
    assert_false(tsr_gguf_has_key(gguf, NULL));
    assert_int_equal(tsr_gguf_get_u64(gguf, "u", &value), TSR_ERR_NOT_FOUND);
    assert_non_null(strstr(tsr_last_error(), "\"u\""));
    assert_int_equal(tsr_gguf_get_u64(gguf, NULL, &value), TSR_ERR_INVALID);
    tsr_gguf_value_type type = TSR_GGUF_U8;
    assert_int_equal(tsr_gguf_get_type(gguf, "u", &type), TSR_ERR_NOT_FOUND);
    assert_int_equal(tsr_gguf_get_type(gguf, NULL, &type), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_get_type(gguf, "u8", NULL), TSR_ERR_INVALID);
    assert_string_equal(tsr_gguf_value_type_name((tsr_gguf_value_type)99), "?");
    assert_int_equal(tsr_gguf_get_u64(gguf, "u8", NULL), TSR_ERR_INVALID);
    tsr_gguf_close(gguf);
}

/* -- tensors -- */

static void tensors_are_views_of_the_file(void **state)
{
    (void)state;
    float values[64 * 3];
    for (int i = 0; i < 64 * 3; i++)
        values[i] = (float)i - 50;
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_alignment(writer, 256);
    gguf_writer_tensor_f32(writer, "floats", TSR_TYPE_F32, 2, (int64_t[]){64, 3}, values);
    gguf_writer_tensor_raw(writer, "four", TSR_TYPE_I32, 4, (int64_t[]){2, 1, 3, 1},
                           (int32_t[]){1, 2, 3, 4, 5, 6});
    gguf_writer_tensor_zero(writer, "zeros", TSR_TYPE_Q4_K, 1, (int64_t[]){512});
    tsr_gguf *gguf = gguf_writer_open(writer);

    assert_int_equal(tsr_gguf_n_tensors(gguf), 3);
    const tsr_gguf_tensor *floats = tsr_gguf_find_tensor(gguf, "floats");
    assert_ptr_equal(floats, tsr_gguf_tensor_at(gguf, 0));
    assert_string_equal(floats->name, "floats");
    assert_int_equal(floats->type, TSR_TYPE_F32);
    assert_int_equal(floats->n_dims, 2);
    assert_int_equal(floats->bytes, sizeof values);
    assert_memory_equal(floats->data, values, sizeof values);
    assert_int_equal(floats->offset % 256, 0);
    assert_int_equal((uintptr_t)floats->data % 256, 0);

    const tsr_gguf_tensor *four = tsr_gguf_find_tensor(gguf, "four");
    assert_int_equal(four->n_dims, 4);
    assert_memory_equal(four->ne, ((int64_t[]){2, 1, 3, 1}), sizeof four->ne);
    assert_int_equal(((const int32_t *)four->data)[5], 6);

    const tsr_gguf_tensor *zeros = tsr_gguf_find_tensor(gguf, "zeros");
    assert_memory_equal(zeros->ne, ((int64_t[]){512, 1, 1, 1}), sizeof zeros->ne);
    assert_int_equal(zeros->bytes, 2 * 144);
    assert_int_equal(zeros->offset - floats->offset, 1024);

    assert_null(tsr_gguf_find_tensor(gguf, "float"));
    assert_null(tsr_gguf_find_tensor(gguf, NULL));
    assert_null(tsr_gguf_tensor_at(gguf, 3));
    assert_null(tsr_gguf_tensor_at(gguf, -1));
    tsr_gguf_close(gguf);
}

/* -- the writer -- */

static tsr_gguf_writer *writer_of_two(void)
{
    tsr_gguf_writer *w;
    assert_int_equal(tsr_gguf_writer_create(3, &w), TSR_OK);
    tsr_gguf_writer_alignment(w, 16);
    assert_int_equal(tsr_gguf_writer_tensor(w, "floats", TSR_TYPE_F32, 1, (int64_t[]){3}), TSR_OK);
    assert_int_equal(tsr_gguf_writer_tensor(w, "numbers", TSR_TYPE_I32, 2, (int64_t[]){2, 2}), TSR_OK);
    assert_int_equal(tsr_gguf_writer_data_bytes(w), 16 + 16);
    return w;
}

static void data_is_written_in_pieces_of_any_size(void **state)
{
    (void)state;
    struct {
        float floats[3];
        int32_t numbers[4];
    } data = {{0.5f, -1, 2}, {1, 2, 3, -4}};
    uint8_t *whole = NULL;
    size_t whole_bytes = 0;
    for (size_t piece = 1; piece <= sizeof data; piece++) {
        char *bytes = NULL;
        size_t n_bytes = 0;
        FILE *file = open_memstream(&bytes, &n_bytes);
        tsr_gguf_writer *w = writer_of_two();
        assert_int_equal(tsr_gguf_writer_begin(w, file), TSR_OK);
        for (size_t at = 0, n; at < sizeof data; at += n) {
            n = sizeof data - at < piece ? sizeof data - at : piece;
            assert_int_equal(tsr_gguf_writer_put(w, (const uint8_t *)&data + at, n), TSR_OK);
        }
        assert_int_equal(tsr_gguf_writer_end(w), TSR_OK);
        assert_int_equal(tsr_gguf_writer_put(w, &data, 1), TSR_ERR_INVALID);
        tsr_gguf_writer_destroy(w);
        fclose(file);
        assert_true(!whole || (n_bytes == whole_bytes && memcmp(bytes, whole, n_bytes) == 0));
        free(whole);
        whole = (uint8_t *)bytes;
        whole_bytes = n_bytes;
    }
    struct memory_file file = memory_file_create(whole, whole_bytes);
    tsr_gguf *gguf;
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    assert_memory_equal(tsr_gguf_tensor_at(gguf, 0)->data, data.floats, sizeof data.floats);
    assert_memory_equal(tsr_gguf_tensor_at(gguf, 1)->data, data.numbers, sizeof data.numbers);
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(whole);
}

static void an_incomplete_file_or_a_full_disk_is_an_error(void **state)
{
    (void)state;
    tsr_gguf_writer *w = writer_of_two();
    assert_int_equal(tsr_gguf_writer_tensor(w, "cut", TSR_TYPE_Q8_0, 1, (int64_t[]){33}), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_writer_tensor(w, "huge", TSR_TYPE_F32, 2, (int64_t[]){INT64_MAX, 2}),
                     TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_writer_tensor(w, "none", TSR_TYPE_F32, 2, (int64_t[]){4, 0}), TSR_ERR_INVALID);
    FILE *file = fopen("/dev/full", "wb");
    assert_non_null(file);
    assert_int_equal(tsr_gguf_writer_begin(w, file), TSR_OK); /* buffered */
    assert_int_equal(tsr_gguf_writer_put(w, (float[]){1, 2, 3}, 12), TSR_OK);
    assert_int_equal(tsr_gguf_writer_end(w), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "tensor 1 of 2"));
    assert_int_equal(tsr_gguf_writer_put(w, (int32_t[]){1, 2, 3, 4}, 16), TSR_OK);
    assert_int_equal(tsr_gguf_writer_end(w), TSR_ERR_IO);
    fclose(file);
    tsr_gguf_writer_destroy(w);
    tsr_gguf_writer_destroy(NULL);
}

static tsr_status write_header(FILE *file)
{
    tsr_gguf_writer *w;
    tsr_status status = tsr_gguf_writer_create(3, &w);
    if (status != TSR_OK)
        return status;
    for (uint32_t i = 0; i < 100; i++)
        tsr_gguf_writer_u32(w, "key", i);
    status = tsr_gguf_writer_tensor(w, "tensor", TSR_TYPE_F32, 1, (int64_t[]){3});
    if (status == TSR_OK)
        status = tsr_gguf_writer_begin(w, file);
    tsr_gguf_writer_destroy(w);
    return status;
}

static void every_allocation_of_the_writer_may_fail(void **state)
{
    (void)state;
    FILE *file = fopen("/dev/null", "wb");
    assert_non_null(file);
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = write_header(file);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        if (!fired) {
            assert_true(n > 5);
            break;
        }
    }
    fclose(file);
}

/* -- whole files -- */

static void many_names_are_all_found(void **state)
{
    (void)state;
    enum { N = 3000 };
    char name[32];
    gguf_writer *writer = gguf_writer_create(3);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        gguf_writer_tensor_raw(writer, name, TSR_TYPE_I32, 1, (int64_t[]){1}, &i);
    }
    tsr_gguf *gguf = gguf_writer_open(writer);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        const tsr_gguf_tensor *tensor = tsr_gguf_find_tensor(gguf, name);
        assert_non_null(tensor);
        assert_int_equal(*(const int32_t *)tensor->data, i);
    }
    tsr_gguf_close(gguf);
}

static void a_file_may_hold_nothing_but_keys(void **state)
{
    (void)state;
    gguf_writer *writer = gguf_writer_create(2);
    gguf_writer_u32(writer, "answer", 42);
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    size_t header = gguf_bytes_after(data, bytes, "answer") + 8;
    struct memory_file file = memory_file_create(data, header); /* not even padding */
    tsr_gguf *gguf = NULL;
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_version(gguf), 2);
    assert_int_equal(tsr_gguf_n_tensors(gguf), 0);
    assert_int_equal(tsr_gguf_n_files(gguf), 1);
    assert_int_equal(tsr_gguf_file_bytes(gguf), header);
    assert_string_equal(tsr_gguf_path(gguf), file.path);
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(data);
    gguf_writer_destroy(writer);
}

/* -- cost -- */

static size_t resident_bytes(void)
{
    size_t total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%zu %zu", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void opening_touches_no_tensor_data(void **state)
{
    (void)state;
    /* A tensor of 1 GiB; the file is sparse, so only reading it would cost anything. */
    const uint64_t n = 1 << 28;
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_tensor_zero(writer, "large", TSR_TYPE_F32, 1, (int64_t[]){1});
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    memcpy(data + gguf_bytes_after(data, bytes, "large") + 4, &n, sizeof n);
    struct memory_file file = memory_file_create(data, bytes);
    memory_file_resize(&file, bytes + 4 * n);
    tsr_gguf *gguf = NULL;
    size_t before = resident_bytes();
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "large")->bytes, 4 * n);
    assert_true(resident_bytes() < before + (8 << 20)); /* what a large vocabulary would take */
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(data);
    gguf_writer_destroy(writer);
}

static void a_large_vocabulary_is_there_to_its_last_merge(void **state)
{
    (void)state;
    enum { N_TOKENS = 128256, N_MERGES = 280147 }; /* llama 3's */
    char(*text)[16] = calloc(N_MERGES, sizeof *text);
    const char **strings = calloc(N_MERGES, sizeof *strings);
    for (int i = 0; i < N_MERGES; i++) {
        snprintf(text[i], sizeof text[i], "token %d", i);
        strings[i] = text[i];
    }
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_strings(writer, "tokenizer.ggml.tokens", strings, N_TOKENS);
    gguf_writer_strings(writer, "tokenizer.ggml.merges", strings, N_MERGES);
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    struct memory_file file = memory_file_create(data, bytes);
    tsr_gguf *gguf = NULL;
    tsr_gguf_string string;
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_array_string(gguf, "tokenizer.ggml.merges", N_MERGES - 1, &string), TSR_OK);
    assert_memory_equal(string.data, strings[N_MERGES - 1], string.bytes);
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(data);
    gguf_writer_destroy(writer);
    free(strings);
    free(text);
}

/* -- models -- */

static void random_models_are_complete(void **state)
{
    (void)state;
    struct memory_file file = memory_file_create(NULL, 0);
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.weight_type = TSR_TYPE_Q4_K;
    config.n_ff = 320; /* ffn_down's rows are no multiple of 256: Q8_0 instead */
    config.rope_factors = true;
    config.tied_output = true;
    synth_model_write(&config, file.path);
    tsr_gguf *gguf = NULL;
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    assert_int_equal(tsr_gguf_n_tensors(gguf), 3 + 2 * 9);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "blk.1.ffn_up.weight")->type, TSR_TYPE_Q4_K);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "blk.1.ffn_down.weight")->type, TSR_TYPE_Q8_0);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "blk.0.attn_k.weight")->ne[1], 4 * 32);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "rope_freqs.weight")->ne[0], 16);
    assert_null(tsr_gguf_find_tensor(gguf, "output.weight"));
    float row[256];
    double sum = 0;
    const tsr_gguf_tensor *q = tsr_gguf_find_tensor(gguf, "blk.0.attn_q.weight");
    assert_int_equal(tsr_type_to_f32(q->type, q->data, row, 256), TSR_OK);
    for (int i = 0; i < 256; i++)
        sum += (double)row[i] * (double)row[i];
    assert_true(sum > 0.7 && sum < 1.3); /* 256 values of variance 1 / 256 */
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
}

static void reference_models_open_with_what_they_are_known_to_hold(void **state)
{
    (void)state;
    const struct {
        const char *path;
        int64_t n_tensors, n_tokens;
        const char *tensor;
        tsr_type type;
        int64_t ne0, ne1;
    } models[] = {
        {"../shared/model/glossary-7m-Q8_0.gguf", 57, 4096, "blk.5.ffn_up.weight", TSR_TYPE_Q8_0, 256, 768},
        {"../shared/ref/glossary-7m-Q4_0.gguf", 57, 4096, "blk.0.attn_q.weight", TSR_TYPE_Q4_0, 256, 256},
        {"../shared/ref/glossary-7m-Q4_K_M.gguf", 57, 4096, "blk.0.attn_q.weight", TSR_TYPE_Q4_K, 256, 256},
        {"../shared/ref/glossary-7m-Q5_K_M.gguf", 57, 4096, "blk.0.attn_q.weight", TSR_TYPE_Q5_K, 256, 256},
        {"../shared/ref/nano-l31-F16.gguf", 21, 1024, "rope_freqs.weight", TSR_TYPE_F32, 16, 1},
        {"../shared/ref/nano-mha-BF16.gguf", 21, 1024, "blk.1.ffn_down.weight", TSR_TYPE_BF16, 640, 256},
        {"../shared/ref/nano-mha-F16.gguf", 21, 1024, "blk.1.ffn_down.weight", TSR_TYPE_F16, 640, 256},
        {"../shared/ref/nano-mha-Q6_K.gguf", 21, 1024, "blk.1.ffn_down.weight", TSR_TYPE_Q8_0, 640, 256},
        {"../shared/ref/nano-qwen2-F16.gguf", 26, 1024, "output_norm.weight", TSR_TYPE_F32, 256, 1},
        {"../shared/ref/nano-qwen3-F16.gguf", 25, 1024, "blk.0.attn_q_norm.weight", TSR_TYPE_F32, 64, 1},
        {"../shared/ref/nano-moe-F16.gguf", 23, 1024, "blk.0.ffn_gate_inp.weight", TSR_TYPE_F32, 256, 4},
        {"../shared/ref/vocab/ggml-vocab-gpt-2.gguf", 0, 50257, NULL, TSR_TYPE_F32, 0, 0},
        {"../shared/ref/vocab/ggml-vocab-llama-spm.gguf", 0, 32000, NULL, TSR_TYPE_F32, 0, 0},
    };
    int found = 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (access(models[i].path, R_OK) != 0)
            continue;
        found++;
        tsr_gguf *gguf = NULL;
        tsr_gguf_value_type type;
        int64_t n_tokens = 0;
        assert_int_equal(tsr_gguf_open(models[i].path, NULL, &gguf), TSR_OK);
        assert_int_equal(tsr_gguf_n_tensors(gguf), models[i].n_tensors);
        assert_int_equal(tsr_gguf_get_array(gguf, "tokenizer.ggml.tokens", &type, &n_tokens), TSR_OK);
        assert_int_equal(n_tokens, models[i].n_tokens);
        const tsr_gguf_tensor *tensor = tsr_gguf_find_tensor(gguf, models[i].tensor);
        if (models[i].tensor) {
            assert_non_null(tensor);
            assert_int_equal(tensor->type, models[i].type);
            assert_int_equal(tensor->ne[0], models[i].ne0);
            assert_int_equal(tensor->ne[1], models[i].ne1);
        }
        tsr_gguf_close(gguf);
    }
    if (found == 0) {
        print_message("skipped: no reference models in ../shared\n");
        skip();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_convert_where_the_value_fits),
        cmocka_unit_test(every_number_reads_as_a_double),
        cmocka_unit_test(strings_and_bools_are_read_as_they_are),
        cmocka_unit_test(arrays_are_read_by_index),
        cmocka_unit_test(wrong_array_reads_are_refused),
        cmocka_unit_test(keys_are_found_and_listed),
        cmocka_unit_test(tensors_are_views_of_the_file),
        cmocka_unit_test(data_is_written_in_pieces_of_any_size),
        cmocka_unit_test(an_incomplete_file_or_a_full_disk_is_an_error),
        cmocka_unit_test(every_allocation_of_the_writer_may_fail),
        cmocka_unit_test(many_names_are_all_found),
        cmocka_unit_test(a_file_may_hold_nothing_but_keys),
        cmocka_unit_test(opening_touches_no_tensor_data),
        cmocka_unit_test(a_large_vocabulary_is_there_to_its_last_merge),
        cmocka_unit_test(random_models_are_complete),
        cmocka_unit_test(reference_models_open_with_what_they_are_known_to_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
