/* The host's smaller kernels on every instruction set: against double precision with a stated bound, in place
 * where the contract allows it, with any number of threads, and up to the last byte of a mapping. mul_mat and
 * attention have test programs of their own. */
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
#include "support/kernel_exact.h"
#include "support/kernel_run.h"
#include "support/weight_types.h"

enum { MAX_THREADS = 5 };

static float *floats(int64_t n)
{
    return guarded_alloc((size_t)n * sizeof(float));
}

static void floats_free(float *x, int64_t n)
{
    guarded_free(x, (size_t)n * sizeof(float));
}

static float *random_floats(int64_t n, float low, float high, uint64_t seed)
{
    float *x = floats(n);
    random_fill(&seed, x, n, low, high);
    return x;
}

/* -- selection -- */

/* All but collectives, and the copy from pinned memory, of which hosts have none. */
static void every_set_has_all_ops_and_the_best_is_selected(void **state)
{
    (void)state;
    assert_non_null(tsr_kernel_set_select(NULL));
    assert_string_equal(tsr_kernel_set_select("generic")->isa, "generic");
    assert_null(tsr_kernel_set_select("mmx"));
    const tsr_kernel_set *set, *last = NULL;
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++) {
        last = set;
        for (int kind = TSR_OP_NONE + 1; kind < TSR_OP_COUNT; kind++)
            assert_int_equal(set->run[kind] == NULL, kind >= TSR_OP_ALL_REDUCE || kind == TSR_OP_INPUTS);
    }
    assert_ptr_equal(tsr_kernel_set_select(NULL), last);
}

/* The look at a processor's tiles finds nothing wrong with tiles that do what the manual says. */
static void tiles_agree_with_plain_arithmetic(void **state)
{
    (void)state;
    if (!amx_emulated()) {
        print_message("skipped: needs AVX-512 VNNI, and a compiler that knows AMX\n");
        skip();
    }
    assert_true(amx_emulated_agrees());
}

/* -- get_rows -- */

static void check_get_rows(const tsr_kernel_set *set, tsr_type type, int64_t n_cols)
{
    enum { TABLE = 9, IDS = 5, BEGIN = 3, END = 8 };
    const int32_t ids[IDS] = {7, 0, 3, 8, 7}; /* rows 3..7 are here */
    const size_t row_bytes = tsr_type_row_bytes(type, n_cols), bytes = row_bytes * (END - BEGIN);
    float *values = random_floats(n_cols * TABLE, -1, 1, 5), *y = floats(IDS * n_cols);
    unsigned char *table = guarded_alloc(bytes);
    int64_t *fixed = malloc((size_t)(IDS * n_cols) * sizeof(int64_t));
    for (int r = BEGIN; r < END; r++) {
        unsigned char *row = table + (size_t)(r - BEGIN) * row_bytes;
        assert_int_equal(tsr_type_from_f32(type, values + r * n_cols, row, n_cols), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, values + r * n_cols, n_cols), TSR_OK);
    }
    tsr_op op = {.kind = TSR_OP_GET_ROWS,
                 .get_rows = {.type = type,
                              .table = table,
                              .table_stride = row_bytes,
                              .row_begin = BEGIN,
                              .row_end = END,
                              .n_cols = n_cols,
                              .ids = ids,
                              .n_ids = IDS,
                              .limit = tsr_fixed_limit(1),
                              .y = y}};
    for (int threads = 1; threads <= 3; threads++) {
        op.get_rows.partial = false, op.get_rows.y = y;
        kernel_run(set, &op, threads);
        op.get_rows.partial = true, op.get_rows.y = fixed;
        assert_false(kernel_run(set, &op, threads));
        for (int j = 0; j < IDS; j++)
            for (int64_t i = 0; i < n_cols; i++) {
                const bool here = ids[j] >= BEGIN && ids[j] < END;
                const float expected = here ? values[ids[j] * n_cols + i] : 0.0f;
                assert_memory_equal(&y[j * n_cols + i], &expected, sizeof expected);
                assert_true(fixed[j * n_cols + i] == tsr_fixed_from_f32(expected));
            }
    }
    op.get_rows.limit = 1e-4f;
    assert_true(kernel_run(set, &op, 2));
    free(fixed);
    guarded_free(table, bytes);
    floats_free(values, n_cols * TABLE);
    floats_free(y, IDS * n_cols);
}

