/* Collectives by NCCL on simulated machines: what they compute, and that they come to an end with a sentence
 * whatever happens. */
#include "cuda/nccl_run.h"

#include "support/failing_alloc.h"

static const int sizes[] = {1, 2, 3, 5, 8};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* -- results -- */

static void run_sum(group *g, sum *s)
{
    sum_make(g, s);
    group_compile(g);
    for (uint64_t run = 0; run < 3; run++) {
        sum_fill(g, s, run);
        ok(group_run(g));
        sum_check(g, s, run);
    }
    group_clear(g);
}

static void sums_are_exact_whatever_the_number_of_devices(void **state)
{
    (void)state;
    for (int i = 0; i < N_SIZES; i++) {
        machine(sizes[i], 1 + (uint64_t)i);
        group g = group_open(sizes[i]);
        uint64_t all = all_of(sizes[i]);
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, all, all, 1000, true});
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, all, all, 1, false});
        run_sum(&g, &(sum){TSR_REDUCE_F32, all, all, 777, true});
        run_sum(&g, &(sum){TSR_REDUCE_BF16, all, all, 777, true});
        group_close(&g);
        nothing_is_left();
    }
}

/* The same partials through both. */
static void sums_have_the_bits_of_the_peer_kernel(void **state)
{
    (void)state;
    enum { N = 513 };
    for (int i = 1; i < N_SIZES; i++) {
        float results[2][N];
        for (int kind = 0; kind < 2; kind++) {
            machine(sizes[i], 40 + (uint64_t)i);
            group g = group_of(sizes[i], false);
            if (kind == 0) {
                ok(group_connect(&g));
            } else {
                uint64_t reach[MAX_RANKS];
                ok(tsr_cuda_peers_test(g.devices, g.n, NULL, reach));
                ok(tsr_comm_peer_create(g.devices, g.n, reach, false, &g.comm));
            }
            sum s = {TSR_REDUCE_EXACT, all_of(g.n), all_of(g.n), N, true};
            sum_make(&g, &s);
            group_compile(&g);
            sum_fill(&g, &s, 99);
            ok(group_run(&g));
            ok(tsr_device_download(g.devices[g.n - 1], results[kind], s.y[g.n - 1], sizeof results[kind]));
            group_close(&g);
            nothing_is_left();
        }
        assert_memory_equal(results[0], results[1], sizeof results[0]);
    }
}

static void devices_without_a_partial_take_part(void **state)
{
    (void)state;
    static const uint64_t contributors[] = {0x01, 0x10, 0x0a, 0x1e};
    machine(5, 3);
    group g = group_of(5, false);
    for (int d = 0; d < g.n; d++)
        g.devices[d]->scratch_bytes = 48 << 10; /* less than the sum */
    ok(group_connect(&g));
    for (int i = 0; i < 4; i++) {
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x1f, contributors[i], 10000, true});
        run_sum(&g, &(sum){TSR_REDUCE_F32, 0x1f, contributors[i], 100, false});
        run_sum(&g, &(sum){TSR_REDUCE_BF16, 0x1f, contributors[i], 30011, true});
    }
    group_close(&g);
    nothing_is_left();
}

static void some_devices_do_without_the_others(void **state)
{
    (void)state;
    machine(3, 4);
    group g = group_open(3);
    uint64_t joined = cudasim_calls_of("ncclCommInitRankConfig");
    assert_int_equal(joined, 3);
    for (int round = 0; round < 2; round++) { /* the second time the communicators are there */
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x5, 0x5, 100, true});
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x6, 0x4, 100, false});
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x7, 0x7, 100, false});
        run_sum(&g, &(sum){TSR_REDUCE_EXACT, 0x2, 0x2, 100, true}); /* alone */
        assert_int_equal(cudasim_calls_of("ncclCommInitRankConfig"), joined + 4);
    }
    group_close(&g);
    nothing_is_left();
}

