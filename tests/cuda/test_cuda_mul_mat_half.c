/* mul_mat with F16 and BF16 weights, which goes through tensor cores for one token as for many: close to a
 * double-precision sum whatever the magnitude of the activations, and the same bits for every number of
 * tokens, every way of dividing rows and columns, every alignment and every amount of scratch memory. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"

static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_BF16};
enum { N_TYPES = 2, CHUNK = 128 };

typedef struct problem {
    gpu *g;
    tsr_type type;
    int64_t n_rows, k, n_tokens;
    uint16_t *w; /* [n_rows][k] */
    float *x;    /* [n_tokens][k] */
    float *decoded;
    void *gpu_w, *gpu_x;
} problem;

/* Activations are random times magnitude; every other token is 2^-20 of that, and so is every third chunk. */
static problem problem_create(gpu *g, tsr_type type, int64_t n_rows, int64_t k, int64_t n_tokens,
                              float magnitude, bool aligned)
{
    problem p = {.g = g, .type = type, .n_rows = n_rows, .k = k, .n_tokens = n_tokens};
    p.w = malloc((size_t)(n_rows * k) * sizeof *p.w);
    p.x = random_floats(n_tokens * k, -magnitude, magnitude, 1);
    p.decoded = random_floats(n_rows * k, -1, 1, 2);
    for (int64_t i = 0; i < n_tokens * k; i++)
        p.x[i] *= (i / k % 2 ? 0x1p-20f : 1.0f) * (i % k / CHUNK % 3 == 1 ? 0x1p-20f : 1.0f);
    assert_int_equal(tsr_type_from_f32(type, p.decoded, p.w, n_rows * k), TSR_OK);
    assert_int_equal(tsr_type_to_f32(type, p.w, p.decoded, n_rows * k), TSR_OK);
    p.gpu_w = gpu_put(g, p.w, (size_t)(n_rows * k) * sizeof *p.w, aligned);
    p.gpu_x = gpu_put(g, p.x, (size_t)(n_tokens * k) * sizeof(float), aligned);
    return p;
}

static void problem_destroy(problem *p)
{
    free(p->w);
    free(p->x);
    free(p->decoded);
    gpu_clear(p->g);
}

/* granule 0: a whole sum. */
static tsr_op problem_op(const problem *p, int64_t granule)
{
    const size_t elem = granule > 0 ? sizeof(int64_t) : sizeof(float);
    return (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = p->type,
                    .w = p->gpu_w,
                    .w_stride = (size_t)p->k * sizeof *p->w,
                    .n_rows = p->n_rows,
                    .k = p->k,
                    .x = p->gpu_x,
                    .x_stride = p->k,
                    .n_tokens = p->n_tokens,
                    .partial = granule > 0,
                    .granule = granule,
                    .limit = granule > 0 ? tsr_fixed_limit((p->k + granule - 1) / granule) : 0,
                    .y = gpu_alloc(p->g, (size_t)(p->n_tokens * p->n_rows) * elem, false),
                    .y_stride = p->n_rows},
    };
}

/* Run it and bring the outputs back; the caller frees them. */
static void *outputs_of(gpu *g, const tsr_op *op)
{
    const size_t elem = op->mul_mat.partial ? sizeof(int64_t) : sizeof(float);
    const size_t bytes = (size_t)(op->mul_mat.n_rows * op->mul_mat.n_tokens) * elem;
    void *y = malloc(bytes);
    assert_false(gpu_run(g, op));
    gpu_get(y, op->mul_mat.y, bytes);
    return y;
}

/* The same tokens, n at a time. */
static void *outputs_in_steps(gpu *g, tsr_op op, int64_t n)
{
    const int64_t tokens = op.mul_mat.n_tokens;
    const size_t token = (size_t)op.mul_mat.n_rows * (op.mul_mat.partial ? sizeof(int64_t) : sizeof(float));
    const float *x = op.mul_mat.x;
    char *y = malloc(token * (size_t)tokens);
    for (int64_t t = 0; t < tokens; t += n) {
        op.mul_mat.n_tokens = n < tokens - t ? n : tokens - t;
        op.mul_mat.x = x + t * op.mul_mat.x_stride;
        void *some = outputs_of(g, &op);
        memcpy(y + token * (size_t)t, some, token * (size_t)op.mul_mat.n_tokens);
        free(some);
    }
    return y;
}

