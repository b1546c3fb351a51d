/* Products with F16 and BF16 weights by AMX tiles, on emulated ones: the instruction against sums made by
 * hand, and what its kernels have to keep to besides what test_host_mul_mat.c asks of every instruction set:
 * numbers that are none, numbers that tiles take for zero, both ways to a sum, and fused products. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/amx_emulated.h"
#include "support/kernel_run.h"

#undef NDEBUG /* tiles are checked against their shapes */
#define TSR_AMX_EMULATED
#include "host/kernels/vec/amx.h"

static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_BF16};
enum { N_TYPES = sizeof types / sizeof *types };

/* The kernels on emulated tiles and, where the processor has tiles, on its own. NULL after the last. */
static const tsr_kernel_set *tile_set(int i)
{
    const tsr_kernel_set *sets[] = {amx_emulated(), tsr_kernel_set_select("amx"), NULL};
    if (!sets[0]) {
        print_message("skipped: needs AVX-512 VNNI, and a compiler that knows AMX\n");
        skip();
    }
    return sets[i];
}

/* -- the instruction -- */

enum { A = 4, B = 6 };

/* D = d + A * B of one row and one column: n pairs each, as floats that bfloat16 has exactly. */
static float dot(float d, const float *a, const float *b, int n_pairs)
{
    amx_tiles tiles = {.config = {.palette = 1}};
    uint16_t row[32], column[16][2];
    tiles.config.rows[0] = tiles.config.rows[A] = 1;
    tiles.config.row_bytes[0] = tiles.config.row_bytes[B] = 4;
    tiles.config.rows[B] = (uint8_t)n_pairs, tiles.config.row_bytes[A] = (uint16_t)(4 * n_pairs);
    for (int i = 0; i < 2 * n_pairs; i++) {
        row[i] = tsr_f32_to_bf16(a[i]);
        column[i / 2][i % 2] = tsr_f32_to_bf16(b[i]);
        assert_true(tsr_bf16_to_f32(row[i]) == a[i] && tsr_bf16_to_f32(column[i / 2][i % 2]) == b[i]);
    }
    AMX_CONFIGURE(&tiles);
    AMX_LOAD(&tiles, 0, &d, 4);
    AMX_LOAD(&tiles, A, row, 64);
    AMX_LOAD(&tiles, B, column, 4);
    AMX_DOT_BF16(&tiles, 0, A, B);
    AMX_STORE(&tiles, 0, &d, 4);
    AMX_RELEASE(&tiles);
    return d;
}

static void the_instruction_adds_in_the_order_of_the_manual(void **state)
{
    (void)state;
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const float half_step = 0x1p-24f; /* of a float at 1: a tie, to even */
    /* Even and odd elements are sums of their own: 1 does not swallow what stands beside it. */
    assert_true(dot(0, (float[]){1, half_step, 0, half_step}, ones, 2) == 1 + 0x1p-23f);
    /* Inside of one, in order: 1 comes first and swallows two halves; if it comes last, it does not. */
    assert_true(dot(0, (float[]){1, 0, half_step, 0, half_step, 0}, ones, 3) == 1);
    assert_true(dot(0, (float[]){half_step, 0, half_step, 0, 1, 0}, ones, 3) == 1 + 0x1p-23f);
    /* What was there is added last, to both sums at once. */
    assert_true(dot(1, (float[]){half_step, half_step}, ones, 1) == 1 + 0x1p-23f);
    assert_true(dot(1, (float[]){half_step, 0}, ones, 1) == 1);
    /* The two sums are rounded before that: 1 + 2^-24 is 1, and with 2^-23 instead of the tie it stays. */
    assert_true(dot(-1, (float[]){1, half_step}, ones, 1) == 0);
    assert_true(dot(-1, (float[]){1, 2 * half_step}, ones, 1) == 2 * half_step);
    /* A product is whole when it is added: neither an infinity nor a zero before. */
    assert_true(dot(0, (float[]){-0x1p127f, 0, 0x1p127f, 0}, (float[]){1, 0, 2, 0}, 2) == 0x1p127f);
    assert_true(dot(0, (float[]){0x1p-126f, 0, 0x1p-100f, 0}, (float[]){1, 0, 0x1p-30f, 0}, 2) ==
                0x1p-126f + 0x1p-130f);
}

