/* tsr bench, and what it leaves for tsr plan and tsr run. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/program_json.h"
#include "support/sanitized.h"

#define MODEL   "examples/models/glossary-7m-Q8_0.gguf"
#define DEVICES " --devices host:2,threads=1"

static char text[1 << 14];

static int set_up(void **state)
{
    (void)state;
    return setenv("XDG_CACHE_HOME", directory_path(), 1);
}

static void run(const char *arguments, int code)
{
    int got = program_run(arguments, text, sizeof text);
    if (got != code)
        fail_msg("tsr %s: exit code %d: %s", arguments, got, text);
}

static void find(const char *phrase)
{
    if (!strstr(text, phrase))
        fail_msg("no \"%s\" in:\n%s", phrase, text);
}

/* Lines of a table; others name files. */
static void tables_have_80_columns(void)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        int columns = (int)strcspn(line, "\n");
        if (columns > 80 && memchr(line, '/', (size_t)columns) == NULL)
            fail_msg("%d columns: %.*s", columns, columns, line);
    }
}

/* Measuring takes ten times as long under a sanitizer: there the other tests do it. */
static void skip_what_measures_again(void)
{
    if (TSR_TEST_SANITIZED)
        skip();
}

static void rates_are_kept_for_plan_and_run(void **state)
{
    (void)state;
    run("plan -m " MODEL DEVICES " --why", 0);
    find("not measured");
    run("bench -r 1 --keep-rates" DEVICES, 0);
    find("F16 GB/s");
    find("host1");
    find("stored in");
    tables_have_80_columns();
    run("plan -m " MODEL DEVICES " --why", 0);
    find("Predicted by rates that were measured.");
    char today[64];
    time_t now = time(NULL);
    struct tm utc;
    assert_non_null(gmtime_r(&now, &utc));
    strftime(today, sizeof today, "(rates measured %Y-%m-", &utc); /* the day may end meanwhile */
    find(today);
    run("plan -m " MODEL " --devices host:3,threads=1 --why", 0); /* other devices */
    find("not measured");
    run("run -m " MODEL DEVICES " -p hi -n 2", 0);
}

/* Every entry of the file gets the date, which is UTC, and the load, if that is not negative. */
static void edit_rates(const char *date, double load)
{
    char path[DIRECTORY_PATH];
    json_t *entry, *device;
    const char *name;
    size_t i;
    snprintf(path, sizeof path, "%s/tsr/rates.json", directory_path());
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    json_object_foreach(root, name, entry)
    {
        assert_non_null(json_object_get(entry, "date"));
        assert_int_equal(json_object_set_new(entry, "date", date ? json_string(date) : json_null()), 0);
        json_array_foreach(json_object_get(entry, "values"), i, device)
        {
            assert_true(json_is_number(json_object_get(device, "load")));
            if (load >= 0)
                assert_int_equal(json_object_set_new(device, "load", json_real(load)), 0);
        }
    }
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* A machine changes in a month, and rates without a date may be of any age. */
static void rates_expire_and_can_be_forgotten(void **state)
{
    (void)state;
    skip_what_measures_again();
    char date[32];
    const time_t day = 86400, now = time(NULL), young = now - 29 * day, old = now - 31 * day;
    struct tm utc;
    run("bench -r 1 --keep-rates" DEVICES, 0);
    assert_non_null(gmtime_r(&young, &utc));
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    edit_rates(date, 0.37);
    run("plan -m " MODEL DEVICES, 0);
    find("(rates measured 20");
    find("37 %)"); /* "load 37 %", which may be broken at a blank */
    run("plan --json -m " MODEL DEVICES, 0);
    find("\"load\": 0.37");
    assert_non_null(gmtime_r(&old, &utc));
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const char *const stale[] = {date, NULL, "", "yesterday"};
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        edit_rates(stale[i], -1);
        run("plan -m " MODEL DEVICES, 0);
        find("(rates not measured)");
    }
    run("bench -r 1 --keep-rates" DEVICES, 0);
    run("plan -m " MODEL DEVICES, 0);
    find("(rates measured 20");
    run("topo --forget-rates", 0);
    find("forgotten");
    run("plan -m " MODEL DEVICES, 0);
    find("(rates not measured)");
    run("topo --forget-rates", 0); /* there is nothing */
    run("bench -r 1 --keep-rates" DEVICES, 0);
}

