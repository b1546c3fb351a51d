/* tsr plan of models with sliding windows as a user meets it: how a device's KV divides over layers that see
 * all tokens and layers that do not, as a table and as JSON; and a split of prompts. All on headers. */
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

#define DEVICES "--devices host:2,mem=4GiB,threads=1 -ts 1,1 -c 32768 "

static char path[DIRECTORY_PATH];

static int set_up(void **state)
{
    (void)state;
    close(directory_new(path));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

/* Six layers with 8 KV heads of 128 elements, 4 KiB of F16 a token each, and windows of 1024 tokens (0:
 * none), which with a batch of 512 touch at most 49 pages of 32. */
static void write_header(const char *arch_name, unsigned parts, int window)
{
    const struct synth_arch arch = {
        arch_name, arch_name, parts, {{window ? "attention.sliding_window" : NULL, window}}};
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 6;
    config.n_embd = 1024;
    config.n_kv_heads = 8;
    config.head_dim = 128;
    config.n_ctx = 32768;
    config.header_only = true;
    config.arch = &arch;
    synth_model_write(&config, path);
}

static void check_text(const char *options, const char *table)
{
    char line[512], text[1 << 14];
    snprintf(line, sizeof line, "plan -m %s " DEVICES "%s", path, options);
    assert_int_equal(program_run(line, text, sizeof text), 0);
    if (table ? !strstr(text, table) : strstr(text, "window") != NULL)
        fail_msg("this should have %s:\n%s", table ? table : "no word of windows", text);
}

static void a_table_divides_kv_by_what_layers_see(void **state)
{
    (void)state;
    write_header("gemma2", SYNTH_POST_NORMS, 1024);
    check_text("", "\nKV       full layers  windowed layers\n"
                   "host0-1      192 MiB          9.2 MiB\n"
                   "all          384 MiB         18.4 MiB\n"
                   "3 of 6 layers are windowed: they see the last 1024 tokens\n");
    check_text("--swa-full", "\nall          384 MiB          384 MiB\n");
    check_text("-sm none", "\nhost1            -                -\n");
}

/* A window that an architecture does not know would be ignored. */
static void a_key_that_is_not_known_is_named(void **state)
{
    (void)state;
    write_header("llama", 0, 1024);
    check_text("", "\nNote: arena estimated: architecture llama is planned, not run: key\n"
                   "  llama.attention.sliding_window = 1024 is unknown to architecture llama and may\n"
                   "  change the result; if it does not, remove it with gguf-new-metadata\n");
}

/* There is nothing to divide where layers are alike. */
static void layers_of_one_kind_have_no_table(void **state)
{
    (void)state;
    write_header("llama", 0, 0);
    check_text("", NULL);
    write_header("phi3", SYNTH_FUSED_QKV | SYNTH_FUSED_FFN, 1024);
    check_text("", NULL);
}

static void check_json(const char *options, json_int_t n_windowed, json_int_t full, json_int_t windowed)
{
    char line[512];
    snprintf(line, sizeof line, "plan -m %s --json " DEVICES "%s", path, options);
    json_t *root = program_json(line);
    const json_t *devices = json_object_get(root, "devices");
    assert_int_equal(program_json_integer(root, "n_windowed"), n_windowed);
    assert_int_equal(program_json_integer(root, "window"), n_windowed ? 1024 : 0);
    assert_int_equal(json_array_size(devices), 2);
    for (size_t d = 0; d < 2; d++) {
        const json_t *device = json_array_get(devices, d);
        json_int_t kv = program_json_integer(json_object_get(device, "bytes"), "kv");
        assert_int_equal(program_json_integer(device, "kv_windowed_bytes"), windowed);
        assert_int_equal(kv, full + windowed);
    }
    json_decref(root);
}

static void json_has_the_same_numbers(void **state)
{
    (void)state;
    const json_int_t layer_token = 4096 / 2, whole = 32768 * layer_token, kept = 49 * 32 * layer_token;
    write_header("gemma2", SYNTH_POST_NORMS, 1024);
    check_json("", 3, 3 * whole, 3 * kept);
    check_json("--swa-full", 3, 3 * whole, 3 * whole);
    write_header("phi3", SYNTH_FUSED_QKV | SYNTH_FUSED_FFN, 1024);
    check_json("", 6, 0, 6 * kept);
    write_header("llama", 0, 0);
    check_json("", 0, 6 * whole, 0);
}

/* -- a split of prompts -- */

static void a_split_of_prompts_is_shown_with_its_bytes(void **state)
{
    (void)state;
    enum { FFN = 3 * 512 * 1024 * 2, EMBEDDING = 2 * 512 * 1024 * 2 }; /* F16; embedding and output */
    char line[512];
    write_header("llama", 0, 0);
    check_text("--prompt-split 1,0", "tokens and more: ffn host0; output host0; this takes ");
    snprintf(line, sizeof line, "plan -m %s --json " DEVICES "--prompt-split 1,0 -b 64", path);
    json_t *root = program_json(line);
    const json_t *devices = json_object_get(root, "devices");
    for (size_t d = 0; d < 2; d++) {
        const json_t *prompt = json_object_get(json_array_get(devices, d), "prompt_split");
        const json_int_t bytes = program_json_integer(prompt, "bytes"), weights = (6 * FFN + EMBEDDING) / 2;
        assert_int_equal(program_json_integer(prompt, "ffn"), d == 0 ? 4 : 0);
        assert_int_equal(program_json_integer(prompt, "output"), d == 0 ? 512 : 0);
        assert_int_equal(program_json_integer(prompt, "attention"), 4);
        assert_true(d == 0 ? bytes > weights && bytes < 2 * weights : bytes < weights);
    }
    json_decref(root);
    snprintf(line, sizeof line, "plan -m %s --json " DEVICES, path);
    root = program_json(line);
    assert_true(
        json_is_null(json_object_get(json_array_get(json_object_get(root, "devices"), 0), "prompt_split")));
    json_decref(root);
}

static void splits_of_prompts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        int code;
        const char *phrase;
    } bad[] = {{"1,0 -sm layer", 2, "is for tensor mode, and the mode is layer"},
               {"1,0 -ngl 2", 2, "together with offloaded blocks"},
               {"1,0 -b 1", 2, "use a larger n_batch"},
               {"some", 2, "--prompt-split"}};
    write_header("llama", 0, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[512], text[1 << 12];
        snprintf(line, sizeof line, "plan -m %s " DEVICES "--prompt-split %s", path, bad[i].options);
        program_check(line, bad[i].code, bad[i].phrase, text, sizeof text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_divides_kv_by_what_layers_see),
        cmocka_unit_test(a_key_that_is_not_known_is_named),
        cmocka_unit_test(layers_of_one_kind_have_no_table),
        cmocka_unit_test(json_has_the_same_numbers),
        cmocka_unit_test(a_split_of_prompts_is_shown_with_its_bytes),
        cmocka_unit_test(splits_of_prompts_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
