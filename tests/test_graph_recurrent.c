/* Graphs of columns that repeat or are joined, and of weights in parts: the same bits for every division,
 * also where a cut goes through a period; and what the constructors refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/buffer.h>
#include <tsr/graph.h>
#include <tsr/runtime.h>

#include "graph/graph.h"
#include "support/random.h"
#include "support/runner.h"

enum { N_EMBD = 96, N_PART = 64, N_TOKENS = 5, N_WEIGHTS = 3 };

/* W0 and W1 are [N_EMBD, N_PART], divided by rows; W2 is [2 * N_PART, N_EMBD], divided by columns. */
typedef struct bench {
    tsr_runtime *rt;
    tsr_context *ctx[N_WEIGHTS];
    tsr_buffer *buffers[N_WEIGHTS];
    tsr_tensor *w[N_WEIGHTS];
    tsr_graph *graph;
    tsr_tensor *x; /* [N_EMBD, N_TOKENS] */
} bench;

static void bench_open(bench *b, const char *devices, const float *split, int n, int64_t granule)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = devices;
    *b = (bench){0};
    runner_ok(tsr_runtime_open(&config, &b->rt), devices);
    for (int i = 0; i < N_WEIGHTS; i++) {
        tsr_split_buffer_config type = tsr_split_buffer_config_default();
        static float data[2 * N_PART * N_EMBD];
        uint64_t seed = (uint64_t)i + 1;
        type.axis = i < 2;
        type.granule = granule;
        type.tensor_split = split;
        type.n_tensor_split = n;
        for (int k = 0; k < 2 * N_PART * N_EMBD; k++)
            data[k] = random_normal(&seed) / 8;
        runner_ok(tsr_context_create(b->rt, &b->ctx[i]), "context");
        b->w[i] = i < 2 ? tsr_tensor_2d(b->ctx[i], TSR_TYPE_F32, N_EMBD, N_PART, "w")
                        : tsr_tensor_2d(b->ctx[i], TSR_TYPE_F32, 2 * N_PART, N_EMBD, "w");
        runner_ok(tsr_tensors_alloc(b->ctx[i], tsr_split_buffer_type_ex(b->rt, &type), &b->buffers[i]),
                  "alloc");
        runner_ok(tsr_tensor_set(b->w[i], data, 0, tsr_tensor_bytes(b->w[i])), "set");
    }
    runner_ok(tsr_graph_create(b->rt, &b->graph), "graph");
    b->x = tsr_graph_input(b->graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
}

static void bench_close(bench *b)
{
    tsr_graph_destroy(b->graph);
    for (int i = 0; i < N_WEIGHTS; i++) {
        tsr_buffer_destroy(b->buffers[i]);
        tsr_context_destroy(b->ctx[i]);
    }
    tsr_runtime_close(b->rt);
}

static void run(bench *b, tsr_tensor *y, float *out)
{
    static float data[N_EMBD * N_TOKENS];
    tsr_program *program;
    uint64_t seed = 9;
    for (int i = 0; i < N_EMBD * N_TOKENS; i++)
        data[i] = random_normal(&seed);
    tsr_graph_output(b->graph, y);
    runner_ok(tsr_program_compile(b->graph, NULL, &program), "compile");
    runner_ok(tsr_tensor_set(b->x, data, 0, sizeof data), "set input");
    runner_ok(tsr_program_run(program), "run");
    runner_ok(tsr_tensor_get(y, out, 0, tsr_tensor_bytes(y)), "get output");
    tsr_program_destroy(program);
}

static const float splits[][3] = {{1, 0, 0}, {1, 1, 1}, {5, 0, 2}, {0, 1, 3}};
static const int64_t granules[] = {8, 12, 32};

/* Columns 2, 3 and 4 of every 8. */
static void columns_do_not_depend_on_the_division(void **state)
{
    (void)state;
    float all[N_TOKENS][N_PART], out[N_TOKENS][N_PART / 8][3];
    bench b;
    bench_open(&b, "host:1,threads=1", splits[0], 1, 8);
    run(&b, tsr_mul_mat(b.graph, b.w[0], b.x), all[0]);
    bench_close(&b);
    for (int s = 0; s < 4; s++)
        for (int g = 0; g < 3; g++) {
            bench_open(&b, "host:3,threads=1", splits[s], 3, granules[g]);
            run(&b, tsr_take_columns(b.graph, tsr_mul_mat(b.graph, b.w[0], b.x), (tsr_columns){8, 2, 3}),
                out[0][0]);
            for (int t = 0; t < N_TOKENS; t++)
                for (int p = 0; p < N_PART / 8; p++)
                    assert_memory_equal(out[t][p], &all[t][8 * p + 2], sizeof out[t][p]);
            bench_close(&b);
        }
}

