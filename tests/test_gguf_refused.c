/* Files that the GGUF reader refuses, each with a message that names the culprit. They are made by patching
 * bytes of good ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "support/gguf_open.h"
#include "support/memory_file.h"

/* The bytes must be refused with this status and a message that holds the file's path and both texts. */
static void expect_refused(const uint8_t *data, size_t bytes, tsr_status expected, const char *text,
                           const char *more)
{
    tsr_gguf *gguf = NULL;
    struct memory_file file = memory_file_create(data, bytes);
    tsr_status status = tsr_gguf_open(file.path, NULL, &gguf);
    if (status != expected || gguf || !strstr(tsr_last_error(), text) || !strstr(tsr_last_error(), more) ||
        !strstr(tsr_last_error(), file.path))
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", tsr_status_name(expected), text, more,
                 tsr_status_name(status), tsr_last_error());
    memory_file_destroy(&file);
}

static void expect_writer_refused(gguf_writer *writer, tsr_status expected, const char *text,
                                  const char *more)
{
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    expect_refused(data, bytes, expected, text, more);
    free(data);
    gguf_writer_destroy(writer);
}

/* Two tensors: "first" of 64 x 3 F32, "second" of 32 x 5 Q8_0. */
static gguf_writer *two_tensors(void)
{
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_u32(writer, "answer", 42);
    gguf_writer_tensor_normal(writer, "first", TSR_TYPE_F32, 2, (int64_t[]){64, 3}, 1, 1);
    gguf_writer_tensor_normal(writer, "second", TSR_TYPE_Q8_0, 2, (int64_t[]){32, 5}, 2, 1);
    return writer;
}

enum {
    AT_N_DIMS = 0,
    AT_NE0 = 4,
    AT_NE1 = 12,
    AT_TYPE = 20,
    AT_OFFSET = 24
}; /* of a 2-D tensor, after its name */

/* two_tensors() with a number of `width` bytes put `field` bytes after the name of tensor "second". */
static void expect_patch_refused(size_t field, uint64_t value, size_t width, tsr_status expected,
                                 const char *text)
{
    gguf_writer *writer = two_tensors();
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    memcpy(data + gguf_bytes_after(data, bytes, "second") + field, &value, width);
    expect_refused(data, bytes, expected, "tensor \"second\" at byte ", text);
    free(data);
    gguf_writer_destroy(writer);
}

static void header_only_accepts_a_file_without_its_data(void **state)
{
    (void)state;
    gguf_writer *writer = two_tensors();
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    struct memory_file file = memory_file_create(data, bytes - 100); /* the end of "second" is missing */
    tsr_gguf_config config = tsr_gguf_config_default();
    tsr_gguf *gguf = NULL;
    assert_int_equal(tsr_gguf_open(file.path, &config, &gguf), TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "\"second\""));
    config.header_only = true;
    assert_int_equal(tsr_gguf_open(file.path, &config, &gguf), TSR_OK);
    assert_non_null(tsr_gguf_find_tensor(gguf, "first")->data);
    assert_null(tsr_gguf_find_tensor(gguf, "second")->data);
    assert_int_equal(tsr_gguf_find_tensor(gguf, "second")->bytes, 5 * 34);
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(data);
    gguf_writer_destroy(writer);
}

