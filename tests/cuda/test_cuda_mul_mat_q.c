/* mul_mat with quantized weights on CUDA: activations are rounded to 16-bit integers with a scale per chunk
 * of 128, and in test_cuda_mul_mat_bytes.c to 8 bits with a scale per 32, as on host devices. So results are
 * compared with a double-precision sum over the decoded weights and these rounded activations. And bit for
 * bit: any number of tokens, with scratch memory and without, from any address. Matrices, activations and
 * results end where a page ends, so that reading or writing a byte too far leaves the allocation. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

#include "core/mem.h"
#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "core/quant/quant.h"
#include "core/status.h"

static const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0,   TSR_TYPE_Q4_K, TSR_TYPE_Q5_K,
                                 TSR_TYPE_Q6_K, TSR_TYPE_IQ4_NL, TSR_TYPE_MXFP4};
#ifndef X_BITS
#define X_BITS 16
#endif
enum { N_TYPES = sizeof types / sizeof *types, CHUNK = 128, SCALED = X_BITS == 8 ? 32 : CHUNK };
static const float most_code = X_BITS == 8 ? 127.0f : 32639.0f;

/* A matrix and activations; granule 0: a whole sum, else an exact partial. */
typedef struct problem {
    gpu *g;
    tsr_type type;
    int64_t n_rows, k, n_tokens, granule;
    size_t row_bytes;
    unsigned char *w;
    float *x, *decoded; /* [n_tokens][k], [n_rows][k] */
    tsr_op op;          /* y and x as the test wants them */
} problem;

static size_t elem_bytes(const problem *p)
{
    return p->granule > 0 ? sizeof(int64_t) : sizeof(float);
}

static size_t result_bytes(const problem *p)
{
    return (size_t)(p->n_tokens * p->n_rows) * elem_bytes(p);
}

static problem problem_create(gpu *g, tsr_type type, int64_t n_rows, int64_t k, int64_t n_tokens,
                              int64_t granule)
{
    problem p = {.g = g, .type = type, .n_rows = n_rows, .k = k, .n_tokens = n_tokens, .granule = granule};
    p.row_bytes = tsr_type_row_bytes(type, k);
    p.w = malloc(p.row_bytes * (size_t)n_rows);
    p.x = random_floats(n_tokens * k, -2, 2, 1);
    p.decoded = random_floats(n_rows * k, -1, 1, 2);
    for (int64_t r = 0; r < n_rows; r++) {
        unsigned char *row = p.w + (size_t)r * p.row_bytes;
        assert_int_equal(tsr_type_from_f32(type, p.decoded + r * k, row, k), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, p.decoded + r * k, k), TSR_OK);
    }
    p.op = (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = type,
                    .w = gpu_put(g, p.w, p.row_bytes * (size_t)n_rows, false),
                    .w_stride = p.row_bytes,
                    .n_rows = n_rows,
                    .k = k,
                    .x = gpu_put(g, p.x, (size_t)(n_tokens * k) * sizeof(float), false),
                    .x_stride = k,
                    .n_tokens = n_tokens,
                    .partial = granule > 0,
                    .reduce = TSR_REDUCE_EXACT,
                    .granule = granule,
                    .x_bits = X_BITS,
                    .limit = granule > 0 ? tsr_fixed_limit((k + granule - 1) / granule) : 0,
                    .y = gpu_alloc(g, result_bytes(&p), false),
                    .y_stride = n_rows},
    };
    return p;
}

static void problem_destroy(problem *p)
{
    free(p->w);
    free(p->x);
    free(p->decoded);
    gpu_clear(p->g);
}

/* Run it and bring the results of `n_tokens` back; the caller frees them. */
static void *results_of(const problem *p, const tsr_op *op)
{
    const size_t bytes = (size_t)(op->mul_mat.n_tokens * p->n_rows) * elem_bytes(p);
    void *y = malloc(bytes);
    assert_false(gpu_run(p->g, op));
    gpu_get(y, op->mul_mat.y, bytes);
    return y;
}

