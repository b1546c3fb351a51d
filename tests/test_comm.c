/* What collectives between host devices compute. Every value they add up is made by a kernel inside the
 * program, so a missing wait shows as a wrong sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/quant/fixed.h"
#include "support/comm_group.h"
#include "support/tiny_kernels.h"

/* -- all-reduce -- */

typedef struct reduce_case {
    int n_ranks;
    const int *n_threads; /* NULL: one each */
    uint64_t participants, contributors;
    tsr_reduce_type reduce;
    int64_t n;
    int n_collectives, n_runs;
} reduce_case;

enum { SEEDS_PER_COLLECTIVE = 1000 };

static float rounded_to_bf16(float value)
{
    return tsr_bf16_to_f32(tsr_f32_to_bf16(value));
}

static float reduced_naively(const reduce_case *c, uint64_t seed, int64_t i)
{
    int64_t sum = 0;
    float sum_f32 = 0.0f;
    bool first = true;
    for (int r = 0; r < c->n_ranks; r++) {
        if (!(c->contributors >> r & 1))
            continue;
        sum += tiny_partial_i64(seed + (uint64_t)r, i);
        float part = tiny_partial_f32(seed + (uint64_t)r, i);
        if (c->reduce == TSR_REDUCE_BF16)
            part = rounded_to_bf16(part);
        sum_f32 = first ? part : sum_f32 + part;
        first = false;
    }
    if (c->reduce == TSR_REDUCE_BF16)
        return rounded_to_bf16(sum_f32);
    return c->reduce == TSR_REDUCE_EXACT ? tsr_fixed_to_f32(sum) : sum_f32;
}

/* A program like that of a model: partial, all-reduce with residual, partial, ... The partials alternate
 * between two slots, and rank r's k-th partial comes from seed `run + 1000 k + r`. */
static void check_all_reduce(const reduce_case *c)
{
    group *g = group_open(c->n_ranks, c->n_threads);
    size_t n = (size_t)c->n, k_max = (size_t)c->n_collectives;
    void *slots[2][MAX_RANKS] = {{0}};
    float *y[MAX_RANKS] = {0}, run_number = 0.0f;
    for (int r = 0; r < c->n_ranks; r++) {
        y[r] = calloc(n * k_max, sizeof(float));
        for (int s = 0; s < 2 && (c->contributors >> r & 1); s++)
            slots[s][r] = calloc(n, sizeof(int64_t));
    }
    for (int k = 0; k < c->n_collectives; k++) {
        tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                    .participants = c->participants,
                                    .contributors = c->contributors,
                                    .reduce = c->reduce,
                                    .n = c->n,
                                    .partial = slots[k % 2],
                                    .name = "sum"};
        tsr_collective *collective = group_collective(g, &desc);
        for (int r = 0; r < c->n_ranks; r++) {
            if (c->contributors >> r & 1)
                group_op(g, r,
                         (tsr_op){.kind = TSR_OP_MUL_MAT,
                                  .name = "partial",
                                  .mul_mat = {.x = &run_number,
                                              .k = SEEDS_PER_COLLECTIVE * k + r,
                                              .n_rows = c->n,
                                              .reduce = c->reduce,
                                              .y = slots[k % 2][r]}});
            float *to = y[r] + (size_t)k * n;
            if (c->participants >> r & 1)
                group_op(g, r,
                         (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                                  .name = "sum",
                                  .all_reduce = {collective, k % 3 ? to - n : NULL, to, c->n}});
        }
    }
    group_compile(g);
    float *expected = calloc(n * k_max, sizeof(float));
    for (int run = 0; run < c->n_runs; run++) {
        run_number = (float)run;
        group_run(g);
        if (run % 100 && run != c->n_runs - 1)
            continue;
        for (size_t k = 0; k < k_max; k++)
            for (size_t i = 0; i < n; i++) {
                float value =
                    reduced_naively(c, SEEDS_PER_COLLECTIVE * (uint64_t)k + (uint64_t)run, (int64_t)i);
                expected[k * n + i] = k % 3 ? value + expected[(k - 1) * n + i] : value;
            }
        for (int r = 0; r < c->n_ranks; r++)
            if (c->participants >> r & 1)
                assert_memory_equal(y[r], expected, n * k_max * sizeof(float));
    }
    group_close(g);
    for (int r = 0; r < c->n_ranks; r++) {
        free(slots[0][r]);
        free(slots[1][r]);
        free(y[r]);
    }
    free(expected);
}

