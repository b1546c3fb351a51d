/* Graphs over split weights, by the public API alone: what each sharding yields, where collectives are put,
 * and that every way of placing weights gives the numbers of a plain double-precision loop. */
#include <math.h>
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

#include "alloc/buffer/buffer.h"
#include "core/quant/fixed.h"
#include "graph/graph.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/runner.h"

enum { N_EMBD = 96, N_FF = 256, N_TOKENS = 5 };

typedef struct bench {
    tsr_runtime *rt;
    tsr_context *ctx[8]; /* one per buffer type, since a context is allocated as a whole */
    tsr_buffer *buffers[8];
    int n_ctx;
    tsr_graph *graph;
    tsr_program *program;
} bench;

static void bench_open(bench *b, const char *devices)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = devices;
    *b = (bench){0};
    runner_ok(tsr_runtime_open(&config, &b->rt), devices);
    runner_ok(tsr_graph_create(b->rt, &b->graph), "graph");
}

static void bench_close(bench *b)
{
    tsr_program_destroy(b->program);
    tsr_graph_destroy(b->graph);
    for (int i = 0; i < b->n_ctx; i++) {
        tsr_buffer_destroy(b->buffers[i]);
        tsr_context_destroy(b->ctx[i]);
    }
    tsr_runtime_close(b->rt);
}

static void random_floats(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = random_normal(&seed);
}

/* A weight of n_rows x n_cols in a buffer type, filled from `seed`; one row makes a vector. */
static tsr_tensor *weight(bench *b, const tsr_buffer_type *type, int64_t n_cols, int64_t n_rows,
                          uint64_t seed)
{
    int i = b->n_ctx++;
    float *data = malloc((size_t)(n_cols * n_rows) * sizeof(float));
    assert_non_null(data);
    assert_non_null(type);
    runner_ok(tsr_context_create(b->rt, &b->ctx[i]), "context");
    tsr_tensor *w = n_rows > 1 ? tsr_tensor_2d(b->ctx[i], TSR_TYPE_F32, n_cols, n_rows, "w")
                               : tsr_tensor_1d(b->ctx[i], TSR_TYPE_F32, n_cols, "v");
    runner_ok(tsr_tensors_alloc(b->ctx[i], type, &b->buffers[i]), "alloc");
    random_floats(data, n_cols * n_rows, seed);
    for (int64_t k = 0; k < n_cols * n_rows; k++)
        data[k] /= sqrtf((float)n_cols);
    runner_ok(tsr_tensor_set(w, data, 0, tsr_tensor_bytes(w)), "set");
    free(data);
    return w;
}

static const tsr_buffer_type *split_type(bench *b, int axis, int64_t granule, const float *split, int n)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    config.axis = axis;
    config.granule = granule;
    config.tensor_split = split;
    config.n_tensor_split = n;
    return tsr_split_buffer_type_ex(b->rt, &config);
}

/* An F32 vector divided like the columns of `like`; buffer types leave vectors whole. */
static tsr_tensor *vector_like(bench *b, const tsr_tensor *like, uint64_t seed)
{
    static float data[N_FF];
    const void *source = data;
    const tsr_buffer_load_config config = {.owner = TSR_MEMORY_WEIGHTS};
    int i = b->n_ctx++;
    random_floats(data, N_FF, seed);
    runner_ok(tsr_context_create(b->rt, &b->ctx[i]), "context");
    tsr_tensor *v = tsr_tensor_1d(b->ctx[i], TSR_TYPE_F32, N_FF, "v");
    runner_ok(tsr_buffer_load(b->rt, &v, &like->placement, &source, 1, &config, &b->buffers[i]), "load");
    return v;
}

static void run(bench *b, tsr_tensor *x, const float *data, tsr_tensor *y, float *out)
{
    if (!b->program)
        runner_ok(tsr_program_compile(b->graph, NULL, &b->program), "compile");
    runner_ok(tsr_tensor_set(x, data, 0, tsr_tensor_bytes(x)), "set input");
    runner_ok(tsr_program_run(b->program), "run");
    runner_ok(tsr_tensor_get(y, out, 0, tsr_tensor_bytes(y)), "get output");
}

