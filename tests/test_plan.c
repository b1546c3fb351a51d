/* Planned bytes are allocated bytes (support/planned.h), on host devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/planned.h"
#include "support/random.h"
#include "support/runner.h"

enum { N_CONFIGS = 160, MAX_TEST_DEVICES = 7 };

static void planned_bytes_are_allocated_bytes(void **state)
{
    (void)state;
    uint64_t seed = 32;
    planned_models models;
    tsr_topology *topo;
    planned_models_write(&models);
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    for (int i = 0; i < N_CONFIGS; i++) {
        char spec[64];
        int n_devices = 1 + (int)random_below(&seed, MAX_TEST_DEVICES);
        snprintf(spec, sizeof spec, "host:%d,threads=1", n_devices);
        planned_check(&models, &seed, topo, spec, n_devices, NULL, NULL);
    }
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
