/* tsr fit and tsr run --fit as a user meets them: one-line messages, the tables, JSON that adds up, and
 * options with which tsr plan comes to what was shown. All on headers and on the model in examples/models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/program_json.h"
#include "support/synth_model.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"
#define CARDS "--machine '1x rtx3090, 1x rtx4060ti' "

static char path[DIRECTORY_PATH];

/* The header of a model of 13 billion weights and 32768 tokens of context. */
static int set_up(void **state)
{
    (void)state;
    struct synth_model_config config = {.n_layers = 40,
                                        .n_embd = 5120,
                                        .n_heads = 40,
                                        .n_kv_heads = 40,
                                        .head_dim = 128,
                                        .n_ff = 13824,
                                        .n_vocab = 32000,
                                        .n_ctx = 32768,
                                        .weight_scale = 1,
                                        .weight_type = TSR_TYPE_Q8_0,
                                        .rope_freq_base = 10000,
                                        .seed = 1,
                                        .header_only = true,
                                        .n_files = 1};
    close(directory_new(path));
    synth_model_write(&config, path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

static json_t *json_of(const char *command, const char *arguments)
{
    static char line[1024];
    snprintf(line, sizeof line, "%s -m %s --json %s", command, path, arguments);
    return program_json(line);
}

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
#define FIT "fit -m " MODEL " --devices host:2 "
#define RUN "run -m " MODEL " --devices host:2 -p hi "
    static const program_case cases[] = {
        {"fit", 2, "no model given; use -m FILE"},
        {"fit -m LICENSE", 1, "not a GGUF file"},
        {FIT "--fit-ctx 0", 2, "--fit-ctx takes a whole number from 1"},
        {FIT "--fit-kv q6_k", 2, "--fit-kv takes f32, f16, bf16, q8_0 or q4_0"},
        {FIT "--fit-kv q8_0,", 2, "--fit-kv takes"},
        {FIT "--fit-kv q8_0,q8_0,q8_0", 2, "--fit-kv takes"},
        {FIT "--fit-margin x", 2, "--fit-margin takes a size such as 1024 (MiB)"},
        {FIT "--fit-margin 1,,2", 2, "--fit-margin takes"},
        {FIT "--fit-margin -1", 2, "--fit-margin"},
        {FIT "--fit-margin 1,2,3", 2, "3 margins for 2 devices"},
        {FIT "--devices host:2,mem=1MiB --fit-margin 0", 3, "host0 lacks "},
        {RUN "--fit-ctx 64", 2, "need --fit"},
        {RUN "--fit-kv q8_0", 2, "need --fit"},
        {RUN "--fit-margin 1", 2, "need --fit"},
        {RUN "--fit --fit-kv q9", 2, "tsr run: --fit-kv takes"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

static void tables_show_what_was_wanted_cut_and_placed(void **state)
{
    (void)state;
    char line[512], text[1 << 14];
    static const char *const phrases[] = {"Wanted: 32768 tokens of context, KV in F16 and F16\n",
                                          "  missing\n",
                                          "\nCut to fit:\n",
                                          "  context 32768 -> ",
                                          " tokens  saves ",
                                          "Split mode tensor: 40 layers",
                                          "\nOptions: -c "};
    snprintf(line, sizeof line, "fit -m %s " CARDS, path);
    program_check(line, 0, "", text, sizeof text);
    const char *at = text;
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++) {
        at = strstr(at, phrases[i]);
        if (!at)
            fail_msg("\"%s\" is not there, or too early, in:\n%s", phrases[i], text);
    }
    snprintf(line, sizeof line, "fit -m %s " CARDS "-c 512 --fit-margin 100", path);
    program_check(line, 0, "Nothing is cut\n", text, sizeof text);
}

/* Everything in JSON: the sums, the margins, and `tsr plan` with what was chosen finds room, too. */
static void json_adds_up(void **state)
{
    (void)state;
    static const char *const margins[] = {"", "--fit-margin 4GiB,0.5GiB", "--fit-margin 0 -sm layer",
                                          "--fit-margin 2048 --fit-ctx 20000 --fit-kv f16,q8_0 -ts 2,1"};
    static const json_int_t expected[][2] = {
        {1 << 30, 1 << 30}, {INT64_C(4) << 30, 1 << 29}, {0, 0}, {INT64_C(2) << 30, INT64_C(2) << 30}};
    for (size_t i = 0; i < sizeof margins / sizeof *margins; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, CARDS "%s", margins[i]);
        json_t *root = json_of("fit", arguments);
        const json_t *wanted = json_object_get(root, "wanted"), *chosen = json_object_get(root, "chosen");
        const json_t *steps = json_object_get(root, "steps"), *plan = json_object_get(root, "plan");
        assert_int_equal(program_json_integer(wanted, "n_ctx"), 32768);
        assert_true(json_array_size(steps) > 0);
        assert_int_equal(program_json_integer(plan, "n_ctx"), program_json_integer(chosen, "n_ctx"));
        for (size_t s = 0; s < json_array_size(steps); s++) {
            const json_t *step = json_array_get(steps, s),
                         *devices = json_object_get(step, "saved_device_bytes");
            json_int_t sum = 0;
            for (size_t d = 0; d < json_array_size(devices); d++)
                sum += json_integer_value(json_array_get(devices, d));
            assert_int_equal(sum, program_json_integer(step, "saved_bytes"));
            assert_true(json_is_string(json_object_get(step, "text")));
        }
        for (size_t d = 0; d < 2; d++) {
            const json_t *before = json_array_get(json_object_get(wanted, "devices"), d);
            const json_t *after = json_array_get(json_object_get(plan, "devices"), d);
            json_int_t room = program_json_integer(before, "memory_cap_bytes") - expected[i][d];
            json_int_t missing = program_json_integer(before, "total_bytes") - room;
            assert_int_equal(program_json_integer(before, "margin_bytes"), expected[i][d]);
            assert_int_equal(program_json_integer(before, "missing_bytes"), missing > 0 ? missing : 0);
            assert_true(program_json_integer(after, "total_bytes") <= room);
        }
        json_decref(root);
    }
}

/* `tsr plan` with the printed options comes to the fit's plan, to the byte on every device. */
static void printed_options_give_the_same_plan(void **state)
{
    (void)state;
    static const char *const given[] = {CARDS,
                                        CARDS "-sm layer",
                                        CARDS "-ts 2,1",
                                        CARDS "--fit-margin 3GiB,0.5GiB",
                                        CARDS "--margin 512",
                                        CARDS "--fit-kv q8_0 --for 2048:64",
                                        "--machine '1x rtx4060, host 64GiB' -dev cuda,host:1 "};
    static const char *const again[] = {"", "-sm layer ", "-ts 2,1 ", "", "", "--for 2048:64 ", ""};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        char line[512], text[1 << 14];
        snprintf(line, sizeof line, "fit -m %s %s", path, given[i]);
        program_check(line, 0, "Options: ", text, sizeof text);
        char *options = strstr(text, "Options: ") + strlen("Options: ");
        options[strcspn(options, "\n")] = '\0';
        json_t *fit = json_of("fit", given[i]);
        const char *machine = i == 6 ? given[i] : CARDS;
        snprintf(line, sizeof line, "%s%s%s", machine, again[i], options);
        json_t *plan = json_of("plan", line);
        const json_t *a = json_object_get(json_object_get(fit, "plan"), "devices"),
                     *b = json_object_get(plan, "devices");
        assert_int_equal(json_array_size(a), json_array_size(b));
        for (size_t d = 0; d < json_array_size(a); d++)
            if (!json_equal(json_array_get(a, d), json_array_get(b, d)))
                fail_msg("%s: device %zu differs with %s", given[i], d, line);
        json_decref(fit);
        json_decref(plan);
    }
}

/* Smaller KV types come first: they leave more context than cutting the context does. */
static void smaller_kv_types_come_before_less_context(void **state)
{
    (void)state;
    json_t *cut = json_of("fit", CARDS), *smaller = json_of("fit", CARDS "--fit-kv q8_0");
    const json_t *chosen = json_object_get(smaller, "chosen");
    const json_t *first = json_array_get(json_object_get(smaller, "steps"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "cut")), "kv_type");
    assert_string_equal(json_string_value(json_object_get(chosen, "type_k")), "Q8_0");
    assert_true(program_json_integer(chosen, "n_ctx") >
                program_json_integer(json_object_get(cut, "chosen"), "n_ctx") * 3 / 2);
    json_decref(cut);
    json_decref(smaller);
}

