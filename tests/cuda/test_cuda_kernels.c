/* The smaller CUDA kernels: against double precision with a stated bound, in place where the contract allows
 * it, and up to the last byte of an allocation. mul_mat and attention have test programs of their own. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "support/kernel_exact.h"
#include "support/weight_types.h"

static float *floats_back(const float *device, int64_t n)
{
    float *x = malloc((size_t)n * sizeof(float) + 1);
    gpu_get(x, device, (size_t)n * sizeof(float));
    return x;
}

/* Device memory holds exactly these floats. */
static void check_same(const float *device, const float *expected, int64_t n)
{
    float *got = floats_back(device, n);
    assert_memory_equal(got, expected, (size_t)n * sizeof(float));
    free(got);
}

/* -- get_rows -- */

static void check_get_rows(gpu *g, tsr_type type, int64_t n_cols, bool aligned)
{
    enum { TABLE = 9, IDS = 5, BEGIN = 3, END = 8 };
    const int32_t ids[IDS] = {7, 0, 3, 8, 7}; /* rows 3..7 are here */
    const size_t row_bytes = tsr_type_row_bytes(type, n_cols), bytes = row_bytes * (END - BEGIN);
    const int64_t n = IDS * n_cols;
    float *values = random_floats(n_cols * TABLE, -1, 1, 5);
    unsigned char *table = malloc(bytes);
    for (int r = BEGIN; r < END; r++) {
        unsigned char *row = table + (size_t)(r - BEGIN) * row_bytes;
        assert_int_equal(tsr_type_from_f32(type, values + r * n_cols, row, n_cols), TSR_OK);
        assert_int_equal(tsr_type_to_f32(type, row, values + r * n_cols, n_cols), TSR_OK);
    }
    tsr_op op = {.kind = TSR_OP_GET_ROWS,
                 .get_rows = {.type = type,
                              .table = gpu_put(g, table, bytes, aligned),
                              .table_stride = row_bytes,
                              .row_begin = BEGIN,
                              .row_end = END,
                              .n_cols = n_cols,
                              .ids = gpu_put(g, ids, sizeof ids, false),
                              .n_ids = IDS,
                              .limit = tsr_fixed_limit(1),
                              .y = gpu_alloc(g, (size_t)n * sizeof(float), false)}};
    assert_false(gpu_run(g, &op));
    float *y = floats_back(op.get_rows.y, n);
    int64_t *fixed = malloc((size_t)n * sizeof(int64_t));
    op.get_rows.partial = true;
    op.get_rows.y = gpu_alloc(g, (size_t)n * sizeof(int64_t), false);
    assert_false(gpu_run(g, &op));
    gpu_get(fixed, op.get_rows.y, (size_t)n * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = ids[i / n_cols];
        const float expected = id >= BEGIN && id < END ? values[id * n_cols + i % n_cols] : 0.0f;
        assert_true(y[i] == expected);
        assert_true(fixed[i] == tsr_fixed_from_f32(expected));
    }
    op.get_rows.limit = 1e-4f;
    assert_true(gpu_run(g, &op));
    free(y);
    free(fixed);
    free(values);
    free(table);
    gpu_clear(g);
}

static void get_rows_decodes_every_type_exactly(void **state)
{
    (void)state;
    static const tsr_type types[] = {WEIGHT_TYPES};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t block = tsr_type_block_elems(types[i]);
        check_get_rows(&g, types[i], block == 1 ? 37 : block, false);
        check_get_rows(&g, types[i], block == 1 ? 64 : 3 * block, true);
    }
    gpu_close(&g);
}

/* -- rms_norm -- */

