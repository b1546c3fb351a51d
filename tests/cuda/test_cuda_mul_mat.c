/* mul_mat on CUDA, every weight type: those that are multiplied as floats against a double-precision sum
 * (test_cuda_mul_mat_q.c has the others), and all bit for bit where the order of operations is promised
 * (tokens, rows, granules, alignment). Weights, activations and results end where a page ends, so that
 * reading or writing a byte too far leaves the allocation. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/weight_types.h"

static const tsr_type types[] = {TSR_TYPE_F32,  TSR_TYPE_F16,  TSR_TYPE_BF16, FLOAT_TYPES,
                                 CODE_TYPES,    TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,
                                 TSR_TYPE_Q5_K, TSR_TYPE_Q6_K, TABLE_TYPES};
enum { N_TYPES = sizeof types / sizeof *types, N_PLAIN = 3, N_FLOAT = N_TYPES - 7 };

/* A matrix, activations, and what the product should be. */
typedef struct problem {
    gpu *g;
    tsr_type type;
    int64_t n_rows, k, n_tokens;
    size_t row_bytes;
    unsigned char *w; /* [n_rows] rows, dense */
    float *x;         /* [n_tokens][k] */
    float *decoded;   /* [n_rows][k] */
    void *gpu_w, *gpu_x;
} problem;

static problem problem_create(gpu *g, tsr_type type, int64_t n_rows, int64_t k, int64_t n_tokens,
                              bool aligned)
{
    problem p = {.g = g, .type = type, .n_rows = n_rows, .k = k, .n_tokens = n_tokens};
    p.row_bytes = tsr_type_row_bytes(type, k);
    p.w = malloc(p.row_bytes * (size_t)n_rows);
    p.x = random_floats(n_tokens * k, -2, 2, 1);
    p.decoded = random_floats(n_rows * k, -1, 1, 2);
    for (int64_t r = 0; r < n_rows; r++) {
        unsigned char *row = p.w + (size_t)r * p.row_bytes;
        assert_int_equal(tsr_type_from_f32(type, p.decoded + r * k, row, k), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, p.decoded + r * k, k), TSR_OK);
    }
    p.gpu_w = gpu_put(g, p.w, p.row_bytes * (size_t)n_rows, aligned);
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

static size_t elem_bytes(int64_t granule, tsr_reduce_type reduce)
{
    return granule > 0 ? tsr_reduce_bytes(reduce) : sizeof(float);
}

/* granule 0: a whole sum, else partial. */
static tsr_op problem_op(const problem *p, int64_t granule, tsr_reduce_type reduce)
{
    const size_t bytes = (size_t)(p->n_tokens * p->n_rows) * elem_bytes(granule, reduce);
    return (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = p->type,
                    .w = p->gpu_w,
                    .w_stride = p->row_bytes,
                    .n_rows = p->n_rows,
                    .k = p->k,
                    .x = p->gpu_x,
                    .x_stride = p->k,
                    .n_tokens = p->n_tokens,
                    .partial = granule > 0,
                    .reduce = reduce,
                    .granule = granule,
                    .limit = granule > 0 ? tsr_fixed_limit((p->k + granule - 1) / granule) : 0,
                    .y = gpu_alloc(p->g, bytes, false),
                    .y_stride = p->n_rows},
    };
}

/* Run it and bring the n outputs of `elem` bytes back; the caller frees them. */
static void *outputs_of(gpu *g, const tsr_op *op, int64_t n, size_t elem)
{
    void *y = malloc((size_t)n * elem);
    assert_false(gpu_run(g, op));
    gpu_get(y, op->mul_mat.y, (size_t)n * elem);
    return y;
}

/* Rounding: eight steps in an octet, five in the tree, one per chunk, granule and strand, relative to the sum
 * of magnitudes. */