static void sums_are_right_for_1_to_16_ranks(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 16; n_ranks++)
        for (int reduce = TSR_REDUCE_EXACT; reduce <= TSR_REDUCE_BF16; reduce++) {
            reduce_case c = {
                n_ranks, NULL, all_of(n_ranks), all_of(n_ranks), (tsr_reduce_type)reduce, 1000 + n_ranks,
                5,       3};
            check_all_reduce(&c);
        }
}

static void any_size_is_right(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 1023, 16384, 50001};
    const int n_threads[] = {2, 1, 3};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int n_ranks = 2; n_ranks <= 3; n_ranks++)
            for (int reduce = TSR_REDUCE_EXACT; reduce <= TSR_REDUCE_BF16; reduce++) {
                reduce_case c = {
                    n_ranks, n_threads, all_of(n_ranks), all_of(n_ranks), (tsr_reduce_type)reduce, sizes[s],
                    4,       2};
                check_all_reduce(&c);
            }
}

static void ranks_without_a_part_get_the_sum_too(void **state)
{
    (void)state;
    const int n_threads[] = {1, 2, 1, 2, 1};
    const uint64_t masks[][2] = {{0x1f, 0x01}, {0x1f, 0x12}, {0x1d, 0x0c}, {0x18, 0x10}, {0x1f, 0x1e}};
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        for (int64_t n = 100; n <= 40000; n *= 20) {
            reduce_case c = {5, n_threads, masks[m][0], masks[m][1], TSR_REDUCE_EXACT, n, 5, 3};
            check_all_reduce(&c);
        }
}

static void sixty_four_ranks_are_possible(void **state)
{
    (void)state;
    reduce_case c = {64, NULL, UINT64_MAX, UINT64_MAX >> 32, TSR_REDUCE_EXACT, 200, 3, 2};
    check_all_reduce(&c);
}

static void thousands_of_runs_on_uneven_teams_agree(void **state)
{
    (void)state;
    const int teams[][4] = {{1, 1, 1, 1}, {1, 2, 1, 1}, {3, 1, 2, 4}};
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++)
        for (size_t t = 0; t < sizeof teams / sizeof *teams; t++) {
            reduce_case c = {n_ranks, teams[t], all_of(n_ranks), all_of(n_ranks), TSR_REDUCE_EXACT, 100,
                             6,       1000};
            check_all_reduce(&c);
        }
}

static void nine_teams_of_three_share_the_machine(void **state)
{
    (void)state;
    const int n_threads[] = {3, 3, 3, 3, 3, 3, 3, 3, 3};
    reduce_case c = {9, n_threads, all_of(9), all_of(9), TSR_REDUCE_EXACT, 3000, 4, 20};
    check_all_reduce(&c);
}

/* -- all-gather and transfer -- */