/* Other processes make devices slower, and unevenly: rates would divide models wrongly from then on. */
static void rates_of_a_busy_machine_are_not_kept(void **state)
{
    (void)state;
    skip_what_measures_again();
    pid_t others[64];
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    n = n < 64 ? n : 64;
    run("topo --forget-rates", 0);
    for (long i = 0; i < n; i++) {
        others[i] = fork();
        if (others[i] == 0)
            for (volatile unsigned x = 0;; x = x + 1) /* until it is killed */
                continue;
        assert_true(others[i] > 0);
    }
    int code = program_run("bench -r 1" DEVICES, text, sizeof text);
    for (long i = 0; i < n; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    assert_int_equal(code, 0);
    find("F16 GB/s"); /* they are shown */
    find("load meanwhile: other processes took ");
    find("not stored for tsr plan and tsr run: other processes took ");
    find("--keep-rates");
    run("plan -m " MODEL DEVICES, 0);
    find("(rates not measured)");
    run("bench -r 1 --keep-rates" DEVICES, 0);
}

static void splits_are_measured_beside_the_planner_s(void **state)
{
    (void)state;
    skip_what_measures_again();
    run("bench -m " MODEL DEVICES " --ratios '1,1;3,1' -p 4 -n 2 -r 1", 0);
    find(" planned");
    find("50,50");
    find("75,25 ");
    find("No advice: the noise is unknown");
    run("bench -m " MODEL DEVICES " -ts 3,1 -p 4 -n 0 -r 1", 0);
    find(" planned");
    find("75,25 ");
    run("bench -m " MODEL DEVICES " --ratios sweep:3 -p 4 -n 2 -r 1", 0);
    find("25,75 ");
    find("even");
    run("bench -m " MODEL " --devices host:3,threads=1 --ratios sweep:1 -p 4 -n 0 -r 1", 0);
    find("50,25,25 ");
    run("bench -m " MODEL " --devices host:1 -p 4 -n 2 -r 1", 0);
    find("pp4 ");
}

/* The tests are the workload that the planner's split is for. */
static void the_workload_is_measured(void **state)
{
    (void)state;
    skip_what_measures_again();
    run("bench -m " MODEL DEVICES " --for 9:3 --ratios '1,1' -r 1", 0);
    find("pp9 ");
    find("tg3 ");
    run("bench -m " MODEL DEVICES " --for 9:0 --ratios '1,1' -r 1", 0);
    find("pp9 ");
    assert_null(strstr(text, "tg"));
    run("bench -m " MODEL DEVICES " --for decode -n 4", 2);
    find("--for and -p, -n both say how many tokens are measured");
    run("bench -m " MODEL DEVICES " --for 999999999:999999999", 2);
    find("at most 1048576 tokens of a prompt and of its answer are measured");
}

/* The piece that moves begins at an eighth of the whole, from the planner's or the even division. */
static void the_best_split_is_searched(void **state)
{
    (void)state;
    run("bench -m " MODEL DEVICES " --ratios auto -p 8 -n 0 -r 1 --budget 60", 0);
    find("even");
    find(" searched");
}

/* With a second to spend, one repetition of tests as short as they get is all there is. */
static void a_budget_cuts_what_was_not_asked_for(void **state)
{
    (void)state;
    skip_what_measures_again();
    run("bench -m " MODEL DEVICES " --budget 1 -r 1000 --ratios sweep:1", 0);
    find("instead of 1000, to end within 1 s");
    run("bench -m " MODEL DEVICES " --budget 1 -p 40 -n 3 -r 2 --ratios sweep:1", 0);
    find("pp40 ");
    find("tg3 ");
}

static void measured_links_are_kept_and_used(void **state)
{
    (void)state;
    run("topo --links" DEVICES, 0);
    find("one-shot");
    run("bench links --keep-rates" DEVICES, 0);
    find("host0  host1  memory ");
    find("   4 KiB ");
    find("stored in");
    tables_have_80_columns();
    run("topo --links" DEVICES, 0);
    find(" measured");
    if (strstr(text, "one-shot"))
        fail_msg("predicted where measured:\n%s", text);
    run("topo --links --json" DEVICES, 0);
    find("\"measured\": true");
    run("topo --links --devices host:3,threads=1", 0); /* other devices */
    if (strstr(text, " measured"))
        fail_msg("measured of other devices:\n%s", text);
    run("bench links --keep-rates --json" DEVICES, 0);
    find("\"kind\": \"transfer\"");
    find("\"predicted_ns\"");
    find("links.json\"");
    run("run -m " MODEL DEVICES " -p hi -n 2", 0);
    run("bench links --devices host:1", 0);
    find("no links");
    run("bench links nonsense", 2);
}

/* Values that contradict themselves are left out, the rest counts. */
static void spoiled_values_of_links_are_ignored(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], file[1 << 16], *at;
    static const char *const spoils[][2] = {{"\"ns\"", "\"no\""},
                                            {"\"bytes\"", "\"bites\""},
                                            {"\"devices\": [", "\"devices\": [-7,"},
                                            {"\"from\": 0", "\"from\": 9"}};
    snprintf(path, sizeof path, "%s/tsr/links.json", directory_path());
    FILE *stream = fopen(path, "r"); /* as the test before left it */
    assert_non_null(stream);
    file[fread(file, 1, sizeof file - 1, stream)] = '\0';
    fclose(stream);
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        const char *rest = file;
        int n = 0;
        stream = fopen(path, "w");
        assert_non_null(stream);
        for (; (at = strstr(rest, spoils[i][0])); rest = at + strlen(spoils[i][0]), n++)
            fprintf(stream, "%.*s%s", (int)(at - rest), rest, spoils[i][1]);
        fputs(rest, stream);
        fclose(stream);
        assert_true(n > 0);
        run("plan -m " MODEL DEVICES, 0);
        run("topo --links" DEVICES, 0);
    }
}