/* A product of 16 elements rounds once per part, or cuts off, which is twice as much; then there is one
 * rounding per chunk and granule. Parts hold 22 bits of an activation (F16) or all (BF16), of those much
 * smaller than their chunk's largest fewer: 2^-39 of that. */
static void check_close(const problem *p, int64_t granule)
{
    const tsr_op op = problem_op(p, granule);
    const double granules = granule > 0 ? (double)((p->k + granule - 1) / granule) : 0;
    const double roundings = 2 * 8 * 3 + 4 + (double)p->k / CHUNK + granules + 1;
    void *y = outputs_of(p->g, &op);
    for (int64_t i = 0; i < p->n_tokens * p->n_rows; i++) {
        const float *w = p->decoded + i % p->n_rows * p->k, *x = p->x + i / p->n_rows * p->k;
        double exact = 0, sum = 0, lost = 0;
        for (int64_t j = 0; j < p->k; j++) {
            exact += (double)w[j] * (double)x[j];
            sum += fabs((double)w[j] * (double)x[j]);
        }
        for (int64_t j = 0; j < p->k; j++)
            for (int64_t near = j / CHUNK * CHUNK; near < p->k && near < (j / CHUNK + 1) * CHUNK; near += 16)
                lost = fmax(lost, fabs((double)x[near]));
        lost *= 0x1p-38 * (double)p->k; /* twice, since only every 16th was looked at */
        const double got = granule > 0 ? (double)((int64_t *)y)[i] / TSR_FIXED_ONE : (double)((float *)y)[i];
        const double bound = roundings * 0x1p-24 * sum + granules * 0.5 / TSR_FIXED_ONE + lost;
        if (!(fabs(got - exact) <= bound))
            fail_msg("%s rows %d k %d tokens %d granule %d output %d: %.9g, exact %.9g, bound %.3g",
                     tsr_type_name(p->type), (int)p->n_rows, (int)p->k, (int)p->n_tokens, (int)granule,
                     (int)i, got, exact, bound);
    }
    free(y);
}

static void products_are_close_to_exact_whatever_the_magnitude(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k, tokens */
                                        {1, 1, 1},   {17, 130, 2}, {9, 517, 3},    {33, 256, 8},
                                        {5, 77, 16}, {3, 300, 17}, {140, 640, 30}, {130, 131, 70}};
    /* Neither end of F16's range, nor beyond. */
    static const float magnitudes[] = {1, 1e-9f, 3e4f};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int m = 0; m < 3; m++) {
                problem p = problem_create(&g, types[i], shapes[s][0], shapes[s][1], shapes[s][2],
                                           magnitudes[m], s % 2);
                check_close(&p, 0);
                check_close(&p, m == 0 ? 128 : m == 1 ? 50 : 384);
                problem_destroy(&p);
            }
    problem p = problem_create(&g, TSR_TYPE_F16, 20, 256, 20, 1e30f, true); /* in f32 only */
    check_close(&p, 0);
    problem_destroy(&p);
    gpu_close(&g);
}

