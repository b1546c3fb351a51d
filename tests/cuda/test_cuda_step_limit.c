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

static tsr_device_rates rates_of(double flops_per_s)
{
    tsr_device_rates rates = {.op_ns = 1000};
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        rates.read_bytes_per_s[i] = 1e12;
        rates.flops_per_s[i] = flops_per_s;
    }
    return rates;
}

/* The stall timeout of a runtime after a model was opened whose products take `flops_per_s`. */
static uint64_t limit_after_open(const char *devices, uint64_t stall_timeout_ns, double flops_per_s)
{
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    const tsr_device_rates rates = rates_of(flops_per_s);
    tsr_runtime *rt;
    tsr_model *model;
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

static void the_limit_grows_when_a_split_moves_to_a_slow_gpu(void **state)
{
    (void)state;
    const float fast[] = {1, 0}, slow[] = {0, 1};
    const tsr_device_rates rates[] = {rates_of(1e13), rates_of(1e4)};
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime *rt;
    tsr_model *model;
    machine.n_devices = 2;
    machine.may_share = true;
    cudasim_configure(&machine);
    runtime_config.devices = "cuda:0,cuda:1";
    config.plan.rates = rates;
    config.split.tensor_split = fast;
    config.split.n_tensor_split = 2;
    runner_ok(tsr_runtime_open(&runtime_config, &rt), "runtime");
    runner_ok(tsr_model_open(rt, path, &config, &model), "open");
    assert_int_equal(tsr_watch_stall_ns(rt->watch), TSR_STALL_DEFAULT_NS);
    runner_ok(tsr_model_resplit(model, slow, 2), "resplit");
    assert_true(tsr_watch_stall_ns(rt->watch) > 2 * TSR_STALL_DEFAULT_NS);
    tsr_model_close(model);
    tsr_runtime_close(rt);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_limit_grows_with_slow_steps),
        cmocka_unit_test(the_limit_grows_when_a_split_moves_to_a_slow_gpu),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
