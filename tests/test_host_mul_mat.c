/* mul_mat on the host, every weight type on every instruction set: against a double-precision sum over the
 * decoded weights, and bit for bit where the order of operations is promised (tokens, threads, rows,
 * granules, one instruction set against another). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/mul_mat_case.h"
#include "support/sanitized.h"

static void every_type_is_close_and_does_not_depend_on_threads(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, k in blocks or elements, tokens */
                                        {1, 1, 1},  {5, 2, 1},   {9, 7, 2},
                                        {67, 3, 3}, {130, 5, 7}, {33, 6, 66}};
    for (int i = 0; i < N_KINDS; i++)
        for (size_t s = (size_t)(i + TSR_TEST_FIRST(2)) % (size_t)TSR_TEST_EVERY(2);
             s < sizeof shapes / sizeof *shapes; s += (size_t)TSR_TEST_EVERY(2)) {
            /* plain types: lengths that are no multiple of anything */
            const int64_t block = mul_mat_block(mul_mat_kind(i).type),
                          k = shapes[s][1] * (block == 1 ? 157 : block);
            problem p = problem_create(mul_mat_kind(i), shapes[s][0], k, shapes[s][2], 1 + s);
            problem_check_sets(&p, 0, TSR_REDUCE_F32);
            problem_check_sets(&p, block == 1 ? 96 : block, TSR_REDUCE_EXACT);
            problem_check_sets(&p, block == 1 ? 50 : 2 * block, TSR_REDUCE_EXACT);
            problem_check_sets(&p, block == 1 ? 600 : 3 * block, TSR_REDUCE_F32);
            problem_check_sets(&p, block == 1 ? 96 : block, TSR_REDUCE_BF16);
            problem_check_sets(&p, 1 << 20, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
}

/* More tokens than kernels take at once, in sums that are carried from one part of K to the next. */
static void sums_of_long_prompts_are_carried_on(void **state)
{
    (void)state;
    static const kind some[] = {
        {TSR_TYPE_F16, 16}, {TSR_TYPE_BF16, 8}, {TSR_TYPE_Q8_0, 16}, {TSR_TYPE_Q6_K, 8}, {TSR_TYPE_Q4_K, 8}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (int64_t n_tokens = 261; n_tokens <= 581; n_tokens += 160) {
            problem p = problem_create(some[i], 67, 768, n_tokens, 31);
            problem_check_sets(&p, 0, TSR_REDUCE_F32);
            problem_check_sets(&p, 256, TSR_REDUCE_EXACT);
            problem_destroy(&p);
        }
}

static void one_token_gives_the_bits_of_many(void **state)
{
    (void)state;
    static const int64_t many[] = {2, 3, 7, 9}; /* up to 8 walk like one, in fours or twos or alone */
    for (int i = 0; i < N_KINDS; i++)
        for (size_t m = (size_t)(i + TSR_TEST_FIRST(2)) % (size_t)TSR_TEST_EVERY(2);
             m < sizeof many / sizeof *many; m += (size_t)TSR_TEST_EVERY(2))
            for (int64_t granule = 0; granule <= 768; granule += 256) {
                problem p = problem_create(mul_mat_kind(i), 37, 1280, many[m], 7);
                problem_check_tokens(&p, granule);
                problem_destroy(&p);
            }
}

/* Rows of which two tokens fit into scratch, or one, or none. */
static void few_tokens_of_long_rows_give_the_bits_of_one(void **state)
{
    (void)state;
    static const kind some[] = {{TSR_TYPE_F16, 16}, {TSR_TYPE_Q8_0, 16}, {TSR_TYPE_Q4_K, 8}};
    static const int64_t lengths[] = {36864, 37120, 73984}; /* 73728 elements fit */
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            problem p = problem_create(some[i], 17, lengths[l], 2, 7);
            problem_check_tokens(&p, 256);
            problem_destroy(&p);
        }
}

static void row_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int i = 0; i < N_KINDS; i++) {
        problem p = problem_create(mul_mat_kind(i), 53, 512, 4, 3);
        const size_t bytes = problem_output_bytes(&p, false, TSR_REDUCE_F32);
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
static void column_shards_add_up_to_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { GRANULE = 256, GRANULES = 7, ROWS = 21, TOKENS = 3, N = ROWS * TOKENS };
    const tsr_kernel_set *set;
    for (int i = 0; i < N_KINDS; i++) {
        problem p = problem_create(mul_mat_kind(i), ROWS, GRANULE * GRANULES, TOKENS, 5);
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

/* A strided view with strided activations and results; what is between stays untouched. */
static void strided_products_leave_gaps_untouched(void **state)
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

static void an_empty_sum_is_zero(void **state)
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
        cmocka_unit_test(every_type_is_close_and_does_not_depend_on_threads),
        cmocka_unit_test(sums_of_long_prompts_are_carried_on),
        cmocka_unit_test(one_token_gives_the_bits_of_many),
        cmocka_unit_test(few_tokens_of_long_rows_give_the_bits_of_one),
        cmocka_unit_test(row_shards_give_the_bits_of_the_whole),
        cmocka_unit_test(column_shards_add_up_to_the_bits_of_the_whole),
        cmocka_unit_test(strided_products_leave_gaps_untouched),
        cmocka_unit_test(an_empty_sum_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