static void the_instruction_takes_subnormal_numbers_for_zero(void **state)
{
    (void)state;
    static const float ones[2] = {1, 1};
    const float least = 0x1p-126f;
    assert_true(dot(0, (float[]){least, 0}, ones, 1) == least);
    assert_true(dot(0, (float[]){least / 2, 0}, (float[]){4, 0}, 1) == 0); /* going in */
    assert_true(dot(0, (float[]){4, 0}, (float[]){least / 2, 0}, 1) == 0);
    assert_true(dot(0, (float[]){least, 0}, (float[]){0.5f, 0}, 1) == 0); /* coming out */
    assert_true(dot(least / 2, (float[]){least, 0}, ones, 1) == least);   /* what was there */
    assert_true(dot(-1.5f * least, (float[]){least, 0}, ones, 1) == 0);   /* the last sum */
    assert_true(dot(0, (float[]){1.5f * least, -least}, ones, 1) == 0);   /* the one before */
    assert_true(isnan(dot(0, (float[]){least / 2, 0}, (float[]){INFINITY, 0}, 1)));
}

/* -- the kernels -- */

/* A matrix of a type at the end of a mapping, and activations. */
typedef struct problem {
    tsr_type type;
    int64_t n_rows, k, n_tokens;
    uint16_t *w;
    float *x;
} problem;

static uint16_t encode(tsr_type type, float value)
{
    return type == TSR_TYPE_F16 ? tsr_f32_to_f16(value) : tsr_f32_to_bf16(value);
}

static double decode(tsr_type type, uint16_t bits)
{
    return type == TSR_TYPE_F16 ? tsr_f16_to_f32(bits) : tsr_bf16_to_f32(bits);
}

static problem problem_create(tsr_type type, int64_t n_rows, int64_t k, int64_t n_tokens, uint64_t seed)
{
    problem p = {type,
                 n_rows,
                 k,
                 n_tokens,
                 guarded_alloc((size_t)(n_rows * k) * sizeof(uint16_t)),
                 guarded_alloc((size_t)(n_tokens * k) * sizeof(float))};
    random_fill(&seed, p.x, n_tokens * k, -2, 2);
    for (int64_t i = 0; i < n_rows * k; i++)
        p.w[i] = encode(type, random_float(&seed, -1, 1));
    return p;
}

static void problem_destroy(problem *p)
{
    guarded_free(p->w, (size_t)(p->n_rows * p->k) * sizeof(uint16_t));
    guarded_free(p->x, (size_t)(p->n_tokens * p->k) * sizeof(float));
}

static tsr_op problem_op(const problem *p, void *y)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .mul_mat = {.type = p->type,
                                .w = p->w,
                                .w_stride = (size_t)p->k * sizeof(uint16_t),
                                .n_rows = p->n_rows,
                                .k = p->k,
                                .x = p->x,
                                .x_stride = p->k,
                                .n_tokens = p->n_tokens,
                                .y = y,
                                .y_stride = p->n_rows}};
}

static float *outputs(const problem *p)
{
    return guarded_alloc((size_t)(p->n_tokens * p->n_rows) * sizeof(float));
}

static void outputs_free(const problem *p, float *y)
{
    guarded_free(y, (size_t)(p->n_tokens * p->n_rows) * sizeof(float));
}

/* Up to a tile of tokens walk along the weights if they fit into scratch, others do not; more than 256 come
 * in several blocks. Each token has the bits that it has alone, and in exact partial sums as well. */
