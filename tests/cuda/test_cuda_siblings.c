/* Which products need not wait for the product before them (cuda/device/fuse.h). On a GPU such products run
 * side by side, so an op that is taken for a sibling wrongly reads or overwrites what another still
 * computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cuda/device/fuse.h"

enum { K = 64, ROWS = 64, TOKENS = 2, N_OPS = 4 };

/* Activations and results of up to four products, apart from each other. */
static struct memory {
    float x[TOKENS * K], other_x[TOKENS * K], y[N_OPS][TOKENS * ROWS];
} memory;

static tsr_op product(int i)
{
    return (tsr_op){.kind = TSR_OP_MUL_MAT,
                    .mul_mat = {.type = TSR_TYPE_Q4_K,
                                .w_stride = 144,
                                .n_rows = ROWS,
                                .k = K,
                                .x = memory.x,
                                .x_stride = K,
                                .n_tokens = TOKENS,
                                .y = memory.y[i],
                                .y_stride = ROWS}};
}

static void products_of_the_same_activations_are_siblings(void **state)
{
    (void)state;
    const tsr_op ops[] = {product(0), product(1), product(2), product(3)};
    for (int i = 0; i < N_OPS; i++) {
        assert_false(tsr_cuda_is_sibling(ops, i, i));
        for (int j = i + 1; j < N_OPS; j++)
            assert_true(tsr_cuda_is_sibling(ops, i, j));
    }
}

/* Change the second of two products; then it is no sibling. */
static void check_apart(void (*change)(tsr_op *second))
{
    tsr_op ops[] = {product(0), product(1)};
    change(&ops[1]);
    assert_false(tsr_cuda_is_sibling(ops, 0, 1));
}

static void of_other_activations(tsr_op *op)
{
    op->mul_mat.x = memory.other_x;
}

static void of_a_result(tsr_op *op)
{
    op->mul_mat.x = memory.y[0];
}

static void of_other_rows(tsr_op *op)
{
    op->mul_mat.x_stride = K / 2;
}

static void of_fewer_tokens(tsr_op *op)
{
    op->mul_mat.n_tokens = 1;
}

static void without_columns(tsr_op *op)
{
    op->mul_mat.k = 0;
}

static void without_rows(tsr_op *op)
{
    op->mul_mat.n_rows = 0;
}

static void over_the_activations(tsr_op *op)
{
    op->mul_mat.y = memory.x + K;
}

static void over_a_result(tsr_op *op)
{
    op->mul_mat.y = memory.y[0] + TOKENS * ROWS - 1;
}

/* Partial sums of the exact reduction are twice as long as floats. */
static void over_a_result_with_partials(tsr_op *op)
{
    op->mul_mat.partial = true;
    op->mul_mat.reduce = TSR_REDUCE_EXACT;
    op->mul_mat.y = memory.y[0] - (2 * TOKENS * ROWS - 1);
}

static void of_another_kind(tsr_op *op)
{
    op->kind = TSR_OP_ADD;
}

static void others_are_not(void **state)
{
    (void)state;
    check_apart(of_other_activations);
    check_apart(of_a_result);
    check_apart(of_other_rows);
    check_apart(of_fewer_tokens);
    check_apart(without_columns);
    check_apart(without_rows);
    check_apart(over_the_activations);
    check_apart(over_a_result);
    check_apart(over_a_result_with_partials);
    check_apart(of_another_kind);
}

/* The first product of three may still run when the third begins: the second does not wait for it. */
static void a_chain_of_siblings_is_compared_as_a_whole(void **state)
{
    (void)state;
    tsr_op ops[] = {product(0), product(1), product(2)};
    ops[2].mul_mat.y = memory.y[0];
    assert_true(tsr_cuda_is_sibling(ops, 0, 1));
    assert_false(tsr_cuda_is_sibling(ops, 0, 2));
    ops[1].mul_mat.x = memory.other_x; /* it waits, so the first has ended */
    ops[2].mul_mat.x = memory.other_x;
    assert_true(tsr_cuda_is_sibling(ops, 1, 2));
}