static void check_close(const problem *p, int64_t granule, tsr_reduce_type reduce)
{
    const tsr_op op = problem_op(p, granule, reduce);
    const int64_t n = p->n_tokens * p->n_rows;
    const size_t elem = elem_bytes(granule, reduce);
    void *y = outputs_of(p->g, &op, n, elem);
    const double granules = granule > 0 ? (double)((p->k + granule - 1) / granule) : 1;
    const double roundings = 8 + 5 + (double)p->k / 256 + 1 + granules + 4;
    for (int64_t i = 0; i < n; i++) {
        const float *w = p->decoded + i % p->n_rows * p->k, *x = p->x + i / p->n_rows * p->k;
        double exact = 0, magnitude = 0;
        for (int64_t j = 0; j < p->k; j++) {
            exact += (double)w[j] * (double)x[j];
            magnitude += fabs((double)w[j]) * fabs((double)x[j]);
        }
        const bool fixed = elem == sizeof(int64_t);
        const bool bf16 = elem == sizeof(uint16_t); /* 8 bits of the sum */
        const double got = fixed  ? (double)((int64_t *)y)[i] / TSR_FIXED_ONE
                           : bf16 ? (double)tsr_bf16_to_f32(((uint16_t *)y)[i])
                                  : (double)((float *)y)[i];
        const double bound = roundings * 0x1p-24 * magnitude + (fixed ? granules * 0.5 / TSR_FIXED_ONE : 0) +
                             (bf16 ? 0x1p-8 * fabs(exact) : 0);
        if (!(fabs(got - exact) <= bound))
            fail_msg("%s rows %d k %d tokens %d granule %d output %d: %.9g, exact %.9g, bound %.3g",
                     tsr_type_name(p->type), (int)p->n_rows, (int)p->k, (int)p->n_tokens, (int)granule,
                     (int)i, got, exact, bound);
    }
    free(y);
}

static int64_t block_of(tsr_type type)
{
    return tsr_type_block_elems(type);
}

