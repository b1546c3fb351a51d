/* mul_mat on the host, every weight type on every instruction set: against a double-precision sum over the
 * decoded weights, and bit for bit where the order of operations is promised (tokens, threads, rows,
 * granules, one instruction set against another). Weights, activations and results lie at the end of a
 * mapping, so that one byte too far crashes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "core/quant/quant.h"
#include "support/kernel_run.h"

static const tsr_type types[] = {TSR_TYPE_F32,  TSR_TYPE_F16,    TSR_TYPE_BF16,   TSR_TYPE_Q8_0,
                                 TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,   TSR_TYPE_Q5_K,   TSR_TYPE_Q6_K,
                                 TSR_TYPE_Q4_1, TSR_TYPE_Q5_0,   TSR_TYPE_Q5_1,   TSR_TYPE_Q2_K,
                                 TSR_TYPE_Q3_K, TSR_TYPE_IQ4_NL, TSR_TYPE_IQ4_XS, TSR_TYPE_MXFP4};
enum { N_TYPES = sizeof types / sizeof *types };

/* Weights, and bits of the activations beside them: every type, then all but F32 with 8 bits. */
typedef struct kind {
    tsr_type type;
    int x_bits;
} kind;
enum { FIRST_OF_8 = 1, N_KINDS = 2 * N_TYPES - FIRST_OF_8 };

static kind kind_at(int i)
{
    return i < N_TYPES ? (kind){types[i], 16} : (kind){types[i - N_TYPES + FIRST_OF_8], 8};
}

static int64_t block_of(tsr_type type)
{
    return tsr_type_block_elems(type);
}

/* A matrix, activations, and what the product should be. */
typedef struct problem {
    tsr_type type;
    int x_bits;
    int64_t n_rows, k, n_tokens;
    size_t row_bytes, w_bytes, x_bytes;
    unsigned char *w;  /* [n_rows] rows, dense */
    float *x;          /* [n_tokens][k] */
    float *decoded;    /* [n_rows][k] */
    double *exact;     /* [n_tokens][n_rows] */
    double *magnitude; /* [n_tokens][n_rows] sum of |w x| */
    double *rounding;  /* [n_tokens][n_rows] what rounding x to integers may change */
} problem;

/* Where the scales of a block lie that are floats of their own, F16 but for MXFP4's exponent. */
typedef struct scale_fields {
    tsr_type type;
    size_t d, min; /* min 0: none */
} scale_fields;