static void rms_norm_is_close_to_its_formula(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 16, 77, 512, 3001};
    gpu g = gpu_open();
    for (int i = 0; i < 5; i++) {
        const int64_t n = sizes[i], rows = 4;
        float *x, *weight;
        tsr_op op = {.kind = TSR_OP_RMS_NORM,
                     .rms_norm = {.x = gpu_random(&g, n * rows, -3, 3, 1, &x),
                                  .weight = gpu_random(&g, n, 0.5f, 2, 2, &weight),
                                  .y = gpu_alloc(&g, (size_t)(n * rows) * sizeof(float), false),
                                  .n = n,
                                  .n_rows = rows,
                                  .eps = 1e-5f}};
        gpu_run(&g, &op);
        float *y = floats_back(op.rms_norm.y, n * rows);
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += (double)x[r * n + j] * (double)x[r * n + j];
            const double scale = 1 / sqrt(sum / (double)n + 1e-5);
            const double relative = (12 + (double)n / 256) * ulp; /* strands, tree, root, products */
            for (int64_t j = 0; j < n; j++)
                check_near((double)y[r * n + j], (double)x[r * n + j] * scale * (double)weight[j], relative,
                           0);
        }
        op.rms_norm.y = (float *)op.rms_norm.x; /* in place */
        gpu_run(&g, &op);
        check_same(op.rms_norm.x, y, n * rows);
        op.rms_norm.weight = NULL;
        gpu_run(&g, &op);
        free(x);
        free(weight);
        free(y);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

/* LayerNorm, of rows far from 0 too, where the mean costs digits. */
static void layer_norm_is_close_to_its_formula(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2, 16, 77, 512, 3001};
    gpu g = gpu_open();
    for (int i = 0; i < 10; i++) {
        const int64_t n = sizes[i / 2], rows = 4;
        const float offset = i % 2 ? 1000 : 0;
        float *x, *weight, *bias;
        tsr_op op = {.kind = TSR_OP_RMS_NORM,
                     .rms_norm = {.x = gpu_random(&g, n * rows, offset - 3, offset + 3, 1, &x),
                                  .weight = gpu_random(&g, n, 0.5f, 2, 2, &weight),
                                  .y = gpu_alloc(&g, (size_t)(n * rows) * sizeof(float), false),
                                  .n = n,
                                  .n_rows = rows,
                                  .eps = 1e-5f,
                                  .bias = gpu_random(&g, n, -2, 2, 3, &bias),
                                  .center = true}};
        gpu_run(&g, &op);
        float *y = floats_back(op.rms_norm.y, n * rows);
        for (int64_t r = 0; r < rows; r++) {
            const float *row = x + r * n;
            double mean = 0, squares = 0;
            for (int64_t j = 0; j < n; j++)
                mean += (double)row[j] / (double)n;
            for (int64_t j = 0; j < n; j++)
                squares += ((double)row[j] - mean) * ((double)row[j] - mean);
            const double scale = 1 / sqrt(squares / (double)n + 1e-5);
            const double relative = (12 + (double)n / 256) * ulp; /* strands, tree, root, products */
            for (int64_t j = 0; j < n; j++)
                check_near((double)y[r * n + j],
                           ((double)row[j] - mean) * scale * (double)weight[j] + (double)bias[j], relative,
                           6 * (fabs(mean) + 3) * scale * ulp + 4 * ulp);
        }
        op.rms_norm.y = (float *)op.rms_norm.x; /* in place */
        gpu_run(&g, &op);
        check_same(op.rms_norm.x, y, n * rows);
        free(x);
        free(weight);
        free(bias);
        free(y);
        gpu_clear(&g);
    }
    gpu_close(&g);
}

/* -- rope -- */