static void check_alone(const tsr_kernel_set *set, const problem *p, int64_t granule)
{
    const size_t elem = granule ? sizeof(int64_t) : sizeof(float), row = (size_t)p->n_rows * elem;
    const size_t bytes = (size_t)p->n_tokens * row;
    char *many = guarded_alloc(bytes), *one = guarded_alloc(row);
    tsr_op op = problem_op(p, many);
    op.mul_mat.partial = granule > 0;
    op.mul_mat.granule = granule;
    op.mul_mat.limit = granule ? tsr_fixed_limit((p->k + granule - 1) / granule) : 0;
    assert_false(kernel_run(set, &op, 2));
    op.mul_mat.n_tokens = 1, op.mul_mat.y = one;
    for (int64_t t = 0; t < p->n_tokens; t++) {
        op.mul_mat.x = p->x + t * p->k;
        assert_false(kernel_run(set, &op, 1));
        assert_memory_equal(one, many + (size_t)t * row, row);
    }
    guarded_free(many, bytes);
    guarded_free(one, row);
}

static void one_token_gives_the_bits_of_many_either_way(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k, tokens */
                                        {37, 320, 2},  {16, 333, 16},  {33, 333, 17},
                                        {64, 96, 300}, {37, 9000, 16}, {1, 4100, 33}};
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (int i = 0; i < N_TYPES; i++)
            for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
                problem p = problem_create(types[i], shapes[j][0], shapes[j][1], shapes[j][2], 3 + j);
                check_alone(set, &p, 0);
                check_alone(set, &p, 96);
                check_alone(set, &p, 1000);
                for (int64_t n = 0; n < p.n_tokens * p.k; n++) /* too large for totals of 32 bits */
                    p.x[n] = ldexpf(p.x[n], (int)(n / p.k % 12));
                check_alone(set, &p, 96);
                problem_destroy(&p);
            }
}

/* Weights that pick one activation each show what becomes of it: 17 bits of it, and nothing where all that
 * is left is below 2^-126. */
static void activations_keep_seventeen_bits(void **state)
{
    (void)state;
    enum { K = 64 };
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (int i = 0; i < N_TYPES; i++)
            for (int64_t n_tokens = 1; n_tokens <= 17; n_tokens += 16) {
                problem p = problem_create(types[i], K, K, n_tokens, 7);
                float *y = outputs(&p), scale[] = {1, 0x1p-112f, 0x1p-140f};
                for (int64_t r = 0; r < K * K; r++)
                    p.w[r] = encode(p.type, r / K == r % K);
                for (int64_t j = 0; j < n_tokens * K; j++)
                    p.x[j] *= scale[j % 3];
                const tsr_op op = problem_op(&p, y);
                kernel_run(set, &op, 1);
                for (int64_t j = 0; j < n_tokens * K; j++)
                    assert_true(fabs((double)y[j] - (double)p.x[j]) <= 0x1p-17 * fabs(p.x[j]) + 0x1p-126);
                outputs_free(&p, y);
                problem_destroy(&p);
            }
}

/* Run a product that holds something strange in row `row` (or token `token`; -1: none) beside a clean run: it
 * must be there what it is with AVX-512 vectors, in kind, and nowhere else. */
static void check_strange(const tsr_kernel_set *set, const problem *p, const float *clean, int64_t row,
                          int64_t token)
{
    const tsr_kernel_set *vectors = tsr_kernel_set_select("avx512vnni");
    float *y = outputs(p), *expected = outputs(p);
    tsr_op op = problem_op(p, y);
    kernel_run(set, &op, 1);
    op.mul_mat.y = expected;
    kernel_run(vectors, &op, 1);
    for (int64_t t = 0; t < p->n_tokens; t++)
        for (int64_t r = 0; r < p->n_rows; r++) {
            const int64_t i = t * p->n_rows + r;
            if (r != row && t != token)
                assert_memory_equal(&y[i], &clean[i], sizeof *y);
            else if (isnan(expected[i]))
                assert_true(isnan(y[i]));
            else if (isinf(expected[i]))
                assert_true(y[i] == expected[i]);
            else /* either of their bounds */
                assert_true(fabs((double)y[i] - (double)expected[i]) <= 0x1p-12 * FLT_MAX &&
                            fabs((double)y[i] / (double)expected[i] - 1) < 0x1p-10);
        }
    outputs_free(p, y);
    outputs_free(p, expected);
}

