/* Inputs of programs on GPUs: they are written to pinned memory without a call of CUDA, and one copy of the
 * program's graph brings all of them; large ones are uploaded when they are set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/graph.h>
#include <tsr/runtime.h>

#include "cuda/simulated.h"
#include "graph/memory.h"

enum { N = 40, ROWS = 3 };

/* y = a + b, a row of b added to every row of a. */
typedef struct sum {
    tsr_runtime *rt;
    tsr_graph *graph;
    tsr_tensor *a, *b, *y;
    tsr_program *program;
} sum;

static sum open_sum(int64_t n, int64_t n_rows)
{
    sum s = {0};
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "cuda:0";
    ok(tsr_runtime_open(&config, &s.rt));
    ok(tsr_graph_create(s.rt, &s.graph));
    s.a = tsr_graph_input(s.graph, TSR_TYPE_F32, n, n_rows, "a");
    s.b = tsr_graph_input(s.graph, TSR_TYPE_F32, n, 1, "b");
    s.y = tsr_graph_output(s.graph, tsr_add(s.graph, s.a, s.b));
    ok(tsr_program_compile(s.graph, NULL, &s.program));
    return s;
}

static void close_sum(sum *s)
{
    tsr_program_destroy(s->program);
    tsr_graph_destroy(s->graph);
    tsr_runtime_close(s->rt);
}

static void fill(float *x, int64_t n, float first)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = first + (float)i;
}

static void check_sums(const sum *s, const float *a, const float *b, int64_t n, int64_t n_rows)
{
    float *y = malloc((size_t)(n * n_rows) * sizeof *y);
    ok(tsr_program_run(s->program));
    ok(tsr_tensor_get(s->y, y, 0, (size_t)(n * n_rows) * sizeof *y));
    for (int64_t i = 0; i < n * n_rows; i++)
        assert_true(y[i] == a[i] + b[i % n]);
    free(y);
}

static void inputs_keep_their_values(void **state)
{
    (void)state;
    float a[N * ROWS], b[N], back[N * ROWS];
    sum s = open_sum(N, ROWS);
    fill(a, N * ROWS, 1);
    fill(b, N, 1000);
    ok(tsr_tensor_set(s.a, a, 0, sizeof a));
    ok(tsr_tensor_set(s.b, b, 0, sizeof b));
    ok(tsr_tensor_get(s.a, back, 0, sizeof back)); /* before any run */
    assert_memory_equal(back, a, sizeof a);
    check_sums(&s, a, b, N, ROWS);

    /* A part of one input; the rest, and the other input, keep their values. */
    fill(a + N / 2, N, -5);
    ok(tsr_tensor_set(s.a, a + N / 2, N / 2 * sizeof *a, N * sizeof *a));
    check_sums(&s, a, b, N, ROWS);
    check_sums(&s, a, b, N, ROWS);
    ok(tsr_tensor_get(s.b, back, 0, sizeof b));
    assert_memory_equal(back, b, sizeof b);
    close_sum(&s);
}

static void small_inputs_take_no_call(void **state)
{
    (void)state;
    float a[N * ROWS] = {0};
    sum s = open_sum(N, ROWS);
    const uint64_t before = cudasim_calls();
    ok(tsr_tensor_set(s.a, a, 0, sizeof a));
    ok(tsr_tensor_set(s.b, a, 0, N * sizeof *a));
    assert_int_equal(cudasim_calls(), before);
    close_sum(&s);
}

/* Counted last, since a GPU has no counters. */
static void large_inputs_are_uploaded_once(void **state)
{
    (void)state;
    const int64_t n = TSR_PINNED_INPUT_BYTES / (int64_t)sizeof(float);
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    sum s = open_sum(n, 1);
    fill(a, n, 3);
    fill(b, n, 7);
    ok(tsr_tensor_set(s.a, a, 0, (size_t)n * sizeof *a));
    ok(tsr_tensor_set(s.b, b, 0, (size_t)n * sizeof *b));
    check_sums(&s, a, b, n, 1);
    const uint64_t before = cudasim_calls();
    ok(tsr_tensor_set(s.a, a, 0, (size_t)n * sizeof *a));
    assert_true(cudasim_calls() > before);
    close_sum(&s);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_keep_their_values),
        cmocka_unit_test(small_inputs_take_no_call),
        cmocka_unit_test(large_inputs_are_uploaded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
