/* Products in one launch with the norm before them, or with the sum of one device's partial sums after them:
 * the bits of the separate ops, for any types, sizes and cards; and which ops are taken together. Rows end
 * where a page ends, so that reading an element too far leaves the allocation. */
#include "gpu_run.h"

#include <tsr/types.h>

#include "core/comm.h"
#include "core/mem.h"
#include "cuda/device/fuse.h"

static const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K, TSR_TYPE_Q5_K,
                                 TSR_TYPE_Q6_K, TSR_TYPE_F16,  TSR_TYPE_BF16};
enum { N_TYPES = sizeof types / sizeof *types, K = 768, ROWS = 72, MOST_TOKENS = 8, DEVICE = 0 };

static tsr_op product(gpu *g, tsr_type type, const float *x, int64_t n_tokens, uint64_t seed, size_t elem)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .mul_mat = {.type = type,
                                .w = gpu_weights(g, type, ROWS, K, seed),
                                .w_stride = tsr_type_row_bytes(type, K),
                                .n_rows = ROWS,
                                .k = K,
                                .x = x,
                                .x_stride = K,
                                .n_tokens = n_tokens,
                                .y = gpu_alloc(g, (size_t)(n_tokens * ROWS) * elem, false),
                                .y_stride = ROWS}};
}

static void *fetch(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    gpu_get(copy, from, bytes);
    return copy;
}

static bool launch(gpu *g, const tsr_cuda_products *p)
{
    int n;
    const tsr_cuda_stream s = gpu_stream(g, NULL);
    assert_int_equal(tsr_cuda_mul_mats(p, &s, &n), TSR_OK);
    assert_false(gpu_fault(g));
    return n == p->n;
}

/* -- norms -- */

static tsr_op norm_of(gpu *g, int64_t n_tokens, bool weighted)
{
    return (tsr_op){.kind = TSR_OP_RMS_NORM,
                    .rms_norm = {.x = gpu_random(g, n_tokens * K, -2, 2, 5, NULL),
                                 .weight = weighted ? gpu_random(g, K, 0, 2, 6, NULL) : NULL,
                                 .y = gpu_alloc(g, (size_t)(n_tokens * K) * sizeof(float), false),
                                 .n = K,
                                 .n_rows = n_tokens,
                                 .eps = 1e-5f}};
}

static void check_norm(gpu *g, tsr_type type, tsr_type other, int64_t n_tokens, bool weighted)
{
    enum { N = 2 };
    tsr_op ops[1 + N] = {norm_of(g, n_tokens, weighted)};
    const size_t x_bytes = (size_t)(n_tokens * K) * sizeof(float),
                 bytes = (size_t)(n_tokens * ROWS) * sizeof(float);
    void *alone[1 + N], *where[1 + N] = {ops[0].rms_norm.y};
    int n;
    for (int i = 1; i <= N; i++) {
        ops[i] = product(g, i == N ? other : type, ops[0].rms_norm.y, n_tokens, (uint64_t)i, sizeof(float));
        where[i] = ops[i].mul_mat.y;
    }
    for (int i = 0; i <= N; i++)
        assert_false(gpu_run(g, &ops[i]));
    for (int i = 0; i <= N; i++) {
        alone[i] = fetch(where[i], i ? bytes : x_bytes);
        gpu_fill(where[i], 0xff, i ? bytes : x_bytes);
    }
    tsr_cuda_products p = tsr_cuda_fuse_products(ops, 1, 1, 1 + N, &n);
    assert_int_equal(n, N);
    assert_true(tsr_cuda_fuse_norm_before(&ops[0].rms_norm, &p));
    p.norm = &ops[0].rms_norm;
    assert_true(launch(g, &p));
    for (int i = 0; i <= N; i++) {
        void *got = fetch(where[i], i ? bytes : x_bytes);
        assert_memory_equal(got, alone[i], i ? bytes : x_bytes);
        free(got);
        free(alone[i]);
    }
    gpu_clear(g);
}

