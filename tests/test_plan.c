/* Planned bytes are allocated bytes (support/planned.h), on host devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/planned.h"
#include "support/random.h"
#include "support/runner.h"

enum { N_CONFIGS = 200, MAX_TEST_DEVICES = 7 };

/* Some with a cap that keeps the planner's shares off the last device, or the model off the machine. */
static void random_spec(uint64_t *seed, int n_devices, char *spec, size_t capacity)
{
    if (n_devices > 1 && random_below(seed, 4) == 0)
        snprintf(spec, capacity, "host:%d,threads=1,host:1,threads=1,mem=%dKiB", n_devices - 1,
                 64 << random_below(seed, 8));
    else
        snprintf(spec, capacity, "host:%d,threads=1", n_devices);
}

static void planned_bytes_are_allocated_bytes(void **state)
{
    (void)state;
    uint64_t seed = 32;
    planned_models models;
    tsr_topology *topo;
    int n = planned_rounds(N_CONFIGS), n_planned = 0, n_refused = 0;
    planned_models_write(&models);
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    while (n_planned < n) {
        char spec[96];
        int n_devices = 1 + (int)random_below(&seed, MAX_TEST_DEVICES);
        random_spec(&seed, n_devices, spec, sizeof spec);
        *(planned_check(&models, &seed, topo, spec, n_devices, NULL, NULL) ? &n_planned : &n_refused) += 1;
    }
    print_message("%d configurations were loaded as planned, %d could not be planned\n", n_planned,
                  n_refused);
    assert_true(n_refused < n_planned);
    tsr_topology_destroy(topo);
    planned_models_remove(&models);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_allocated_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