/* One token's activations as the kernels round them: codes of at most most_code times a scale, one scale for
 * SCALED elements, counted from each granule's first. */
static void round_activations(const problem *p, const float *x, double *rounded)
{
    const int64_t granule = p->granule > 0 ? p->granule : p->k;
    for (int64_t begin = 0, end; begin < p->k; begin = end) {
        const int64_t left = granule - begin % granule;
        float largest = 0;
        end = begin + (left < SCALED ? left : SCALED);
        end = end < p->k ? end : p->k;
        for (int64_t i = begin; i < end; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        const float scale = largest / most_code, reciprocal = most_code / largest;
        for (int64_t i = begin; i < end; i++) {
            rounded[i] = (double)scale * (double)rintf(x[i] * reciprocal);
            assert_true(fabs(rounded[i] - (double)x[i]) <= 0.51 * (double)scale);
        }
    }
}

/* What a BF16 partial holds is the plain sum, rounded once: from either kernel, and token by token. */
static void bfloat16_partials_are_the_rounded_sums(void **state)
{
    (void)state;
    enum { ROWS = 21, K = 512, TOKENS = 40 };
    gpu g = gpu_open();
    for (int64_t tokens = 3; tokens <= TOKENS; tokens += TOKENS - 3) {
        problem p = problem_create(&g, TSR_TYPE_Q4_K, ROWS, K, tokens, 0);
        float *sums = results_of(&p, &p.op);
        uint16_t rounded[ROWS * TOKENS];
        tsr_op op = p.op;
        op.mul_mat.partial = true;
        op.mul_mat.reduce = TSR_REDUCE_BF16;
        op.mul_mat.granule = 256;
        assert_false(gpu_run(&g, &op));
        gpu_get(rounded, op.mul_mat.y, sizeof rounded[0] * (size_t)(ROWS * tokens));
        for (int64_t j = 0; j < ROWS * tokens; j++)
            assert_int_equal(rounded[j], tsr_f32_to_bf16(sums[j]));
        free(sums);
        problem_destroy(&p);
    }
    gpu_close(&g);
}

/* Rounding relative to the sum of magnitudes: the sum of a block (1), a chunk's chain of at most two fused
 * multiply-adds per block (8), one per scale, and the parts or the granules. Where there is a minimum,
 * magnitudes are those of scale * quantum and minimum apart: at most three times |w| plus twice the largest
 * weight (about 1) for these inputs. */
static void check_close(const problem *p)
{
    const bool minimum = p->type == TSR_TYPE_Q4_K || p->type == TSR_TYPE_Q5_K;
    const double granules = p->granule > 0 ? (double)((p->k + p->granule - 1) / p->granule) : 8;
    const double roundings = 9 + (double)p->k / SCALED + 1 + granules;
    double *rounded = malloc((size_t)p->k * sizeof *rounded);
    void *y = results_of(p, &p->op);
    for (int64_t t = 0; t < p->n_tokens; t++) {
        round_activations(p, p->x + t * p->k, rounded);
        for (int64_t r = 0; r < p->n_rows; r++) {
            const float *w = p->decoded + r * p->k;
            const int64_t i = t * p->n_rows + r;
            double exact = 0, magnitude = 0;
            for (int64_t j = 0; j < p->k; j++) {
                const double size = fabs((double)w[j]);
                exact += (double)w[j] * rounded[j];
                magnitude += (size + (minimum ? 2 * (1 + size) : 0)) * fabs(rounded[j]);
            }
            const double got =
                p->granule > 0 ? (double)((int64_t *)y)[i] / TSR_FIXED_ONE : (double)((float *)y)[i];
            const double bound = roundings * 0x1p-24 * magnitude + granules * 0.5 / TSR_FIXED_ONE;
            if (!(fabs(got - exact) <= bound))
                fail_msg("%s rows %d k %d tokens %d granule %d output %d: %.9g, exact %.9g, bound %.3g",
                         tsr_type_name(p->type), (int)p->n_rows, (int)p->k, (int)p->n_tokens, (int)p->granule,
                         (int)i, got, exact, bound);
        }
    }
    free(y);
    free(rounded);
}

static void every_type_is_close_to_exact(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k in blocks, tokens */
                                        {1, 1, 1},  {5, 2, 2},  {17, 7, 3},  {33, 3, 6},
                                        {16, 9, 8}, {40, 5, 9}, {130, 4, 70}};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t block = tsr_type_block_elems(types[i]), k = shapes[s][1] * block;
            const int64_t granules[] = {0, block, 2 * block, 3 * block, 1 << 20};
            for (int j = 0; j < 5; j++) {
                problem p = problem_create(&g, types[i], shapes[s][0], k, shapes[s][2], granules[j]);
                check_close(&p);
                problem_destroy(&p);
            }
        }
    gpu_close(&g);
}