/* -- two halves of an FFN -- */

/* up (rows split) then down (columns split), residual added; returns the program's facts. */
static tsr_program_info ffn(const char *devices, const float *split, int n, tsr_reduction reduction,
                            const float *data, float *out)
{
    bench b;
    bench_open(&b, devices);
    tsr_tensor *up = weight(&b, split_type(&b, 1, 32, split, n), N_EMBD, N_FF, 1);
    tsr_tensor *down = weight(&b, split_type(&b, 0, 32, split, n), N_FF, N_EMBD, 2);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *h = tsr_mul_mat(b.graph, up, x);
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_add(b.graph, tsr_mul_mat(b.graph, down, h), x));
    tsr_program_config config = tsr_program_config_default();
    config.reduction = reduction;
    runner_ok(tsr_program_compile(b.graph, &config, &b.program), "compile");
    run(&b, x, data, y, out);
    tsr_program_info info;
    tsr_program_get_info(b.program, &info);
    bench_close(&b);
    return info;
}

static void column_then_row_parallel_needs_one_all_reduce_and_no_split_changes_a_bit(void **state)
{
    (void)state;
    static const float splits[][4] = {{1}, {3, 1}, {1, 0, 2}, {1, 1, 1, 1}, {0, 0, 0, 5}};
    static const char *const devices[] = {"host:1", "host:2,threads=1", "host:3,threads=1",
                                          "host:4,threads=2", "host:4,threads=1"};
    float data[N_EMBD * N_TOKENS], first[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS];
    random_floats(data, N_EMBD * N_TOKENS, 3);
    for (int i = 0; i < 5; i++) {
        tsr_program_info info = ffn(devices[i], splits[i],
                                    i == 0   ? 1
                                    : i == 1 ? 2
                                    : i == 2 ? 3
                                             : 4,
                                    TSR_REDUCTION_EXACT, data, i ? out : first);
        assert_int_equal(info.n_all_reduces, 1);
        assert_int_equal(info.n_all_gathers, 0);
        assert_int_equal(info.n_transfers, 0);
        if (i)
            assert_memory_equal(out, first, sizeof out);
    }
}

static void float_reduction_is_close_to_the_exact_one(void **state)
{
    (void)state;
    static const float split[] = {2, 1, 1};
    float data[N_EMBD * N_TOKENS], exact[N_EMBD * N_TOKENS], rounded[N_EMBD * N_TOKENS];
    random_floats(data, N_EMBD * N_TOKENS, 4);
    ffn("host:3,threads=1", split, 3, TSR_REDUCTION_EXACT, data, exact);
    ffn("host:3,threads=1", split, 3, TSR_REDUCTION_F32, data, rounded);
    for (int i = 0; i < N_EMBD * N_TOKENS; i++)
        assert_true(fabsf(exact[i] - rounded[i]) <= 1e-5f * (1 + fabsf(exact[i])));
}

/* Each device's part and the sum lose at most 2^-8 of their size. */
static void bfloat16_reduction_is_near_the_exact_one(void **state)
{
    (void)state;
    static const float split[] = {2, 1, 1};
    float data[N_EMBD * N_TOKENS], exact[N_EMBD * N_TOKENS], rounded[N_EMBD * N_TOKENS];
    double largest = 0;
    random_floats(data, N_EMBD * N_TOKENS, 4);
    ffn("host:3,threads=1", split, 3, TSR_REDUCTION_EXACT, data, exact);
    ffn("host:3,threads=1", split, 3, TSR_REDUCTION_BF16, data, rounded);
    for (int i = 0; i < N_EMBD * N_TOKENS; i++)
        largest = fmax(largest, fabs((double)exact[i]));
    for (int i = 0; i < N_EMBD * N_TOKENS; i++)
        assert_true(fabs((double)exact[i] - rounded[i]) <= 8 * 0x1p-9 * largest);
    assert_true(memcmp(exact, rounded, sizeof exact) != 0);
}

/* -- random placements against a plain loop -- */

