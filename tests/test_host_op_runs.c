/* Which ops a host device runs without a barrier between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "host/op_runs.h"

enum { N = 64 };

static float arena[5][N], *const q = arena[0], *const before_k = arena[1], *const k = arena[2];
static float *const v = arena[3], *const x = arena[4], table[N];
static unsigned char pages[N];

static tsr_op product(const float *from, float *to)
{
    return (tsr_op){
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.x = from, .y = to, .k = N, .n_rows = N, .n_tokens = 1, .x_stride = N, .y_stride = N}};
}

static tsr_op rope(float *in_place)
{
    return (tsr_op){.kind = TSR_OP_ROPE,
                    .rope = {.x = in_place,
                             .table = table,
                             .y = in_place,
                             .n_tokens = 1,
                             .n_heads = 2,
                             .head_dim = N / 2,
                             .n_rot = N / 2}};
}

static tsr_op write_kv(void)
{
    return (tsr_op){.kind = TSR_OP_KV_WRITE,
                    .kv_write = {.kv = {.base = pages, .n_heads = 2, .k_dim = N / 2, .v_dim = N / 2},
                                 .k = k,
                                 .v = v,
                                 .n_tokens = 1}};
}

static tsr_op attention(const float *from, float *to)
{
    return (tsr_op){.kind = TSR_OP_ATTENTION,
                    .attention = {.kv = {.base = pages, .n_heads = 2, .k_dim = N / 2, .v_dim = N / 2},
                                  .q = from,
                                  .y = to,
                                  .n_tokens = 1,
                                  .n_heads = 2}};
}

static void products_of_one_input_share_a_stage(void **state)
{
    (void)state;
    const tsr_op ops[] = {product(x, q), product(x, k), product(x, v), product(v, x)};
    assert_true(tsr_host_joins_run(ops, 1));
    assert_true(tsr_host_joins_run(ops, 2));
    assert_false(tsr_host_joins_run(ops, 3)); /* reads v, and overwrites what the others read */
}

static void ropes_and_the_write_of_keys_share_a_stage(void **state)
{
    (void)state;
    tsr_op ops[] = {rope(q), rope(k), write_kv(), attention(q, x)};
    assert_true(tsr_host_joins_run(ops, 1));
    assert_true(tsr_host_joins_run(ops, 2));
    assert_false(tsr_host_joins_run(ops, 3));
    ops[1].rope.n_heads = 1; /* divided otherwise than the write */
    assert_false(tsr_host_joins_run(ops, 2));
}

static void values_must_be_there_before_they_are_written(void **state)
{
    (void)state;
    const tsr_op ops[] = {product(x, v), write_kv()};
    assert_false(tsr_host_joins_run(ops, 1));
}

static void overlaps_of_a_single_element_count(void **state)
{
    (void)state;
    tsr_op ops[] = {product(x, q), product(x, k)};
    ops[0].mul_mat.y = before_k + 1; /* its last float is the other's first */
    assert_false(tsr_host_joins_run(ops, 1));
    ops[0].mul_mat.y = before_k;
    assert_true(tsr_host_joins_run(ops, 1));
    ops[0].mul_mat.partial = true; /* twice as wide: int64 */
    assert_false(tsr_host_joins_run(ops, 1));
}

static void attention_has_its_stage_alone(void **state)
{
    (void)state;
    static float y[2][N];
    const tsr_op ops[] = {attention(q, y[0]), attention(q, y[1])};
    assert_false(tsr_host_joins_run(ops, 1));
}

static void collectives_and_unknown_ops_never_join(void **state)
{
    (void)state;
    tsr_op ops[] = {product(x, q), {.kind = TSR_OP_ALL_REDUCE}, product(x, k)};
    assert_false(tsr_host_joins_run(ops, 1));
    assert_false(tsr_host_joins_run(ops + 1, 1));
    ops[1].kind = TSR_OP_GET_ROWS;
    assert_false(tsr_host_joins_run(ops, 1));
}

static void a_stage_has_an_end(void **state)
{
    (void)state;
    static float y[TSR_HOST_RUN_OPS + 1][N];
    tsr_op ops[TSR_HOST_RUN_OPS + 1];
    for (int i = 0; i <= TSR_HOST_RUN_OPS; i++)
        ops[i] = product(x, y[i]);
    assert_true(tsr_host_joins_run(ops, TSR_HOST_RUN_OPS - 1));
    assert_false(tsr_host_joins_run(ops, TSR_HOST_RUN_OPS));
}

static void one_row_is_for_one_thread(void **state)
{
    (void)state;
    tsr_op norm = {.kind = TSR_OP_RMS_NORM, .rms_norm = {.n = 1 << 20, .n_rows = 1}};
    tsr_op add = {.kind = TSR_OP_ADD, .add = {.n = 2048, .n_rows = 2}};
    const tsr_op of_chunks = product(x, q);
    assert_true(tsr_host_is_for_one_thread(&norm));
    assert_true(tsr_host_is_for_one_thread(&add));
    assert_false(tsr_host_is_for_one_thread(&of_chunks));
    norm.rms_norm.n_rows = 2;
    add.add.n_rows = 3;
    assert_false(tsr_host_is_for_one_thread(&norm));
    assert_false(tsr_host_is_for_one_thread(&add));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_one_input_share_a_stage),
        cmocka_unit_test(ropes_and_the_write_of_keys_share_a_stage),
        cmocka_unit_test(values_must_be_there_before_they_are_written),
        cmocka_unit_test(overlaps_of_a_single_element_count),
        cmocka_unit_test(attention_has_its_stage_alone),
        cmocka_unit_test(collectives_and_unknown_ops_never_join),
        cmocka_unit_test(a_stage_has_an_end),
        cmocka_unit_test(one_row_is_for_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
