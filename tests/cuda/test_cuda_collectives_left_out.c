/* Opening a runtime where an implementation of collectives fails while it is made, tried or measured: the
 * next one is taken with a warning, sums are right, and only the last one or the one that was asked for ends
 * the opening. And which sizes are measured where programs take long to make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>
#include <nccl.h>

#include <tsr/runtime.h>

#include "comm/probe.h"
#include "core/runtime.h"
#include "cuda/simulated.h"
#include "support/log_lines.h"

static log_lines warnings;

static void machine_of(int n_gpus)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_gpus;
    config.memory = (size_t)96 << 20;
    config.nccl_version = NCCL_VERSION(2, 21, 5);
    cudasim_configure(&config);
    unsetenv("NCCL_P2P_DIRECT_DISABLE");
}

static tsr_status open_runtime(const char *collectives, tsr_runtime **rt_out)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "cuda";
    config.collectives = collectives;
    config.logger = (tsr_logger){log_lines_note, &warnings, TSR_LOG_WARN};
    warnings = (log_lines){0};
    *rt_out = NULL;
    return tsr_runtime_open(&config, rt_out);
}

static void check_sums(tsr_runtime *rt)
{
    static const int64_t counts[] = {100, 40000, 300000};
    for (int i = 0; i < 3; i++) {
        tsr_probe *probe = NULL;
        char problem[512];
        const tsr_probe_config config = {
            .devices = rt->devices, .n_devices = rt->n_devices, .kind = TSR_OP_ALL_REDUCE, .n = counts[i]};
        assert_int_equal(tsr_probe_create(&config, &probe), TSR_OK);
        assert_int_equal(tsr_probe_check(probe, rt->comm, 0, problem, sizeof problem), TSR_OK);
        assert_string_equal(problem, "");
        tsr_probe_destroy(probe);
    }
}

static bool uses(const tsr_runtime *rt, const char *implementation)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    int n = tsr_runtime_collectives(rt, rows);
    bool found = false;
    for (int r = 0; r < n; r++)
        found = found || strcmp(rows[r].implementation, implementation) == 0;
    return found;
}

/* As in a container that has no shared memory, or a little. */
static void nccl_without_shared_memory_is_left_out(void **state)
{
    (void)state;
    for (int room = 0; room < 2; room++) {
        tsr_runtime *rt;
        machine_of(3);
        cudasim_forbid_peer(1, 2);
        cudasim_nccl_shared_memory(room);
        assert_int_equal(open_runtime(NULL, &rt), TSR_OK);
        assert_non_null(strstr(warnings.text, "nccl is not used: "));
        assert_non_null(strstr(warnings.text, "unhandled system error; "));
        assert_non_null(strstr(warnings.text, "--shm-size=1g"));
        assert_false(uses(rt, "nccl"));
        check_sums(rt);
        tsr_runtime_close(rt);
        assert_int_equal(open_runtime("nccl", &rt), TSR_ERR_DEVICE);
        assert_non_null(strstr(tsr_last_error(), "collectives 'nccl': "));
        assert_non_null(strstr(tsr_last_error(), "--shm-size=1g"));
        nothing_is_left();
    }
}

static void nccl_that_cannot_be_captured_serves_without_graphs(void **state)
{
    (void)state;
    tsr_runtime *rt;
    machine_of(3);
    cudasim_nccl_refuse_capture();
    assert_int_equal(open_runtime("nccl", &rt), TSR_OK);
    assert_non_null(strstr(warnings.text, "runs without a CUDA graph"));
    check_sums(rt);
    tsr_runtime_close(rt);
    assert_int_equal(open_runtime(NULL, &rt), TSR_OK);
    check_sums(rt);
    tsr_runtime_close(rt);
    nothing_is_left();
}

/* A call fails, in turn many of the first that launch or connect: then the runtime opens with a
 * warning that names what is left out. */
static void what_fails_is_left_out_and_the_next_is_taken(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaGraphLaunch", "cudaLaunchKernel", "ncclCommInitRankConfig"};
    int n_left_out = 0;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (uint64_t nth = 1; nth < 24; nth += 1 + nth / 8) {
            tsr_runtime *rt;
            machine_of(2);
            cudasim_fail_named(calls[c], nth, c < 2 ? cudaErrorInvalidValue : 0);
            tsr_status status = open_runtime(NULL, &rt);
            if (status != TSR_OK)
                fail_msg("%s, call %d: %s (after: %s)", calls[c], (int)nth, tsr_last_error(), warnings.text);
            bool hit = cudasim_faults_hit() > 0, left_out = strstr(warnings.text, " is not used: ") != NULL;
            if (hit && warnings.n == 0)
                fail_msg("%s, call %d, fails without a word", calls[c], (int)nth);
            n_left_out += left_out;
            cudasim_clear_faults();
            check_sums(rt);
            tsr_runtime_close(rt);
            nothing_is_left();
            if (!hit)
                break;
        }
    }
    assert_true(n_left_out > 8);
}

static void a_lost_device_names_the_way_around(void **state)
{
    (void)state;
    int n_advised = 0;
    for (uint64_t nth = 1; nth < 12; nth += 2) {
        tsr_runtime *rt;
        machine_of(2);
        cudasim_fail_named("cudaGraphLaunch", nth, cudaErrorIllegalAddress);
        assert_int_equal(open_runtime("peer", &rt), TSR_ERR_DEVICE_LOST);
        n_advised += strstr(tsr_last_error(), "start again with --collectives staged") != NULL;
        assert_int_equal(cudasim_leaks(stderr), 0);
    }
    assert_int_equal(n_advised, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_without_shared_memory_is_left_out),
        cmocka_unit_test(nccl_that_cannot_be_captured_serves_without_graphs),
        cmocka_unit_test(what_fails_is_left_out_and_the_next_is_taken),
        cmocka_unit_test(a_lost_device_names_the_way_around),
    };
    return cmocka_run_group_tests_name("implementations that are left out", tests, NULL, NULL);
}