static void reference_mul(const double *x, const tsr_tensor *w, double *y)
{
    int64_t k = tsr_tensor_ne(w)[0], n = tsr_tensor_ne(w)[1];
    float *data = malloc(tsr_tensor_bytes(w));
    assert_non_null(data);
    runner_ok(tsr_tensor_get(w, data, 0, tsr_tensor_bytes(w)), "get weight");
    for (int64_t t = 0; t < N_TOKENS; t++)
        for (int64_t r = 0; r < n; r++) {
            y[t * n + r] = 0;
            for (int64_t c = 0; c < k; c++)
                y[t * n + r] += (double)data[r * k + c] * x[t * k + c];
        }
    free(data);
}

static void reference_norm(double *x, const tsr_tensor *w)
{
    float data[N_EMBD];
    runner_ok(tsr_tensor_get(w, data, 0, tsr_tensor_bytes(w)), "get weight");
    for (int64_t t = 0; t < N_TOKENS; t++) {
        double sum = 0;
        for (int64_t c = 0; c < N_EMBD; c++)
            sum += x[t * N_EMBD + c] * x[t * N_EMBD + c];
        for (int64_t c = 0; c < N_EMBD; c++)
            x[t * N_EMBD + c] *= data[c] / sqrt(sum / N_EMBD + 1e-5);
    }
}

static const tsr_buffer_type *random_type(bench *b, uint64_t *seed, int n_devices)
{
    float split[8];
    for (int d = 0; d < n_devices; d++)
        split[d] = (float)random_below(seed, 4);
    split[random_below(seed, (uint64_t)n_devices)] = 1;
    switch (random_below(seed, 4)) {
    case 0:
        return tsr_device_buffer_type(b->rt, (int)random_below(seed, (uint64_t)n_devices));
    case 1:
        return tsr_replicated_buffer_type(b->rt);
    case 2:
        return split_type(b, 1, 1 + (int64_t)random_below(seed, 20), split, n_devices);
    default:
        return split_type(b, 0, 1 + (int64_t)random_below(seed, 40), split, n_devices);
    }
}

/* x -> A x -> norm -> swiglu(B x, C x) -> + x, each weight placed at random. */
static void check_random_placement(uint64_t seed)
{
    static const char *const devices[] = {"host:1", "host:2,threads=1", "host:3,threads=1",
                                          "host:4,threads=1"};
    int n_devices = 1 + (int)random_below(&seed, 4);
    float data[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS], again[N_EMBD * N_TOKENS];
    double x0[N_EMBD * N_TOKENS], h[N_EMBD * N_TOKENS], gate[N_EMBD * N_TOKENS], up[N_EMBD * N_TOKENS];
    bench b;
    bench_open(&b, devices[n_devices - 1]);
    tsr_tensor *wa = weight(&b, random_type(&b, &seed, n_devices), N_EMBD, N_EMBD, 11);
    tsr_tensor *norm = weight(&b, tsr_replicated_buffer_type(b.rt), N_EMBD, 1, 12);
    tsr_tensor *wb = weight(&b, random_type(&b, &seed, n_devices), N_EMBD, N_EMBD, 13);
    tsr_tensor *wc = weight(&b, random_type(&b, &seed, n_devices), N_EMBD, N_EMBD, 14);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *n = tsr_rms_norm(b.graph, tsr_mul_mat(b.graph, wa, x), norm, 1e-5f);
    tsr_tensor *s = tsr_swiglu(b.graph, tsr_mul_mat(b.graph, wb, n), tsr_mul_mat(b.graph, wc, n));
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_scale(b.graph, tsr_add(b.graph, s, x), 0.5f));

    random_floats(data, N_EMBD * N_TOKENS, seed);
    run(&b, x, data, y, out);
    runner_ok(tsr_program_run(b.program), "run again: the input keeps its value");
    runner_ok(tsr_tensor_get(y, again, 0, tsr_tensor_bytes(y)), "get output");
    assert_memory_equal(out, again, sizeof out);

    for (int i = 0; i < N_EMBD * N_TOKENS; i++)
        x0[i] = data[i];
    reference_mul(x0, wa, h);
    reference_norm(h, norm);
    reference_mul(h, wb, gate);
    reference_mul(h, wc, up);
    for (int i = 0; i < N_EMBD * N_TOKENS; i++) {
        double want = 0.5 * (gate[i] / (1 + exp(-gate[i])) * up[i] + x0[i]);
        assert_true(fabs(out[i] - want) <= 2e-5 * (1 + fabs(want))); /* a few f32 roundings of sums of 96 */
    }
    bench_close(&b);
}

