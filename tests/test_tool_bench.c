/* tsr bench, and what it leaves for tsr plan and tsr run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/program.h"

#define MODEL   "examples/models/glossary-7m-Q8_0.gguf"
#define DEVICES " --devices host:2,threads=1"

static char text[1 << 14], cache[] = "/tmp/tsr_cache_XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return !mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1) != 0;
}

static int tear_down(void **state)
{
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "%s/tsr/rates.json", cache);
    unlink(path);
    snprintf(path, sizeof path, "%s/tsr", cache);
    rmdir(path);
    return rmdir(cache);
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

static void rates_are_kept_for_plan_and_run(void **state)
{
    (void)state;
    run("plan -m " MODEL DEVICES " --why", 0);
    find("not measured");
    run("bench" DEVICES, 0);
    find("F16 GB/s");
    find("host1");
    find("kept in");
    run("plan -m " MODEL DEVICES " --why", 0);
    find("Predicted by rates that were measured.");
    run("plan -m " MODEL " --devices host:3,threads=1 --why", 0); /* other devices */
    find("not measured");
    run("run -m " MODEL DEVICES " -p hi -n 2", 0);
}

static void splits_are_measured_beside_the_planner_s(void **state)
{
    (void)state;
    run("bench -m " MODEL DEVICES " --splits '1,1;3,1' -p 4 -n 2 -r 1", 0);
    find("the planner's");
    find("\n1,1 ");
    find("\n3,1 ");
    find("fastest measured: ");
    run("bench -m " MODEL DEVICES " --ratios 3 -p 4 -n 2 -r 1", 0);
    find("75.0 % on host0");
    run("bench -m " MODEL " --devices host:1 -p 4 -n 2 -r 1", 0);
    find("one device");
}

/* Nothing that lies in the cache can make a command fail. */
static void a_spoiled_cache_is_ignored_and_replaced(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/tsr/rates.json", cache);
    static const char *const contents[] = {"", "[]", "{\"x\": 1", "nonsense"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(contents[i], file);
        fclose(file);
        run("plan -m " MODEL DEVICES " --why", 0);
        find("not measured");
    }
    run("bench" DEVICES, 0);
    run("plan -m " MODEL DEVICES " --why", 0);
    find("rates that were measured");
}

static void mistakes_are_named(void **state)
{
    (void)state;
    run("bench -m " MODEL DEVICES " -ts 1,1", 2);
    find("--splits");
    run("bench -m " MODEL DEVICES " --splits '1,1,1' -p 4 -n 1 -r 1", 2);
    find("3");
    run("bench -m /nope.gguf" DEVICES, 1);
    find("/nope.gguf");
    run("bench -m " MODEL DEVICES " -c 8 -p 64", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_kept_for_plan_and_run),
        cmocka_unit_test(splits_are_measured_beside_the_planner_s),
        cmocka_unit_test(a_spoiled_cache_is_ignored_and_replaced),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