/* What a BF16 partial holds is the plain sum, rounded once: from either kernel, and whatever the granule. */
static void bfloat16_partials_are_the_rounded_sums(void **state)
{
    (void)state;
    enum { ROWS = 21, K = 333 };
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int64_t tokens = 3; tokens <= 40; tokens += 37) {
            problem p = problem_create(&g, types[i], ROWS, K, tokens, 1, false);
            tsr_op op = problem_op(&p, 0);
            float *sums = outputs_of(&g, &op);
            uint16_t rounded[ROWS * 40];
            op.mul_mat.partial = true;
            op.mul_mat.reduce = TSR_REDUCE_BF16;
            op.mul_mat.granule = 64;
            assert_false(gpu_run(&g, &op));
            gpu_get(rounded, op.mul_mat.y, sizeof rounded[0] * (size_t)(ROWS * tokens));
            for (int64_t j = 0; j < ROWS * tokens; j++)
                assert_int_equal(rounded[j], tsr_f32_to_bf16(sums[j]));
            free(sums);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

/* All together, in steps of every size, without scratch memory, with little, and from odd addresses. */
static void check_steps(gpu *g, tsr_type type, int64_t rows, int64_t k, int64_t tokens, int64_t granule)
{
    problem p = problem_create(g, type, rows, k, tokens, 1, true);
    tsr_op op = problem_op(&p, granule);
    const size_t bytes = (size_t)(rows * tokens) * (granule > 0 ? sizeof(int64_t) : sizeof(float));
    const size_t scratch = g->scratch_bytes;
    void *all = outputs_of(g, &op);
    for (int64_t n = 1; n < tokens; n = n < 9 ? n + 1 : n * 2 - 1) {
        void *some = outputs_in_steps(g, op, n);
        assert_memory_equal(some, all, bytes);
        free(some);
    }
    g->scratch_bytes = 0;
    void *without = outputs_of(g, &op);
    g->scratch_bytes = scratch;
    assert_memory_equal(without, all, bytes);
    op.mul_mat.w = gpu_put(g, p.w, (size_t)(rows * k) * sizeof *p.w, false);
    op.mul_mat.x = gpu_put(g, p.x, (size_t)(tokens * k) * sizeof(float), false);
    void *moved = outputs_of(g, &op);
    assert_memory_equal(moved, all, bytes);
    free(moved);
    free(without);
    free(all);
    problem_destroy(&p);
}

static void every_number_of_tokens_gives_the_same_bits(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        check_steps(&g, types[i], 17, 640, 40, 0);
        check_steps(&g, types[i], 7, 1152, 40, 128);
        check_steps(&g, types[i], 19, 500, 33, 320);
        check_steps(&g, types[i], 5, 333, 18, 100);
    }
    gpu_close(&g);
}

/* Little scratch memory takes the tokens slab by slab. */
static void slabs_of_tokens_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { ROWS = 10, K = 256, TOKENS = 150 };
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_F16, ROWS, K, TOKENS, 1, true);
    const tsr_op op = problem_op(&p, 128);
    int64_t *all = outputs_of(&g, &op), few[ROWS * TOKENS];
    tsr_cuda_stream s = gpu_stream(&g, gpu_alloc(&g, 100000, true));
    s.scratch_bytes = 100000; /* 64 tokens take 66048, all take 154800 */
    assert_true(tsr_cuda_op_scratch(&op) > s.scratch_bytes);
    gpu_fill(op.mul_mat.y, 0, sizeof few);
    assert_int_equal(tsr_cuda_op_launch(&op, &s), TSR_OK);
    assert_false(gpu_fault(&g));
    gpu_get(few, op.mul_mat.y, sizeof few);
    assert_memory_equal(few, all, sizeof few);
    free(all);
    problem_destroy(&p);
    gpu_close(&g);
}

/* Column shards are views: the same rows, a later first element. Their int64 sums add up to the whole's. */
static void check_shards(gpu *g, tsr_type type, int64_t granule, int64_t tokens)
{
    enum { GRANULES = 7, ROWS = 6 };
    static const int cuts[] = {0, 1, 1, 4, GRANULES};
    problem p = problem_create(g, type, ROWS, granule * GRANULES, tokens, 1, granule % 2 == 0);
    tsr_op op = problem_op(&p, granule);
    const int64_t n = ROWS * tokens;
    int64_t *whole = outputs_of(g, &op), *sum = calloc((size_t)n, sizeof *sum);
    for (int c = 0; c < 4; c++) {
        op.mul_mat.w = (const uint16_t *)p.gpu_w + cuts[c] * granule;
        op.mul_mat.x = (const float *)p.gpu_x + cuts[c] * granule;
        op.mul_mat.k = (cuts[c + 1] - cuts[c]) * granule;
        int64_t *part = outputs_of(g, &op);
        for (int64_t i = 0; i < n; i++)
            sum[i] += part[i];
        free(part);
    }
    assert_memory_equal(sum, whole, (size_t)n * sizeof *sum);
    free(sum);
    free(whole);
    problem_destroy(&p);
}