static void rows_become_whole_on_every_rank(void **state)
{
    (void)state;
    enum { RANKS = 4, N = 100, ROWS = 7 };
    const int n_threads[] = {1, 3, 2, 1};
    const int64_t begin[RANKS + 1] = {0, 33, 33, 64, N}; /* rank 1 has nothing */
    float *partial[RANKS], *y[RANKS], run_number = 0.0f;
    group *g = group_open(RANKS, n_threads);
    for (int r = 0; r < RANKS; r++) {
        partial[r] = calloc(N * ROWS, sizeof(float));
        y[r] = calloc(N * ROWS, sizeof(float));
    }
    tsr_collective_desc desc = {.kind = TSR_OP_ALL_GATHER,
                                .participants = all_of(RANKS),
                                .n = N,
                                .n_rows = ROWS,
                                .begin = begin,
                                .partial = (void *const *)partial,
                                .name = "logits"};
    tsr_collective *collective = group_collective(g, &desc);
    for (int r = 0; r < RANKS; r++) {
        if (begin[r] < begin[r + 1])
            group_op(g, r,
                     (tsr_op){.kind = TSR_OP_MUL_MAT,
                              .name = "part",
                              .mul_mat = {.x = &run_number,
                                          .k = 10 * r,
                                          .n_rows = (begin[r + 1] - begin[r]) * ROWS,
                                          .reduce = TSR_REDUCE_F32,
                                          .y = partial[r]}});
        group_op(
            g, r,
            (tsr_op){.kind = TSR_OP_ALL_GATHER, .name = "whole", .all_gather = {collective, y[r], N, ROWS}});
    }
    group_compile(g);
    for (int run = 0; run < 200; run++) {
        run_number = (float)run;
        group_run(g);
        for (int r = 0; r < RANKS; r++)
            for (int64_t row = 0; row < ROWS; row++)
                for (int64_t i = 0; i < N; i++) {
                    int from = i < 33 ? 0 : i < 64 ? 2 : 3;
                    int64_t local = row * (begin[from + 1] - begin[from]) + i - begin[from];
                    assert_true(y[r][row * N + i] == tiny_partial_f32((uint64_t)(10 * from + run), local));
                }
    }
    group_close(g);
    for (int r = 0; r < RANKS; r++) {
        free(partial[r]);
        free(y[r]);
    }
}

/* A pipeline 0 -> 1 -> 2, launched several times without waiting in between: the staging buffers must not be
 * overwritten before they were read. */
static void a_pipeline_keeps_up_with_queued_launches(void **state)
{
    (void)state;
    enum { RANKS = 3, N = 5000, QUEUED = 8 };
    const int n_threads[] = {2, 1, 3};
    static float x[RANKS][2][N], staging[RANKS][N], total[N];
    group *g = group_open(RANKS, n_threads);
    for (int r = 0; r + 1 < RANKS; r++) {
        void *buffers[RANKS] = {0};
        buffers[r] = staging[r];
        tsr_collective_desc desc = {.kind = TSR_OP_SEND,
                                    .participants = (uint64_t)3 << r,
                                    .contributors = (uint64_t)1 << r,
                                    .n = N,
                                    .partial = buffers,
                                    .name = "hidden"};
        tsr_collective *collective = group_collective(g, &desc);
        if (r == 0) /* counts its runs: x = x + 1 */
            group_op(g, r,
                     (tsr_op){.kind = TSR_OP_ADD, .name = "count", .add = {x[0][0], x[0][1], x[0][0], N}});
        group_op(g, r, (tsr_op){.kind = TSR_OP_SEND, .name = "send", .send = {collective, x[r][0], N}});
        group_op(g, r + 1,
                 (tsr_op){.kind = TSR_OP_RECV, .name = "recv", .recv = {collective, x[r + 1][0], N}});
    }
    group_op(g, 2, (tsr_op){.kind = TSR_OP_ADD, .name = "total", .add = {total, x[2][0], total, N}});
    group_compile(g);
    for (int i = 0; i < N; i++)
        x[0][1][i] = 1.0f;
    float expected = 0.0f, count = 0.0f;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < QUEUED; i++) {
            group_launch(g, UINT64_MAX);
            count += 1.0f;
            expected += count;
        }
        group_synchronize(g);
        for (int i = 0; i < N; i++)
            assert_true(total[i] == expected);
    }
    group_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_right_for_1_to_16_ranks),
        cmocka_unit_test(any_size_is_right),
        cmocka_unit_test(ranks_without_a_part_get_the_sum_too),
        cmocka_unit_test(sixty_four_ranks_are_possible),
        cmocka_unit_test(thousands_of_runs_on_uneven_teams_agree),
        cmocka_unit_test(nine_teams_of_three_share_the_machine),
        cmocka_unit_test(rows_become_whole_on_every_rank),
        cmocka_unit_test(a_pipeline_keeps_up_with_queued_launches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