static void get_rows_decodes_the_rows(void **state)
{
    (void)state;
    static const tsr_type types[] = {WEIGHT_TYPES};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            const int64_t block = tsr_type_block_elems(types[i]);
            check_get_rows(set, types[i], block == 1 ? 37 : block);
            check_get_rows(set, types[i], block == 1 ? 2100 : 9 * block);
        }
}

/* -- rms_norm -- */

static void rms_norm_is_close_to_its_formula(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 16, 77, 512, 4096, 5001};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 6; i++) {
            const int64_t n = sizes[i], rows = 4;
            float *x = random_floats(n * rows, -3, 3, 1), *weight = random_floats(n, 0.5f, 2, 2),
                  *y = floats(n * rows);
            tsr_op op = {
                .kind = TSR_OP_RMS_NORM,
                .rms_norm = {.x = x, .weight = weight, .y = y, .n = n, .n_rows = rows, .eps = 1e-5f}};
            kernel_run(set, &op, 3);
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t j = 0; j < n; j++)
                    sum += (double)x[r * n + j] * (double)x[r * n + j];
                const double scale = 1 / sqrt(sum / (double)n + 1e-5);
                /* the sum: 21 + n / 512 roundings, halved by the root; then five more */
                const double relative = (16 + (double)n / 512) * ulp;
                for (int64_t j = 0; j < n; j++)
                    check_near((double)y[r * n + j], (double)x[r * n + j] * scale * (double)weight[j],
                               relative, 0);
            }
            op.rms_norm.y = x; /* in place */
            kernel_run(set, &op, 1);
            assert_memory_equal(x, y, (size_t)(n * rows) * sizeof(float));
            op.rms_norm.weight = NULL;
            kernel_run(set, &op, 2);
            assert_true(isfinite(x[0]));
            floats_free(x, n * rows);
            floats_free(weight, n);
            floats_free(y, n * rows);
        }
}

/* LayerNorm of rows far from 0, where the mean costs digits: about n + 2 roundings of it for the mean and one
 * for every difference, relative to the spread of 3. */
static void layer_norm_is_close_to_its_formula(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2, 16, 77, 512, 4096, 5001};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 12; i++) {
            const int64_t n = sizes[i / 2], rows = 4;
            const float offset = i % 2 ? 1000 : 0;
            float *x = random_floats(n * rows, offset - 3, offset + 3, 1), *bias = random_floats(n, -2, 2, 3);
            float *weight = random_floats(n, 0.5f, 2, 2), *y = floats(n * rows);
            tsr_op op = {.kind = TSR_OP_RMS_NORM,
                         .rms_norm = {.x = x,
                                      .weight = weight,
                                      .y = y,
                                      .n = n,
                                      .n_rows = rows,
                                      .eps = 1e-5f,
                                      .bias = i % 3 ? bias : NULL,
                                      .center = true}};
            kernel_run(set, &op, 3);
            for (int64_t r = 0; r < rows; r++) {
                const float *row = x + r * n;
                double mean = 0, squares = 0;
                for (int64_t j = 0; j < n; j++)
                    mean += row[j] / (double)n;
                for (int64_t j = 0; j < n; j++)
                    squares += (row[j] - mean) * (row[j] - mean);
                const double scale = 1 / sqrt(squares / (double)n + 1e-5);
                for (int64_t j = 0; j < n; j++) {
                    const double off = (fabs(mean) + 3) * ulp * (3 + sqrt((double)n) / 4) * scale * 3;
                    check_near(y[r * n + j], (row[j] - mean) * scale * weight[j] + (i % 3 ? bias[j] : 0),
                               ((double)n / 16 + 8) * ulp, 2 * off + 8 * ulp);
                }
            }
            float *in_place = random_floats(n * rows, offset - 3, offset + 3, 1);
            op.rms_norm.x = op.rms_norm.y = in_place;
            kernel_run(set, &op, 2);
            assert_memory_equal(in_place, y, (size_t)(n * rows) * sizeof(float));
            floats_free(in_place, n * rows);
            floats_free(x, n * rows);
            floats_free(bias, n);
            floats_free(weight, n);
            floats_free(y, n * rows);
        }
}

/* -- rope -- */