static const scale_fields fields[] = {
    {TSR_TYPE_Q8_0, offsetof(tsr_block_q8_0, d), 0},
    {TSR_TYPE_Q4_0, offsetof(tsr_block_q4_0, d), 0},
    {TSR_TYPE_Q4_K, offsetof(tsr_block_q4_k, d), offsetof(tsr_block_q4_k, dmin)},
    {TSR_TYPE_Q5_K, offsetof(tsr_block_q5_k, d), offsetof(tsr_block_q5_k, dmin)},
    {TSR_TYPE_Q6_K, offsetof(tsr_block_q6_k, d), 0},
    {TSR_TYPE_Q4_1, offsetof(tsr_block_q4_1, d), offsetof(tsr_block_q4_1, m)},
    {TSR_TYPE_Q5_0, offsetof(tsr_block_q5_0, d), 0},
    {TSR_TYPE_Q5_1, offsetof(tsr_block_q5_1, d), offsetof(tsr_block_q5_1, m)},
    {TSR_TYPE_Q2_K, offsetof(tsr_block_q2_k, d), offsetof(tsr_block_q2_k, dmin)},
    {TSR_TYPE_Q3_K, offsetof(tsr_block_q3_k, d), 0},
    {TSR_TYPE_IQ4_NL, offsetof(tsr_block_iq4_nl, d), 0},
    {TSR_TYPE_IQ4_XS, offsetof(tsr_block_iq4_xs, d), 0},
    {TSR_TYPE_MXFP4, offsetof(tsr_block_mxfp4, e), 0},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Whether products with the type are sums of integers; of floats otherwise. */
static bool is_integer(tsr_type type)
{
    return block_of(type) > 1;
}

/* Half a step of the integers that stand for x[k] beside quantized weights (host/kernels/quant/x_blocks.h),
 * 1.001 times for the scale's own rounding: 32 activations share a scale. */
static void half_steps(const problem *p, const float *x, double *steps)
{
    const int most = p->x_bits == 8 ? 127 : p->type == TSR_TYPE_Q6_K ? 16383 : 32767;
    memset(steps, 0, (size_t)p->k * sizeof *steps);
    for (int64_t i = 0; i < p->k && is_integer(p->type); i += 32) {
        float largest = 0;
        for (int64_t j = i; j < i + 32; j++)
            largest = fmaxf(largest, fabsf(x[j]));
        for (int64_t j = i; j < i + 32; j++)
            steps[j] = 1.001 * largest / most / 2;
    }
}

static void problem_exact(problem *p)
{
    double *steps = malloc((size_t)p->k * sizeof *steps);
    assert_non_null(steps);
    for (int64_t t = 0; t < p->n_tokens; t++) {
        const float *x = p->x + t * p->k;
        half_steps(p, x, steps);
        for (int64_t r = 0; r < p->n_rows; r++) {
            double sum = 0, magnitude = 0, rounding = 0;
            for (int64_t i = 0; i < p->k; i++) {
                const double w = (double)p->decoded[r * p->k + i], product = w * (double)x[i];
                sum += product;
                magnitude += fabs(product);
                rounding += fabs(w) * steps[i];
            }
            p->rounding[t * p->n_rows + r] = rounding;
            p->exact[t * p->n_rows + r] = sum;
            p->magnitude[t * p->n_rows + r] = magnitude;
        }
    }
    free(steps);
}

static problem problem_create(kind of, int64_t n_rows, int64_t k, int64_t n_tokens, uint64_t seed)
{
    const tsr_type type = of.type;
    problem p = {.type = type, .x_bits = of.x_bits, .n_rows = n_rows, .k = k, .n_tokens = n_tokens};
    const size_t outputs = (size_t)(n_rows * n_tokens);
    p.row_bytes = tsr_type_row_bytes(type, k);
    p.w_bytes = p.row_bytes * (size_t)n_rows;
    p.x_bytes = (size_t)(n_tokens * k) * sizeof(float);
    p.w = guarded_alloc(p.w_bytes);
    p.x = guarded_alloc(p.x_bytes);
    p.decoded = calloc((size_t)(n_rows * k), sizeof(float));
    p.exact = calloc(outputs, sizeof(double));
    p.magnitude = calloc(outputs, sizeof(double));
    p.rounding = calloc(outputs, sizeof(double));
    random_fill(&seed, p.x, n_tokens * k, -2.0f, 2.0f);
    random_fill(&seed, p.decoded, n_rows * k, -1.0f, 1.0f);
    for (int64_t r = 0; r < n_rows; r++) {
        unsigned char *row = p.w + (size_t)r * p.row_bytes;
        assert_int_equal(tsr_type_from_f32(type, p.decoded + r * k, row, k), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, p.decoded + r * k, k), TSR_OK);
    }
    problem_exact(&p);
    return p;
}

static void problem_destroy(problem *p)
{
    guarded_free(p->w, p->w_bytes);
    guarded_free(p->x, p->x_bytes);
    free(p->decoded);
    free(p->exact);
    free(p->magnitude);
    free(p->rounding);
}

static size_t output_bytes(const problem *p, bool partial, tsr_reduce_type reduce)
{
    return (size_t)(p->n_tokens * p->n_rows) * (partial ? tsr_reduce_bytes(reduce) : sizeof(float));
}

/* granule 0: a whole sum, else partial. */
static tsr_op problem_op(const problem *p, int64_t granule, tsr_reduce_type reduce, void *y)
{
    return (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = p->type,
                    .w = p->w,
                    .w_stride = p->row_bytes,
                    .n_rows = p->n_rows,
                    .k = p->k,
                    .x = p->x,
                    .x_stride = p->k,
                    .n_tokens = p->n_tokens,
                    .partial = granule > 0,
                    .reduce = reduce,
                    .granule = granule,
                    .limit = granule > 0 ? tsr_fixed_limit((p->k + granule - 1) / granule) : 0,
                    .y = y,
                    .y_stride = p->n_rows,
                    .x_bits = p->x_bits},
    };
}

static double output_at(const void *y, bool partial, tsr_reduce_type reduce, int64_t i)
{
    if (partial && reduce == TSR_REDUCE_EXACT)
        return (double)((const int64_t *)y)[i] / TSR_FIXED_ONE;
    return partial && reduce == TSR_REDUCE_BF16 ? tsr_bf16_to_f32(((const uint16_t *)y)[i])
                                                : ((const float *)y)[i];
}