static void wrong_calls_and_paths_are_refused(void **state)
{
    (void)state;
    tsr_gguf *gguf = NULL;
    tsr_gguf_config no_size = {0};
    assert_int_equal(tsr_gguf_open(NULL, NULL, &gguf), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_open("x.gguf", NULL, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_open("x.gguf", &no_size, &gguf), TSR_ERR_INVALID);
    assert_int_equal(tsr_gguf_open("/does/not/exist.gguf", NULL, &gguf), TSR_ERR_IO);
    assert_non_null(strstr(tsr_last_error(), "/does/not/exist.gguf"));
    assert_int_equal(tsr_gguf_open("/tmp", NULL, &gguf), TSR_ERR_IO);
    assert_int_equal(tsr_gguf_open("/dev/zero", NULL, &gguf), TSR_ERR_IO);
    assert_null(gguf);
    tsr_gguf_close(NULL);
}

static void other_files_and_versions_are_told_apart(void **state)
{
    (void)state;
    gguf_writer *writer = two_tensors();
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    expect_refused(data, 0, TSR_ERR_FORMAT, "empty", "");
    expect_refused((const uint8_t *)"PK\3\4 a zip file", 16, TSR_ERR_FORMAT, "not a GGUF file",
                   "50 4b 03 04");
    for (uint32_t version = 0; version < 6; version++) {
        memcpy(data + 4, &version, sizeof version);
        if (version < 2 || version > 3)
            expect_refused(data, bytes, TSR_ERR_UNSUPPORTED, "version", "2 and 3");
    }
    memcpy(data + 4, "\0\0\0\3", 4);
    expect_refused(data, bytes, TSR_ERR_UNSUPPORTED, "big-endian", "");
    memcpy(data, "FUGG", 4);
    expect_refused(data, bytes, TSR_ERR_UNSUPPORTED, "big-endian", "");
    free(data);
    gguf_writer_destroy(writer);
}

static void counts_beyond_the_file_are_refused(void **state)
{
    (void)state;
    gguf_writer *writer = two_tensors();
    size_t bytes;
    const uint64_t counts[] = {1000, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (size_t at = 8; at <= 16; at += 8) {
            uint8_t *data = gguf_writer_bytes(writer, &bytes);
            memcpy(data + at, &counts[i], sizeof counts[i]);
            expect_refused(data, bytes, TSR_ERR_FORMAT, "header", at == 8 ? "tensors" : "keys");
            free(data);
        }
    }
    gguf_writer_destroy(writer);
}

/* The file is a hole of 4 GiB, so that it does hold the 2 GiB that the key claims. */
static void a_header_has_at_most_1_gib(void **state)
{
    (void)state;
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_array(writer, "huge", TSR_GGUF_U8, (uint8_t[]){0}, 1);
    gguf_writer_strings(writer, "huge strings", NULL, 0);
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    const size_t n_at[] = {gguf_bytes_after(data, bytes, "huge") + 8,
                           gguf_bytes_after(data, bytes, "huge strings") + 8};
    const uint64_t n[] = {(uint64_t)2 << 30, (uint64_t)2 << 28}, small[] = {1, 0};
    const char *const messages[] = {"supported, at byte 1073741824", "do not fit"};
    for (int i = 0; i < 2; i++) {
        tsr_gguf *gguf = NULL;
        memcpy(data + n_at[i], &n[i], sizeof n[i]);
        struct memory_file file = memory_file_create(data, bytes);
        memory_file_resize(&file, (uint64_t)4 << 30);
        assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_ERR_FORMAT);
        assert_non_null(strstr(tsr_last_error(), messages[i]));
        memory_file_destroy(&file);
        memcpy(data + n_at[i], &small[i], sizeof small[i]);
    }
    free(data);
    gguf_writer_destroy(writer);
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    const struct {
        uint32_t type;
        uint32_t element_type; /* of arrays */
        uint64_t n;            /* elements, or length of a string */
        tsr_status status;
        const char *text;
    } cases[] = {
        {13, 0, 0, TSR_ERR_FORMAT, "value type 13"},
        {UINT32_MAX, 0, 0, TSR_ERR_FORMAT, "value type 4294967295"},
        {TSR_GGUF_ARRAY, TSR_GGUF_ARRAY, 1, TSR_ERR_UNSUPPORTED, "arrays of arrays"},
        {TSR_GGUF_ARRAY, 77, 1, TSR_ERR_FORMAT, "value type 77"},
        {TSR_GGUF_ARRAY, TSR_GGUF_U64, UINT64_MAX / 8 + 2, TSR_ERR_FORMAT, "past the file's end"},
        {TSR_GGUF_ARRAY, TSR_GGUF_STRING, UINT64_MAX, TSR_ERR_FORMAT, "do not fit"},
        {TSR_GGUF_ARRAY, TSR_GGUF_STRING, 2, TSR_ERR_FORMAT, "past the file's end"},
        {TSR_GGUF_ARRAY, TSR_GGUF_BOOL, 2, TSR_ERR_FORMAT, "bool 0 is 255"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer *writer = gguf_writer_create(3);
        size_t bytes;
        gguf_writer_array(writer, "the key", TSR_GGUF_U64, (uint64_t[]){UINT64_MAX, 0, 0, 0}, 4);
        uint8_t *data = gguf_writer_bytes(writer, &bytes);
        size_t at = gguf_bytes_after(data, bytes, "the key");
        memcpy(data + at, &cases[i].type, 4);
        memcpy(data + at + 4, &cases[i].element_type, 4);
        memcpy(data + at + 8, &cases[i].n, 8);
        expect_refused(data, bytes, cases[i].status, "key \"the key\" at byte 24", cases[i].text);
        free(data);
        gguf_writer_destroy(writer);
    }
}

static void wrong_names_are_refused(void **state)
{
    (void)state;
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_u32(writer, "", 1);
    gguf_writer_u32(writer, "second", 2);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "key \"\" at byte 24", "name");

    writer = two_tensors();
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    data[gguf_bytes_after(data, bytes, "second") - 3] = '\0';
    expect_refused(data, bytes, TSR_ERR_FORMAT, "tensor \"sec?nd\" at byte", "zero byte");
    free(data);
    gguf_writer_destroy(writer);

    char *name = malloc(70001);
    memset(name, 'n', 70000);
    name[70000] = '\0';
    writer = gguf_writer_create(3);
    gguf_writer_u32(writer, name, 1);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "nnnn...\"", "70000");
    free(name);
}