static void check_rope(const tsr_kernel_set *set, int64_t dim, int64_t n_rot, bool interleaved)
{
    enum { TOKENS = 3, HEADS = 2 };
    const int64_t n = TOKENS * HEADS * dim;
    float *x = random_floats(n, -3, 3, 1), *y = floats(n), *table = floats(TOKENS * n_rot);
    for (int t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < n_rot / 2; i++) {
            table[t * n_rot + 2 * i] = cosf((float)(t + i));
            table[t * n_rot + 2 * i + 1] = sinf((float)(t + i));
        }
    tsr_op op = {.kind = TSR_OP_ROPE, .rope = {x, table, y, TOKENS, HEADS, dim, n_rot, interleaved}};
    kernel_run(set, &op, 4);
    check_rotated(&op.rope);
    op.rope.y = x;
    kernel_run(set, &op, 1);
    assert_memory_equal(x, y, (size_t)n * sizeof(float));
    floats_free(x, n);
    floats_free(y, n);
    floats_free(table, TOKENS * n_rot);
}

static void rope_is_close_to_its_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            check_rope(set, 128, 128, interleaved);
            check_rope(set, 80, 20, interleaved);
            check_rope(set, 6, 2, interleaved);
        }
}

/* -- glu: also measures the library's exp -- */

static void check_glu(const tsr_kernel_set *set, tsr_glu_kind kind, int64_t n, float range)
{
    float *gate = random_floats(n, -range, range, 1), *up = random_floats(n, -9, 9, 2), *y = floats(n);
    tsr_op op = {.kind = TSR_OP_GLU, .glu = {kind, gate, up, y, n, 1.5f}};
    for (int threads = MAX_THREADS; threads >= 1; threads--) {
        kernel_run(set, &op, threads);
        for (int64_t i = 0; i < n; i++) {
            /* e^u has 2 ulp, and |du| = 3 ulp of u: relatively 3 |u| ulp, where u may be 20 before it
             * vanishes */
            const double ulps = kind == TSR_GLU_SILU ? 4
                                : kind == TSR_GLU_GELU_TANH || kind == TSR_GLU_GELU_GATE
                                    ? 70
                                    : 4 + 0.9 * (double)range;
            check_near((double)y[i], glu_exact(kind, 1.5f, (double)gate[i], (double)up[i]), ulps * ulp,
                       1e-30);
        }
    }
    op.glu.y = gate;
    kernel_run(set, &op, 2);
    assert_memory_equal(gate, y, (size_t)n * sizeof(float));
    floats_free(gate, n);
    floats_free(up, n);
    floats_free(y, n);
}

static void glu_is_close_to_its_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        check_glu(set, TSR_GLU_SILU, 1, 3);
        check_glu(set, TSR_GLU_SILU, 12345, 8);
        check_glu(set, TSR_GLU_SILU, 5000, 86);
        check_glu(set, TSR_GLU_GELU_TANH, 12345, 4);
        check_glu(set, TSR_GLU_CLAMPED, 12345, 20);
        check_glu(set, TSR_GLU_CLAMPED, 7, 2);
        check_glu(set, TSR_GLU_GELU_GATE, 12345, 4);
        check_glu(set, TSR_GLU_RELU, 12345, 4);
        check_glu(set, TSR_GLU_SIGMOID, 12345, 20);
        check_glu(set, TSR_GLU_CAPPED, 12345, 20);
        check_glu(set, TSR_GLU_PLAIN, 12345, 4);
        check_glu(set, TSR_GLU_BOUNDED, 12345, 20);
    }
}

/* -- softmax -- */

static void check_softmax(const tsr_kernel_set *set, int64_t n, float scale, float range)
{
    const int64_t rows = 3;
    float *x = random_floats(n * rows, -range, range, 1), *y = floats(n * rows);
    tsr_op op = {.kind = TSR_OP_SOFTMAX, .softmax = {x, y, n, rows, scale}};
    kernel_run(set, &op, 2);
    /* scores are rounded once (half an ulp of |scale x|) and subtracted; then exp, sum and product */
    const double relative = (8 + (double)n / 16 + 2 * fabs((double)scale) * (double)range) * ulp;
    check_softmax_rows(&op.softmax, relative);
    op.softmax.y = x;
    kernel_run(set, &op, 1);
    assert_memory_equal(x, y, (size_t)(n * rows) * sizeof(float));
    floats_free(x, n * rows);
    floats_free(y, n * rows);
}

static void softmax_is_close_to_its_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        check_softmax(set, 1, 1, 5);
        check_softmax(set, 8, 1, 5);
        check_softmax(set, 257, -2, 60);
        check_softmax(set, 4096, 0.125f, 100);
    }
}