/* An activation or weight of any bits, in the last of odd chunks or elsewhere. */
static void check_strange_numbers(const tsr_kernel_set *set, tsr_type type, int64_t n_tokens)
{
    static const uint32_t x_bits[] = {0x7fc00000, 0x7f800001, 0x7fffffff, 0xffffffff, 0x7f800000,
                                      0xff800000, 0x7f7fffff, 0xff7fffff, 0x7f7f8000};
    static const uint16_t f16_bits[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7fff, 0xffff};
    static const uint16_t bf16_bits[] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x7fff, 0xffff};
    static const int64_t places[] = {0, 31, 40, 299};
    const int64_t row = 18, token = n_tokens - 1;
    problem p = problem_create(type, 35, 300, n_tokens, 11);
    float *clean = outputs(&p);
    const tsr_op op = problem_op(&p, clean);
    kernel_run(set, &op, 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        float *x = &p.x[token * p.k + places[i]], x_before = *x;
        uint16_t *w = &p.w[row * p.k + places[i]], w_before = *w;
        for (size_t j = 0; j < sizeof x_bits / sizeof *x_bits; j++) {
            memcpy(x, &x_bits[j], sizeof *x);
            check_strange(set, &p, clean, -1, token);
        }
        *x = x_before;
        for (size_t j = 0; j < sizeof f16_bits / sizeof *f16_bits; j++) {
            *w = type == TSR_TYPE_F16 ? f16_bits[j] : bf16_bits[j];
            check_strange(set, &p, clean, row, -1);
        }
        *w = w_before;
    }
    outputs_free(&p, clean);
    problem_destroy(&p);
}

static void infinities_and_nans_give_what_vectors_give(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (int i = 0; i < N_TYPES; i++) {
            check_strange_numbers(set, types[i], 1);
            check_strange_numbers(set, types[i], 3);
            check_strange_numbers(set, types[i], 21);
        }
}

/* Every F16 weight there is, but for infinities and NaNs, times one. */
static void every_finite_half_is_multiplied_as_it_is(void **state)
{
    (void)state;
    enum { ROWS = 0x7c00, K = 33 };
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (int64_t n_tokens = 1; n_tokens <= 17; n_tokens += 16) {
            problem p = problem_create(TSR_TYPE_F16, ROWS, K, n_tokens, 1);
            float *y = outputs(&p);
            memset(p.w, 0, ROWS * K * sizeof *p.w);
            for (int64_t r = 0; r < ROWS; r++)
                p.w[r * K + r % K] = (uint16_t)(r + r % 2 * 0x8000);
            for (int64_t i = 0; i < n_tokens * K; i++)
                p.x[i] = 1;
            const tsr_op op = problem_op(&p, y);
            kernel_run(set, &op, 2);
            for (int64_t i = 0; i < n_tokens * ROWS; i++)
                assert_true((double)y[i] == decode(p.type, p.w[i % ROWS * K + i % ROWS % K]));
            outputs_free(&p, y);
            problem_destroy(&p);
        }
}

/* -- fused -- */

typedef struct env {
    tsr_kernel_env env;
    tsr_host_shares shares;
    _Atomic int fault;
} env;

static void env_create(env *e, const tsr_kernel_set *set)
{
    memset(e, 0, sizeof *e);
    e->env = (tsr_kernel_env){.n_threads = 1, .shares = &e->shares, .range_fault = &e->fault};
    e->env.scratch = aligned_alloc(64, (set->scratch_bytes + 63) / 64 * 64);
    assert_non_null(e->env.scratch);
    memset(e->env.scratch, 0xff, set->scratch_bytes);
}

