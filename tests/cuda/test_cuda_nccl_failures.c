/* Collectives by NCCL on simulated machines come to an end with a sentence whatever happens: where NCCL
 * cannot serve, where a device is late or lost, and where a call fails. */
#include "cuda/nccl_run.h"

#include "support/failing_alloc.h"

/* -- where NCCL cannot serve -- */

static void open_machine_with(int version, int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.nccl_version = version;
    cudasim_configure(&config);
}

static void an_old_version_is_refused(void **state)
{
    (void)state;
    open_machine_with(NCCL_VERSION(2, 16, 5), 2);
    group g = group_of(2, false);
    assert_int_equal(group_connect(&g), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "2.16.5"));
    group_close(&g);
    nothing_is_left();
}

static void devices_on_one_gpu_are_refused_where_nccl_would(void **state)
{
    (void)state;
    if (getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
        cudasim_required("an NCCL that refuses them");
    open_machine_with(NCCL_VERSION(2, 28, 9), 1);
    group g = group_of(3, true);
    assert_int_equal(group_connect(&g), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "cuda0 and cuda1"));
    assert_int_equal(cudasim_calls_of("ncclCommInitRankConfig"), 0);
    group_close(&g);
    nothing_is_left();

    open_machine_with(NCCL_VERSION(2, 30, 3), 1);
    g = group_of(2, true);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    assert_int_equal(group_connect(&g), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "NCCL_MULTI_RANK_GPU_ENABLE=1"));
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    ok(group_connect(&g));
    run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x3, 0x3, 100, true});
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    group_close(&g);
    nothing_is_left();
}

static void the_cap_leaves_nccl_its_memory(void **state)
{
    (void)state;
    machine(2, 1);
    group g = group_of(2, false);
    size_t before = g.devices[1]->memory_cap;
    ok(group_connect(&g));
    size_t between = g.devices[1]->memory_cap, available, total;
    ok(tsr_device_memory_info(g.devices[1], &available, &total));
    assert_true(between < before);
    assert_int_equal(between, available);
    tsr_comm_destroy(g.comm);
    g.comm = NULL;
    assert_int_equal(g.devices[1]->memory_cap, before);
    group_close(&g);
    nothing_is_left();
}

/* -- trouble -- */

static void a_late_device_is_named_and_the_next_run_is_well(void **state)
{
    (void)state;
    machine(3, 6);
    group g = group_open(3);
    sum s = {TSR_REDUCE_EXACT, 0x7, 0x7, 100, true};
    sum_make(&g, &s);
    group_compile(&g);
    for (uint64_t run = 0; run < 3; run++) { /* the first is captured, the second replayed */
        sum_fill(&g, &s, run);
        cudasim_stall_device(2, run == 1);
        tsr_status status = TSR_OK;
        if (run == 1) {
            for (int i = 0; i < g.n; i++)
                ok(g.devices[i]->ops->launch(g.devices[i], g.programs[i]));
            status = g.devices[0]->ops->synchronize(g.devices[0], 300 * MS);
            assert_int_equal(status, TSR_ERR_TIMEOUT);
            assert_non_null(strstr(tsr_last_error(), "cuda0"));
            assert_non_null(strstr(tsr_last_error(), "device 2 did not arrive"));
            g.comm->ops->abort(g.comm);
            cudasim_stall_device(2, false);
            for (int i = 0; i < g.n; i++)
                assert_int_equal(g.devices[i]->ops->synchronize(g.devices[i], 0), TSR_ERR_DEVICE);
            g.comm->ops->reset(g.comm);
            continue;
        }
        ok(group_run(&g));
        sum_check(&g, &s, run);
    }
    group_close(&g);
    nothing_is_left();
}

static void a_stopped_device_is_lost_and_the_communicator_says_so(void **state)
{
    (void)state;
    machine(3, 7);
    group g = group_open(3);
    sum s = {TSR_REDUCE_EXACT, 0x7, 0x7, 100, true};
    sum_make(&g, &s);
    group_compile(&g);
    sum_fill(&g, &s, 0);
    ok(group_run(&g));
    g.timeout_ns = 100 * MS;
    cudasim_stall_device(1, true);
    assert_int_equal(group_run(&g), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "device 1 did not arrive"));
    tsr_collective *none = NULL;
    assert_int_equal(g.comm->ops->collective_create(g.comm, s.y[0] ? g.collectives[0]->desc : NULL, &none),
                     TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "cuda1"));
    assert_null(none);
    assert_true(group_run(&g) != TSR_OK); /* and does not hang */
    cudasim_stall_device(1, false);       /* what is abandoned may end */
    group_close(&g);
    assert_string_equal(cudasim_violation(), "");
}