static void plain_types_are_close_to_exact(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k in pieces, tokens */
                                        {1, 1, 1}, {5, 2, 1}, {9, 7, 2}, {6, 3, 3}, {10, 5, 6}, {3, 9, 9}};
    gpu g = gpu_open();
    for (int i = 0; i < N_PLAIN; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            /* lengths that are no multiple of anything */
            problem p = problem_create(&g, types[i], shapes[s][0], shapes[s][1] * 157, shapes[s][2], false);
            check_close(&p, 0, TSR_REDUCE_F32);
            check_close(&p, 96, TSR_REDUCE_EXACT);
            check_close(&p, 50, TSR_REDUCE_EXACT);
            check_close(&p, 600, TSR_REDUCE_F32);
            check_close(&p, 96, TSR_REDUCE_BF16);
            check_close(&p, 1 << 20, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

static void rare_types_are_close_to_exact(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, K in blocks of 256, tokens */
                                        {1, 1, 1},
                                        {5, 3, 1},
                                        {9, 2, 2},
                                        {6, 5, 9}};
    gpu g = gpu_open();
    for (int i = N_PLAIN; i < N_FLOAT; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t k = shapes[s][1] * 256 - (block_of(types[i]) == 32 ? 96 : 0);
            problem p = problem_create(&g, types[i], shapes[s][0], k, shapes[s][2], false);
            check_close(&p, 0, TSR_REDUCE_F32);
            check_close(&p, 256, TSR_REDUCE_EXACT);
            check_close(&p, 256, TSR_REDUCE_BF16);
            if (block_of(types[i]) == 32)
                check_close(&p, 96, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

/* Several tokens at once, one by one, and from other addresses: the same bits. */
static void one_token_gives_the_bits_of_many(void **state)
{
    (void)state;
    static const int64_t granules[] = {0, 128, 256, 768};
    enum { ROWS = 7, TOKENS = 9, K = 1280 };
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int j = 0; j < 4; j++) {
            const int64_t granule = granules[j] > 0 && granules[j] < block_of(types[i]) ? 256 : granules[j];
            const size_t elem = elem_bytes(granule, TSR_REDUCE_EXACT), token_bytes = ROWS * elem;
            problem p = problem_create(&g, types[i], ROWS, K, TOKENS, true);
            tsr_op op = problem_op(&p, granule, TSR_REDUCE_EXACT);
            char *many = outputs_of(&g, &op, ROWS * TOKENS, elem);
            op.mul_mat.w = gpu_put(&g, p.w, p.row_bytes * ROWS, false);
            for (int64_t t = 0, n = 1; t < TOKENS; t += n, n = n % 4 + 1) {
                op.mul_mat.n_tokens = n < TOKENS - t ? n : TOKENS - t;
                op.mul_mat.x =
                    gpu_put(&g, p.x + t * K, (size_t)(op.mul_mat.n_tokens * K) * sizeof(float), false);
                char *few = outputs_of(&g, &op, ROWS * op.mul_mat.n_tokens, elem);
                assert_memory_equal(few, many + (size_t)t * token_bytes,
                                    (size_t)op.mul_mat.n_tokens * token_bytes);
                free(few);
            }
            free(many);
            problem_destroy(&p);
        }
    gpu_close(&g);
}

static void row_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { ROWS = 23, TOKENS = 2, K = 512 };
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        problem p = problem_create(&g, types[i], ROWS, K, TOKENS, false);
        tsr_op op = problem_op(&p, 0, TSR_REDUCE_F32);
        float *whole = outputs_of(&g, &op, ROWS * TOKENS, sizeof(float)), parts[ROWS * TOKENS];
        float *y = op.mul_mat.y = gpu_alloc(&g, sizeof parts, false);
        for (int64_t begin = 0, n = 1; begin < ROWS; begin += n, n += 3) {
            op.mul_mat.w = (const char *)p.gpu_w + (size_t)begin * p.row_bytes;
            op.mul_mat.n_rows = n < ROWS - begin ? n : ROWS - begin;
            op.mul_mat.y = y + begin;
            assert_false(gpu_run(&g, &op));
        }
        gpu_get(parts, y, sizeof parts);
        assert_memory_equal(parts, whole, sizeof parts);
        free(whole);
        problem_destroy(&p);
    }
    gpu_close(&g);
}

/* Column shards are views: the same rows, a later first element. Their int64 sums add up to the whole's. */
static void check_column_shards(gpu *g, tsr_type type, int64_t granule)
{
    enum { GRANULES = 7, ROWS = 6, TOKENS = 3, N = ROWS * TOKENS };
    static const int cuts[] = {0, 1, 1, 4, GRANULES};
    problem p = problem_create(g, type, ROWS, granule * GRANULES, TOKENS, granule % 2 == 0);
    tsr_op op = problem_op(&p, granule, TSR_REDUCE_EXACT);
    int64_t *whole = outputs_of(g, &op, N, sizeof(int64_t)), sum[N] = {0};
    for (int c = 0; c < 4; c++) {
        op.mul_mat.w = (const char *)p.gpu_w + tsr_type_row_bytes(type, cuts[c] * granule);
        op.mul_mat.x = (const float *)p.gpu_x + cuts[c] * granule;
        op.mul_mat.k = (cuts[c + 1] - cuts[c]) * granule;
        int64_t *part = outputs_of(g, &op, N, sizeof(int64_t));
        for (int n = 0; n < N; n++)
            sum[n] += part[n];
        free(part);
    }
    assert_memory_equal(sum, whole, sizeof sum);
    free(whole);
    problem_destroy(&p);
}

static void column_shards_add_up_to_the_bits_of_the_whole(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        check_column_shards(&g, types[i], 256);
        if (block_of(types[i]) <= 128)
            check_column_shards(&g, types[i], 128);
        if (block_of(types[i]) == 1)
            check_column_shards(&g, types[i], 77);
    }
    gpu_close(&g);
}

static void a_partial_out_of_range_raises_the_fault(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, 1e30f};
    gpu g = gpu_open();
    for (int64_t tokens = 1; tokens <= 9; tokens += 4)
        for (int64_t granule = 64; granule <= 256; granule *= 4)
            for (int b = 0; b < 3; b++) {
                problem p = problem_create(&g, TSR_TYPE_F32, 6, 256, tokens, false);
                tsr_op op = problem_op(&p, granule, TSR_REDUCE_EXACT);
                assert_false(gpu_run(&g, &op));
                p.x[(tokens - 1) * p.k + 200] = bad[b];
                op.mul_mat.x = gpu_put(&g, p.x, (size_t)(tokens * p.k) * sizeof(float), false);
                assert_true(gpu_run(&g, &op));
                op.mul_mat.x = p.gpu_x;
                op.mul_mat.limit = 1e-3f; /* smaller than the partials: rejected too */
                assert_true(gpu_run(&g, &op));
                problem_destroy(&p);
            }
    gpu_close(&g);
}