static void any_placement_of_weights_gives_the_same_numbers(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++)
        check_random_placement(seed);
}

/* -- the order of the ops -- */

/* Two branches of wide values, written side by side or one after the other. Returns the bytes of an arena. */
static size_t branches(bool side_by_side, const float *data, float *out)
{
    bench b;
    tsr_program_device_info device;
    bench_open(&b, "host:2,threads=1");
    const tsr_buffer_type *type = tsr_replicated_buffer_type(b.rt);
    tsr_tensor *wa = weight(&b, type, N_EMBD, N_FF, 1), *wb = weight(&b, type, N_EMBD, N_FF, 2);
    tsr_tensor *wc = weight(&b, type, N_FF, N_EMBD, 3), *wd = weight(&b, type, N_FF, N_EMBD, 4);
    tsr_tensor *norm = weight(&b, type, N_EMBD, 1, 5);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *h = tsr_rms_norm(b.graph, x, norm, 1e-5f);
    tsr_tensor *wide_a = tsr_mul_mat(b.graph, wa, h);
    tsr_tensor *wide_b = side_by_side ? tsr_mul_mat(b.graph, wb, h) : NULL;
    tsr_tensor *narrow_a = tsr_mul_mat(b.graph, wc, wide_a);
    wide_b = side_by_side ? wide_b : tsr_mul_mat(b.graph, wb, h);
    tsr_tensor *narrow_b = tsr_mul_mat(b.graph, wd, wide_b);
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_add(b.graph, narrow_a, narrow_b));
    run(&b, x, data, y, out);
    runner_ok(tsr_program_get_device(b.program, 1, &device), "device");
    bench_close(&b);
    return device.arena_bytes;
}

static void ops_run_in_the_order_in_which_they_were_made(void **state)
{
    (void)state;
    float data[N_EMBD * N_TOKENS], out[2][N_EMBD * N_TOKENS];
    random_floats(data, N_EMBD * N_TOKENS, 8);
    size_t in_turn = branches(false, data, out[0]), side_by_side = branches(true, data, out[1]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    /* Side by side, both wide values live together; in turn, a wide one and a narrow one. */
    assert_int_equal(side_by_side - in_turn, (N_FF - N_EMBD) * N_TOKENS * sizeof(float));
}

/* -- collectives -- */

static void a_split_result_is_gathered_only_where_it_is_needed_whole(void **state)
{
    (void)state;
    static const float split[] = {1, 1};
    float data[N_EMBD * N_TOKENS], out[N_FF * N_TOKENS];
    tsr_program_info info;
    bench b;
    random_floats(data, N_EMBD * N_TOKENS, 5);
    bench_open(&b, "host:2,threads=1");
    tsr_tensor *w = weight(&b, tsr_split_buffer_type(b.rt, 0, split, 2), N_EMBD, N_FF, 1);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *y = tsr_mul_mat(b.graph, w, x);
    tsr_tensor *p = tsr_softmax(b.graph, y, 1);
    tsr_tensor *best = tsr_argmax(b.graph, p);
    tsr_graph_output(b.graph, y);
    tsr_graph_output(b.graph, best);
    run(&b, x, data, y, out);
    tsr_program_get_info(b.program, &info);
    assert_int_equal(info.n_all_gathers, 1); /* for softmax; reading y gathers on the caller's side */
    assert_int_equal(info.n_all_reduces, 0);
    assert_int_equal(tsr_tensor_sharding(y), TSR_SHARDING_SPLIT);
    int32_t found[N_TOKENS];
    runner_ok(tsr_tensor_get(best, found, 0, sizeof found), "get");
    for (int t = 0; t < N_TOKENS; t++)
        assert_int_equal(found[t], runner_argmax(out + t * N_FF, N_FF));
    bench_close(&b);
}

static void an_op_on_an_input_alone_works_wherever_its_result_is_wanted(void **state)
{
    (void)state;
    float data[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS];
    tsr_program_info info;
    bench b;
    random_floats(data, N_EMBD * N_TOKENS, 5);
    bench_open(&b, "host:2,threads=1");
    tsr_tensor *norm = weight(&b, tsr_replicated_buffer_type(b.rt), N_EMBD, 1, 12);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *twice = tsr_add(b.graph, x, tsr_scale(b.graph, x, 1));
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_scale(b.graph, twice, 0.5f));
    tsr_graph_output(b.graph, tsr_rms_norm(b.graph, y, norm, 1e-5f));
    run(&b, x, data, y, out);
    tsr_program_get_info(b.program, &info);
    assert_int_equal(info.n_transfers, 0);
    assert_memory_equal(data, out, sizeof data);
    bench_close(&b);

    bench_open(&b, "host:2,threads=1"); /* no weight at all */
    x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    y = tsr_graph_output(b.graph, tsr_scale(b.graph, x, 1));
    run(&b, x, data, y, out);
    assert_memory_equal(data, out, sizeof data);
    bench_close(&b);
}

