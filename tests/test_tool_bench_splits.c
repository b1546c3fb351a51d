/* The splits that tsr bench lists: each once, with a text that -ts takes, and advised only beyond noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/program_json.h"

#define MODEL   "examples/models/glossary-7m-Q8_0.gguf"
#define DEVICES " --devices host:3,threads=1"

static char text[1 << 16];

static int set_up(void **state)
{
    char arguments[512];
    (void)state;
    if (setenv("XDG_CACHE_HOME", directory_path(), 1) != 0)
        return 1;
    snprintf(arguments, sizeof arguments,
             "bench -m " MODEL DEVICES " --ratios auto -p 8 -n 2 -r 3 --budget 20 --save %s",
             directory_file("auto.json"));
    program_check(arguments, 0, "", text, sizeof text);
    snprintf(arguments, sizeof arguments,
             "bench -m " MODEL DEVICES
             " --ratios '1,2,3;1,1,2;0,1,1;0,50,50;17,3,10000' -p 8 -n 0 -r 1 --save %s",
             directory_file("given.json"));
    program_check(arguments, 0, "of --ratios divide", text, sizeof text);
    return 0;
}

static const char *text_of(const json_t *row)
{
    return json_string_value(json_object_get(row, "text"));
}

/* -ts TEXT, as the row was measured, gives the row's granules. The planner divides each class in its own
 * way, so its row may have a text that -ts does not take. */
static void check_typed_again(const json_t *report, const json_t *row)
{
    char arguments[512];
    size_t d;
    json_t *device;
    const json_t *settings = json_object_get(json_object_get(report, "environment"), "settings");
    if (text_of(row)[0] == '~') {
        assert_string_equal(json_string_value(json_object_get(row, "kind")), "planned");
        snprintf(arguments, sizeof arguments, "plan -m " MODEL DEVICES " -ts '%s'", text_of(row));
        program_check(arguments, 2, "tensor_split entry 1 is", text, sizeof text);
        return;
    }
    snprintf(arguments, sizeof arguments, "plan -m " MODEL DEVICES " -ts '%s' -c %d -b %d --json",
             text_of(row), (int)program_json_integer(settings, "n_ctx"),
             (int)program_json_integer(settings, "n_batch"));
    json_t *plan = program_json(arguments);
    json_array_foreach(json_object_get(row, "devices"), d, device)
    {
        const json_t *granules = json_object_get(device, "granules");
        json_t *planned = json_array_get(json_object_get(plan, "devices"), d), *class;
        const char *name;
        json_object_foreach(json_object_get(planned, "classes"), name, class)
        {
            if (program_json_integer(class, "granules") != program_json_integer(granules, name))
                fail_msg("-ts %s: %s of device %zu", text_of(row), name, d);
        }
    }
    json_decref(plan);
}

static void a_split_is_typed_as_it_is_printed(void **state)
{
    static const char *const files[] = {"auto.json", "given.json"};
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        size_t r;
        json_t *report = program_json_file(directory_file(files[f])), *row;
        json_array_foreach(json_object_get(report, "rows"), r, row)
        {
            check_typed_again(report, row);
        }
        json_decref(report);
    }
}

/* Splits that two digits do not give exactly keep the text that was given; others are in percent. */
static void given_splits_are_measured_as_given(void **state)
{
    static const char *const texts[] = {"1,2,3", "25,25,50", "0,50,50", "17,3,10000"};
    (void)state;
    json_t *report = program_json_file(directory_file("given.json")), *rows = json_object_get(report, "rows"),
           *row;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t r;
        bool found = false;
        json_array_foreach(rows, r, row)
        {
            found = found || strcmp(text_of(row), texts[i]) == 0;
        }
        if (!found)
            fail_msg("no row %s", texts[i]);
    }
    json_decref(report);
}

static void no_split_is_listed_twice(void **state)
{
    static const char *const files[] = {"auto.json", "given.json"};
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        json_t *report = program_json_file(directory_file(files[f])), *rows = json_object_get(report, "rows");
        assert_true(json_array_size(rows) > 2);
        for (size_t r = 0; r < json_array_size(rows); r++)
            for (size_t other = 0; other < r; other++) {
                json_t *a = json_array_get(rows, r), *b = json_array_get(rows, other);
                bool same = true;
                for (size_t d = 0; d < 3; d++)
                    same = same &&
                           json_equal(
                               json_object_get(json_array_get(json_object_get(a, "devices"), d), "granules"),
                               json_object_get(json_array_get(json_object_get(b, "devices"), d), "granules"));
                if (same || strcmp(text_of(a), text_of(b)) == 0)
                    fail_msg("%s: %s and %s", files[f], text_of(a), text_of(b));
            }
        json_decref(report);
    }
}