static void check_rope(gpu *g, int64_t dim, int64_t n_rot, bool interleaved)
{
    enum { TOKENS = 3, HEADS = 2 };
    const int64_t n = TOKENS * HEADS * dim;
    float *x, *table = malloc((size_t)(TOKENS * n_rot) * sizeof(float));
    for (int t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < n_rot / 2; i++) {
            table[t * n_rot + 2 * i] = cosf((float)(t + i));
            table[t * n_rot + 2 * i + 1] = sinf((float)(t + i));
        }
    tsr_op op = {.kind = TSR_OP_ROPE,
                 .rope = {gpu_random(g, n, -3, 3, 1, &x),
                          gpu_put(g, table, (size_t)(TOKENS * n_rot) * sizeof(float), false),
                          gpu_alloc(g, (size_t)n * sizeof(float), false), TOKENS, HEADS, dim, n_rot,
                          interleaved}};
    gpu_run(g, &op);
    float *y = floats_back(op.rope.y, n);
    check_rotated(&(tsr_op_rope){x, table, y, TOKENS, HEADS, dim, n_rot, interleaved});
    op.rope.y = (float *)op.rope.x; /* in place */
    gpu_run(g, &op);
    check_same(op.rope.x, y, n);
    free(x);
    free(y);
    free(table);
    gpu_clear(g);
}

static void rope_is_close_to_its_formula(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        check_rope(&g, 128, 128, interleaved);
        check_rope(&g, 80, 20, interleaved);
        check_rope(&g, 6, 2, interleaved);
    }
    gpu_close(&g);
}

/* -- glu -- */

static void check_glu(gpu *g, tsr_glu_kind kind, int64_t n, float range)
{
    float *gate, *up;
    tsr_op op = {.kind = TSR_OP_GLU,
                 .glu = {kind, gpu_random(g, n, -range, range, 1, &gate), gpu_random(g, n, -9, 9, 2, &up),
                         gpu_alloc(g, (size_t)n * sizeof(float), false), n, 1.5f}};
    gpu_run(g, &op);
    float *y = floats_back(op.glu.y, n);
    for (int64_t i = 0; i < n; i++) {
        /* e^u has 2 ulp, and |du| = 4 ulp of u: relatively 4 |u| ulp, where u may be 20 before it vanishes */
        const double ulps = kind == TSR_GLU_SILU ? 4
                            : kind == TSR_GLU_GELU_TANH || kind == TSR_GLU_GELU_GATE
                                ? 90
                                : 4 + 0.9 * (double)range;
        check_near((double)y[i], glu_exact(kind, 1.5f, (double)gate[i], (double)up[i]), ulps * ulp, 1e-30);
    }
    op.glu.y = (float *)op.glu.gate; /* in place */
    gpu_run(g, &op);
    check_same(op.glu.gate, y, n);
    free(gate);
    free(up);
    free(y);
    gpu_clear(g);
}

static void glu_is_close_to_its_formula(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_glu(&g, TSR_GLU_SILU, 1, 3);
    check_glu(&g, TSR_GLU_SILU, 12345, 8);
    check_glu(&g, TSR_GLU_SILU, 500, 86);
    check_glu(&g, TSR_GLU_GELU_TANH, 1234, 4);
    check_glu(&g, TSR_GLU_CLAMPED, 1234, 20);
    check_glu(&g, TSR_GLU_GELU_GATE, 1234, 4);
    check_glu(&g, TSR_GLU_RELU, 1234, 4);
    check_glu(&g, TSR_GLU_SIGMOID, 1234, 20);
    check_glu(&g, TSR_GLU_CAPPED, 1234, 20);
    check_glu(&g, TSR_GLU_PLAIN, 1234, 4);
    check_glu(&g, TSR_GLU_BOUNDED, 1234, 20);
    gpu_close(&g);
}

/* -- softmax, argmax -- */

static void check_softmax(gpu *g, int64_t n, float scale, float range)
{
    const int64_t rows = 3;
    float *x;
    tsr_op op = {.kind = TSR_OP_SOFTMAX,
                 .softmax = {gpu_random(g, n * rows, -range, range, 1, &x),
                             gpu_alloc(g, (size_t)(n * rows) * sizeof(float), false), n, rows, scale}};
    gpu_run(g, &op);
    float *y = floats_back(op.softmax.y, n * rows);
    /* scores are rounded once (half an ulp of |scale x|) and subtracted; then exp, sum and product */
    const double relative = (16 + (double)n / 256 + 2 * fabs((double)scale) * (double)range) * ulp;
    check_softmax_rows(&(tsr_op_softmax){x, y, n, rows, scale}, relative);
    op.softmax.y = (float *)op.softmax.x; /* in place */
    gpu_run(g, &op);
    check_same(op.softmax.x, y, n * rows);
    free(x);
    free(y);
    gpu_clear(g);
}

