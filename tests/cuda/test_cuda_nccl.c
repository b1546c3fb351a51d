/* Collectives by NCCL on simulated machines: what they compute, and where they stand between kernels. */
#include "cuda/nccl_run.h"

static const int sizes[] = {1, 2, 3, 5, 8};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

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
        machine(sizes[i], 1);
        if (sizes[i] > 4 && cudasim_gpu(sizes[i] - 1) < sizes[i] - 1)
            continue; /* no more of one GPU can wait for each other */
        float results[2][N];
        for (int kind = 0; kind < 2; kind++) {
            machine(sizes[i], 40 + (uint64_t)i);
            group g = group_of(sizes[i], false);
            if (kind == 0) {
                ok(group_connect(&g));
            } else {
                uint64_t reach[MAX_RANKS];
                ok(tsr_cuda_peers_test(g.devices, g.n, NULL, reach));
                ok(tsr_comm_peer_create(g.devices, g.n, reach, TSR_PEER_ONE_SHOT, &g.comm));
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
        if (apart) /* an op between the two keeps them apart */
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
    };
    return cmocka_run_group_tests_name("collectives by NCCL", tests, NULL, NULL);
}