/* down(softcap(norm(up x))) with a norm over all of a row; up x is about `scale`. split NULL: nothing is
 * divided. */
static void wide_norm(const float *split, float scale, const float *data, float *out)
{
    bench b;
    tsr_program_info info;
    bench_open(&b, "host:3,threads=1");
    const tsr_buffer_type *whole = tsr_replicated_buffer_type(b.rt);
    tsr_tensor *up = weight(&b, split ? split_type(&b, 1, 32, split, 3) : whole, N_EMBD, N_FF, 1);
    tsr_tensor *down = weight(&b, split ? split_type(&b, 0, 32, split, 3) : whole, N_FF, N_EMBD, 2);
    tsr_tensor *norm = vector_like(&b, down, 3);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *h = tsr_scale(b.graph, tsr_mul_mat(b.graph, up, x), scale);
    tsr_tensor *n = tsr_softcap(b.graph, tsr_rms_norm(b.graph, h, norm, 1e-5f), 2);
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_mul_mat(b.graph, down, n));
    run(&b, x, data, y, out);
    tsr_program_get_info(b.program, &info);
    assert_int_equal(info.n_all_gathers, 0);
    assert_int_equal(info.n_all_reduces, split ? 2 : 0);
    bench_close(&b);
}

/* Nothing is gathered, no split changes a bit, and results are close to those of whole rows: also where
 * squares are smaller than the epsilon, or larger than an exact sum's limit. */
static void a_norm_of_divided_rows_gathers_nothing_and_no_split_changes_a_bit(void **state)
{
    (void)state;
    enum { N = N_EMBD * N_TOKENS };
    static const float splits[][3] = {{1, 0, 0}, {1, 2, 1}, {0, 5, 1}}, scales[] = {1, 1e-3f, 1e-5f, 3e5f};
    float data[N], whole[N], first[N], out[N];
    random_floats(data, N, 5);
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        float largest = 0;
        wide_norm(NULL, scales[s], data, whole);
        wide_norm(splits[0], scales[s], data, first);
        for (int i = 0; i < N; i++)
            largest = fmaxf(largest, fabsf(whole[i]));
        /* Rounded by half a unit: granules of the sum, and squares, whose mean is added to the epsilon. */
        const double unit = 1 / TSR_FIXED_ONE;
        const double bound = 1e-6 * largest + N_FF / 32 * unit / 2 + largest * unit / 2 / 1e-5 / 2;
        for (int i = 0; i < N; i++)
            assert_float_equal(first[i], whole[i], bound);
        for (int i = 1; i < 3; i++) {
            wide_norm(splits[i], scales[s], data, out);
            assert_memory_equal(out, first, sizeof out);
        }
    }
}