/* Rounding: of plain weights a lane adds 16 products per segment, the tree adds 5 times, then segments are
 * added up, at most one rounding (two without a fused multiply-add) each; of quantized ones each block rounds
 * at most five times, and so do minima, which may be larger than the sum. Relative to the sum of magnitudes.
 * A lane of pairs adds two products per 32 elements. Tiles of bfloat16 add 16 products, then up to three sums
 * per 32 elements, to parts of activations. A bfloat16 has 8 bits of the sum. */
static void check_close(const problem *p, const tsr_kernel_set *set, int64_t granule, tsr_reduce_type reduce,
                        const void *y)
{
    const double n_granules = granule > 0 ? (double)((p->k + granule - 1) / granule) : 1;
    const double product_error = kernel_run_product_error(set, p->type, p->x_bits);
    const bool tiles = product_error > 0 && !kernel_run_is_pairs(set, p->type, p->x_bits);
    const double roundings =
        tiles ? 17 + 3 * (double)p->k / 32 + 4 * n_granules : 2 * 16 + 5 + (double)p->k / 16 + 1 + n_granules;
    for (int64_t i = 0; i < p->n_tokens * p->n_rows; i++) {
        const bool exact = granule > 0 && reduce == TSR_REDUCE_EXACT;
        const bool bf16 = granule > 0 && reduce == TSR_REDUCE_BF16;
        const double got = output_at(y, granule > 0, reduce, i);
        const double bound = (roundings * 0x1p-24 + product_error) * p->magnitude[i] + p->rounding[i] +
                             (exact ? n_granules * 0x1p-37 : 0) + (bf16 ? 0x1p-8 * fabs(p->exact[i]) : 0);
        if (!(fabs(got - p->exact[i]) <= bound))
            fail_msg(
                "%s %s x_bits %d rows %d k %d tokens %d granule %d output %d: %.9g, exact %.9g, bound %.3g",
                set->isa, tsr_type_name(p->type), p->x_bits, (int)p->n_rows, (int)p->k, (int)p->n_tokens,
                (int)granule, (int)i, got, p->exact[i], bound);
    }
}

/* Do all sets agree? The generic one multiplies and adds floats with two roundings where the target's
 * baseline has no fused multiply-add; tiles and pairs of bfloat16 have an order of their own. */
static bool same_bits_promised(const problem *p, const tsr_kernel_set *set)
{
    if (kernel_run_product_error(set, p->type, p->x_bits) > 0)
        return false;
#ifdef __FP_FAST_FMAF
    return true;
#else
    return strcmp(set->isa, "generic") != 0 || is_integer(p->type);
#endif
}

/* Run on every set: close to exact, the same with any number of threads,
 * and on every set that promises it. */
static void check_sets(const problem *p, int64_t granule, tsr_reduce_type reduce)
{
    const size_t bytes = output_bytes(p, granule > 0, reduce);
    void *y = guarded_alloc(bytes), *again = guarded_alloc(bytes), *first = NULL;
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_product_set(i)) != NULL; i++) {
        tsr_op op = problem_op(p, granule, reduce, y);
        assert_false(kernel_run(set, &op, 1));
        check_close(p, set, granule, reduce, y);
        for (int threads = 2; threads <= 5; threads += 3) {
            op.mul_mat.y = again;
            memset(again, 0xff, bytes);
            assert_false(kernel_run(set, &op, threads));
            assert_memory_equal(y, again, bytes);
        }
        if (!same_bits_promised(p, set))
            continue;
        if (first)
            assert_memory_equal(y, first, bytes);
        else
            memcpy(first = guarded_alloc(bytes), y, bytes);
    }
    guarded_free(y, bytes);
    guarded_free(again, bytes);
    guarded_free(first, bytes);
}

