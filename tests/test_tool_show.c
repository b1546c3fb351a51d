/* tsr show: every key and tensor of a file, as the library reads them, in the table and in JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "support/directory.h"
#include "support/gguf_writer.h"
#include "support/program_json.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

static char text[1 << 20], path[DIRECTORY_PATH];

/* A file with a value of every kind, one of them hostile to a terminal. */
static int set_up(void **state)
{
    (void)state;
    static const float reals[] = {0.5f, INFINITY};
    static const int32_t integers[] = {-1, 2, 3, 4, 5};
    gguf_writer *writer = gguf_writer_create(3);
    gguf_writer_string(writer, "general.architecture", "none");
    gguf_writer_string(writer, "escape", "a\033[31mb\nc");
    gguf_writer_bool(writer, "yes", true);
    gguf_writer_value(writer, "most", TSR_GGUF_U64, &(uint64_t){UINT64_MAX});
    gguf_writer_value(writer, "below", TSR_GGUF_I32, &(int32_t){-3});
    gguf_writer_f32(writer, "little", 1e-5f);
    gguf_writer_array(writer, "reals", TSR_GGUF_F32, reals, 2);
    gguf_writer_array(writer, "integers", TSR_GGUF_I32, integers, 5);
    gguf_writer_tensor_zero(writer, "a.weight", TSR_TYPE_Q8_0, 2, (const int64_t[]){64, 3});
    gguf_writer_tensor_zero(writer, "b.weight", TSR_TYPE_F32, 1, (const int64_t[]){64});
    gguf_writer_save_header(writer, directory_file("all.gguf"), false);
    gguf_writer_destroy(writer);
    snprintf(path, sizeof path, "%s", directory_file("all.gguf"));
    return 0;
}

static void show(const char *options, int code, const char *phrase)
{
    char arguments[512];
    snprintf(arguments, sizeof arguments, "show %s %s", path, options);
    program_check(arguments, code, phrase, text, sizeof text);
}

static void a_table_has_keys_types_and_tensors_of_a_header_alone(void **state)
{
    (void)state;
    static const char *const phrases[] = {
        "escape                string  \"a\357\277\275[31mb\357\277\275c\"",
        "yes                   bool    true",
        "most                  u64     18446744073709551615",
        "little                f32     1e-05",
        "reals                 f32[2]  0.5, inf",
        "integers              i32[5]  -1, 2, 3, 4, ...",
        "Q8_0        1         192  204 B       8.50",
        "all         2         256  460 B      14.38",
        "a.weight  Q8_0  64 x 3  204 B",
        "b.weight  F32       64  256 B",
    };
    show("--tensors", 0, "GGUF version 3");
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (!strstr(text, phrases[i]))
            fail_msg("no \"%s\" in:\n%s", phrases[i], text);
    assert_null(strchr(text, '\033'));
}

static void a_key_is_printed_whole_and_alone(void **state)
{
    (void)state;
    show("--key escape", 0, "");
    assert_string_equal(text, "a?[31mb\nc\n");
    show("--key integers", 0, "");
    assert_string_equal(text, "-1\n2\n3\n4\n5\n");
    show("--key most", 0, "");
    assert_string_equal(text, "18446744073709551615\n");
}

/* Compared with what the library says of the model in examples. */
static void json_has_every_key_element_and_tensor(void **state)
{
    (void)state;
    tsr_gguf *gguf = NULL;
    assert_int_equal(tsr_gguf_open(MODEL, NULL, &gguf), TSR_OK);
    json_t *root = program_json("show --json " MODEL);
    json_t *keys = json_object_get(root, "keys"), *tensors = json_object_get(root, "tensors");
    assert_int_equal(json_object_size(keys), tsr_gguf_n_keys(gguf));
    for (int64_t i = 0; i < tsr_gguf_n_keys(gguf); i++) {
        const char *key = tsr_gguf_key_at(gguf, i);
        tsr_gguf_value_type type;
        int64_t n = 0;
        assert_int_equal(tsr_gguf_get_type(gguf, key, &type), TSR_OK);
        if (type == TSR_GGUF_ARRAY)
            assert_int_equal(tsr_gguf_get_array(gguf, key, &type, &n), TSR_OK);
        assert_int_equal(json_array_size(json_object_get(keys, key)), n);
    }
    assert_int_equal(json_array_size(tensors), tsr_gguf_n_tensors(gguf));
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, i);
        const json_t *shown = json_array_get(tensors, (size_t)i);
        assert_string_equal(json_string_value(json_object_get(shown, "name")), tensor->name);
        assert_int_equal(program_json_integer(shown, "bytes"), tensor->bytes);
        assert_int_equal(program_json_integer(shown, "offset"), tensor->offset);
        assert_int_equal(json_array_size(json_object_get(shown, "shape")), tensor->n_dims);
    }
    json_decref(root);
    tsr_gguf_close(gguf);
}

static void numbers_that_json_lacks_are_null_or_real(void **state)
{
    (void)state;
    char arguments[512];
    snprintf(arguments, sizeof arguments, "show --json %s", path);
    json_t *root = program_json(arguments), *keys = json_object_get(root, "keys");
    assert_true(json_is_null(json_array_get(json_object_get(keys, "reals"), 1)));
    assert_true(json_is_real(json_object_get(keys, "most")));
    assert_int_equal(program_json_integer(keys, "below"), -3);
    assert_string_equal(json_string_value(json_object_get(keys, "escape")),
                        "a\357\277\275[31mb\357\277\275c");
    json_decref(root);
}

static void what_cannot_be_shown_is_said_in_a_line(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"show", 2, "tsr show: no file given; use tsr show FILE"},
        {"show /nope.gguf", 1, "cannot open '/nope.gguf': No such file"},
        {"show README.md", 1, "not a GGUF file"},
        {"show " MODEL " --key nope", 1, "there is no key \"nope\""},
        {"show " MODEL " --keys", 2, "did you mean '--key'?"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_has_keys_types_and_tensors_of_a_header_alone),
        cmocka_unit_test(a_key_is_printed_whole_and_alone),
        cmocka_unit_test(json_has_every_key_element_and_tensor),
        cmocka_unit_test(numbers_that_json_lacks_are_null_or_real),
        cmocka_unit_test(what_cannot_be_shown_is_said_in_a_line),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