static void a_device_that_does_not_connect_is_named(void **state)
{
    (void)state;
    machine(3, 7);
    group g = group_of(3, false);
    const tsr_comm_nccl_config config = {.timeout_ns = 100 * MS};
    cudasim_nccl_absent(2, true);
    assert_int_equal(tsr_comm_nccl_create(g.devices, g.n, &config, &g.comm), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "cuda2"));
    cudasim_nccl_absent(2, false);
    ok(tsr_comm_nccl_create(g.devices, g.n, NULL, &g.comm));
    run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x7, 0x7, 100, true});
    group_close(&g);
    nothing_is_left();
}

static void an_asynchronous_error_ends_the_run(void **state)
{
    (void)state;
    machine(3, 9);
    group g = group_open(3);
    sum s = {TSR_REDUCE_EXACT, 0x7, 0x7, 100, true};
    sum_make(&g, &s);
    group_compile(&g);
    sum_fill(&g, &s, 0);
    ok(group_run(&g));
    cudasim_nccl_async_error(1, ncclRemoteError);
    assert_int_equal(group_run(&g), TSR_ERR_DEVICE); /* without a deadline */
    assert_non_null(strstr(tsr_last_error(), "cuda1"));
    assert_non_null(strstr(tsr_last_error(), "network error"));
    cudasim_nccl_async_error(1, ncclSuccess);
    g.comm->ops->abort(g.comm); /* it could not be made again while the error lasted */
    g.comm->ops->reset(g.comm);
    sum_fill(&g, &s, 1);
    ok(group_run(&g));
    sum_check(&g, &s, 1);
    group_close(&g);
    nothing_is_left();
}

static tsr_status live(group *g, sum *s)
{
    tsr_status status = TSR_OK;
    TSR_TRY(group_connect(g));
    sum_make(g, s);
    group_compile(g);
    sum_fill(g, s, 1);
    TSR_TRY(group_run(g));
    sum_fill(g, s, 2);
    TSR_TRY(group_run(g));
out:
    return status;
}

static void every_nccl_call_may_fail(void **state)
{
    (void)state;
    static const char *const calls[] = {"ncclGetVersion",        "ncclGetUniqueId", "ncclCommInitRankConfig",
                                        "ncclCommGetAsyncError", "ncclGroupStart",  "ncclGroupEnd",
                                        "ncclAllReduce",         "ncclCommAbort"};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        int n_failed = 0;
        for (uint64_t nth = 1; nth < 12; nth++) {
            machine(3, nth);
            group g = group_of(3, false);
            sum s = {TSR_REDUCE_EXACT, 0x7, 0x7, 64, true};
            cudasim_fail_named(calls[c], nth, 0);
            tsr_status status = live(&g, &s);
            bool hit = cudasim_faults_hit() > 0;
            cudasim_clear_faults();
            if (status != TSR_OK) {
                n_failed++;
                bool is_rank = strcmp(calls[c], "ncclGetVersion") != 0 &&
                               strcmp(calls[c], "ncclGetUniqueId") != 0 &&
                               strncmp(calls[c], "ncclGroup", 9) != 0;
                if (!strstr(tsr_last_error(), calls[c]) || (is_rank && !strstr(tsr_last_error(), "cuda")))
                    fail_msg("%s, call %d: '%s'", calls[c], (int)nth, tsr_last_error());
            }
            if (g.comm) { /* it was a run that failed, and the next is well */
                sum_fill(&g, &s, 3);
                ok(group_run(&g));
                sum_check(&g, &s, 3);
            }
            group_close(&g);
            nothing_is_left();
            if (!hit)
                break;
        }
        assert_true(n_failed > 0 || strcmp(calls[c], "ncclCommAbort") == 0);
    }
}

static void cuda_calls_may_fail_under_the_collectives(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaGraphLaunch", "cudaEventRecord"};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        machine(3, c);
        group g = group_open(3);
        sum s = {TSR_REDUCE_EXACT, 0x7, 0x3, 64, true};
        sum_make(&g, &s);
        group_compile(&g);
        sum_fill(&g, &s, 1);
        cudasim_fail_named(calls[c], 1, cudaErrorUnknown);
        assert_int_equal(group_run(&g), TSR_ERR_DEVICE);
        assert_int_equal(cudasim_faults_hit(), 1);
        assert_non_null(strstr(tsr_last_error(), calls[c]));
        sum_fill(&g, &s, 2);
        ok(group_run(&g));
        sum_check(&g, &s, 2);
        group_close(&g);
        nothing_is_left();
    }
}