static void test_every_type_is_close_and_does_not_depend_on_threads(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k in blocks or elements, tokens */
                                        {1, 1, 1},  {5, 2, 1},   {9, 7, 2},
                                        {67, 3, 3}, {130, 5, 7}, {33, 6, 66}};
    for (int i = 0; i < N_KINDS; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            /* plain types: lengths that are no multiple of anything */
            const int64_t block = block_of(kind_at(i).type), k = shapes[s][1] * (block == 1 ? 157 : block);
            problem p = problem_create(kind_at(i), shapes[s][0], k, shapes[s][2], 1 + s);
            check_sets(&p, 0, TSR_REDUCE_F32);
            check_sets(&p, block == 1 ? 96 : block, TSR_REDUCE_EXACT);
            check_sets(&p, block == 1 ? 50 : 2 * block, TSR_REDUCE_EXACT);
            check_sets(&p, block == 1 ? 600 : 3 * block, TSR_REDUCE_F32);
            check_sets(&p, block == 1 ? 96 : block, TSR_REDUCE_BF16);
            check_sets(&p, 1 << 20, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
}

/* More tokens than kernels take at once, in sums that are carried from one part of K to the next. */
static void test_sums_of_long_prompts_are_carried_on(void **state)
{
    (void)state;
    static const kind some[] = {
        {TSR_TYPE_F16, 16}, {TSR_TYPE_BF16, 8}, {TSR_TYPE_Q8_0, 16}, {TSR_TYPE_Q6_K, 8}, {TSR_TYPE_Q4_K, 8}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (int64_t n_tokens = 261; n_tokens <= 581; n_tokens += 160) {
            problem p = problem_create(some[i], 67, 768, n_tokens, 31);
            check_sets(&p, 0, TSR_REDUCE_F32);
            check_sets(&p, 256, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
}

static void check_one_token_like_many(const problem *p, int64_t granule)
{
    const tsr_kernel_set *set;
    const size_t bytes = output_bytes(p, granule > 0, TSR_REDUCE_EXACT);
    const size_t token_bytes = bytes / (size_t)p->n_tokens;
    char *many = guarded_alloc(bytes), *one = guarded_alloc(token_bytes);
    for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
        tsr_op op = problem_op(p, granule, TSR_REDUCE_EXACT, many);
        assert_false(kernel_run(set, &op, 1));
        op.mul_mat.y = one;
        op.mul_mat.n_tokens = 1;
        for (int64_t t = 0; t < p->n_tokens; t++) {
            op.mul_mat.x = p->x + t * p->k;
            assert_false(kernel_run(set, &op, 1));
            assert_memory_equal(one, many + (size_t)t * token_bytes, token_bytes);
        }
    }
    guarded_free(many, bytes);
    guarded_free(one, token_bytes);
}

static void test_one_token_gives_the_bits_of_many(void **state)
{
    (void)state;
    static const int64_t many[] = {2, 3, 7, 9}; /* up to 8 walk like one, in fours or twos or alone */
    for (int i = 0; i < N_KINDS; i++)
        for (size_t m = 0; m < sizeof many / sizeof *many; m++)
            for (int64_t granule = 0; granule <= 768; granule += 256) {
                problem p = problem_create(kind_at(i), 37, 1280, many[m], 7);
                check_one_token_like_many(&p, granule);
                problem_destroy(&p);
            }
}

/* Rows of which two tokens fit into scratch, or one, or none. */
static void test_few_tokens_of_long_rows(void **state)
{
    (void)state;
    static const kind some[] = {{TSR_TYPE_F16, 16}, {TSR_TYPE_Q8_0, 16}, {TSR_TYPE_Q4_K, 8}};
    static const int64_t lengths[] = {36864, 37120, 73984}; /* 73728 elements fit */
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            problem p = problem_create(some[i], 17, lengths[l], 2, 7);
            check_one_token_like_many(&p, 256);
            problem_destroy(&p);
        }
}

/* Fixed-point totals of many tokens are kept in two halves where they fit (host/kernels/mul_mat/totals.h),
 * those of one token never are: sums from below half a unit up to the format's range, among them ties, in
 * rows and tokens that fill no vector, and more granules than the halves are for. */
static void test_totals_of_any_size_are_the_same(void **state)
{
    (void)state;
    static const kind some[] = {{TSR_TYPE_F32, 16}, {TSR_TYPE_Q8_0, 16}};
    static const int exponents[] = {-40, -26, -14, -4, 6, 10, 12, 13, 14, 15, 18};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
            problem p = problem_create(some[i], 37, 640, 9, 23);
            for (int64_t t = 1; t < p.n_tokens; t++) /* token 0 stays as it is, beside any others */
                for (int64_t k = 0; k < p.k; k++)
                    p.x[t * p.k + k] = ldexpf(p.x[t * p.k + k], exponents[e]);
            check_one_token_like_many(&p, 128);
            problem_destroy(&p);
        }
    problem p = problem_create((kind){TSR_TYPE_F32, 16}, 5, (int64_t)32 * 530, 3, 29);
    for (int64_t i = 0; i < p.n_rows * p.k; i++)
        ((float *)(void *)p.w)[i] = i % 32 == 0;
    for (int64_t i = 0; i < p.n_tokens * p.k; i++)
        p.x[i] = 0x1.fffffep-15f; /* as far from a multiple of 2^-13 as can be */
    check_one_token_like_many(&p, 32);
    problem_destroy(&p);
}

/* Set what scales a block's d: about 0.01 to 0.3 and either sign; of MXFP4 any power of two, the ones that
 * have no normal half among them. */
static void set_scales(const scale_fields *at, unsigned char *block, uint64_t which)
{
    static const uint8_t exponents[] = {0, 1, 2, 127, 200};
    const uint16_t d = (uint16_t)(0x2000 + which * 0x0123 % 0x1400 + which % 2 * 0x8000);
    const uint16_t min = (uint16_t)(0x3400 - which * 0x0456 % 0x1400 + which % 3 / 2 * 0x8000);
    if (at->type == TSR_TYPE_MXFP4) {
        block[at->d] = exponents[which % sizeof exponents];
        return;
    }
    memcpy(block + at->d, &d, sizeof d);
    if (at->min)
        memcpy(block + at->min, &min, sizeof min);
}

/* Weights of any bytes: all zeros, all ones, single bits, random ones. */
static void set_bytes(problem *p, const scale_fields *at, uint64_t seed)
{
    static const unsigned char patterns[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0xaa, 0x55};
    const size_t block_bytes = tsr_type_block_bytes(p->type);
    for (int64_t r = 0; r < p->n_rows; r++) {
        unsigned char *row = p->w + (size_t)r * p->row_bytes;
        for (size_t i = 0; i < p->row_bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            row[i] = r < 8 ? patterns[r] : (unsigned char)(seed >> 56);
        }
        for (size_t i = 0; i < p->row_bytes; i += block_bytes)
            set_scales(at, row + i, (uint64_t)r);
        assert_int_equal(tsr_type_to_f32(p->type, row, p->decoded + r * p->k, p->k), TSR_OK);
    }
}

/* Blocks as no encoder writes them, and activations that make the integer sums as large as they can get:
 * token t has the signs of row t's weights and one magnitude. */
static void test_extreme_quanta_do_not_overflow(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_FIELDS; i++) {
        const scale_fields *at = &fields[i % N_FIELDS];
        problem p = problem_create((kind){at->type, i < N_FIELDS ? 16 : 8}, 20, 512, 20, 13);
        set_bytes(&p, at, 17);
        for (int64_t t = 0; t < p.n_tokens; t++)
            for (int64_t k = 0; k < p.k; k++)
                p.x[t * p.k + k] = p.decoded[t * p.k + k] < 0 ? -3.0f : 3.0f;
        problem_exact(&p);
        check_sets(&p, 0, TSR_REDUCE_F32);
        problem_destroy(&p);
    }
}