/* More chunks than parts of K, and more rows than blocks have at a time. */
static void products_of_long_rows_and_many_rows_are_close(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        problem p = problem_create(&g, types[i], 21, 256 * 37, 2, i % 2 == 0 ? 0 : 768);
        check_close(&p);
        problem_destroy(&p);
        p = problem_create(&g, types[i], 700, 512, 1, i % 2 == 0 ? 256 : 0);
        check_close(&p);
        problem_destroy(&p);
    }
    gpu_close(&g);
}

/* All numbers of tokens from 1 to 40: every token's results are those it has alone. */
static void check_token_counts(gpu *g, tsr_type type, int64_t n_rows, int64_t k, int64_t granule)
{
    enum { TOKENS = 40 };
    problem p = problem_create(g, type, n_rows, k, TOKENS, granule);
    const size_t token_bytes = (size_t)n_rows * elem_bytes(&p);
    const float *x = p.op.mul_mat.x;
    char *alone = malloc(TOKENS * token_bytes);
    p.op.mul_mat.n_tokens = 1;
    for (int t = 0; t < TOKENS; t++) {
        p.op.mul_mat.x = x + t * k;
        char *one = results_of(&p, &p.op);
        memcpy(alone + (size_t)t * token_bytes, one, token_bytes);
        free(one);
    }
    for (int n = 2; n <= TOKENS; n++) {
        const int first = (TOKENS - n) / 2;
        p.op.mul_mat.x = x + first * k;
        p.op.mul_mat.n_tokens = n;
        char *many = results_of(&p, &p.op);
        assert_memory_equal(many, alone + (size_t)first * token_bytes, (size_t)n * token_bytes);
        free(many);
    }
    free(alone);
    problem_destroy(&p);
}

static void one_token_gives_the_bits_of_many(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        if (tsr_type_block_elems(types[i]) == 32) {
            check_token_counts(&g, types[i], 19, 672, 0);  /* no whole number of chunks */
            check_token_counts(&g, types[i], 5, 480, 160); /* nor in granules */
        } else {
            check_token_counts(&g, types[i], 19, 768, 0);
            check_token_counts(&g, types[i], 5, 768, 512); /* the last granule is shorter */
        }
    }
    gpu_close(&g);
}

/* Less shared memory than the card has, or less scratch memory: other kernels, the same bits. */
static void check_memory(problem *p, int64_t n, size_t shared_bytes, size_t scratch_bytes, const char *full)
{
    const size_t bytes = (size_t)(n * p->n_rows) * elem_bytes(p);
    const size_t shared = p->g->props.shared_bytes;
    tsr_cuda_stream s = gpu_stream(p->g, NULL);
    char *again = malloc(bytes);
    void *scratch;
    GPU_OK(cudaMalloc(&scratch, scratch_bytes + GPU_PAGE));
    s.scratch = scratch;
    s.scratch_bytes = scratch_bytes;
    p->g->props.shared_bytes = TSR_MIN(shared_bytes, shared);
    gpu_fill(p->op.mul_mat.y, 0xff, bytes);
    assert_int_equal(tsr_cuda_op_launch(&p->op, &s), TSR_OK);
    assert_false(gpu_fault(p->g));
    gpu_get(again, p->op.mul_mat.y, bytes);
    assert_memory_equal(again, full, bytes);
    p->g->props.shared_bytes = shared;
    GPU_OK(cudaFree(scratch));
    free(again);
}