/* -- argmax -- */

static void argmax_finds_the_first_largest(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    static const int64_t sizes[] = {1, 15, 16, 33, 1000};
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 5; i++) {
            const int64_t n = sizes[i];
            uint64_t seed = 3;
            float *x = random_floats(2 * n, -1, 1, 4);
            int32_t y[2];
            const tsr_op op = {.kind = TSR_OP_ARGMAX, .argmax = {x, y, n, 2}};
            for (int repeat = 0; repeat < 50; repeat++) {
                const int64_t first = random_int(&seed, 0, n - 1), second = random_int(&seed, first, n - 1);
                const float before_first = x[first], before_second = x[second];
                x[first] = x[second] = 2; /* a tie: the lower index wins */
                if (first > 0)
                    x[0] = NAN; /* never wins */
                kernel_run(set, &op, 1 + repeat % 3);
                assert_int_equal(y[0], first);
                assert_true(y[1] >= 0 && y[1] < n);
                for (int64_t j = 0; j < n; j++)
                    assert_true(x[n + j] <= x[n + y[1]]);
                x[0] = 0;
                x[second] = before_second;
                x[first] = before_first;
            }
            for (int64_t j = 0; j < n; j++)
                x[j] = NAN;
            kernel_run(set, &op, 1);
            assert_int_equal(y[0], 0);
            floats_free(x, 2 * n);
        }
}

/* -- add, scale, copy -- */

static void add_and_scale_round_once(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    enum { N = 53, ROWS = 4 };
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            float *a = random_floats(N * ROWS, -1, 1, 1), *b = random_floats(N * ROWS, -1, 1, 2);
            float *y = floats(N * ROWS), *row = random_floats(N, -1, 1, 3);
            tsr_op op = {.kind = TSR_OP_ADD, .add = {a, b, y, N, ROWS, false}};
            kernel_run(set, &op, threads);
            for (int i = 0; i < N * ROWS; i++)
                assert_true(y[i] == a[i] + b[i]);
            op.add.b = row, op.add.broadcast_b = true;
            kernel_run(set, &op, threads);
            for (int i = 0; i < N * ROWS; i++)
                assert_true(y[i] == a[i] + row[i % N]);
            const tsr_op scale = {.kind = TSR_OP_SCALE, .scale = {b, b, N * ROWS, 3}};
            memcpy(y, b, N * ROWS * sizeof(float));
            kernel_run(set, &scale, threads);
            for (int i = 0; i < N * ROWS; i++)
                assert_true(b[i] == 3 * y[i]);
            const tsr_op by = {.kind = TSR_OP_SCALE, .scale = {y, b, N * ROWS, 3, row}};
            kernel_run(set, &by, threads);
            for (int i = 0; i < N * ROWS; i++)
                assert_true(b[i] == 3 * row[0] * y[i]);
            floats_free(a, N * ROWS);
            floats_free(b, N * ROWS);
            floats_free(y, N * ROWS);
            floats_free(row, N);
        }
}

/* Within 1.5e-7 of tanh (host/kernels/vec/math.h) times the cap, in place or not; far out the cap itself. */
static void softcap_is_close_to_its_formula(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    enum { N = 77 };
    static const float caps[] = {0.5f, 1, 30, 50};
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (size_t c = 0; c < sizeof caps / sizeof *caps; c++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                float *x = random_floats(N, -100, 100, 1 + c), *y = floats(N);
                x[3] = 0, x[4] = INFINITY, x[5] = -INFINITY;
                tsr_op op = {.kind = TSR_OP_SOFTCAP, .softcap = {x, y, N, caps[c]}};
                kernel_run(set, &op, threads);
                for (int i = 0; i < N; i++)
                    assert_float_equal(y[i], caps[c] * tanh((double)x[i] / caps[c]), 3e-7 * caps[c]);
                op.softcap.y = x;
                kernel_run(set, &op, threads);
                assert_memory_equal(x, y, N * sizeof *x);
                floats_free(x, N);
                floats_free(y, N);
            }
}