/* Some sets encode several blocks of activations together, yet a block's scale is its own: blocks of zeros,
 * of what is too small for a scale, and of all sizes beside each other. */
static void test_blocks_of_activations_have_scales_of_their_own(void **state)
{
    (void)state;
    static const float sizes[] = {1.0f, 0.0f, 0x1p-120f, 0x1p+30f, -0x1p-99f, 0x1p-30f, 3.0f};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < 2 * N_FIELDS; i++) {
        const scale_fields *at = &fields[i % N_FIELDS];
        problem p = problem_create((kind){at->type, i < N_FIELDS ? 16 : 8}, 20, 1280, 8, 29);
        for (int64_t t = 0; t < p.n_tokens; t++)
            for (int64_t k = 0; k < p.k; k++)
                p.x[t * p.k + k] *= sizes[(k / 32 + t) % N_SIZES];
        problem_exact(&p);
        check_sets(&p, 0, TSR_REDUCE_F32);
        problem_destroy(&p);
    }
}

static void check_nan(const problem *p, const tsr_kernel_set *set, int64_t row, int64_t token)
{
    float y[7 * 21];
    assert_true((size_t)(p->n_tokens * p->n_rows) <= sizeof y / sizeof *y);
    tsr_op op = problem_op(p, 0, TSR_REDUCE_F32, y);
    kernel_run(set, &op, 1);
    for (int64_t t = 0; t < p->n_tokens; t++)
        for (int64_t r = 0; r < p->n_rows; r++)
            assert_int_equal(isnan(y[t * p->n_rows + r]) != 0, r == row || t == token);
}