/* The numbers of products and of ops that are taken together from ops[i] on. */
static void check_found(const tsr_op *ops, int first, int i, int end, int n_products, int n_ops, bool glu)
{
    int n;
    const tsr_cuda_products found = tsr_cuda_fuse_products(ops, first, i, end, &n);
    assert_int_equal(found.n, n_products);
    assert_int_equal(n, n_ops);
    assert_true((found.glu != NULL) == glu);
    for (int j = 0; j < found.n && !glu; j++)
        assert_ptr_equal(found.of[j], &ops[i + j].mul_mat);
}

static void up_to_three_siblings_are_taken_together(void **state)
{
    (void)state;
    tsr_op ops[] = {product(0), product(1), product(2), product(3)};
    check_found(ops, 0, 0, 4, 3, 3, false);
    check_found(ops, 0, 0, 2, 2, 2, false);
    check_found(ops, 0, 3, 4, 1, 1, false);
    check_found(ops, 0, 1, 4, 3, 3, false);
    ops[2].mul_mat.y = memory.y[0]; /* which the first may still be writing */
    check_found(ops, 0, 1, 4, 1, 1, false);
    check_found(ops, 1, 1, 4, 3, 3, false);
    ops[1].kind = TSR_OP_ADD;
    check_found(ops, 0, 0, 4, 1, 1, false);
    check_found(ops, 1, 1, 4, 0, 1, false);
}

/* Weights of another type take a launch of their own. */
static void those_of_another_kind_of_weights_are_taken_too(void **state)
{
    (void)state;
    tsr_op ops[] = {product(0), product(1), product(2)};
    ops[2].mul_mat.type = TSR_TYPE_Q6_K;
    check_found(ops, 0, 0, 3, 3, 3, false);
    check_found(ops, 0, 1, 3, 2, 2, false);
    assert_true(tsr_cuda_share_a_launch(&ops[0].mul_mat, &ops[1].mul_mat));
    assert_false(tsr_cuda_share_a_launch(&ops[0].mul_mat, &ops[2].mul_mat));
    ops[2] = product(2);
    ops[2].mul_mat.w_stride *= 2;
    assert_false(tsr_cuda_share_a_launch(&ops[0].mul_mat, &ops[2].mul_mat));
    ops[2] = product(2);
    ops[2].mul_mat.x_bits = 8;
    assert_false(tsr_cuda_share_a_launch(&ops[0].mul_mat, &ops[2].mul_mat));
}

static void partial_sums_are_not_taken(void **state)
{
    (void)state;
    tsr_op ops[] = {product(0), product(1), product(2)};
    ops[2].mul_mat.partial = true;
    assert_false(tsr_cuda_share_a_launch(&ops[0].mul_mat, &ops[2].mul_mat));
    check_found(ops, 0, 0, 3, 2, 2, false);
    check_found(ops, 0, 2, 3, 1, 1, false);
    ops[1].mul_mat.partial = true;
    check_found(ops, 0, 1, 3, 1, 1, false);
}

/* A product of other activations, gate, up, and what is made of them. */
static void make_ffn(tsr_op ops[4])
{
    ops[0] = product(0);
    ops[0].mul_mat.x = memory.other_x;
    ops[1] = product(1);
    ops[2] = product(2);
    ops[3] = (tsr_op){.kind = TSR_OP_GLU,
                      .glu = {.gate = memory.y[1], .up = memory.y[2], .y = memory.y[3], .n = TOKENS * ROWS}};
}

static void check_no_ffn(void (*change)(tsr_op ops[4]))
{
    int n;
    tsr_op ops[4];
    make_ffn(ops);
    change(ops);
    assert_null(tsr_cuda_fuse_products(ops, 1, 1, 4, &n).glu);
}

static void of_another_gate(tsr_op ops[4])
{
    ops[3].glu.gate = memory.y[0];
}

