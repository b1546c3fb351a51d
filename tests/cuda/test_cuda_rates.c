/* What GPUs do while they are measured: products that fill them, and matrices that no cache has. Counts; the
 * simulated machine has no clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/rates.h>
#include <tsr/runtime.h>

#include "core/gpu.h"
#include "core/runtime.h"
#include "runtime/rates_work.h"
#include "support/runner.h"

enum { N_SMS = 132 };

typedef struct fixture {
    tsr_runtime *rt;
    tsr_device *device;
    tsr_rates_work work;
} fixture;

static fixture open_fixture(int n_sms)
{
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime_config config = tsr_runtime_config_default();
    fixture f;
    machine.n_sms = n_sms;
    cudasim_configure(&machine);
    config.devices = "cuda:0,mem=192MiB";
    runner_ok(tsr_runtime_open(&config, &f.rt), "open");
    f.device = f.rt->devices[0];
    runner_ok(tsr_rates_work_open(&f.work, f.device, false), "memory");
    return f;
}

static void close_fixture(fixture *f)
{
    tsr_rates_work_close(&f->work);
    assert_int_equal(tsr_device_used(f->device), 0);
    tsr_runtime_close(f->rt);
}

/* Blocks of the products in a program; capturing launches the kernels, and nothing runs. */
static uint64_t blocks_of(const fixture *f, const tsr_op *ops, int n)
{
    static const char *const names[] = {"q_many_kernel",
                                        "many_kernel",
                                        "octets_kernel",
                                        "experts_glu_kernel",
                                        "experts_down_tile_kernel",
                                        "experts_q_many_kernel"};
    uint64_t before = 0, after = 0;
    tsr_device_program *program;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        before += cudasim_blocks_of(names[i]);
    runner_ok(f->device->ops->program_create(f->device, ops, n, &program), "program");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        after += cudasim_blocks_of(names[i]);
    f->device->ops->program_destroy(f->device, program);
    return after - before;
}

static void products_of_prompts_occupy_all_multiprocessors(void **state)
{
    (void)state;
    fixture f = open_fixture(N_SMS);
    for (int i = 0; i < TSR_RATE_TYPES; i++)
        for (int partial = 0; partial < 2; partial++) {
            const tsr_op op = tsr_rates_prompt(&f.work, tsr_rate_type(i), partial != 0);
            assert_true(blocks_of(&f, &op, 1) >= N_SMS);
        }
    close_fixture(&f);
}

static void experts_of_prompts_occupy_all_multiprocessors(void **state)
{
    (void)state;
    fixture f = open_fixture(N_SMS);
    tsr_op ops[TSR_RATES_EXPERT_OPS];
    tsr_rates_experts(&f.work, TSR_TYPE_Q4_K, f.work.n_tokens, 0, ops);
    assert_int_equal(ops[1].kind, TSR_OP_EXPERTS_GLU);
    assert_true(blocks_of(&f, ops + 1, 1) >= N_SMS);
    assert_int_equal(ops[2].kind, TSR_OP_EXPERTS_DOWN);
    assert_true(blocks_of(&f, ops + 2, 1) >= N_SMS);
    close_fixture(&f);
}

/* Every product of one token reads rows of its own. */
static void small_matrices_follow_each_other(void **state)
{
    (void)state;
    fixture f = open_fixture(0);
    for (int i = 0; i < TSR_RATE_TYPES; i++) {
        const int n = tsr_rates_n_slices(&f.work, tsr_rate_type(i));
        const unsigned char *at = f.work.weights;
        assert_true(n >= 1 && n <= TSR_RATES_SLICES);
        for (int k = 0; k < n; k++) {
            const tsr_op_mul_mat m = tsr_rates_slice(&f.work, tsr_rate_type(i), k).mul_mat;
            assert_ptr_equal(m.w, at);
            at += (size_t)m.n_rows * m.w_stride;
            assert_int_equal(m.n_tokens, 1);
        }
        assert_true(at <= f.work.weights + f.work.weight_bytes);
    }
    close_fixture(&f);
}

/* Every layer of one token goes through experts of its own. */
static void layers_use_different_experts(void **state)
{
    (void)state;
    fixture f = open_fixture(0);
    const tsr_type type = TSR_TYPE_Q4_0;
    assert_true(tsr_rates_n_layers(&f.work, type) >= 2);
    runner_ok(tsr_rates_route(&f.work, type), "route");
    for (int layer = 0; layer < 2; layer++) {
        tsr_op ops[TSR_RATES_EXPERT_OPS];
        tsr_device_program *program;
        int32_t touched[8], n_touched;
        tsr_rates_experts(&f.work, type, 1, layer, ops);
        const tsr_routing r = ops[0].route.routing;
        runner_ok(f.device->ops->program_create(f.device, ops, TSR_RATES_EXPERT_OPS, &program), "program");
        runner_ok(f.device->ops->launch(f.device, program), "launch");
        runner_ok(f.device->ops->synchronize(f.device, 0), "run");
        f.device->ops->program_destroy(f.device, program);
        runner_ok(tsr_device_download(f.device, &n_touched, r.n_touched, sizeof n_touched), "touched");
        assert_int_equal(n_touched, 8);
        runner_ok(tsr_device_download(f.device, touched, r.touched, sizeof touched), "touched");
        for (int i = 0; i < 8; i++)
            assert_int_equal(touched[i], 8 * layer + i);
    }
    close_fixture(&f);
}

static void a_cap_that_is_too_low_is_named(void **state)
{
    (void)state;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_device_rates rates;
    tsr_runtime *rt;
    cudasim_configure(&machine);
    config.devices = "cuda:0,mem=24MiB";
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    assert_int_equal(tsr_runtime_measure(rt, NULL, 0, &rates), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_non_null(strstr(tsr_last_error(), "raise its cap"));
    tsr_runtime_close(rt);
}

/* Programs need the kernels' scratch, too. */
static void the_least_cap_has_room_for_programs(void **state)
{
    (void)state;
    const size_t x = (size_t)512 * TSR_RATES_COLUMNS * 4, y = (size_t)512 * 8192 * 8;
    const size_t least = x + y + ((size_t)4 << 20) + TSR_GPU_SCRATCH_BYTES;
    const size_t caps[] = {least, (size_t)100 << 20, least - 4096};
    for (int i = 0; i < 3; i++) {
        cudasim_config machine = CUDASIM_CONFIG_INIT;
        tsr_runtime_config config = tsr_runtime_config_default();
        tsr_device_program *program = NULL;
        fixture f;
        char devices[48];
        cudasim_configure(&machine);
        snprintf(devices, sizeof devices, "cuda:0,mem=%zu", caps[i]);
        config.devices = devices;
        runner_ok(tsr_runtime_open(&config, &f.rt), "open");
        f.device = f.rt->devices[0];
        assert_int_equal(tsr_rates_work_open(&f.work, f.device, false), i < 2 ? TSR_OK : TSR_ERR_MEMORY);
        const tsr_op op = tsr_rates_norm(&f.work);
        if (i < 2) {
            runner_ok(f.device->ops->program_create(f.device, &op, 1, &program), devices);
            f.device->ops->program_destroy(f.device, program);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_prompts_occupy_all_multiprocessors),
        cmocka_unit_test(experts_of_prompts_occupy_all_multiprocessors),
        cmocka_unit_test(small_matrices_follow_each_other),
        cmocka_unit_test(layers_use_different_experts),
        cmocka_unit_test(a_cap_that_is_too_low_is_named),
        cmocka_unit_test(the_least_cap_has_room_for_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