/* One block whose scale is NaN spoils its row, one activation its token, and nothing else. */
static void test_a_nan_spoils_its_row_or_token_alone(void **state)
{
    (void)state;
    const uint8_t nan_bytes[2] = {0xff, 0x7e}; /* as F16, and the first as MXFP4's exponent */
    const tsr_kernel_set *set;
    for (int i = 0; i < 2 * N_FIELDS; i++)
        for (int64_t n_tokens = 1; n_tokens <= 3; n_tokens += 2) {
            const scale_fields *at = &fields[i % N_FIELDS];
            problem p = problem_create((kind){at->type, i < N_FIELDS ? 16 : 8}, 21, 512, n_tokens, 19);
            p.x[(n_tokens - 1) * p.k + 300] = NAN;
            for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
                check_nan(&p, set, -1, n_tokens - 1);
            p.x[(n_tokens - 1) * p.k + 300] = INFINITY;
            for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
                check_nan(&p, set, -1, n_tokens - 1);
            p.x[(n_tokens - 1) * p.k + 300] = 1.0f;
            unsigned char *last = p.w + 18 * p.row_bytes - tsr_type_block_bytes(p.type); /* of row 17 */
            memcpy(last + at->d, nan_bytes, p.type == TSR_TYPE_MXFP4 ? 1 : 2);
            for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
                check_nan(&p, set, 17, -1);
            problem_destroy(&p);
        }
}

/* Plain weights have no blocks to spoil; those that become something else keep a NaN, too. */
static void test_a_nan_spoils_its_row_or_token_of_bf16_alone(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int x_bits = 8; x_bits <= 16; x_bits += 8)
        for (int64_t n_tokens = 1; n_tokens <= 7; n_tokens += 3) {
            problem p = problem_create((kind){TSR_TYPE_BF16, x_bits}, 21, 530, n_tokens, 19);
            for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
                float *x = &p.x[(n_tokens - 1) * p.k + 529], before = *x;
                *x = NAN;
                check_nan(&p, set, -1, n_tokens - 1);
                *x = before;
                uint16_t *w = (uint16_t *)(void *)(p.w + 18 * p.row_bytes) - 1, was = *w;
                *w = 0x7fc0;
                check_nan(&p, set, 17, -1);
                *w = was;
            }
            problem_destroy(&p);
        }
}

static void test_row_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int i = 0; i < N_KINDS; i++) {
        problem p = problem_create(kind_at(i), 53, 512, 4, 3);
        const size_t bytes = output_bytes(&p, false, TSR_REDUCE_F32);
        float *whole = guarded_alloc(bytes), *parts = guarded_alloc(bytes);
        for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
            tsr_op op = problem_op(&p, 0, TSR_REDUCE_F32, whole);
            kernel_run(set, &op, 2);
            for (int64_t begin = 0, n = 1; begin < p.n_rows; begin += n, n += 3) {
                op.mul_mat.w = p.w + (size_t)begin * p.row_bytes;
                op.mul_mat.n_rows = n < p.n_rows - begin ? n : p.n_rows - begin;
                op.mul_mat.y = parts + begin;
                kernel_run(set, &op, 1);
            }
            assert_memory_equal(parts, whole, bytes);
        }
        guarded_free(whole, bytes);
        guarded_free(parts, bytes);
        problem_destroy(&p);
    }
}

/* Column shards are views: the same rows, a later first element. Their int64 sums add up to the whole's. */
static void test_column_shards_add_up_to_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { GRANULE = 256, GRANULES = 7, ROWS = 21, TOKENS = 3, N = ROWS * TOKENS };
    const tsr_kernel_set *set;
    for (int i = 0; i < N_KINDS; i++) {
        problem p = problem_create(kind_at(i), ROWS, GRANULE * GRANULES, TOKENS, 5);
        int64_t whole[N], part[N], sum[N];
        for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
            tsr_op op = problem_op(&p, GRANULE, TSR_REDUCE_EXACT, whole);
            assert_false(kernel_run(set, &op, 1));
            static const int cuts[] = {0, 1, 1, 4, GRANULES};
            memset(sum, 0, sizeof sum);
            op.mul_mat.y = part;
            for (int c = 0; c < 4; c++) {
                op.mul_mat.w = p.w + tsr_type_row_bytes(p.type, cuts[c] * GRANULE);
                op.mul_mat.x = p.x + cuts[c] * GRANULE;
                op.mul_mat.k = (cuts[c + 1] - cuts[c]) * GRANULE;
                assert_false(kernel_run(set, &op, 2));
                for (int n = 0; n < N; n++)
                    sum[n] += part[n];
            }
            assert_memory_equal(sum, whole, sizeof whole);
        }
        problem_destroy(&p);
    }
}