static void a_norm_of_rows_that_are_divided_differently_is_refused(void **state)
{
    (void)state;
    static const float split[] = {1, 2, 1}, other[] = {2, 1, 1};
    bench b;
    bench_open(&b, "host:3,threads=1");
    tsr_tensor *up = weight(&b, split_type(&b, 1, 32, split, 3), N_EMBD, N_FF, 1);
    tsr_tensor *norm = vector_like(&b, weight(&b, split_type(&b, 0, 32, other, 3), N_FF, N_EMBD, 2), 3);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_graph_output(b.graph, tsr_rms_norm(b.graph, tsr_mul_mat(b.graph, up, x), norm, 1e-5f));
    assert_int_equal(tsr_program_compile(b.graph, NULL, &b.program), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "divided differently"));
    bench_close(&b);
}

static void weights_on_different_devices_hand_activations_over(void **state)
{
    (void)state;
    float data[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS], alone[N_EMBD * N_TOKENS];
    random_floats(data, N_EMBD * N_TOKENS, 6);
    for (int apart = 0; apart < 2; apart++) {
        tsr_program_info info;
        bench b;
        bench_open(&b, "host:2,threads=1");
        tsr_tensor *w0 = weight(&b, tsr_device_buffer_type(b.rt, 0), N_EMBD, N_EMBD, 1);
        tsr_tensor *w1 = weight(&b, tsr_device_buffer_type(b.rt, apart), N_EMBD, N_EMBD, 2);
        tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
        tsr_tensor *y = tsr_graph_output(b.graph, tsr_mul_mat(b.graph, w1, tsr_mul_mat(b.graph, w0, x)));
        run(&b, x, data, y, apart ? out : alone);
        tsr_program_get_info(b.program, &info);
        assert_int_equal(info.n_transfers, apart);
        bench_close(&b);
    }
    assert_memory_equal(out, alone, sizeof out);
}

static void a_partial_sum_out_of_range_is_reported_and_the_next_run_is_good(void **state)
{
    (void)state;
    static const float split[] = {1, 1};
    float data[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS];
    bench b;
    bench_open(&b, "host:2,threads=1");
    tsr_tensor *w = weight(&b, split_type(&b, 0, 32, split, 2), N_EMBD, N_EMBD, 1);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_tensor_rename(tsr_mul_mat(b.graph, w, x), "too_large"));
    random_floats(data, N_EMBD * N_TOKENS, 7);
    run(&b, x, data, y, out);
    for (float bad = 1e30f; !isnan(bad); bad = NAN) {
        data[3] = bad;
        runner_ok(tsr_tensor_set(x, data, 0, sizeof data), "set");
        assert_int_equal(tsr_program_run(b.program), TSR_ERR_RANGE);
        assert_non_null(strstr(tsr_last_error(), "too_large"));
    }
    data[3] = 0.5f;
    run(&b, x, data, y, out);
    bench_close(&b);
}

/* -- errors -- */

static void mistakes_are_named(void **state)
{
    (void)state;
    tsr_program *program = NULL;
    bench b;
    bench_open(&b, "host:1");
    tsr_tensor *w = weight(&b, tsr_device_buffer_type(b.rt, 0), N_EMBD, N_FF, 1);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    assert_int_equal(tsr_program_compile(b.graph, NULL, &program), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "tsr_graph_output"));

    tsr_program_config config = tsr_program_config_default();
    config.activation_bits = 12;
    assert_int_equal(tsr_program_compile(b.graph, &config, &program), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "activation_bits is 12"));

    tsr_tensor *h = tsr_mul_mat(b.graph, w, x);
    assert_null(tsr_mul_mat(b.graph, w, h)); /* 96 columns, 256 rows */
    assert_non_null(strstr(tsr_last_error(), "ne[0]"));
    assert_null(tsr_add(b.graph, NULL, x)); /* the trace of the failure above */
    tsr_graph_output(b.graph, h);
    assert_int_equal(tsr_program_compile(b.graph, NULL, &program), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "ne[0]")); /* the first failure is the one reported */
    assert_null(program);
    bench_close(&b);
}

