/* mul_mat on the host, values at the ends of their ranges: totals of any size, quanta and scales as no
 * encoder writes them, NaN and infinity, and partials that leave the range of the exact reduction. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/quant/quant.h"
#include "support/mul_mat_case.h"

/* Where a block has its scales that are floats of their own: F16, or the exponent of MXFP4. */
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
    {TSR_TYPE_IQ2_XXS, offsetof(tsr_block_iq2_xxs, d), 0},
    {TSR_TYPE_IQ2_XS, offsetof(tsr_block_iq2_xs, d), 0},
    {TSR_TYPE_IQ2_S, offsetof(tsr_block_iq2_s, d), 0},
    {TSR_TYPE_IQ3_XXS, offsetof(tsr_block_iq3_xxs, d), 0},
    {TSR_TYPE_IQ3_S, offsetof(tsr_block_iq3_s, d), 0},
    {TSR_TYPE_IQ1_S, offsetof(tsr_block_iq1_s, d), 0},
    {TSR_TYPE_TQ1_0, offsetof(tsr_block_tq1_0, d), 0},
    {TSR_TYPE_TQ2_0, offsetof(tsr_block_tq2_0, d), 0},
    {TSR_TYPE_IQ1_M, offsetof(tsr_block_iq1_m, scales), 0},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Fixed-point totals of many tokens are kept in two halves where they fit (host/kernels/mul_mat/totals.h),
 * those of one token never are: sums from below half a unit up to the format's range, among them ties, in
 * rows and tokens that fill no vector, and more granules than the halves are for. */
static void totals_of_any_size_are_the_same(void **state)
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
            problem_check_tokens(&p, 128);
            problem_destroy(&p);
        }
    problem p = problem_create((kind){TSR_TYPE_F32, 16}, 5, (int64_t)32 * 530, 3, 29);
    for (int64_t i = 0; i < p.n_rows * p.k; i++)
        ((float *)(void *)p.w)[i] = i % 32 == 0;
    for (int64_t i = 0; i < p.n_tokens * p.k; i++)
        p.x[i] = 0x1.fffffep-15f; /* as far from a multiple of 2^-13 as can be */
    problem_check_tokens(&p, 32);
    problem_destroy(&p);
}

/* Set a block's d; IQ1_M has four bits of d on top of each word of scales. */
static void set_d(const scale_fields *at, unsigned char *block, uint16_t d)
{
    for (size_t j = 0; j < 4 && at->type == TSR_TYPE_IQ1_M; j++) {
        unsigned char *top = block + at->d + 2 * j + 1;
        *top = (unsigned char)((*top & 15) | (d >> 4 * j & 15) << 4);
    }
    if (at->type != TSR_TYPE_IQ1_M)
        memcpy(block + at->d, &d, sizeof d);
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
    set_d(at, block, d);
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
static void extreme_quanta_do_not_overflow(void **state)
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
        problem_check_sets(&p, 0, TSR_REDUCE_F32);
        problem_destroy(&p);
    }
}

/* Some sets encode several blocks of activations together, yet a block's scale is its own: blocks of zeros,
 * of what is too small for a scale, and of all sizes beside each other. */
static void blocks_of_activations_have_scales_of_their_own(void **state)
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
        problem_check_sets(&p, 0, TSR_REDUCE_F32);
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
static void a_nan_spoils_its_row_or_token_alone(void **state)
{
    (void)state;
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
            if (p.type == TSR_TYPE_MXFP4)
                last[at->d] = 255;
            else
                set_d(at, last, 0x7eff);
            for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
                check_nan(&p, set, 17, -1);
            problem_destroy(&p);
        }
}

/* Plain weights have no blocks to spoil; those that become something else keep a NaN, too. */
static void a_nan_spoils_its_row_or_token_of_bf16_alone(void **state)
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

static void a_partial_out_of_range_raises_the_fault(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_of_any_size_are_the_same),
        cmocka_unit_test(extreme_quanta_do_not_overflow),
        cmocka_unit_test(blocks_of_activations_have_scales_of_their_own),
        cmocka_unit_test(a_nan_spoils_its_row_or_token_alone),
        cmocka_unit_test(a_nan_spoils_its_row_or_token_of_bf16_alone),
        cmocka_unit_test(a_partial_out_of_range_raises_the_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