/* Converted rows are those of the reference encoders, byte for byte, halves of every kind included. */
static void copied_rows_are_those_of_the_reference_encoders(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    enum { ROWS = 3, STRIDE = 100 };
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 5; i++) {
            const int64_t n = tsr_type_block_elems(types[i]) == 1 ? 37 : 96;
            const size_t row_bytes = tsr_type_row_bytes(types[i], n), gap = 4 * (size_t)(i % 2);
            const size_t stride = row_bytes + gap, bytes = ROWS * stride; /* in rows of others, or not */
            float *x = random_floats((ROWS - 1) * STRIDE + n, -1, 1, 1);
            if (n == 37) {
                const float special[] = {0.0f,          -0.0f,     1e-7f,    3e-8f,
                                         2.9802322e-8f, 6.1e-5f,   65519.0f, 65520.0f,
                                         1e30f,         -INFINITY, 1.00049f, 1.0f + 0x3p-11f};
                memcpy(x, special, sizeof special);
            }
            unsigned char *y = guarded_alloc(bytes), expected[96 * 4];
            const tsr_op op = {.kind = TSR_OP_COPY, .copy = {x, STRIDE, types[i], y, stride, n, ROWS}};
            memset(y, 7, bytes);
            kernel_run(set, &op, 2);
            for (int r = 0; r < ROWS; r++) {
                assert_int_equal(tsr_type_from_f32(types[i], x + r * STRIDE, expected, n), TSR_OK);
                assert_memory_equal(y + (size_t)r * stride, expected, row_bytes);
                assert_memory_equal(y + (size_t)r * stride + row_bytes, "\7\7\7\7", gap);
            }
            guarded_free(y, bytes);
            floats_free(x, (ROWS - 1) * STRIDE + n);
        }
}

/* -- every instruction set with a fused multiply-add gives the same bits -- */

static void avx2_and_all_above_it_agree(void **state)
{
    (void)state;
    const tsr_kernel_set *avx2 = tsr_kernel_set_select("avx2"), *set;
    if (!avx2) {
        print_message("skipped: needs AVX2\n");
        skip();
    }
    enum { N = 3001 };
    float *x = random_floats(N, -90, 90, 1), *up = random_floats(N, -1, 1, 2), *a = floats(N), *b = floats(N);
    x[5] = INFINITY, x[6] = -INFINITY, x[7] = 0.0f;
    tsr_op ops[] = {
        {.kind = TSR_OP_GLU, .glu = {TSR_GLU_SILU, x, up, NULL, N}},
        {.kind = TSR_OP_GLU, .glu = {TSR_GLU_GELU_TANH, x, up, NULL, N}},
        {.kind = TSR_OP_GLU, .glu = {TSR_GLU_CLAMPED, x, up, NULL, N}},
        {.kind = TSR_OP_SOFTMAX, .softmax = {up, NULL, N, 1, 20}},
        {.kind = TSR_OP_RMS_NORM, .rms_norm = {up, up, NULL, N, 1, 1e-6f}},
        {.kind = TSR_OP_ROPE, .rope = {up, x, NULL, 1, 1, N, N - 1, false}},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (int k = 0; (set = kernel_run_set(k)) != NULL; k++) {
            if (strcmp(set->isa, "generic") == 0)
                continue; /* its target may have no fused multiply-add */
            float *y = set == avx2 ? a : b;
            ops[i].kind == TSR_OP_GLU       ? (ops[i].glu.y = y)
            : ops[i].kind == TSR_OP_SOFTMAX ? (ops[i].softmax.y = y)
            : ops[i].kind == TSR_OP_ROPE    ? (ops[i].rope.y = y)
                                            : (ops[i].rms_norm.y = y);
            kernel_run(set, &ops[i], 1);
            if (set != avx2) /* which comes before all others */
                assert_memory_equal(a, b, N * sizeof(float));
        }
    floats_free(x, N);
    floats_free(up, N);
    floats_free(a, N);
    floats_free(b, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_has_all_ops_and_the_best_is_selected),
        cmocka_unit_test(tiles_agree_with_plain_arithmetic),
        cmocka_unit_test(get_rows_decodes_the_rows),
        cmocka_unit_test(rms_norm_is_close_to_its_formula),
        cmocka_unit_test(layer_norm_is_close_to_its_formula),
        cmocka_unit_test(rope_is_close_to_its_formula),
        cmocka_unit_test(glu_is_close_to_its_formula),
        cmocka_unit_test(softmax_is_close_to_its_formula),
        cmocka_unit_test(argmax_finds_the_first_largest),
        cmocka_unit_test(add_and_scale_round_once),
        cmocka_unit_test(softcap_is_close_to_its_formula),
        cmocka_unit_test(copied_rows_are_those_of_the_reference_encoders),
        cmocka_unit_test(avx2_and_all_above_it_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