static void column_shards_add_up_to_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const int64_t granules[] = {128, 64, 77, 200, 256};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int j = 0; j < 5; j++) {
            check_shards(&g, types[i], granules[j], 3);
            check_shards(&g, types[i], granules[j], 20);
        }
    gpu_close(&g);
}

/* An activation that is not finite shows; the other tokens do not feel it. */
static void what_is_not_finite_stays_in_its_token(void **state)
{
    (void)state;
    enum { ROWS = 18, K = 256 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int64_t tokens = 2; tokens <= 20; tokens += 18)
            for (int b = 0; b < 3; b++) {
                problem p = problem_create(&g, types[i], ROWS, K, tokens, 1, true);
                tsr_op op = problem_op(&p, 0), exact = problem_op(&p, 128);
                float *before = outputs_of(&g, &op);
                p.x[(tokens - 1) * K + 200] = bad[b];
                op.mul_mat.x = exact.mul_mat.x = gpu_put(&g, p.x, (size_t)(tokens * K) * sizeof(float), true);
                float *after = outputs_of(&g, &op);
                const int64_t others = (tokens - 1) * ROWS;
                assert_memory_equal(after, before, (size_t)others * sizeof(float));
                for (int64_t r = others; r < tokens * ROWS; r++)
                    assert_false(isfinite(after[r]));
                assert_true(gpu_run(&g, &exact));
                exact.mul_mat.x = p.gpu_x;
                assert_false(gpu_run(&g, &exact));
                exact.mul_mat.limit = 1e-9f;
                assert_true(gpu_run(&g, &exact));
                free(before);
                free(after);
                problem_destroy(&p);
            }
    gpu_close(&g);
}

/* Strided weights, activations and results for many tokens; what is between stays untouched. */
static void strided_products_leave_gaps_untouched(void **state)
{
    (void)state;
    enum { ROWS = 10, K = 160, TOKENS = 19, X_STRIDE = 200, Y_STRIDE = 13, W_STRIDE = 500 /* elements */ };
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_BF16, ROWS, K, TOKENS, 1, false);
    float y[TOKENS * Y_STRIDE] = {0}, *x = calloc(TOKENS * X_STRIDE, sizeof *x);
    uint16_t *w = calloc(ROWS * W_STRIDE, sizeof *w);
    for (int t = 0; t < TOKENS; t++)
        memcpy(x + t * X_STRIDE, p.x + t * K, K * sizeof *x);
    for (int r = 0; r < ROWS; r++)
        memcpy(w + r * W_STRIDE, p.w + r * K, K * sizeof *w);
    tsr_op op = problem_op(&p, 0);
    float *dense = outputs_of(&g, &op);
    op.mul_mat.w = gpu_put(&g, w, ROWS * W_STRIDE * sizeof *w, false);
    op.mul_mat.w_stride = W_STRIDE * sizeof *w;
    op.mul_mat.x = gpu_put(&g, x, TOKENS * X_STRIDE * sizeof *x, false), op.mul_mat.x_stride = X_STRIDE;
    op.mul_mat.y = gpu_put(&g, y, sizeof y, false), op.mul_mat.y_stride = Y_STRIDE;
    assert_false(gpu_run(&g, &op));
    gpu_get(y, op.mul_mat.y, sizeof y);
    for (int t = 0; t < TOKENS; t++) {
        assert_memory_equal(y + t * Y_STRIDE, dense + t * ROWS, ROWS * sizeof *y);
        for (int i = ROWS; i < Y_STRIDE; i++)
            assert_true(y[t * Y_STRIDE + i] == 0.0f);
    }
    free(dense);
    free(x);
    free(w);
    problem_destroy(&p);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_close_to_exact_whatever_the_magnitude),
        cmocka_unit_test(bfloat16_partials_are_the_rounded_sums),
        cmocka_unit_test(every_number_of_tokens_gives_the_same_bits),
        cmocka_unit_test(slabs_of_tokens_give_the_bits_of_the_whole),
        cmocka_unit_test(column_shards_add_up_to_the_bits_of_the_whole),
        cmocka_unit_test(what_is_not_finite_stays_in_its_token),
        cmocka_unit_test(strided_products_leave_gaps_untouched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