/* Nothing in the cache can make a command fail. */
static void a_spoiled_cache_is_ignored_and_replaced(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s/tsr/rates.json", directory_path());
    static const char *const contents[] = {"", "[]", "{\"x\": 1", "nonsense"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(contents[i], file);
        fclose(file);
        run("plan -m " MODEL DEVICES " --why", 0);
        find("not measured");
    }
    run("bench -r 1 --keep-rates" DEVICES, 0);
    run("plan -m " MODEL DEVICES " --why", 0);
    find("rates that were measured");
}

/* What a profiler sees then begins with the model. */
static void stored_rates_are_used_without_measuring(void **state)
{
    (void)state;
    run("bench -m " MODEL DEVICES " -p 4 -n 1 -r 1 --ratios '1,1' --stored-rates", 0);
    assert_null(strstr(text, "GB/s"));
    find("predicted");
    run("bench --stored-rates" DEVICES, 2);
    find("add -m or --synthetic");
}

/* One seed, one file; another, another. What has no vocabulary runs in a benchmark, and says so elsewhere. */
static void synthetic_models_are_the_same_every_time(void **state)
{
    (void)state;
    char files[3][64], arguments[256];
    for (int i = 0; i < 3; i++) {
        snprintf(files[i], sizeof files[i], "%s/%d.gguf", directory_path(), i);
        snprintf(arguments, sizeof arguments, "synth --shape 1.1b:q4_0 --layers 1 --seed %d -o %s", i / 2 + 1,
                 files[i]);
        run(arguments, 0);
    }
    snprintf(arguments, sizeof arguments, "cmp -s %s %s", files[0], files[1]);
    assert_int_equal(system(arguments), 0);
    snprintf(arguments, sizeof arguments, "cmp -s %s %s", files[0], files[2]);
    assert_int_not_equal(system(arguments), 0);
    snprintf(arguments, sizeof arguments, "plan -m %s" DEVICES " -c 64", files[0]);
    run(arguments, 0);
    find("1 layer over 2 of 2 devices");
    snprintf(arguments, sizeof arguments, "run -m %s" DEVICES " -c 64 -p hi -n 1", files[0]);
    run(arguments, 1);
    find("vocab");
    /* on a full disk the earlier file stays */
    snprintf(arguments, sizeof arguments, "synth --shape 1.1b:q4_0 --layers 1 --seed 2 -o %s", files[0]);
    assert_int_equal(program_run_limited(arguments, 1 << 20, text, sizeof text), 1);
    find("cannot be written: File too large");
    snprintf(arguments, sizeof arguments, "cmp -s %s %s", files[0], files[1]);
    assert_int_equal(system(arguments), 0);
    for (int i = 0; i < 3; i++)
        unlink(files[i]);
    run("synth --shape xyz -o /tmp/x.gguf", 2);
    find("`tsr synth --shape help` lists the shapes");
    run("synth --shape 1b:q9 -o /tmp/x.gguf", 2);
    find("q9");
    run("synth --shape 1b:q4_k -o /nope/x.gguf", 1);
    find("/nope/x.gguf");
    run("synth --shape 1b", 2);
    run("synth --shape 1.1b:q4_0 --layers 23 -o /tmp/x.gguf", 2);
    find("'1.1b:q4_0' has 22 layers");
}