static void run_gather(int n_ranks, const int64_t *begin, int64_t n_rows, size_t scratch_bytes)
{
    machine(n_ranks, (uint64_t)n_rows);
    group g = group_of(n_ranks, false);
    int64_t n = begin[n_ranks];
    void *partial[MAX_RANKS];
    float *y[MAX_RANKS], *values = malloc((size_t)(n * n_rows) * sizeof(float));
    for (int d = 0; d < n_ranks; d++)
        g.devices[d]->scratch_bytes = scratch_bytes;
    ok(group_connect(&g));
    for (int d = 0; d < n_ranks; d++) {
        int64_t width = begin[d + 1] - begin[d];
        for (int64_t i = 0; i < width * n_rows; i++)
            values[i] = (float)(i / width * n + begin[d] + i % width);
        partial[d] = group_put(&g, d, values, (size_t)(width * n_rows) * sizeof(float));
        y[d] = group_put(&g, d, NULL, (size_t)(n * n_rows) * sizeof(float));
    }
    tsr_collective *collective = group_collective(&g, &(tsr_collective_desc){.kind = TSR_OP_ALL_GATHER,
                                                                             .participants = all_of(n_ranks),
                                                                             .contributors = all_of(n_ranks),
                                                                             .n = n,
                                                                             .n_rows = n_rows,
                                                                             .begin = begin,
                                                                             .partial = partial,
                                                                             .name = "a whole"});
    for (int d = 0; d < n_ranks; d++)
        group_op(
            &g, d,
            (tsr_op){.kind = TSR_OP_ALL_GATHER, .name = "q", .all_gather = {collective, y[d], n, n_rows}});
    group_compile(&g);
    for (int run = 0; run < 2; run++) {
        ok(group_run(&g));
        for (int d = 0; d < n_ranks; d++) {
            memset(values, 0, (size_t)(n * n_rows) * sizeof(float));
            ok(tsr_device_download(g.devices[d], values, y[d], (size_t)(n * n_rows) * sizeof(float)));
            for (int64_t i = 0; i < n * n_rows; i++)
                assert_true(values[i] == (float)i);
        }
    }
    free(values);
    group_close(&g);
    nothing_is_left();
}

static void uneven_parts_become_whole(void **state)
{
    (void)state;
    run_gather(3, (const int64_t[]){0, 5, 6, 40}, 1, 1 << 20);
    run_gather(3, (const int64_t[]){0, 5, 6, 40}, 7, 1 << 20);
    run_gather(5, (const int64_t[]){0, 0, 64, 64, 65, 100}, 200, 1 << 20); /* some have nothing */
    run_gather(2, (const int64_t[]){0, 3000, 5000}, 10, 40000);            /* two rows at a time */
    run_gather(2, (const int64_t[]){0, 9000, 15000}, 3, 40000);            /* not even one */
}

static void a_value_is_handed_to_several(void **state)
{
    (void)state;
    enum { N = 321 };
    float values[N], got[N];
    machine(5, 8);
    group g = group_open(5);
    void *staging[MAX_RANKS] = {0};
    float *y[MAX_RANKS] = {0};
    const uint64_t participants = 0x16; /* from 2 to 1 and 4 */
    staging[2] = group_put(&g, 2, NULL, sizeof values);
    tsr_collective *collective = group_collective(&g, &(tsr_collective_desc){.kind = TSR_OP_SEND,
                                                                             .participants = participants,
                                                                             .contributors = 0x04,
                                                                             .n = N,
                                                                             .partial = staging,
                                                                             .name = "a value"});
    for (int d = 0; d < g.n; d++)
        y[d] = group_put(&g, d, NULL, sizeof values);
    group_op(&g, 2, (tsr_op){.kind = TSR_OP_SEND, .name = "x", .send = {collective, y[2], N}});
    group_op(&g, 2, (tsr_op){.kind = TSR_OP_SCALE, .name = "2x", .scale = {y[2], y[2], N, 2.0f}});
    group_op(&g, 1, (tsr_op){.kind = TSR_OP_RECV, .name = "x", .recv = {collective, y[1], N}});
    group_op(&g, 4, (tsr_op){.kind = TSR_OP_RECV, .name = "x", .recv = {collective, y[4], N}});
    group_compile(&g);
    for (int run = 0; run < 3; run++) {
        for (int i = 0; i < N; i++)
            values[i] = (float)(i + 1000 * run);
        ok(tsr_device_upload(g.devices[2], y[2], values, sizeof values));
        ok(group_run(&g));
        for (int d = 1; d < 5; d += 3) {
            ok(tsr_device_download(g.devices[d], got, y[d], sizeof got));
            assert_memory_equal(got, values, sizeof got);
        }
    }
    group_close(&g);
    nothing_is_left();
}