static void shared_and_scratch_memory_do_not_change_the_bits(void **state)
{
    (void)state;
    enum { ROWS = 140, TOKENS = 23, K = 768, N_COUNTS = 4, N_SIZES = 6 };
    static const int64_t counts[N_COUNTS] = {1, 5, 12, TOKENS};
    /* KiB of a block on large and small cards; then such that the activations of few tokens do not fit beside
     * the slots of this type or that (Q6_K at 93), or not even those do. */
    static const size_t kib[N_SIZES] = {227, 99, 93, 69, 57, 31};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int j = 0; j < N_COUNTS; j++) {
            const int64_t n = counts[j];
            problem p = problem_create(&g, types[i], ROWS, K, TOKENS, i % 2 == 0 ? 0 : 256);
            p.op.mul_mat.n_tokens = n;
            const size_t need = tsr_cuda_op_scratch(&p.op), token = need / (size_t)n;
            char *full = results_of(&p, &p.op);
            for (int size = 0; size < N_SIZES; size++)
                if (kib[size] << 10 <= g.props.shared_bytes)
                    check_memory(&p, n, kib[size] << 10, need, full);
            check_memory(&p, n, (size_t)99 << 10, 10 * token, full);
            check_memory(&p, n, (size_t)99 << 10, 2 * token, full);
            check_memory(&p, n, g.props.shared_bytes, 0, full);
            free(full);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

/* A program is captured before any of it runs, so no launch may narrow what an earlier one needs. */
static void products_of_different_sizes_fit_in_one_graph(void **state)
{
    (void)state;
    enum { ROWS = 40, N_PROBLEMS = 3, N_COUNTS = 2 };
    static const int64_t ks[N_PROBLEMS] = {512, 4096, 256}, counts[N_COUNTS] = {2, 20};
    gpu g = gpu_open();
    for (int i = 0; i < N_COUNTS; i++) {
        problem p[N_PROBLEMS];
        void *alone[N_PROBLEMS], *scratch;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        GPU_OK(cudaMalloc(&scratch, g.scratch_bytes));
        for (int j = 0; j < N_PROBLEMS; j++) {
            p[j] = problem_create(&g, TSR_TYPE_Q4_0, ROWS, ks[j], counts[i], 0);
            if (j == 1) /* not aligned as the others, so more pieces to copy */
                p[j].op.mul_mat.w = gpu_put(&g, p[j].w, p[j].row_bytes * ROWS, true);
            alone[j] = results_of(&p[j], &p[j].op);
            gpu_fill(p[j].op.mul_mat.y, 0xff, result_bytes(&p[j]));
        }
        const tsr_cuda_stream s = gpu_stream(&g, scratch);
        GPU_OK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeRelaxed));
        for (int j = 0; j < N_PROBLEMS; j++)
            assert_int_equal(tsr_cuda_op_launch(&p[j].op, &s), TSR_OK);
        GPU_OK(cudaStreamEndCapture(g.stream, &graph));
        GPU_OK(cudaGraphInstantiate(&exec, graph, 0));
        GPU_OK(cudaGraphLaunch(exec, g.stream));
        assert_false(gpu_fault(&g));
        for (int j = 0; j < N_PROBLEMS; j++) {
            void *y = malloc(result_bytes(&p[j]));
            gpu_get(y, p[j].op.mul_mat.y, result_bytes(&p[j]));
            assert_memory_equal(y, alone[j], result_bytes(&p[j]));
            free(y);
            free(alone[j]);
        }
        GPU_OK(cudaGraphExecDestroy(exec));
        GPU_OK(cudaGraphDestroy(graph));
        GPU_OK(cudaFree(scratch));
        for (int j = 0; j < N_PROBLEMS; j++)
            problem_destroy(&p[j]);
    }
    gpu_close(&g);
}