enum { DIM = 8, N_HEADS = N_PART / DIM, FEW = 3, ROW = N_PART + 2 * N_EMBD };

/* Two products and columns of one of them, and what is joined of them. */
typedef struct joined {
    float a[N_TOKENS][N_HEADS][DIM], few[N_TOKENS][N_HEADS][FEW], b[N_TOKENS][N_HEADS][DIM];
    float by_head[N_TOKENS][N_HEADS][DIM + FEW + DIM];
    float x[N_TOKENS][N_EMBD], sum[N_TOKENS][N_EMBD]; /* the input; a PARTIAL */
    float rows[N_TOKENS][ROW];
} joined;

/* Returns the number of all-gathers. */
static int join(const float *split, int64_t granule, joined *out)
{
    bench m;
    tsr_program *program;
    tsr_program_info info;
    bench_open(&m, "host:3,threads=1", split, 3, granule);
    tsr_graph *g = m.graph;
    tsr_tensor *a = tsr_mul_mat(g, m.w[0], m.x), *b = tsr_mul_mat(g, m.w[1], m.x);
    tsr_tensor *few = tsr_take_columns(g, a, (tsr_columns){DIM, 2, FEW});
    tsr_tensor *by_head = tsr_concat(g, (tsr_tensor *[]){a, few, b}, 3, N_HEADS);
    tsr_tensor *sum = tsr_mul_mat(g, m.w[2], tsr_concat(g, (tsr_tensor *[]){a, b}, 2, 1));
    tsr_tensor *rows = tsr_concat(g, (tsr_tensor *[]){a, m.x, sum}, 3, 1);
    tsr_tensor *const all[] = {a, few, b, by_head, sum, rows};
    float *const to[] = {out->a[0][0],       out->few[0][0], out->b[0][0],
                         out->by_head[0][0], out->sum[0],    out->rows[0]};
    uint64_t seed = 5;
    for (int i = 0; i < N_TOKENS * N_EMBD; i++)
        ((float *)out->x)[i] = random_normal(&seed);
    for (int i = 0; i < 6; i++)
        tsr_graph_output(g, all[i]);
    runner_ok(tsr_program_compile(g, NULL, &program), "compile");
    tsr_program_get_info(program, &info);
    assert_int_equal(tsr_tensor_sharding(by_head),
                     granule % DIM == 0 ? TSR_SHARDING_SPLIT : TSR_SHARDING_REPLICATED);
    runner_ok(tsr_tensor_set(m.x, out->x, 0, sizeof out->x), "x");
    runner_ok(tsr_program_run(program), "run");
    for (int i = 0; i < 6; i++)
        runner_ok(tsr_tensor_get(all[i], to[i], 0, tsr_tensor_bytes(all[i])), "get");
    tsr_program_destroy(program);
    bench_close(&m);
    return info.n_all_gathers;
}

static void check_joined(const joined *j)
{
    for (int t = 0; t < N_TOKENS; t++) {
        for (int h = 0; h < N_HEADS; h++) {
            assert_memory_equal(j->by_head[t][h], j->a[t][h], sizeof j->a[t][h]);
            assert_memory_equal(j->by_head[t][h] + DIM, j->few[t][h], sizeof j->few[t][h]);
            assert_memory_equal(j->by_head[t][h] + DIM + FEW, j->b[t][h], sizeof j->b[t][h]);
        }
        assert_memory_equal(j->rows[t], j->a[t], sizeof j->a[t]);
        assert_memory_equal(j->rows[t] + N_PART, j->x[t], sizeof j->x[t]);
        assert_memory_equal(j->rows[t] + N_PART + N_EMBD, j->sum[t], sizeof j->sum[t]);
    }
}