/* Two sums with a kernel between them, three times. */
static void run_program(group *g)
{
    sum first = {TSR_REDUCE_EXACT, 0x7, 0x7, 100, true}, second = {TSR_REDUCE_EXACT, 0x7, 0x3, 64, false};
    sum_make(g, &first);
    for (int d = 0; d < g->n; d++)
        group_op(g, d,
                 (tsr_op){.kind = TSR_OP_SCALE, .name = "h", .scale = {first.y[d], first.y[d], 100, 1}});
    sum_make(g, &second);
    group_compile(g);
    for (uint64_t run = 0; run < 3; run++) {
        sum_fill(g, &first, run);
        sum_fill(g, &second, run + 10);
        ok(group_run(g));
        sum_check(g, &first, run);
        sum_check(g, &second, run + 10);
    }
    group_clear(g);
}

static void without_graphs_programs_run_all_the_same(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        machine(3, seed);
        group g = group_open(3);
        for (int i = 0; i < 1000; i++)
            cudasim_fail_named("cudaStreamBeginCapture", 1, 0);
        run_program(&g);
        run_program(&g);
        assert_int_equal(cudasim_calls_of("cudaGraphLaunch"), 0);
        group_close(&g);
        cudasim_clear_faults();
        nothing_is_left();
    }
}

/* At any call, by any of the devices: then none of them replays a graph. */
static void where_one_device_refuses_capture_none_has_graphs(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "cudaStreamBeginCapture", "cudaLaunchKernel",     "cudaMemsetAsync", "ncclAllReduce",
        "cudaStreamEndCapture",   "cudaGraphInstantiate", "cudaGraphUpload"};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (uint64_t nth = 1; nth <= 3; nth += 2) {
            machine(3, 20 * c + nth);
            group g = group_open(3);
            sum s = {TSR_REDUCE_EXACT, 0x7, 0x3, 64, true};
            sum_make(&g, &s);
            group_compile(&g);
            sum_fill(&g, &s, 0);
            cudasim_fail_named(calls[c], nth,
                               strcmp(calls[c], "cudaLaunchKernel") == 0 ? cudaErrorInvalidValue : 0);
            for (uint64_t run = 0; run < 3; run++) {
                sum_fill(&g, &s, run);
                ok(group_run(&g));
                sum_check(&g, &s, run);
                assert_int_equal(cudasim_faults_hit(), 1);
                assert_int_equal(cudasim_calls_of("cudaGraphLaunch"), 0);
            }
            group_close(&g);
            nothing_is_left();
        }
    }
}

/* Lost while the others capture: the program is not prepared, and no device waits. */
static void a_device_lost_in_the_capture_is_a_failure(void **state)
{
    (void)state;
    machine(3, 5);
    group g = group_open(3);
    sum s = {TSR_REDUCE_EXACT, 0x7, 0x7, 64, true};
    sum_make(&g, &s);
    group_compile(&g);
    sum_fill(&g, &s, 0);
    cudasim_poison_device(1, cudaErrorIllegalAddress);
    assert_int_equal(group_run(&g), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "cuda1"));
    group_close(&g);
    assert_string_equal(cudasim_violation(), "");
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    for (int n = 1;; n++) {
        machine(2, 1);
        int64_t blocks = failing_alloc_live();
        group g = group_of(2, false);
        failing_alloc_set(n);
        tsr_status status = group_connect(&g);
        bool fired = failing_alloc_fired();
        const bool is_of_nccl = /* which maps memory, too */
            status == TSR_ERR_DEVICE && strstr(tsr_last_error(), "ncclGetUniqueId");
        failing_alloc_set(0);
        tsr_comm_destroy(g.comm);
        g.comm = NULL;
        group_close(&g);
        assert_int_equal(failing_alloc_live(), blocks);
        nothing_is_left();
        if (!fired) {
            ok(status);
            assert_true(n > 3);
            break;
        }
        /* OK: the simulation's own */
        assert_true(is_of_nccl || status == TSR_ERR_MEMORY || status == TSR_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_version_is_refused),
        cmocka_unit_test(devices_on_one_gpu_are_refused_where_nccl_would),
        cmocka_unit_test(the_cap_leaves_nccl_its_memory),
        cmocka_unit_test(a_late_device_is_named_and_the_next_run_is_well),
        cmocka_unit_test(a_stopped_device_is_lost_and_the_communicator_says_so),
        cmocka_unit_test(a_device_that_does_not_connect_is_named),
        cmocka_unit_test(an_asynchronous_error_ends_the_run),
        cmocka_unit_test(every_nccl_call_may_fail),
        cmocka_unit_test(cuda_calls_may_fail_under_the_collectives),
        cmocka_unit_test(without_graphs_programs_run_all_the_same),
        cmocka_unit_test(where_one_device_refuses_capture_none_has_graphs),
        cmocka_unit_test(a_device_lost_in_the_capture_is_a_failure),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("failures of collectives by NCCL", tests, NULL, NULL);
}