/* Large terms that cancel: only a granule's sum must be in range, not what it is made of. */
static void what_cancels_inside_a_granule_raises_no_fault(void **state)
{
    (void)state;
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_F32, 4, 256, 8, false);
    for (int i = 0; i < 4 * 256; i++)
        ((float *)p.w)[i] = i % 256 < 128 ? 1000.0f : -1000.0f;
    for (int i = 0; i < 8 * 256; i++)
        p.x[i] = 1.0f;
    p.gpu_w = gpu_put(&g, p.w, 4 * p.row_bytes, false);
    p.gpu_x = gpu_put(&g, p.x, 8 * 256 * sizeof(float), false);
    tsr_op op = problem_op(&p, 256, TSR_REDUCE_EXACT);
    op.mul_mat.limit = 1.0f;
    int64_t *y = outputs_of(&g, &op, 32, sizeof(int64_t));
    for (int i = 0; i < 32; i++)
        assert_true(y[i] == 0);
    free(y);
    problem_destroy(&p);
    gpu_close(&g);
}

/* A strided view with strided activations and results; what is between stays untouched. */
static void strided_products_leave_gaps_untouched(void **state)
{
    (void)state;
    gpu g = gpu_open();
    problem p = problem_create(&g, TSR_TYPE_F16, 10, 160, 5, false);
    float strided[5 * 13], *x = calloc(5 * 200, sizeof(float));
    unsigned char *w = calloc(10, 1000);
    for (int t = 0; t < 5; t++)
        memcpy(x + t * 200, p.x + t * p.k, (size_t)p.k * sizeof(float));
    for (int r = 0; r < 10; r++)
        memcpy(w + r * 1000, p.w + (size_t)r * p.row_bytes, p.row_bytes);
    tsr_op op = problem_op(&p, 0, TSR_REDUCE_F32);
    float *dense = outputs_of(&g, &op, 50, sizeof(float));
    memset(strided, 0, sizeof strided);
    op.mul_mat.w = gpu_put(&g, w, 10 * 1000, false), op.mul_mat.w_stride = 1000;
    op.mul_mat.x = gpu_put(&g, x, 5 * 200 * sizeof(float), false), op.mul_mat.x_stride = 200;
    op.mul_mat.y = gpu_put(&g, strided, sizeof strided, false), op.mul_mat.y_stride = 13;
    assert_false(gpu_run(&g, &op));
    gpu_get(strided, op.mul_mat.y, sizeof strided);
    for (int t = 0; t < 5; t++) {
        assert_memory_equal(strided + t * 13, dense + t * 10, 10 * sizeof(float));
        for (int i = 10; i < 13; i++)
            assert_true(strided[t * 13 + i] == 0.0f);
    }
    free(dense);
    free(x);
    free(w);
    problem_destroy(&p);
    gpu_close(&g);
}

static void an_empty_sum_is_zero(void **state)
{
    (void)state;
    gpu g = gpu_open();
    float y[4] = {1, 2, 3, 4};
    const tsr_op op = {.kind = TSR_OP_MUL_MAT,
                       .mul_mat = {.type = TSR_TYPE_F32,
                                   .n_rows = 2,
                                   .n_tokens = 2,
                                   .y = gpu_put(&g, y, sizeof y, false),
                                   .y_stride = 2}};
    assert_false(gpu_run(&g, &op));
    gpu_get(y, op.mul_mat.y, sizeof y);
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 0.0f);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_types_are_close_to_exact),
        cmocka_unit_test(rare_types_are_close_to_exact),
        cmocka_unit_test(one_token_gives_the_bits_of_many),
        cmocka_unit_test(row_shards_give_the_bits_of_the_whole),
        cmocka_unit_test(column_shards_add_up_to_the_bits_of_the_whole),
        cmocka_unit_test(a_partial_out_of_range_raises_the_fault),
        cmocka_unit_test(what_cancels_inside_a_granule_raises_no_fault),
        cmocka_unit_test(strided_products_leave_gaps_untouched),
        cmocka_unit_test(an_empty_sum_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