static void gate_and_up_together_have_the_bits_of_each(void **state)
{
    (void)state;
    enum { ROWS = 1100 }; /* more than a piece */
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (int i = 0; i < N_TYPES; i++) {
            problem gate = problem_create(types[i], ROWS, 290, 1, 1),
                    up = problem_create(types[i], ROWS, 290, 1, 2);
            float a[ROWS], b[ROWS], y[ROWS], expected[ROWS];
            const tsr_op gate_op = problem_op(&gate, a);
            tsr_op up_op = problem_op(&up, b);
            up_op.mul_mat.x = gate.x;
            const tsr_op glu = {.kind = TSR_OP_GLU, .glu = {TSR_GLU_SILU, a, b, y, ROWS}};
            env e;
            env_create(&e, set);
            set->products_glu(&gate_op, &up_op, &glu, &e.env);
            free(e.env.scratch);
            memcpy(expected, y, sizeof y);
            memset(a, 0xff, sizeof a), memset(b, 0xff, sizeof b), memset(y, 0xff, sizeof y);
            kernel_run(set, &gate_op, 3);
            kernel_run(set, &up_op, 2);
            kernel_run(set, &glu, 1);
            assert_memory_equal(y, expected, sizeof y);
            problem_destroy(&gate);
            problem_destroy(&up);
        }
}

/* What comes after a piece finds it finished, and finds each once. */
typedef struct seen {
    const float *y;
    int64_t n_rows;
    unsigned char *at; /* [tokens][n_rows] */
} seen;

static void see(const void *what, int64_t row, int64_t row_end, int64_t token, int64_t token_end)
{
    const seen *s = what;
    for (int64_t t = token; t < token_end; t++)
        for (int64_t r = row; r < row_end; r++) {
            assert_false(isnan(s->y[t * s->n_rows + r]));
            assert_int_equal(s->at[t * s->n_rows + r]++, 0);
        }
}

static void an_epilogue_is_given_every_output_once(void **state)
{
    (void)state;
    static const int64_t n_tokens[] = {1, 16, 40, 290};
    const tsr_kernel_set *set;
    for (int s = 0; (set = tile_set(s)) != NULL; s++)
        for (size_t i = 0; i < sizeof n_tokens / sizeof *n_tokens; i++) {
            problem p = problem_create(TSR_TYPE_BF16, 150, 70, n_tokens[i], 5);
            const size_t n = (size_t)(p.n_rows * p.n_tokens);
            float *y = outputs(&p);
            seen saw = {y, p.n_rows, calloc(n, 1)};
            const tsr_kernel_epilogue epilogue = {see, &saw};
            const tsr_op op = problem_op(&p, y);
            env e;
            env_create(&e, set);
            e.env.epilogue = &epilogue;
            set->run[TSR_OP_MUL_MAT](&op, &e.env);
            for (size_t j = 0; j < n; j++)
                assert_int_equal(saw.at[j], 1);
            free(e.env.scratch);
            free(saw.at);
            outputs_free(&p, y);
            problem_destroy(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_instruction_adds_in_the_order_of_the_manual),
        cmocka_unit_test(the_instruction_takes_subnormal_numbers_for_zero),
        cmocka_unit_test(one_token_gives_the_bits_of_many_either_way),
        cmocka_unit_test(activations_keep_seventeen_bits),
        cmocka_unit_test(infinities_and_nans_give_what_vectors_give),
        cmocka_unit_test(every_finite_half_is_multiplied_as_it_is),
        cmocka_unit_test(gate_and_up_together_have_the_bits_of_each),
        cmocka_unit_test(an_epilogue_is_given_every_output_once),
    };
    return cmocka_run_group_tests_name("products by tiles of bfloat16", tests, NULL, NULL);
}
