/* What tsr plan says first: whether the model fits, the memory that is free or missing, the context that it
 * chose, and options that make a model fit. All on the shapes of published models. */
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/program_json.h"

#define LLAMA_70B "plan --synthetic llama-3-70b:q4_k_m --machine '2x rtx3090 nvlink' "
#define CARD      (INT64_C(25367150592)) /* what a plan counts on of an RTX 3090 */

static char text[1 << 15];

/* As program_json(), for a model that does not fit: exit code 3. */
static json_t *json_without_room(const char *arguments)
{
    char line[512];
    json_error_t error;
    snprintf(line, sizeof line, "%s --json 2>/dev/null", arguments);
    int code = program_run(line, text, sizeof text);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (code != 3 || !root)
        fail_msg("tsr %s: exit code %d, %s", line, code, error.text);
    return root;
}

static json_t *device_at(const json_t *plan, size_t d)
{
    return json_array_get(json_object_get(plan, "devices"), d);
}

/* With 1 GiB left free on each GPU, or what --margin says. */
static void without_a_context_the_largest_that_fits_is_planned(void **state)
{
    (void)state;
    program_check(LLAMA_70B, 0,
                  "Fits: 1.0 GiB free on each of cuda0-1\n"
                  "Predicted: decode ",
                  text, sizeof text);
    assert_int_equal(strncmp(text, "Fits: ", 6), 0);
    assert_non_null(
        strstr(text, "\nContext: 17152 of 131072 trained tokens, the most that fit; -c N sets another\n"));
    json_t *plan = program_json(LLAMA_70B "--json");
    assert_true(json_is_true(json_object_get(plan, "fits")));
    assert_true(json_is_true(json_object_get(plan, "n_ctx_fitted")));
    assert_int_equal(json_array_size(json_object_get(plan, "next")), 0);
    json_int_t n_ctx = program_json_integer(plan, "n_ctx");
    for (size_t d = 0; d < 2; d++) {
        json_int_t left = program_json_integer(device_at(plan, d), "free_bytes");
        assert_int_equal(left, CARD - program_json_integer(device_at(plan, d), "total_bytes"));
        assert_true(left >= 1 << 30);
    }
    json_decref(plan);
    /* A step more would not leave 1 GiB, though it would fit; so does --margin 0 find more. */
    char line[256];
    snprintf(line, sizeof line, LLAMA_70B "-c %d --margin 1GiB", (int)n_ctx + 256);
    program_check(line, 3, "Does not fit: ", text, sizeof text);
    plan = program_json(LLAMA_70B "--margin 0 --json");
    assert_true(program_json_integer(plan, "n_ctx") > n_ctx);
    json_decref(plan);
    program_check("plan --synthetic llama-3-8b:q4_k_m --machine '1x h100'", 0,
                  "\nContext: 131072 tokens, as trained\n", text, sizeof text);
}

static void a_context_that_is_given_is_not_cut(void **state)
{
    (void)state;
    program_check(LLAMA_70B "-c 65536", 3, "\nContext: 65536 of 131072 trained tokens\n", text, sizeof text);
    program_check(LLAMA_70B "-c 0", 3, "\nContext: 131072 tokens, as trained\n", text, sizeof text);
    program_check(LLAMA_70B "-c 20000", 0, "\nContext: 20000 of 131072 trained tokens\n", text, sizeof text);
    program_check("plan --synthetic llama-2-7b:q4_0 --machine '1x rtx3090' -c 99999999", 3,
                  "\nContext: 99999999 tokens, more than the 4096 trained\n", text, sizeof text);
    program_check("plan --synthetic llama-2-7b:q4_0 --machine '1x rtx3090' -c 8192", 0,
                  "\nContext: 8192 tokens, more than the 4096 trained\n", text, sizeof text);
}

/* Missing bytes are what the table wants of a device beyond its cap and its margin. */
static void what_is_missing_adds_up(void **state)
{
    (void)state;
    static const char *const cases[] = {LLAMA_70B "-c 65536", LLAMA_70B "-c 65536 --margin 2GiB",
                                        LLAMA_70B "-c 65536 -sm layer", LLAMA_70B "-c 65536 -ts 3,1"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *plan = json_without_room(cases[i]);
        json_int_t all = 0;
        assert_true(json_is_false(json_object_get(plan, "fits")));
        for (size_t d = 0; d < 2; d++) {
            const json_t *device = device_at(plan, d);
            json_int_t room = CARD - program_json_integer(device, "margin_bytes");
            json_int_t missing = program_json_integer(device, "total_bytes") - room;
            assert_int_equal(program_json_integer(device, "margin_bytes"), i == 1 ? INT64_C(2) << 30 : 0);
            assert_int_equal(program_json_integer(device, "missing_bytes"), missing > 0 ? missing : 0);
            all += missing > 0 ? missing : 0;
        }
        assert_true(all > 0);
        json_decref(plan);
    }
    program_check(cases[0], 3, "Does not fit: 6.3 GiB missing on each of cuda0-1\n", text, sizeof text);
}

