/* Which neighbouring ops a host device runs together: only where no result overlaps what is still to be
 * read. That they give the same bits is tested by test_host_fuse.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/comm.h"
#include "host/fuse.h"

enum { ROWS = 16, TOKENS = 2, K = 32, N = ROWS * TOKENS };

static float x[K * TOKENS], y[N], residual[N], gate[N + 1], up[N];
static int64_t partial[N];
static void *buffers[2] = {NULL, partial};
static tsr_collective_desc desc = {.participants = 2, .contributors = 2, .n = N, .partial = buffers};

static void finish(tsr_comm *comm, const tsr_op *op, int64_t begin, int64_t end)
{
    (void)comm, (void)op, (void)begin, (void)end;
}

static struct tsr_comm_ops comm_ops = {.finish = finish};
static tsr_comm comm = {.ops = &comm_ops};
static tsr_collective collective = {.comm = &comm, .desc = &desc};
static void products_glu(const tsr_op *a, const tsr_op *b, const tsr_op *glu, const tsr_kernel_env *env)
{
    (void)a, (void)b, (void)glu, (void)env;
}

static tsr_kernel_set kernels = {.has_epilogue = true, .products_glu = products_glu};
static tsr_host_device host = {.base = {.index = 1}, .kernels = &kernels};

static tsr_op product(void *to, bool is_partial)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .mul_mat = {.type = TSR_TYPE_Q8_0,
                                .n_rows = ROWS,
                                .k = K,
                                .x = x,
                                .x_stride = K,
                                .n_tokens = TOKENS,
                                .partial = is_partial,
                                .y = to,
                                .y_stride = ROWS}};
}

static void expect(const tsr_op *ops, int n, tsr_host_fusion fusion, int n_fused)
{
    int n_ops = 0;
    assert_int_equal(tsr_host_fuse(&host, ops, n, &n_ops), fusion);
    assert_int_equal(n_ops, n_fused);
}

static void a_partial_without_addends_is_summed_up_with_its_product(void **state)
{
    (void)state;
    tsr_op ops[] = {product(partial, true),
                    {.kind = TSR_OP_ALL_REDUCE, .all_reduce = {&collective, residual, residual, N}}};
    expect(ops, 2, TSR_HOST_FUSION_SUM, 2);
    expect(ops, 1, TSR_HOST_FUSION_NONE, 1);
    ops[1].all_reduce.y = y;
    expect(ops, 2, TSR_HOST_FUSION_SUM, 2);
    ops[1].all_reduce.y = x + K * TOKENS - 1; /* over activations that other threads still multiply */
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    ops[1].all_reduce.y = residual;
    desc.participants = 3; /* others wait for it */
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    desc.participants = 2;
    buffers[1] = y; /* the sum is of something else */
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    buffers[1] = partial;
    comm_ops.finish = NULL;
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    comm_ops.finish = finish;
    kernels.has_epilogue = false;
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    kernels.has_epilogue = true;
    ops[0].mul_mat.y_stride++;
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
}

static void an_activation_goes_with_the_products_that_it_is_of(void **state)
{
    (void)state;
    tsr_op ops[] = {product(gate, false),
                    product(up, false),
                    {.kind = TSR_OP_GLU, .glu = {TSR_GLU_SILU, gate, up, gate, ROWS}}};
    ops[0].mul_mat.n_tokens = ops[1].mul_mat.n_tokens = 1;
    float *const fine[] = {gate, up, y}, *const over[] = {gate + 1, x};
    for (int i = 0; i < 3; i++) {
        ops[2].glu.y = fine[i];
        expect(ops, 3, TSR_HOST_FUSION_GLU, 3);
    }
    for (int i = 0; i < 2; i++) {
        ops[2].glu.y = over[i];
        expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    }
    ops[2].glu = (tsr_op_glu){TSR_GLU_SILU, up, gate, y, ROWS}; /* the gate's product comes second */
    expect(ops, 3, TSR_HOST_FUSION_GLU, 3);
    expect(ops, 2, TSR_HOST_FUSION_NONE, 1);
    ops[2].glu.gate = gate; /* a gate of itself: the other product is not of this pair */
    expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    ops[2].glu.gate = up;
    ops[1].mul_mat.type = TSR_TYPE_Q4_K; /* whose activations may be rounded otherwise */
    expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    ops[1].mul_mat.type = TSR_TYPE_Q8_0;
    ops[1].mul_mat.x = y + 1;
    expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    ops[1].mul_mat.x = x;
    ops[0].mul_mat.n_tokens = ops[1].mul_mat.n_tokens = 2;
    ops[2].glu.n = 2 * ROWS;
    expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    ops[0].mul_mat.n_tokens = ops[1].mul_mat.n_tokens = 1;
    ops[2].glu.n = ROWS;
    expect(ops, 3, TSR_HOST_FUSION_GLU, 3);
    kernels.products_glu = NULL;
    expect(ops, 3, TSR_HOST_FUSION_NONE, 1);
    kernels.products_glu = products_glu;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_partial_without_addends_is_summed_up_with_its_product),
        cmocka_unit_test(an_activation_goes_with_the_products_that_it_is_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
