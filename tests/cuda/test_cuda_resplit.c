/* Changes of split on simulated GPUs: the same bits, the planned bytes, and after a failure of any call to
 * CUDA the old split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"

static void configure(int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.vmm_granularity = 1 << 16;
    cudasim_configure(&config);
}

static void check_machine(void)
{
    assert_int_equal(cudasim_leaks(stderr), 0);
    assert_string_equal(cudasim_violation(), "");
}

static void sequences_go_on_with_the_same_bits(void **state)
{
    (void)state;
    walk w = {.devices = "cuda:0,cuda:1,cuda:2", .seed = 1, .config = walk_config(), .length = 40};
    char split[128];
    configure(3);
    w.config.type_v = TSR_TYPE_Q8_0;
    float *plain = walk_make_plain(&w, "cuda:0");
    walk_open(&w, "1,1,1");
    for (int i = 0; i < 6; i++) {
        walk_step(&w, 3);
        walk_random_split(&w.seed, 3, split, sizeof split);
        runner_ok(walk_resplit(&w, split), split);
        walk_check_books(&w);
        walk_go_on(&w);
    }
    walk_close(&w);
    check_machine();
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_go_on_with_the_same_bits),
    };
    return cmocka_run_group_tests_name("changes of split on GPUs", tests, walk_model_write,
                                       walk_model_remove);
}