/* Give repetition i of row r `first[r] + i * step` seconds in every test, for n repetitions, and show the
 * report. */
static void show_with(const double *first, double step, int n)
{
    size_t r, t;
    json_t *report = program_json_file(directory_file("given.json")), *row, *result;
    json_array_foreach(json_object_get(report, "rows"), r, row)
    {
        json_array_foreach(json_object_get(row, "results"), t, result)
        {
            json_t *seconds = json_array();
            for (int i = 0; i < n; i++)
                json_array_append_new(seconds, json_real(first[r] + i * step));
            json_object_set_new(result, "seconds", seconds);
        }
    }
    assert_int_equal(json_dump_file(report, directory_file("edited.json"), 0), 0);
    json_decref(report);
    char arguments[256];
    snprintf(arguments, sizeof arguments, "bench --show %s", directory_file("edited.json"));
    program_check(arguments, 0, "", text, sizeof text);
}

static void must_print(const char *phrase)
{
    if (!strstr(text, phrase))
        fail_msg("no \"%s\" in:\n%s", phrase, text);
}

/* Rows: the planner's and four others. Five repetitions of 1 to 1.04 s have a median of 1.02 s and are all
 * within the spread, so rows differ beyond noise from 1.04 s on. */
static void nothing_is_advised_within_noise(void **state)
{
    (void)state;
    show_with((const double[]){1.02, 1, 1.01, 1, 1.02}, 0.01, 5);
    must_print("No difference beyond noise (");
    assert_null(strstr(text, "best"));
    assert_null(strstr(text, "Use"));
    assert_null(strstr(text, "tokens/s against"));
}

static void the_planner_s_split_is_advised_unless_another_is_faster(void **state)
{
    (void)state;
    show_with((const double[]){1.02, 1, 1.5, 1.5, 1.5}, 0.01, 5);
    must_print("Use no -ts: no split is faster than the planner's beyond noise");
    show_with((const double[]){1, 1.1, 1.5, 1.5, 1.5}, 0.01, 5);
    must_print("Use no -ts: the planner's split is the fastest");
}

/* 1.52 s against 1.02 s, medians; the noise is (1.02 - 1.00) of 1.02 s and (1.52 - 1.50) of 1.50 s in
 * rates. */
static void a_faster_split_is_advised_with_its_gain_and_the_noise(void **state)
{
    (void)state;
    show_with((const double[]){1.5, 1.5, 1, 1.5, 1.5}, 0.01, 5);
    must_print("Use -ts 25,25,50\n");
    must_print("+49.0 % tokens/s against the planner's split (noise \302\2614.2 %)");
    assert_non_null(strstr(text, " best "));
}

/* Differences of half of the time are not beyond what two repetitions show. */
static void nothing_is_advised_from_fewer_than_3_repetitions(void **state)
{
    (void)state;
    show_with((const double[]){1.5, 1.5, 1, 1.5, 1.5}, 0.01, 2);
    must_print("No advice: the noise is unknown with fewer than 3 repetitions (-r)");
    assert_null(strstr(text, "best"));
    show_with((const double[]){1.5, 1.5, 1, 1.5, 1.5}, 0.01, 3);
    must_print("Use -ts 25,25,50\n");
}

static void splits_without_a_share_are_refused(void **state)
{
    (void)state;
    program_check("bench -m " MODEL DEVICES " --ratios '1,1;0,0'", 2, "'0,0' gives no device a share", text,
                  sizeof text);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "GB/s")); /* said before the devices are measured */
}

static void one_device_has_nothing_to_split(void **state)
{
    (void)state;
    static const char *const all[] = {"auto", "sweep", "sweep:3"};
    for (size_t i = 0; i < 3; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "bench -m " MODEL " --devices host:1 --ratios %s", all[i]);
        program_check(arguments, 2, "needs two devices or more, and host0 is the only one", text,
                      sizeof text);
    }
    program_check("bench -m " MODEL " --devices host:1 --ratios a", 2, "entry 1 is \"a\", not a number", text,
                  sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_is_typed_as_it_is_printed),
        cmocka_unit_test(given_splits_are_measured_as_given),
        cmocka_unit_test(no_split_is_listed_twice),
        cmocka_unit_test(nothing_is_advised_within_noise),
        cmocka_unit_test(the_planner_s_split_is_advised_unless_another_is_faster),
        cmocka_unit_test(a_faster_split_is_advised_with_its_gain_and_the_noise),
        cmocka_unit_test(nothing_is_advised_from_fewer_than_3_repetitions),
        cmocka_unit_test(splits_without_a_share_are_refused),
        cmocka_unit_test(one_device_has_nothing_to_split),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