static void softmax_is_close_to_its_formula(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_softmax(&g, 1, 1, 5);
    check_softmax(&g, 8, 1, 5);
    check_softmax(&g, 257, -2, 60);
    check_softmax(&g, 3000, 0.125f, 100);
    gpu_close(&g);
}

static void check_argmax(gpu *g, const float *x, int64_t n, int64_t expected)
{
    int32_t y;
    const tsr_op op = {
        .kind = TSR_OP_ARGMAX,
        .argmax = {gpu_put(g, x, (size_t)n * sizeof(float), false), gpu_alloc(g, sizeof y, false), n, 1}};
    gpu_run(g, &op);
    gpu_get(&y, op.argmax.y, sizeof y);
    assert_int_equal(y, expected);
    gpu_clear(g);
}

static void argmax_takes_the_first_of_equals_and_no_nan(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 33, 300, 1000};
    gpu g = gpu_open();
    for (int i = 0; i < 4; i++) {
        const int64_t n = sizes[i];
        uint64_t seed = 3;
        for (int repeat = 0; repeat < 8; repeat++) {
            float *x = random_floats(n, -1, 1, 4 + (uint64_t)repeat);
            const int64_t first = (int64_t)random_below(&seed, (uint64_t)n);
            x[first] = 2;
            x[first + (int64_t)random_below(&seed, (uint64_t)(n - first))] = 2;
            if (first > 0)
                x[0] = NAN;
            check_argmax(&g, x, n, first);
            for (int64_t j = 0; j < n; j++)
                x[j] = repeat % 2 ? NAN : -INFINITY;
            check_argmax(&g, x, n, 0);
            free(x);
        }
    }
    gpu_close(&g);
}

/* -- add, scale, copy -- */

static void add_and_scale_round_once(void **state)
{
    (void)state;
    enum { N = 53, ROWS = 30 };
    float *a, *b, *row, expected[N * ROWS];
    gpu g = gpu_open();
    tsr_op op = {.kind = TSR_OP_ADD,
                 .add = {gpu_random(&g, N * ROWS, -1, 1, 1, &a), gpu_random(&g, N * ROWS, -1, 1, 2, &b),
                         gpu_alloc(&g, sizeof expected, false), N, ROWS, false}};
    gpu_run(&g, &op);
    for (int i = 0; i < N * ROWS; i++)
        expected[i] = a[i] + b[i];
    check_same(op.add.y, expected, N * ROWS);
    const tsr_op scale = {.kind = TSR_OP_SCALE, .scale = {op.add.b, (float *)op.add.b, N * ROWS, 3}};
    gpu_run(&g, &scale);
    for (int i = 0; i < N * ROWS; i++)
        expected[i] = 3 * b[i];
    check_same(op.add.b, expected, N * ROWS);
    op.add.b = gpu_random(&g, N, -1, 1, 3, &row);
    const tsr_op by = {.kind = TSR_OP_SCALE, .scale = {op.add.a, op.add.y, N * ROWS, 3, op.add.b}};
    gpu_run(&g, &by);
    for (int i = 0; i < N * ROWS; i++)
        expected[i] = 3 * row[0] * a[i];
    check_same(op.add.y, expected, N * ROWS);
    op.add.broadcast_b = true;
    op.add.y = (float *)op.add.a; /* in place */
    gpu_run(&g, &op);
    for (int i = 0; i < N * ROWS; i++)
        expected[i] = a[i] + row[i % N];
    check_same(op.add.a, expected, N * ROWS);
    free(a);
    free(b);
    free(row);
    gpu_close(&g);
}

