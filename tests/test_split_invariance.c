/* The same bits whatever the split (support/ways.h), on host devices: any number of them, with any number of
 * threads. TSR_TEST_ROUNDS sets how many ways are tried (default 300). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/ways.h"

enum { MAX_TEST_DEVICES = 9 };

static int prepare(uint64_t *seed, way *w)
{
    int n_devices = 1 + (int)random_below(seed, MAX_TEST_DEVICES);
    int n_threads = 1 + (int)random_below(seed, n_devices > 3 ? 2 : 4);
    snprintf(w->devices, sizeof w->devices, "host:%d,threads=%d", n_devices, n_threads);
    return n_devices;
}

static const way_family host = {.plain = "host:1,threads=1", .on_this_machine = true, .prepare = prepare};

WAYS_TESTS(&host, ways_rounds());

int main(void)
{
    return cmocka_run_group_tests_name("the split does not change a bit", ways_tests, NULL, NULL);
}