/* Operands that are cut between heads stay divided, and are gathered (a and b) for whole rows only. */
static void joined_features_do_not_depend_on_the_division(void **state)
{
    (void)state;
    static joined first, other;
    for (int g = 0; g < 3; g++)
        for (int s = 0; s < 4; s++) {
            const int n_gathers = join(splits[s], granules[g], s == 0 ? &first : &other);
            assert_int_equal(n_gathers, s == 0 ? 0 : 2);
            check_joined(s == 0 ? &first : &other);
            if (s > 0)
                assert_memory_equal(&other, &first, sizeof first);
        }
}

/* W2 (W0 x, W1 x): the parts of a token are its rows. */
static void parts_do_not_depend_on_the_division(void **state)
{
    (void)state;
    float first[N_TOKENS][N_EMBD], out[N_TOKENS][N_EMBD], parts[N_TOKENS][2][N_PART], one[N_TOKENS][N_PART];
    for (int s = 0; s < 4; s++) {
        bench b;
        bench_open(&b, "host:3,threads=1", splits[s], 3, 8);
        const tsr_weight_parts w = {.at = {b.w[0], b.w[1]}, .n = 2};
        tsr_tensor *both = tsr_mul_mat_parts(b.graph, &w, b.x);
        assert_int_equal(both->ne[1], 2 * N_TOKENS);
        tsr_graph_output(b.graph, both);
        run(&b, tsr_mul_mat_joined(b.graph, b.w[2], both), out[0]);
        if (s == 0)
            memcpy(first, out, sizeof out);
        assert_memory_equal(out, first, sizeof out);
        bench_close(&b);
        for (int i = 0; i < 2; i++) {
            bench_open(&b, "host:3,threads=1", splits[s], 3, 8);
            const tsr_weight_parts same = {.at = {b.w[0], b.w[1]}, .n = 2};
            run(&b, tsr_mul_mat_parts(b.graph, &same, b.x), parts[0][0]);
            bench_close(&b);
            bench_open(&b, "host:3,threads=1", splits[s], 3, 8);
            run(&b, tsr_mul_mat(b.graph, b.w[i], b.x), one[0]);
            for (int t = 0; t < N_TOKENS; t++)
                assert_memory_equal(parts[t][i], one[t], sizeof one[t]);
            bench_close(&b);
        }
    }
}

/* One device has all columns, so nothing is gathered. */
static void one_device_gathers_nothing(void **state)
{
    (void)state;
    for (int s = 0; s < 2; s++) {
        bench b;
        tsr_program *program;
        tsr_program_info info;
        bench_open(&b, "host:3,threads=1", splits[s], 3, 8);
        const tsr_weight_parts w = {.at = {b.w[0], b.w[1]}, .n = 2};
        tsr_graph_output(b.graph, tsr_mul_mat_joined(b.graph, b.w[2], tsr_mul_mat_parts(b.graph, &w, b.x)));
        runner_ok(tsr_program_compile(b.graph, NULL, &program), "compile");
        tsr_program_get_info(program, &info);
        assert_int_equal(info.n_all_gathers, s);
        tsr_program_destroy(program);
        bench_close(&b);
    }
}

static void wrong_operands_are_refused(void **state)
{
    (void)state;
    const tsr_columns wrong[] = {{7, 0, 2}, {8, 6, 3}, {8, -1, 2}, {8, 0, 0}};
    bench b;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bench_open(&b, "host:1,threads=1", splits[0], 1, 8);
        assert_null(tsr_take_columns(b.graph, b.x, wrong[i]));
        assert_int_equal(b.graph->status, TSR_ERR_INVALID);
        bench_close(&b);
    }
    bench_open(&b, "host:1,threads=1", splits[0], 1, 8);
    assert_null(tsr_mul_mat_parts(b.graph, &(tsr_weight_parts){.at = {b.w[0], b.w[2]}, .n = 2}, b.x));
    bench_close(&b);
    bench_open(&b, "host:1,threads=1", splits[0], 1, 8);
    assert_null(tsr_mul_mat_joined(b.graph, b.w[2], b.x)); /* 96 do not divide 128 */
    assert_int_equal(b.graph->status, TSR_ERR_INVALID);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_do_not_depend_on_the_division),
        cmocka_unit_test(joined_features_do_not_depend_on_the_division),
        cmocka_unit_test(parts_do_not_depend_on_the_division),
        cmocka_unit_test(one_device_gathers_nothing),
        cmocka_unit_test(wrong_operands_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