static void of_fewer_elements(tsr_op ops[4])
{
    ops[3].glu.n--;
}

static void of_fewer_rows(tsr_op ops[4])
{
    ops[2].mul_mat.n_rows--;
}

static void of_rows_apart(tsr_op ops[4])
{
    ops[1].mul_mat.y_stride++;
}

static void of_partial_sums(tsr_op ops[4])
{
    ops[1].mul_mat.partial = ops[2].mul_mat.partial = true;
}

static void of_two_types(tsr_op ops[4])
{
    ops[2].mul_mat.type = TSR_TYPE_Q6_K;
}

static void of_two_strides(tsr_op ops[4])
{
    ops[2].mul_mat.w_stride *= 2;
}

static void of_two_widths(tsr_op ops[4])
{
    ops[2].mul_mat.x_bits = 8; /* of the activations */
}

static void onto_the_activations(tsr_op ops[4])
{
    ops[3].glu.y = memory.x + 1;
}

static void onto_a_part_of_gate(tsr_op ops[4])
{
    ops[3].glu.y = memory.y[1] + 1;
}

static void onto_a_part_of_up(tsr_op ops[4])
{
    ops[3].glu.y = memory.y[2] - 1;
}

static void gate_and_up_are_taken_with_their_product(void **state)
{
    (void)state;
    int n;
    tsr_op ops[4];
    make_ffn(ops);
    check_found(ops, 1, 1, 4, 2, 3, true);
    check_found(ops, 1, 1, 3, 2, 2, false); /* the product is not of the segment */
    ops[0].mul_mat.x = memory.x;            /* a sibling before them stays alone */
    check_found(ops, 0, 0, 4, 1, 1, false);
    check_found(ops, 0, 1, 4, 2, 3, true);
    ops[3].glu.gate = memory.y[2];
    ops[3].glu.up = memory.y[1];
    const tsr_cuda_products found = tsr_cuda_fuse_products(ops, 1, 1, 4, &n);
    assert_ptr_equal(found.of[0], &ops[2].mul_mat);
    assert_ptr_equal(found.of[1], &ops[1].mul_mat);
    assert_ptr_equal(found.glu, &ops[3].glu);
    check_no_ffn(of_another_gate);
    check_no_ffn(of_fewer_elements);
    check_no_ffn(of_fewer_rows);
    check_no_ffn(of_rows_apart);
    check_no_ffn(of_partial_sums);
    check_no_ffn(of_two_types);
    check_no_ffn(of_two_strides);
    check_no_ffn(of_two_widths);
    check_no_ffn(onto_the_activations);
    check_no_ffn(onto_a_part_of_gate);
    check_no_ffn(onto_a_part_of_up);
}

/* ops[0] may still run where gate and up do not wait for it. */
static void and_leaves_a_running_product_alone(void **state)
{
    (void)state;
    tsr_op ops[4];
    make_ffn(ops);
    ops[0].mul_mat.x = memory.x;
    ops[3].glu.y = memory.y[0];
    check_found(ops, 0, 1, 4, 2, 2, false);
    check_found(ops, 1, 1, 4, 2, 3, true); /* it has ended */
    ops[3].glu.y = memory.y[0] + TOKENS * ROWS - 1;
    check_found(ops, 0, 1, 4, 2, 2, false);
    ops[3].glu.y = memory.y[3];
    check_found(ops, 0, 1, 4, 2, 3, true);
}

/* -- queries, keys and values -- */

enum { DIM = 16, CACHED = ROWS };