/* With a limit of 1 MiB for files the model could not be made. */
static void devices_are_opened_before_a_synthetic_model_is_made(void **state)
{
    (void)state;
    const char *arguments = "bench --synthetic 1.1b:q4_0 --layers 2 --devices host:99999";
    assert_int_equal(program_run_limited(arguments, 1 << 20, text, sizeof text), 2);
    find("the number of devices is 1 to 64");
    assert_null(strstr(text, "synthetic model"));
}

static void layers_are_extrapolated_from_a_few(void **state)
{
    (void)state;
    run("bench --synthetic 1.1b:q4_0 --layers 2 -p 4 -n 1 -r 1 --ratios '1,1' -c 64" DEVICES, 0);
    find("extrapolated to 22 layers from 2 and 1");
    find("50,50 ");
    run("bench --synthetic 1b:q4_0 -m " MODEL, 2);
    find("each name a model");
    run("bench --layers 3 -m " MODEL, 2);
    find("--synthetic");
}

static void files_that_cannot_be_written_are_named_before_measuring(void **state)
{
    (void)state;
    static const char *const options[] = {"--save", "--plot", "--html"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "bench -m " MODEL DEVICES " %s /nope/x", options[i]);
        run(arguments, 1);
        find("tsr bench: /nope/x cannot be written: No such file or directory");
        assert_null(strstr(text, "GB/s"));
    }
    run("bench -m " MODEL DEVICES " --save /tmp", 1);
    find("/tmp cannot be written: Is a directory");
}

static void mistakes_are_named(void **state)
{
    (void)state;
    run("bench -m " MODEL DEVICES " -ts 1,1 --ratios 3,1", 2);
    find("-ts is one split and --ratios are several");
    run("bench -m " MODEL DEVICES " --ratios '1,1,1' -p 4 -n 1 -r 1", 2);
    find("3");
    run("bench -m /nope.gguf" DEVICES, 1);
    find("/nope.gguf");
    assert_null(strstr(text, "GB/s")); /* said before the devices are measured */
    run("bench -m " MODEL DEVICES " --ratios '1,x'", 2);
    assert_null(strstr(text, "GB/s"));
    static const char *const wrong[][2] = {{" -c 8 -p 64", "pp64 needs a context of 65"},
                                           {" -p 4,x", "not '4,x'"},
                                           {" -p 0 -n 0", "nothing to measure"},
                                           {" -p 1,2,3,4,5,6,7,8 -n 1,2,3,4,5,6,7,8 -d 0,1", "24 tests"},
                                           {" -n 1,2,3,4,5,6,7,8,9", "up to 8 numbers"},
                                           {" --ratios sweep:0", "sweep:N"},
                                           {" --ratios often -p 4", "often"},
                                           {" -o xml", "table, md, csv or json"},
                                           {" --show /tmp/x.json", "leave out -m"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "bench -r 1 -m " MODEL DEVICES "%s", wrong[i][0]);
        run(arguments, 2);
        find(wrong[i][1]);
    }
    run("bench -o json" DEVICES, 2);
    find("add -m");
    run("bench --show /nope.json", 1);
    find("/nope.json");
    run("bench -m " MODEL DEVICES " --compare docs/bench.schema.json", 1);
    find("not a report");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_kept_for_plan_and_run),
        cmocka_unit_test(rates_expire_and_can_be_forgotten),
        cmocka_unit_test(rates_of_a_busy_machine_are_not_kept),
        cmocka_unit_test(splits_are_measured_beside_the_planner_s),
        cmocka_unit_test(the_workload_is_measured),
        cmocka_unit_test(the_best_split_is_searched),
        cmocka_unit_test(a_budget_cuts_what_was_not_asked_for),
        cmocka_unit_test(measured_links_are_kept_and_used),
        cmocka_unit_test(spoiled_values_of_links_are_ignored),
        cmocka_unit_test(a_spoiled_cache_is_ignored_and_replaced),
        cmocka_unit_test(stored_rates_are_used_without_measuring),
        cmocka_unit_test(synthetic_models_are_the_same_every_time),
        cmocka_unit_test(devices_are_opened_before_a_synthetic_model_is_made),
        cmocka_unit_test(layers_are_extrapolated_from_a_few),
        cmocka_unit_test(files_that_cannot_be_written_are_named_before_measuring),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