/* Every remedy that is an option makes the model fit; the last one is none. */
static void remedies_were_found_by_trying(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int n_options;
        const char *one; /* of them */
    } cases[] = {
        {LLAMA_70B "-c 65536", 3, "-c 17152"},
        {LLAMA_70B "-c 20000 -ts 1,0", 2, "no -ts"},
        {LLAMA_70B "-c 30000", 3, "-ctk q8_0 -ctv q8_0"},
        {LLAMA_70B "-c 20000 --margin 2GiB", 4, "--margin 0"},
        {LLAMA_70B "-sm none -c 4096", 2, "-sm tensor"},
        {"plan --synthetic qwen3-30b-a3b:q8_0 --machine '1x rtx4060ti, host 64GiB'", 2, "--cpu-moe"},
        {"plan --synthetic llama-3-70b:q8_0 --machine '2x rtx3090, host 128GiB'", 1, "tsr fit"},
        {"plan --synthetic llama-3-405b:q8_0 --machine '1x rtx3090'", 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *plan = json_without_room(cases[i].command);
        const json_t *next = json_object_get(plan, "next");
        int n = 0;
        bool found = cases[i].one == NULL;
        for (size_t r = 0; r < json_array_size(next); r++) {
            const char *options = json_string_value(json_object_get(json_array_get(next, r), "options"));
            char line[512];
            assert_non_null(json_string_value(json_object_get(json_array_get(next, r), "text")));
            assert_true(options || r + 1 == json_array_size(next));
            if (!options)
                continue;
            found = found || strcmp(options, cases[i].one) == 0;
            n++;
            if (options[0] == '-')
                snprintf(line, sizeof line, "%s %s", cases[i].command, options);
            else if (strcmp(options, "tsr fit") == 0)
                snprintf(line, sizeof line, "fit%s", cases[i].command + strlen("plan"));
            else
                continue;
            program_check(line, 0, "Fits: ", text, sizeof text);
        }
        if (!found || n != cases[i].n_options)
            fail_msg("tsr %s: %d remedies that are options: %s", cases[i].command, n,
                     json_dumps(next, JSON_COMPACT));
        json_decref(plan);
    }
    program_check(cases[0].command, 3, "\nTry: -c 17152 ", text, sizeof text);
}

/* A model without room for the least context is planned with it. */
static void a_model_too_large_is_planned_with_the_least_context(void **state)
{
    (void)state;
    program_check("plan --synthetic llama-3-70b:q8_0 --machine '2x rtx3090'", 3,
                  "\nContext: 4096 of 131072 trained tokens\n", text, sizeof text);
    assert_non_null(strstr(text, " missing on each of cuda0-1, with 1 GiB to stay free\n"));
}

/* Of this machine, what is free now and not what it has; of a described one, all of it. */
static void free_memory_is_what_the_machine_has_available(void **state)
{
    (void)state;
    char line[128];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    assert_non_null(file);
    while (kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kib) != 1)
            kib = 0;
    fclose(file);
    json_t *plan = program_json("plan -m examples/models/glossary-7m-Q8_0.gguf --devices host:1 --json");
    json_int_t total = program_json_integer(device_at(plan, 0), "memory_cap_bytes");
    json_int_t left = program_json_integer(device_at(plan, 0), "free_bytes"), available = kib * 1024;
    json_decref(plan);
    if (available > total) /* a container's limit */
        available = total;
    if (left > available + total / 10 || left < available - total / 4) /* other processes run, too */
        fail_msg("%lld bytes are free, the system has %lld", (long long)left, (long long)available);
    plan = program_json("plan --synthetic llama-3-8b:q4_k_m --machine '1x host 64GiB' --json");
    assert_int_equal(program_json_integer(device_at(plan, 0), "free_bytes"),
                     (INT64_C(64) << 30) - program_json_integer(device_at(plan, 0), "total_bytes"));
    json_decref(plan);
}

/* A speed of memory that nothing states is a guess, and a plan says so. */
static void assumed_speeds_of_memory_are_named(void **state)
{
    (void)state;
    static const char *const host =
        "plan --synthetic llama-3-8b:q4_k_m --machine '2x host 16 cores 64GiB%s' %s";
    char line[256];
    snprintf(line, sizeof line, host, "", "");
    program_check(line, 0,
                  "\nThe memory speed of host0-1 is assumed, 50 GB/s each: `tsr bench` measures it,\n", text,
                  sizeof text);
    snprintf(line, sizeof line, host, " 100GB/s", "");
    program_check(line, 0, "Predicted: ", text, sizeof text);
    assert_null(strstr(text, "assumed"));
    snprintf(line, sizeof line, host, "", "-ts 1,0");
    program_check(line, 0, "\nThe memory speed of host0 is assumed, 50 GB/s: ", text, sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_context_the_largest_that_fits_is_planned),
        cmocka_unit_test(a_context_that_is_given_is_not_cut),
        cmocka_unit_test(what_is_missing_adds_up),
        cmocka_unit_test(remedies_were_found_by_trying),
        cmocka_unit_test(a_model_too_large_is_planned_with_the_least_context),
        cmocka_unit_test(free_memory_is_what_the_machine_has_available),
        cmocka_unit_test(assumed_speeds_of_memory_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