/* What is set on the command line is not cut, however little room there is. */
static void options_that_are_set_stay(void **state)
{
    (void)state;
    char line[512], text[4096];
    json_t *root = json_of("fit", CARDS "-c 22000 --fit-kv q8_0");
    assert_int_equal(program_json_integer(json_object_get(root, "chosen"), "n_ctx"), 22000);
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "chosen"), "type_k")),
                        "Q8_0");
    json_decref(root);
    root = json_of("fit", CARDS "-ctk f16 --fit-ctx 22000 --fit-kv q4_0");
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "chosen"), "type_k")), "F16");
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "chosen"), "type_v")),
                        "Q4_0");
    json_decref(root);
    snprintf(line, sizeof line, "fit -m %s " CARDS "--devices cuda -c 30000 -ctk f16 -ctv f16 --fit-kv q4_0",
             path);
    program_check(line, 3, "does not fit with 30000 tokens of context and KV in F16 and F16", text,
                  sizeof text);
}

/* Where GPUs are the default, the host joins them only when they do not suffice. */
static void the_host_joins_where_gpus_do_not_suffice(void **state)
{
    (void)state;
    static const char *const small = "--machine '1x rtx4060ti, 1x host' --fit-margin 512 --fit-ctx 2048";
    json_t *root = json_of("fit", small);
    const json_t *devices = json_object_get(json_object_get(root, "plan"), "devices");
    assert_int_equal(json_array_size(devices), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(devices, 1), "name")), "host0");
    json_int_t n = program_json_integer(json_object_get(root, "chosen"), "n_gpu_layers");
    assert_true(n > 0 && n <= 40);
    assert_int_equal(program_json_integer(json_array_get(devices, 1), "n_layers"), 40 - n);
    json_decref(root);
    root = json_of("fit", "--machine '1x rtx3090, 1x host'");
    assert_int_equal(json_array_size(json_object_get(json_object_get(root, "plan"), "devices")), 1);
    json_decref(root);
    root = json_of("fit", "--machine '2x rtx4060ti, 1x host' --fit-margin 512,4096 --fit-ctx 16000");
    assert_int_equal(json_array_size(json_object_get(json_object_get(root, "plan"), "devices")), 3);
    json_decref(root);
}

/* tsr run --fit cuts the context, says so, and generates. */
static void run_cuts_and_says_so(void **state)
{
    (void)state;
    char text[1 << 14];
#define SMALL "run -m " MODEL " --devices host:1,mem=10MiB,threads=1 -n 4 --temp 0 -p 'lighthouse (n.):' "
    program_check(SMALL, 3, "bytes", text, sizeof text);
    program_check(SMALL "--fit --fit-margin 0 --fit-ctx 64 2>&1 >/dev/null", 0, "context 256 -> 64 tokens",
                  text, sizeof text);
    assert_null(strstr(text, "Wanted"));
    program_check(SMALL "--fit --fit-margin 0 --fit-ctx 64 2>/dev/null", 0, "lighthouse (n.):", text,
                  sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(tables_show_what_was_wanted_cut_and_placed),
        cmocka_unit_test(json_adds_up),
        cmocka_unit_test(printed_options_give_the_same_plan),
        cmocka_unit_test(smaller_kv_types_come_before_less_context),
        cmocka_unit_test(options_that_are_set_stay),
        cmocka_unit_test(the_host_joins_where_gpus_do_not_suffice),
        cmocka_unit_test(run_cuts_and_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