static void duplicates_are_refused(void **state)
{
    (void)state;
    gguf_writer *writer = two_tensors();
    gguf_writer_u32(writer, "answer", 43);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "key \"answer\" at byte", "previous key");
    writer = two_tensors();
    gguf_writer_tensor_zero(writer, "first", TSR_TYPE_F32, 1, (int64_t[]){1});
    expect_writer_refused(writer, TSR_ERR_FORMAT, "tensor \"first\" at byte", "previous tensor");
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    const tsr_status bad = TSR_ERR_FORMAT;
    expect_patch_refused(AT_N_DIMS, 0, 4, bad, "0 dimensions");
    expect_patch_refused(AT_N_DIMS, 5, 4, bad, "5 dimensions");
    expect_patch_refused(AT_NE0, 0, 8, bad, "dimension 0 is 0");
    expect_patch_refused(AT_NE1, 0, 8, bad, "dimension 1 is 0");
    expect_patch_refused(AT_NE1, UINT64_MAX, 8, bad, "dimension 1 is 18446744073709551615");
    expect_patch_refused(AT_NE0, 48, 8, bad, "48 elements, not a multiple of Q8_0's block of 32");
    expect_patch_refused(AT_NE1, (uint64_t)1 << 58, 8, bad, "too large"); /* elements overflow */
    expect_patch_refused(AT_NE0, INT64_MAX - 31, 8, bad, "too large");    /* bytes of a row overflow */
    expect_patch_refused(AT_NE1, (uint64_t)1 << 50, 8, bad, "past the file's end");
    expect_patch_refused(AT_NE1, 6, 8, bad, "past the file's end");
}

static void unknown_tensor_types_are_listed(void **state)
{
    (void)state;
    expect_patch_refused(
        AT_TYPE, 4, 4, TSR_ERR_UNSUPPORTED,
        "type 4 is not supported; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, "
        "Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, "
        "I32, I64, IQ1_M, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4");
    expect_patch_refused(AT_TYPE, UINT32_MAX, 4, TSR_ERR_UNSUPPORTED, "type 4294967295");
}

