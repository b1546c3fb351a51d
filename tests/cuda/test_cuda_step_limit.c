/* A GPU reports progress once per step, so a step that is slow, as predicted, is no hang: the default stall
 * timeout grows with the predicted time of the longest step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/tsr.h>

#include "core/runtime.h"
#include "core/wait/watch.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

static char path[DIRECTORY_PATH];

/* The stall timeout of a runtime after a model was opened whose products take `flops_per_s`. */
static uint64_t limit_after_open(const char *devices, uint64_t stall_timeout_ns, double flops_per_s)
{
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_device_rates rates = {.op_ns = 1000};
    tsr_runtime *rt;
    tsr_model *model;
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        rates.read_bytes_per_s[i] = 1e12;
        rates.flops_per_s[i] = flops_per_s;
    }
    cudasim_configure(&machine);
    runtime_config.devices = devices;
    runtime_config.stall_timeout_ns = stall_timeout_ns;
    config.plan.rates = &rates;
    runner_ok(tsr_runtime_open(&runtime_config, &rt), devices);
    runner_ok(tsr_model_open(rt, path, &config, &model), devices);
    const uint64_t limit = tsr_watch_stall_ns(rt->watch);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    return limit;
}

static void the_default_limit_grows_with_slow_steps(void **state)
{
    (void)state;
    const uint64_t chosen = 5000000000;
    const double fast = 1e13, slow = 1e4;
    assert_int_equal(limit_after_open("cuda:0", 0, fast), TSR_STALL_DEFAULT_NS);
    assert_true(limit_after_open("cuda:0", 0, slow) > 2 * TSR_STALL_DEFAULT_NS);
    assert_int_equal(limit_after_open("cuda:0", chosen, slow), chosen);
    assert_int_equal(limit_after_open("host:1,threads=1", 0, slow), TSR_STALL_DEFAULT_NS);
}

static int set_up(void **state)
{
    (void)state;
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    close(directory_new(path));
    synth_model_write(&synth, path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_default_limit_grows_with_slow_steps)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