/* Kernels make what is summed, and use what was. */
static void collectives_keep_their_place_between_kernels(void **state)
{
    (void)state;
    enum { N = 64 };
    for (uint64_t seed = 0; seed < 4; seed++) {
        machine(3, seed);
        group g = group_open(3);
        sum first = {TSR_REDUCE_F32, 0x7, 0x7, N, false}, second = first;
        sum_make(&g, &first);
        for (int d = 0; d < g.n; d++)
            group_op(&g, d,
                     (tsr_op){.kind = TSR_OP_SCALE, .name = "2h", .scale = {first.y[d], NULL, N, 2.0f}});
        sum_make(&g, &second);
        for (int d = 0; d < g.n; d++)
            g.ops[d][1].scale.y = second.partial[d];
        group_compile(&g);
        for (int run = 0; run < 3; run++) {
            float got[N];
            sum_fill(&g, &first, 5);
            ok(group_run(&g));
            ok(tsr_device_download(g.devices[1], got, second.y[1], sizeof got));
            for (int i = 0; i < N; i++)
                assert_true(got[i] == 6 * sum_at(&first, i, 5));
        }
        group_close(&g);
        nothing_is_left();
    }
}

static void a_norm_that_follows_has_the_same_bits_in_one_kernel(void **state)
{
    (void)state;
    enum { WIDTH = 96, ROWS = 4 };
    machine(2, 11);
    group g = group_open(2);
    sum s = {TSR_REDUCE_EXACT, 0x3, 0x3, WIDTH * ROWS, true};
    float results[2][WIDTH * ROWS];
    sum_make(&g, &s);
    for (int apart = 0; apart < 2; apart++) {
        float *y = group_put(&g, 0, NULL, sizeof results[0]);
        if (apart) /* what lies between keeps them apart */
            group_op(&g, 0,
                     (tsr_op){.kind = TSR_OP_SCALE, .name = "x", .scale = {s.y[0], s.y[0], s.n, 1.0f}});
        group_op(&g, 0,
                 (tsr_op){.kind = TSR_OP_RMS_NORM,
                          .name = "n",
                          .rms_norm = {s.y[0], NULL, y, WIDTH, ROWS, 1e-5f}});
        group_compile(&g);
        sum_fill(&g, &s, 3);
        uint64_t launches = cudasim_calls_of("cudaLaunchKernel");
        ok(group_run(&g));
        assert_int_equal(cudasim_calls_of("cudaLaunchKernel") - launches, apart ? 2 + 4 : 2 + 2);
        sum_check(&g, &s, 3);
        ok(tsr_device_download(g.devices[0], results[apart], y, sizeof results[0]));
        for (int d = 0; d < 2; d++) {
            g.devices[d]->ops->program_destroy(g.devices[d], g.programs[d]);
            g.programs[d] = NULL;
            g.n_ops[d] = 1; /* the sum */
        }
    }
    assert_memory_equal(results[0], results[1], sizeof results[0]);
    group_close(&g);
    nothing_is_left();
}

static void programs_are_captured_together_and_replayed(void **state)
{
    (void)state;
    machine(2, 5);
    group g = group_open(2);
    sum s = {TSR_REDUCE_EXACT, 0x3, 0x3, 100, true};
    sum_make(&g, &s);
    uint64_t sums = cudasim_calls_of("ncclAllReduce");
    group_compile(&g);
    assert_int_equal(cudasim_calls_of("ncclAllReduce"), sums);
    sum_fill(&g, &s, 0);
    for (uint64_t run = 1; run < 5; run++) {
        sum_fill(&g, &s, run);
        ok(group_run(&g));
        sum_check(&g, &s, run);
        assert_int_equal(cudasim_calls_of("ncclAllReduce"), sums + 2);
        assert_int_equal(cudasim_calls_of("cudaGraphLaunch"), 2 * run);
    }
    group_close(&g);
    nothing_is_left();
}

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

/* Lost while the others capture: the program is not prepared, and nobody waits. */
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
        assert_true(status == TSR_ERR_MEMORY || status == TSR_OK); /* OK: the simulation's own */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact_whatever_the_number_of_devices),
        cmocka_unit_test(sums_have_the_bits_of_the_peer_kernel),
        cmocka_unit_test(devices_without_a_partial_take_part),
        cmocka_unit_test(some_devices_do_without_the_others),
        cmocka_unit_test(uneven_parts_become_whole),
        cmocka_unit_test(a_value_is_handed_to_several),
        cmocka_unit_test(collectives_keep_their_place_between_kernels),
        cmocka_unit_test(a_norm_that_follows_has_the_same_bits_in_one_kernel),
        cmocka_unit_test(programs_are_captured_together_and_replayed),
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
    return cmocka_run_group_tests_name("collectives by NCCL", tests, NULL, NULL);
}