/* With one group of warps a block has half the threads of the norm's own kernel. */
static void a_launch_with_its_norm_has_the_bits_of_the_ops(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const tsr_cuda_props props = g.props;
    for (int i = 0; i < N_TYPES; i++)
        for (int64_t tokens = 1; tokens <= MOST_TOKENS; tokens += tokens == 1 ? 2 : 5) {
            g.props.n_sms = tokens == 1 ? 3 : props.n_sms;
            if (i % 2 == 0 && tokens < MOST_TOKENS)
                g.props.shared_bytes = TSR_MIN((size_t)99 << 10, props.shared_bytes);
            check_norm(&g, types[i], types[i], tokens, (i + tokens) % 3 != 0);
            check_norm(&g, types[i], types[(i + tokens) % N_TYPES], tokens, (i + tokens) % 3 != 0);
            g.props = props;
        }
    gpu_close(&g);
}

static struct memory {
    float x[2 * K], y[2 * K], result[2 * ROWS];
} memory;

static void norms_that_others_overwrite_stay_apart(void **state)
{
    (void)state;
    tsr_op_mul_mat op = {.type = TSR_TYPE_Q8_0,
                         .n_rows = ROWS,
                         .k = K,
                         .x = memory.y,
                         .x_stride = K,
                         .n_tokens = 2,
                         .y = memory.result,
                         .y_stride = ROWS};
    tsr_op_glu glu = {.y = memory.result, .n = 2 * ROWS};
    tsr_op_rope rope = {.y = memory.result, .n_tokens = 2, .n_heads = 1, .head_dim = ROWS};
    tsr_op_all_reduce sum = {.y = memory.result, .n = 2 * ROWS};
    tsr_op_rms_norm norm = {.x = memory.x, .y = memory.y, .n = K, .n_rows = 2};
    tsr_cuda_products p = {.n = 1, .of = {&op}};
#define APART(change, undo)                                 \
    do {                                                    \
        assert_true(tsr_cuda_fuse_norm_before(&norm, &p));  \
        change;                                             \
        assert_false(tsr_cuda_fuse_norm_before(&norm, &p)); \
        undo;                                               \
    } while (0)
    APART(p.n = 0, p.n = 1);
    APART(op.x = memory.x, op.x = memory.y);
    APART(op.x_stride++, op.x_stride--);
    APART(op.n_tokens--, op.n_tokens++);
    APART(norm.n_weights = 2, norm.n_weights = 1);
    APART(norm.center = true, norm.center = false);
    APART(norm.bias = memory.result, norm.bias = NULL);
    APART(norm.x = memory.y, norm.x = memory.x);
    APART(op.y = memory.x + 2 * K - 1, op.y = memory.result);
    p.glu = &glu;
    APART(glu.y = memory.x + K, glu.y = memory.result);
    p.heads.k = &rope;
    APART(rope.y = memory.x + K, rope.y = memory.result);
    p.sum = &sum;
    APART(sum.y = memory.x + K, sum.y = memory.result);
    APART(sum.residual = memory.y + K, sum.residual = memory.result); /* one block stores y */
#undef APART
}

/* -- sums -- */

static tsr_op sum_of(const tsr_op_mul_mat *op, tsr_collective *collective, tsr_collective_desc *desc,
                     void *const *parts)
{
    *desc = (tsr_collective_desc){.kind = TSR_OP_ALL_REDUCE,
                                  .participants = tsr_device_set_one(DEVICE),
                                  .reduce = op->reduce,
                                  .partial = parts};
    collective->desc = desc;
    return (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                    .all_reduce = {.collective = collective, .n = op->n_rows * op->n_tokens}};
}

enum residual { NONE, ELSEWHERE, IN_PLACE };

