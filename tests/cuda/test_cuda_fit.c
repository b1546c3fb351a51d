/* Fits on simulated GPUs: exact and loaded as on host devices (support/fitted.h), with the host to offload
 * to, and into what is free when a model is opened, not into what was free before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/device_list.h>
#include <tsr/fit.h>
#include <tsr/runtime.h>

#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/fitted.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MAX_DEVICES = 4 };

static void random_fits_are_exact_and_loaded(void **state)
{
    (void)state;
    enum { N_ROUNDS = 30 };
    uint64_t seed = 92;
    fitted_models models;
    fitted_look look = {0};
    cudasim_required("memory of a given size");
    fitted_models_write(&models);
    for (int i = 0; i < N_ROUNDS; i++) {
        cudasim_config config = CUDASIM_CONFIG_INIT;
        tsr_topology *topo;
        config.memory = (size_t)1 << 30;
        config.seed = random_u64(&seed);
        config.vmm_granularity = (size_t)4096 << random_below(&seed, 6);
        cudasim_configure(&config);
        runner_ok(tsr_topology_discover(NULL, &topo), "topology");
        fitted_check(&models, &seed, topo, "cuda:0", 1 + (int)random_below(&seed, MAX_DEVICES), &look);
        tsr_topology_destroy(topo);
        nothing_is_left();
    }
    print_message("%d of %d cut, %d with layers offloaded; %d did not fit\n", look.n_cut, N_ROUNDS,
                  look.n_offloaded, look.n_short);
    assert_true(look.n_cut > 0 && look.n_short < N_ROUNDS / 2);
    fitted_models_remove(&models);
}

/* Opened when most of the memory was free, loaded when it is not. */
static void a_model_is_fitted_into_what_is_free_by_then(void **state)
{
    (void)state;
    enum { N_CTX = 32768, MIB = 1 << 20 };
    static const size_t margin = 4 * MIB;
    char path[DIRECTORY_PATH];
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_fit_info before, after;
    tsr_device_info device;
    tsr_runtime *rt;
    tsr_model *model;
    void *others;
    cudasim_required("memory of a given size");
    synth.n_ctx = N_CTX;
    close(directory_new(path));
    synth_model_write(&synth, path);
    machine.memory = 128 * MIB;
    cudasim_configure(&machine);
    runtime_config.devices = "cuda:0";
    runner_ok(tsr_runtime_open(&runtime_config, &rt), "cuda:0");
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    config.plan.fit = &fit_config;
    runner_ok(tsr_model_open(rt, path, &config, &model), "while memory is free");
    tsr_fit_get_info(tsr_model_fit(model), &before);
    assert_int_equal(before.chosen.n_ctx, N_CTX);
    tsr_model_close(model);

    assert_int_equal(cudaMalloc(&others, 64 * MIB), cudaSuccess);
    runner_ok(tsr_model_open(rt, path, &config, &model), "while half of it is taken");
    tsr_fit_get_info(tsr_model_fit(model), &after);
    assert_true(after.chosen.n_ctx < N_CTX && after.chosen.n_ctx > TSR_FIT_CTX_MIN);
    assert_int_equal(after.chosen.n_ctx % TSR_FIT_CTX_STEP, 0);
    tsr_session *session;
    runner_ok(tsr_session_create(model, &session), "session");
    runner_ok(tsr_runtime_device(rt, 0, &device), "device");
    size_t used = 0;
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        used += device.used[o];
    assert_true(used + margin <= 64 * MIB && used + 2 * margin > 60 * MIB);
    tsr_session_destroy(session);
    tsr_model_close(model);

    /* What cannot be cut is an error. */
    config.session.n_ctx = N_CTX;
    model = NULL;
    assert_int_equal(tsr_model_open(rt, path, &config, &model), TSR_ERR_MEMORY);
    assert_null(model);
    assert_non_null(strstr(tsr_last_error(), "cuda0 lacks "));
    assert_int_equal(cudaFree(others), cudaSuccess);
    tsr_runtime_close(rt);
    unlink(path);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_fits_are_exact_and_loaded),
        cmocka_unit_test(a_model_is_fitted_into_what_is_free_by_then),
    };
    return cmocka_run_group_tests_name("fits on simulated GPUs", tests, NULL, NULL);
}