static void softcap_is_close_to_its_formula(void **state)
{
    (void)state;
    enum { N = 1027 };
    float *x, y[N];
    gpu g = gpu_open();
    tsr_op op = {
        .kind = TSR_OP_SOFTCAP,
        .softcap = {gpu_random(&g, N, -100, 100, 1, &x), gpu_alloc(&g, N * sizeof *x, false), N, 30}};
    gpu_run(&g, &op);
    gpu_get(y, op.softcap.y, sizeof y);
    for (int i = 0; i < N; i++)
        assert_float_equal(y[i], 30 * tanh((double)x[i] / 30), 30 * 3e-7);
    op.softcap.n = 0;
    gpu_run(&g, &op);
    free(x);
    gpu_close(&g);
}

static void check_copy(gpu *g, tsr_type type, const float *x, int64_t n)
{
    enum { ROWS = 3, STRIDE = 100 };
    const size_t row_bytes = tsr_type_row_bytes(type, n), gap = type == TSR_TYPE_F32 ? 12 : 0;
    const size_t stride = row_bytes + gap, bytes = ROWS * stride; /* in rows of others, or not */
    unsigned char expected[100 * 4], got[ROWS * 110 * 4], before[ROWS * 110 * 4];
    const tsr_op op = {.kind = TSR_OP_COPY,
                       .copy = {gpu_put(g, x, (size_t)((ROWS - 1) * STRIDE + n) * sizeof(float), false),
                                STRIDE, type, gpu_alloc(g, bytes, false), stride, n, ROWS}};
    gpu_get(before, op.copy.y, bytes);
    gpu_run(g, &op);
    gpu_get(got, op.copy.y, bytes);
    for (int r = 0; r < ROWS; r++) {
        const size_t end = (size_t)r * stride + row_bytes;
        assert_int_equal(tsr_type_from_f32(type, x + r * STRIDE, expected, n), TSR_OK);
        assert_memory_equal(got + (size_t)r * stride, expected, row_bytes);
        assert_memory_equal(got + end, before + end, gap);
    }
    gpu_clear(g);
}

/* Converted rows are those of the reference encoders, byte for byte, halves of every kind included. */
static void copy_stores_what_the_encoders_make(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    static const float special[] = {0.0f,     -0.0f,    1e-7f, 3e-8f,     2.9802322e-8f, 6.1e-5f,
                                    65519.0f, 65520.0f, 1e30f, -INFINITY, 1.00049f,      1.0f + 0x3p-11f};
    gpu g = gpu_open();
    float *x = random_floats(300, -1, 1, 1);
    for (int i = 0; i < 5; i++)
        check_copy(&g, types[i], x, i < 3 ? 37 : 96);
    memcpy(x, special, sizeof special); /* blocks that are not finite, too */
    for (int i = 0; i < 5; i++)
        check_copy(&g, types[i], x, i < 3 ? 37 : 96);
    for (int i = 0; i < 32; i++)
        x[i] = i % 2 ? -0.75f : 0.75f; /* the first of equal extremes sets the sign */
    memset(x + 32, 0, 32 * sizeof(float));
    x[32] = -0.0f;
    for (int i = 0; i < 5; i++)
        check_copy(&g, types[i], x, i < 3 ? 37 : 96);
    free(x);
    gpu_close(&g);
}

/* -- reduce -- */