static void no_scratch_memory_at_all_is_an_error(void **state)
{
    (void)state;
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_Q8_0, 2, 256, 1, 0);
    const tsr_cuda_stream s = gpu_stream(&g, NULL);
    g.props.shared_bytes = 1 << 10;
    assert_int_equal(tsr_cuda_op_launch(&p.op, &s), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "scratch memory"));
    problem_destroy(&p);
    gpu_close(&g);
}

/* Any even address and stride of weights, any at all of MXFP4, any stride of activations and results; what is
 * between stays untouched, and a matrix that begins and ends with its allocation is not read beyond. */
static void any_address_and_stride_is_read_within_bounds(void **state)
{
    (void)state;
    enum { ROWS = 37, TOKENS = 11, K = 768, X_STRIDE = K + 5, Y_STRIDE = ROWS + 3 };
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (size_t gap = 0; gap < 20; gap += types[i] == TSR_TYPE_MXFP4 ? 5 : i % 2 == 0 ? 6 : 4) {
            problem p = problem_create(&g, types[i], ROWS, K, TOKENS, 0);
            const size_t stride = p.row_bytes + gap, bytes = (ROWS - 1) * stride + p.row_bytes;
            unsigned char *w = calloc(1, bytes);
            float *x = calloc(TOKENS, X_STRIDE * sizeof(float)), y[TOKENS * Y_STRIDE] = {0};
            float *dense = results_of(&p, &p.op);
            for (int r = 0; r < ROWS; r++)
                memcpy(w + (size_t)r * stride, p.w + (size_t)r * p.row_bytes, p.row_bytes);
            for (int t = 0; t < TOKENS; t++)
                memcpy(x + t * X_STRIDE, p.x + t * K, K * sizeof(float));
            p.op.mul_mat.w = gpu_put(&g, w, bytes, gap == 0), p.op.mul_mat.w_stride = stride;
            p.op.mul_mat.x = gpu_put(&g, x, (size_t)((TOKENS - 1) * X_STRIDE + K) * sizeof(float), false);
            p.op.mul_mat.x_stride = X_STRIDE;
            p.op.mul_mat.y = gpu_put(&g, y, sizeof y, false), p.op.mul_mat.y_stride = Y_STRIDE;
            for (int n = TOKENS; n > 0; n -= 5) {
                p.op.mul_mat.n_tokens = n;
                assert_false(gpu_run(&g, &p.op));
                gpu_get(y, p.op.mul_mat.y, sizeof y);
                for (int t = 0; t < TOKENS; t++) {
                    assert_memory_equal(y + t * Y_STRIDE, dense + t * ROWS, ROWS * sizeof(float));
                    for (int r = ROWS; r < Y_STRIDE; r++)
                        assert_true(y[t * Y_STRIDE + r] == 0.0f);
                }
            }
            free(dense);
            free(w);
            free(x);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

/* What is not finite shows: as the fault, or as NaN in all rows of its token and in no other. */
static void what_is_not_finite_raises_the_fault_or_spoils_its_token(void **state)
{
    (void)state;
    enum { ROWS = 6, K = 256 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int64_t tokens = 1; tokens <= 9; tokens += 4)
            for (int64_t granule = 0; granule <= 256; granule += 256) {
                problem p = problem_create(&g, types[i], ROWS, K, tokens, granule);
                p.x[(tokens - 1) * K + 200] = bad[i % 3];
                p.op.mul_mat.x = gpu_put(&g, p.x, (size_t)(tokens * K) * sizeof(float), false);
                assert_int_equal(gpu_run(&g, &p.op), granule > 0);
                if (granule == 0) {
                    float y[9 * ROWS];
                    gpu_get(y, p.op.mul_mat.y, result_bytes(&p));
                    for (int64_t j = 0; j < tokens * ROWS; j++)
                        assert_int_equal(isnan(y[j]) != 0, j / ROWS == tokens - 1);
                }
                problem_destroy(&p);
            }
    gpu_close(&g);
}

/* Zeros, and what is too small for a scale, count as zeros; huge values keep their precision. */
static void activations_from_zero_to_huge_keep_their_precision(void **state)
{
    (void)state;
    enum { ROWS = 4, K = 256 };
    const float sizes[] = {0, 1e-45f, 1e-38f, 1e-29f, 1e30f};
    gpu g = gpu_open();
    for (int i = 0; i < 5; i++) {
        problem p = problem_create(&g, TSR_TYPE_Q4_K, ROWS, K, 1, 0);
        float y[ROWS];
        for (int j = 0; j < K; j++)
            p.x[j] = sizes[i];
        p.op.mul_mat.x = gpu_put(&g, p.x, K * sizeof(float), false);
        assert_false(gpu_run(&g, &p.op));
        gpu_get(y, p.op.mul_mat.y, sizeof y);
        for (int r = 0; r < ROWS; r++) {
            double exact = 0;
            for (int j = 0; j < K; j++)
                exact += (double)p.decoded[r * K + j] * (double)sizes[i];
            const double bound = K * 3 * (double)sizes[i] / (double)most_code + 0x1p-100 * K;
            assert_true(fabs((double)y[r] - exact) <= bound);
            assert_true(sizes[i] > 1e-30f || y[r] == 0.0f);
        }
        problem_destroy(&p);
    }
    gpu_close(&g);
}

/* Every power of two that a block of MXFP4 may have, and NaN. Sums of integers are larger than results by up
 * to 2^15, before they are scaled; so the largest powers may give infinity. */
static void every_exponent_of_mxfp4_is_a_power_or_nan(void **state)
{
    (void)state;
    enum { EXPONENTS = 256, K = 128, TOKENS = 9 };
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_MXFP4, EXPONENTS, K, TOKENS, 0);
    float y[TOKENS * EXPONENTS];
    for (int r = 0; r < EXPONENTS; r++) {
        tsr_block_mxfp4 *const blocks = (tsr_block_mxfp4 *)(p.w + (size_t)r * p.row_bytes);
        for (int b = 0; b < K / 32; b++) {
            memset(blocks + b, 0, sizeof *blocks);
            blocks[b].e = (uint8_t)r;
        }
        blocks[1].q[3] = 0xa2; /* 1 and -1: elements 35 and 51 */
    }
    for (int i = 0; i < K * TOKENS; i++)
        p.x[i] = i % K == 35 ? 2.0f : i % K == 51 ? 0.5f : 0.0f;
    p.op.mul_mat.w = gpu_put(&g, p.w, p.row_bytes * EXPONENTS, false);
    p.op.mul_mat.x = gpu_put(&g, p.x, K * TOKENS * sizeof(float), false);
    for (int n = 1; n <= TOKENS; n += 4) {
        p.op.mul_mat.n_tokens = n;
        assert_false(gpu_run(&g, &p.op));
        gpu_get(y, p.op.mul_mat.y, (size_t)n * EXPONENTS * sizeof(float));
        for (int i = 0; i < n * EXPONENTS; i++) {
            const int e = i % EXPONENTS;
            assert_int_equal(isnan(y[i]) != 0, e == 255);
            assert_true(e > 236 || fabs((double)y[i] / ldexp(1.5, e - 127) - 1) < 0x1p-6);
        }
    }
    problem_destroy(&p);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bfloat16_partials_are_the_rounded_sums),
        cmocka_unit_test(every_type_is_close_to_exact),
        cmocka_unit_test(products_of_long_rows_and_many_rows_are_close),
        cmocka_unit_test(one_token_gives_the_bits_of_many),
        cmocka_unit_test(shared_and_scratch_memory_do_not_change_the_bits),
        cmocka_unit_test(products_of_different_sizes_fit_in_one_graph),
        cmocka_unit_test(no_scratch_memory_at_all_is_an_error),
        cmocka_unit_test(any_address_and_stride_is_read_within_bounds),
        cmocka_unit_test(what_is_not_finite_raises_the_fault_or_spoils_its_token),
        cmocka_unit_test(activations_from_zero_to_huge_keep_their_precision),
        cmocka_unit_test(every_exponent_of_mxfp4_is_a_power_or_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