static void test_a_partial_out_of_range_raises_the_fault(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int64_t tokens = 1; tokens <= 2; tokens++) {
        problem p = problem_create((kind){TSR_TYPE_F32, 16}, 6, 256, tokens, 9);
        int64_t y[12];
        const float bad[] = {NAN, INFINITY, 1e30f};
        for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++)
            for (int b = 0; b < 3; b++) {
                tsr_op op = problem_op(&p, 64, TSR_REDUCE_EXACT, y);
                assert_false(kernel_run(set, &op, 1));
                float *element = &p.x[(tokens - 1) * p.k + 200], before = *element;
                *element = bad[b];
                assert_true(kernel_run(set, &op, 1));
                *element = before;
                op.mul_mat.limit = 1e-3f; /* smaller than the partials: rejected too */
                assert_true(kernel_run(set, &op, 1));
            }
        problem_destroy(&p);
    }
}

/* A strided view with strided activations and results; what lies between stays untouched. */
static void test_strided_products_leave_gaps_untouched(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    problem p = problem_create((kind){TSR_TYPE_F16, 16}, 10, 160, 5, 11);
    float dense[50], strided[5][13];
    float *x = calloc(5 * 200, sizeof(float));
    unsigned char *w = calloc(10, 1000);
    for (int t = 0; t < 5; t++)
        memcpy(x + t * 200, p.x + t * p.k, (size_t)p.k * sizeof(float));
    for (int r = 0; r < 10; r++)
        memcpy(w + r * 1000, p.w + (size_t)r * p.row_bytes, p.row_bytes);
    for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
        tsr_op op = problem_op(&p, 0, TSR_REDUCE_F32, dense);
        kernel_run(set, &op, 1);
        memset(strided, 0, sizeof strided);
        op.mul_mat.w = w, op.mul_mat.w_stride = 1000;
        op.mul_mat.x = x, op.mul_mat.x_stride = 200;
        op.mul_mat.y = strided, op.mul_mat.y_stride = 13;
        kernel_run(set, &op, 1);
        for (int t = 0; t < 5; t++) {
            assert_memory_equal(strided[t], dense + t * 10, 10 * sizeof(float));
            for (int i = 10; i < 13; i++)
                assert_true(strided[t][i] == 0.0f);
        }
    }
    free(x);
    free(w);
    problem_destroy(&p);
}

static void test_an_empty_sum_is_zero(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_product_set(s)) != NULL; s++) {
        float y[4] = {1, 2, 3, 4};
        const tsr_op op = {
            .kind = TSR_OP_MUL_MAT,
            .mul_mat = {.type = TSR_TYPE_F32, .n_rows = 2, .n_tokens = 2, .y = y, .y_stride = 2}};
        kernel_run(set, &op, 1);
        for (int i = 0; i < 4; i++)
            assert_true(y[i] == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_is_close_and_does_not_depend_on_threads),
        cmocka_unit_test(test_sums_of_long_prompts_are_carried_on),
        cmocka_unit_test(test_one_token_gives_the_bits_of_many),
        cmocka_unit_test(test_few_tokens_of_long_rows),
        cmocka_unit_test(test_totals_of_any_size_are_the_same),
        cmocka_unit_test(test_extreme_quanta_do_not_overflow),
        cmocka_unit_test(test_blocks_of_activations_have_scales_of_their_own),
        cmocka_unit_test(test_a_nan_spoils_its_row_or_token_alone),
        cmocka_unit_test(test_a_nan_spoils_its_row_or_token_of_bf16_alone),
        cmocka_unit_test(test_row_shards_give_the_bits_of_the_whole),
        cmocka_unit_test(test_column_shards_add_up_to_the_bits_of_the_whole),
        cmocka_unit_test(test_a_partial_out_of_range_raises_the_fault),
        cmocka_unit_test(test_strided_products_leave_gaps_untouched),
        cmocka_unit_test(test_an_empty_sum_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