static void reduce_adds_parts_in_order(void **state)
{
    (void)state;
    enum { N = 301, PARTS = 3 };
    gpu g = gpu_open();
    float *residual, *plain[PARTS], expected[N];
    int64_t fixed[PARTS][N], sum[N];
    tsr_cuda_reduction exact = {.type = TSR_REDUCE_EXACT, .n_parts = PARTS, .n = N}, f32 = exact;
    f32.type = TSR_REDUCE_F32;
    exact.residual = f32.residual = gpu_random(&g, N, -1, 1, 9, &residual);
    exact.y = f32.y = gpu_alloc(&g, sizeof expected, false);
    memset(sum, 0, sizeof sum);
    for (int j = 0; j < PARTS; j++) {
        f32.parts[j] = gpu_random(&g, N, -1000, 1000, (uint64_t)j, &plain[j]);
        for (int i = 0; i < N; i++)
            sum[i] += fixed[j][i] = tsr_fixed_from_f32(plain[j][i]) + j;
        exact.parts[j] = gpu_put(&g, fixed[j], sizeof fixed[j], false);
    }
    const tsr_cuda_stream s = gpu_stream(&g, NULL);

    assert_int_equal(tsr_cuda_reduce(&exact, NULL, &s), TSR_OK);
    assert_false(gpu_fault(&g));
    for (int i = 0; i < N; i++)
        expected[i] = tsr_fixed_to_f32(sum[i]) + residual[i];
    check_same(exact.y, expected, N);

    f32.residual = NULL;
    assert_int_equal(tsr_cuda_reduce(&f32, NULL, &s), TSR_OK);
    assert_false(gpu_fault(&g));
    for (int i = 0; i < N; i++)
        expected[i] = plain[0][i] + plain[1][i] + plain[2][i];
    check_same(f32.y, expected, N);

    tsr_cuda_reduction bf16 = f32;
    bf16.type = TSR_REDUCE_BF16;
    for (int i = 0; i < N; i++)
        expected[i] = 0;
    for (int j = 0; j < PARTS; j++) {
        uint16_t rounded[N];
        for (int i = 0; i < N; i++) {
            rounded[i] = tsr_f32_to_bf16(plain[j][i]);
            expected[i] += tsr_bf16_to_f32(rounded[i]);
        }
        bf16.parts[j] = gpu_put(&g, rounded, sizeof rounded, false);
    }
    for (int i = 0; i < N; i++)
        expected[i] = tsr_bf16_to_f32(tsr_f32_to_bf16(expected[i]));
    assert_int_equal(tsr_cuda_reduce(&bf16, NULL, &s), TSR_OK);
    assert_false(gpu_fault(&g));
    check_same(bf16.y, expected, N);
    for (int j = 0; j < PARTS; j++)
        free(plain[j]);
    free(residual);
    gpu_close(&g);
}

/* -- refusals -- */

static void what_no_kernel_can_do_is_refused(void **state)
{
    (void)state;
    const tsr_op weights = {.kind = TSR_OP_MUL_MAT, .name = "w", .mul_mat = {.type = TSR_TYPE_I32}};
    const tsr_op wide = {
        .kind = TSR_OP_ATTENTION,
        .attention = {.kv = {.type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_F16, .k_dim = 2048, .v_dim = 2048}}};
    const tsr_op cache = {.kind = TSR_OP_KV_WRITE,
                          .kv_write = {.kv = {.type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_Q4_K}}};
    const tsr_op many = {.kind = TSR_OP_ROPE, .rope = {.n_tokens = 1 << 20, .n_heads = 128, .head_dim = 128}};
    const tsr_op sum = {.kind = TSR_OP_ALL_REDUCE};
    assert_int_equal(tsr_cuda_op_check(&weights), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "'w'"));
    assert_int_equal(tsr_cuda_op_check(&wide), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_cuda_op_check(&cache), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_cuda_op_check(&many), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_cuda_op_check(&sum), TSR_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get_rows_decodes_every_type_exactly),
        cmocka_unit_test(rms_norm_is_close_to_its_formula),
        cmocka_unit_test(layer_norm_is_close_to_its_formula),
        cmocka_unit_test(rope_is_close_to_its_formula),
        cmocka_unit_test(glu_is_close_to_its_formula),
        cmocka_unit_test(softmax_is_close_to_its_formula),
        cmocka_unit_test(argmax_takes_the_first_of_equals_and_no_nan),
        cmocka_unit_test(add_and_scale_round_once),
        cmocka_unit_test(softcap_is_close_to_its_formula),
        cmocka_unit_test(copy_stores_what_the_encoders_make),
        cmocka_unit_test(reduce_adds_parts_in_order),
        cmocka_unit_test(what_no_kernel_can_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