static void wrong_places_are_refused(void **state)
{
    (void)state;
    const tsr_status bad = TSR_ERR_FORMAT;
    expect_patch_refused(AT_OFFSET, 16, 8, bad, "not a multiple of the file's alignment 32");
    expect_patch_refused(AT_OFFSET, 0, 8, bad, "overlaps");
    expect_patch_refused(AT_OFFSET, 736, 8, bad, "overlaps"); /* the last 32 bytes of "first" */
    expect_patch_refused(AT_OFFSET, 800, 8, bad, "past the file's end");
    expect_patch_refused(AT_OFFSET, UINT64_MAX - 31, 8, bad, "past the file's end");
    expect_patch_refused(AT_OFFSET, (uint64_t)INT64_MAX + 1, 8, bad, "past the file's end");
}

static void alignment_is_checked(void **state)
{
    (void)state;
    const uint32_t wrong[] = {0, 1, 4, 24, 48, 1 << 21, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gguf_writer *writer = gguf_writer_create(3);
        gguf_writer_u32(writer, "general.alignment", wrong[i]);
        expect_writer_refused(writer, TSR_ERR_FORMAT, "key \"general.alignment\" at byte 24", "power of two");
    }
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_string(writer, "general.alignment", "32");
    expect_writer_refused(writer, TSR_ERR_FORMAT, "general.alignment", "integer");
    const uint32_t right[] = {8, 16, 64, 4096};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        writer = gguf_writer_create(3);
        gguf_writer_alignment(writer, right[i]);
        gguf_writer_tensor_zero(writer, "a", TSR_TYPE_F32, 1, (int64_t[]){1});
        gguf_writer_tensor_zero(writer, "b", TSR_TYPE_F32, 1, (int64_t[]){1});
        tsr_gguf *gguf = gguf_writer_open(writer);
        assert_int_equal(tsr_gguf_tensor_at(gguf, 1)->offset - tsr_gguf_tensor_at(gguf, 0)->offset, right[i]);
        tsr_gguf_close(gguf);
    }
}

static void split_keys_are_checked(void **state)
{
    (void)state;
    gguf_writer *writer = two_tensors();
    gguf_writer_u32(writer, "split.count", 2);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "split.no", "missing");
    writer = two_tensors();
    gguf_writer_u32(writer, "split.count", 2);
    gguf_writer_u32(writer, "split.no", 2);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "key \"split.no\" at byte", "file 2 (counted from 0) of 2");
    writer = two_tensors();
    gguf_writer_u32(writer, "split.count", 1000000);
    gguf_writer_u32(writer, "split.no", 0);
    expect_writer_refused(writer, TSR_ERR_FORMAT, "split.no", "65535");
    writer = two_tensors();
    gguf_writer_string(writer, "split.count", "2");
    expect_writer_refused(writer, TSR_ERR_FORMAT, "split.count", "integer");
    writer = two_tensors(); /* one file of one: nothing to look for */
    gguf_writer_u32(writer, "split.count", 1);
    tsr_gguf *gguf = gguf_writer_open(writer);
    assert_int_equal(tsr_gguf_n_files(gguf), 1);
    tsr_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_only_accepts_a_file_without_its_data),
        cmocka_unit_test(wrong_calls_and_paths_are_refused),
        cmocka_unit_test(other_files_and_versions_are_told_apart),
        cmocka_unit_test(counts_beyond_the_file_are_refused),
        cmocka_unit_test(a_header_has_at_most_1_gib),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(wrong_names_are_refused),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(unknown_tensor_types_are_listed),
        cmocka_unit_test(wrong_places_are_refused),
        cmocka_unit_test(alignment_is_checked),
        cmocka_unit_test(split_keys_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