static void an_unallocated_weight_is_refused(void **state)
{
    (void)state;
    tsr_context *ctx;
    bench b;
    bench_open(&b, "host:1");
    runner_ok(tsr_context_create(b.rt, &ctx), "context");
    tsr_tensor *w = tsr_tensor_2d(ctx, TSR_TYPE_F32, N_EMBD, N_FF, "forgotten");
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_graph_output(b.graph, tsr_mul_mat(b.graph, w, x));
    assert_int_equal(tsr_program_compile(b.graph, NULL, &b.program), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "forgotten"));
    tsr_context_destroy(ctx);
    bench_close(&b);
}

/* What a caller sets before compiling, or reads without having marked it, must not vanish without a word. */
static void only_a_compiled_graphs_inputs_and_outputs_have_memory(void **state)
{
    (void)state;
    bench b;
    float data[N_EMBD], out[N_FF];
    bench_open(&b, "host:1");
    random_floats(data, N_EMBD, 1);
    tsr_tensor *w = weight(&b, tsr_device_buffer_type(b.rt, 0), N_EMBD, N_FF, 2);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, 1, "x");
    tsr_tensor *unused = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, 1, "unused");
    tsr_tensor *middle = tsr_mul_mat(b.graph, w, x);
    tsr_tensor *y = tsr_graph_output(b.graph, tsr_scale(b.graph, middle, 2));
    assert_int_equal(tsr_tensor_set(x, data, 0, sizeof data), TSR_ERR_INVALID);
    run(&b, x, data, y, out);
    assert_int_equal(tsr_tensor_get(middle, out, 0, sizeof out), TSR_ERR_INVALID);
    assert_int_equal(tsr_tensor_set(unused, data, 0, sizeof data), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "unused"));
    bench_close(&b);
}

static void compiling_survives_every_failing_allocation(void **state)
{
    (void)state;
    static const float split[] = {1, 2};
    float data[N_EMBD * N_TOKENS], out[N_EMBD * N_TOKENS];
    random_floats(data, N_EMBD * N_TOKENS, 8);
    bench b;
    bench_open(&b, "host:2,threads=1");
    tsr_tensor *up = weight(&b, split_type(&b, 1, 32, split, 2), N_EMBD, N_FF, 1);
    tsr_tensor *down = weight(&b, split_type(&b, 0, 32, split, 2), N_FF, N_EMBD, 2);
    tsr_tensor *x = tsr_graph_input(b.graph, TSR_TYPE_F32, N_EMBD, N_TOKENS, "x");
    tsr_tensor *y = tsr_graph_output(
        b.graph, tsr_add(b.graph, tsr_mul_mat(b.graph, down, tsr_mul_mat(b.graph, up, x)), x));
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_program_compile(b.graph, NULL, &b.program);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (status == TSR_OK && !fired)
            break;
        assert_true(fired);
        if (status == TSR_OK) { /* an allocation it can do without */
            tsr_program_destroy(b.program);
            b.program = NULL;
        }
        assert_null(b.program);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    run(&b, x, data, y, out);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(column_then_row_parallel_needs_one_all_reduce_and_no_split_changes_a_bit),
        cmocka_unit_test(float_reduction_is_close_to_the_exact_one),
        cmocka_unit_test(bfloat16_reduction_is_near_the_exact_one),
        cmocka_unit_test(any_placement_of_weights_gives_the_same_numbers),
        cmocka_unit_test(ops_run_in_the_order_in_which_they_were_made),
        cmocka_unit_test(a_split_result_is_gathered_only_where_it_is_needed_whole),
        cmocka_unit_test(an_op_on_an_input_alone_works_wherever_its_result_is_wanted),
        cmocka_unit_test(a_norm_of_divided_rows_gathers_nothing_and_no_split_changes_a_bit),
        cmocka_unit_test(a_norm_of_rows_that_are_divided_differently_is_refused),
        cmocka_unit_test(weights_on_different_devices_hand_activations_over),
        cmocka_unit_test(a_partial_sum_out_of_range_is_reported_and_the_next_run_is_good),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(an_unallocated_weight_is_refused),
        cmocka_unit_test(only_a_compiled_graphs_inputs_and_outputs_have_memory),
        cmocka_unit_test(compiling_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