/* Products whose results are ROWS / DIM heads of DIM elements, or one of CACHED, and the ops after them. */
static void make_heads(tsr_op ops[6], int64_t dim)
{
    const int64_t n_heads = ROWS / dim;
    for (int i = 0; i < 3; i++)
        ops[i] = product(i);
    for (int i = 3; i < 5; i++)
        ops[i] = (tsr_op){.kind = TSR_OP_ROPE,
                          .rope = {.x = memory.y[i - 3],
                                   .y = memory.y[i - 3],
                                   .n_tokens = TOKENS,
                                   .n_heads = n_heads,
                                   .head_dim = dim,
                                   .n_rot = dim,
                                   .interleaved = true}};
    ops[5] = (tsr_op){.kind = TSR_OP_KV_WRITE,
                      .kv_write = {.k = memory.y[1], .v = memory.y[2], .n_tokens = TOKENS}};
    ops[5].kv_write.kv = (tsr_kv_view){
        .type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_F16, .n_heads = n_heads, .k_dim = dim, .v_dim = dim};
}

static void check_heads(int64_t dim, void (*change)(tsr_op ops[6]), bool taken)
{
    tsr_op ops[6];
    make_heads(ops, dim);
    if (change)
        change(ops);
    check_found(ops, 0, 0, 6, 3, taken ? 6 : 3, false);
}

static void in_halves(tsr_op ops[6])
{
    ops[3].rope.interleaved = ops[4].rope.interleaved = false;
}

static void with_quantized_keys(tsr_op ops[6])
{
    ops[5].kv_write.kv.type_k = TSR_TYPE_Q8_0;
}

static void with_quantized_values(tsr_op ops[6])
{
    ops[5].kv_write.kv.type_v = TSR_TYPE_Q4_0;
}

static void in_halves_and_quantized(tsr_op ops[6])
{
    in_halves(ops);
    with_quantized_keys(ops);
}

static void in_halves_of_a_part(tsr_op ops[6])
{
    in_halves(ops);
    ops[3].rope.n_rot = DIM;
}

static void of_two_kinds(tsr_op ops[6])
{
    ops[3].rope.interleaved = false;
}

static void of_values_elsewhere(tsr_op ops[6])
{
    ops[5].kv_write.v = memory.y[3];
}

static void with_values_of_another_type(tsr_op ops[6])
{
    ops[2].mul_mat.type = TSR_TYPE_Q6_K;
}

static void of_results_apart(tsr_op ops[6])
{
    ops[0].mul_mat.y_stride--;
}

static void over_what_is_multiplied(tsr_op ops[6])
{
    ops[3].rope.y = memory.x;
}

static void ropes_and_the_write_are_taken_with_their_products(void **state)
{
    (void)state;
    tsr_op ops[6];
    check_heads(DIM, NULL, true);
    check_heads(DIM, with_values_of_another_type, true);
    check_heads(CACHED, in_halves, true);
    check_heads(CACHED, with_quantized_keys, true);
    check_heads(CACHED, with_quantized_values, true);
    check_heads(DIM, in_halves, false); /* half a head is less than the rows of a block */
    check_heads(DIM, with_quantized_keys, false);
    check_heads(DIM, with_quantized_values, false);
    check_heads(CACHED, in_halves_and_quantized, false);
    check_heads(CACHED, in_halves_of_a_part, false);
    check_heads(CACHED, of_two_kinds, false);
    check_heads(CACHED, of_values_elsewhere, false);
    check_heads(CACHED, of_results_apart, false);
    check_heads(CACHED, over_what_is_multiplied, false);
    make_heads(ops, DIM);
    check_found(ops, 0, 0, 5, 3, 3, false); /* the write is not of the segment */
    check_found(ops, 0, 1, 6, 2, 2, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_the_same_activations_are_siblings),
        cmocka_unit_test(others_are_not),
        cmocka_unit_test(a_chain_of_siblings_is_compared_as_a_whole),
        cmocka_unit_test(up_to_three_siblings_are_taken_together),
        cmocka_unit_test(those_of_another_kind_of_weights_are_taken_too),
        cmocka_unit_test(partial_sums_are_not_taken),
        cmocka_unit_test(gate_and_up_are_taken_with_their_product),
        cmocka_unit_test(ropes_and_the_write_are_taken_with_their_products),
        cmocka_unit_test(and_leaves_a_running_product_alone),
    };
    return cmocka_run_group_tests_name("products side by side", tests, NULL, NULL);
}