static void check_sum(gpu *g, tsr_type type, int64_t n_tokens, tsr_reduce_type reduce, enum residual residual)
{
    const float *x = gpu_random(g, n_tokens * K, -2, 2, 7, NULL);
    const int64_t n = n_tokens * ROWS;
    const size_t bytes = (size_t)n * sizeof(float);
    tsr_op ops[2] = {product(g, type, x, n_tokens, 1, tsr_reduce_bytes(reduce))};
    tsr_op_mul_mat *op = &ops[0].mul_mat;
    op->partial = true;
    op->reduce = reduce;
    op->granule = 256;
    op->limit = 1e6f;
    tsr_collective collective = {0};
    tsr_collective_desc desc;
    void *const parts[] = {op->y};
    float *start;
    ops[1] = sum_of(op, &collective, &desc, parts);
    float *const before = gpu_random(g, n, -1, 1, 9, &start);
    ops[1].all_reduce.residual = residual == NONE ? NULL : before;
    ops[1].all_reduce.y = residual == IN_PLACE ? before : gpu_alloc(g, bytes, false);
    const tsr_cuda_reduction alone = {.type = reduce,
                                      .n_parts = 1,
                                      .parts = {op->y},
                                      .residual = ops[1].all_reduce.residual,
                                      .y = ops[1].all_reduce.y,
                                      .n = n};
    const tsr_cuda_stream s = gpu_stream(g, NULL);
    assert_false(gpu_run(g, &ops[0]));
    assert_int_equal(tsr_cuda_reduce(&alone, NULL, &s), TSR_OK);
    assert_false(gpu_fault(g));
    void *expected = fetch(alone.y, bytes);
    gpu_fill(alone.y, 0xff, bytes);
    GPU_OK(cudaMemcpy(before, start, bytes, cudaMemcpyHostToDevice));
    GPU_OK(cudaDeviceSynchronize());
    const tsr_cuda_products p = {.n = 1, .of = {op}, .sum = tsr_cuda_fuse_sum(ops, 2, DEVICE)};
    assert_ptr_equal(p.sum, &ops[1].all_reduce);
    assert_true(launch(g, &p));
    void *got = fetch(alone.y, bytes);
    assert_memory_equal(got, expected, bytes);
    free(got);
    free(expected);
    free(start);
    gpu_clear(g);
}

static void a_launch_with_its_sum_has_the_bits_of_the_ops(void **state)
{
    (void)state;
    static const tsr_reduce_type reduces[] = {TSR_REDUCE_EXACT, TSR_REDUCE_F32, TSR_REDUCE_BF16};
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++)
        for (int r = 0; r < 3; r++)
            check_sum(&g, types[i], 1 + (i + 3 * r) % MOST_TOKENS, reduces[r], (enum residual)((i + r) % 3));
    gpu_close(&g);
}

static void sums_of_others_stay_apart(void **state)
{
    (void)state;
    tsr_op ops[2] = {{.kind = TSR_OP_MUL_MAT,
                      .mul_mat = {.n_rows = ROWS,
                                  .k = K,
                                  .x = memory.x,
                                  .x_stride = K,
                                  .n_tokens = 2,
                                  .y = memory.result,
                                  .y_stride = ROWS,
                                  .partial = true,
                                  .reduce = TSR_REDUCE_F32}}};
    tsr_op_mul_mat *op = &ops[0].mul_mat;
    tsr_collective collective = {0};
    tsr_collective_desc desc;
    void *parts[] = {memory.result};
    ops[1] = sum_of(op, &collective, &desc, parts);
    tsr_op_all_reduce *sum = &ops[1].all_reduce;
    sum->y = memory.y;
#define APART(change, undo)                                 \
    do {                                                    \
        assert_non_null(tsr_cuda_fuse_sum(ops, 2, DEVICE)); \
        change;                                             \
        assert_null(tsr_cuda_fuse_sum(ops, 2, DEVICE));     \
        undo;                                               \
    } while (0)
    APART(op->partial = false, op->partial = true);
    APART(op->k = 0, op->k = K);
    APART(op->y_stride++, op->y_stride--);
    APART(parts[0] = memory.y, parts[0] = memory.result);
    APART(sum->n--, sum->n++);
    APART(desc.reduce = TSR_REDUCE_EXACT, desc.reduce = TSR_REDUCE_F32);
    APART(desc.participants |= tsr_device_set_one(1), desc.participants = tsr_device_set_one(DEVICE));
    APART(sum->y = memory.x + 2 * K - 1, sum->y = memory.y); /* of activations that other blocks read */
    APART(sum->residual = memory.y + 1, sum->residual = memory.y);
    APART(ops[1].kind = TSR_OP_ADD, ops[1].kind = TSR_OP_ALL_REDUCE);
    assert_null(tsr_cuda_fuse_sum(ops, 1, DEVICE));
#undef APART
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launch_with_its_norm_has_the_bits_of_the_ops),
        cmocka_unit_test(norms_that_others_overwrite_stay_apart),
        cmocka_unit_test(a_launch_with_its_sum_has_the_bits_of_the_ops),
        cmocka_unit_test(sums_of_others_stay_apart),
    };
    return cmocka_run_group_tests_name("products with norms and sums", tests, NULL, NULL);
}
