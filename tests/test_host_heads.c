/* mul_heads on the host, every instruction set: each head has the bits of a mul_mat with its matrix, whatever
 * the number of threads, and the elements behind the product are those of the activations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/weight_types.h"

static const tsr_type types[] = {WEIGHT_TYPES};

typedef struct shape {
    tsr_type type;
    int64_t n_heads, n_rows, k, rest, n_tokens;
    int x_bits;
} shape;

/* Random weights and activations that end where their memory does. */
static tsr_op make_op(shape s, uint64_t seed, size_t *w_bytes, size_t *x_bytes)
{
    const int64_t rows = s.n_heads * s.n_rows, x_floats = s.n_tokens * s.n_heads * (s.k + s.rest);
    const size_t row_bytes = tsr_type_row_bytes(s.type, s.k);
    float *values = malloc((size_t)(rows * s.k) * sizeof(float));
    *w_bytes = (size_t)rows * row_bytes;
    *x_bytes = (size_t)x_floats * sizeof(float);
    unsigned char *w = guarded_alloc(*w_bytes);
    float *x = guarded_alloc(*x_bytes);
    assert_non_null(values);
    random_fill(&seed, values, rows * s.k, -1.0f, 1.0f);
    random_fill(&seed, x, x_floats, -1.0f, 1.0f);
    assert_int_equal(tsr_type_from_f32(s.type, values, w, rows * s.k), TSR_OK);
    free(values);
    return (tsr_op){.kind = TSR_OP_MUL_HEADS,
                    .mul_heads = {.type = s.type,
                                  .w = w,
                                  .w_stride = row_bytes,
                                  .n_rows = s.n_rows,
                                  .k = s.k,
                                  .rest = s.rest,
                                  .n_heads = s.n_heads,
                                  .x = x,
                                  .n_tokens = s.n_tokens,
                                  .x_bits = s.x_bits}};
}

/* What the op is: a product per head with weights and activations of its own, and copies. */
static void by_definition(const tsr_kernel_set *set, const tsr_op_mul_heads *op, float *y)
{
    const int64_t x_dim = op->k + op->rest, y_dim = op->n_rows + op->rest;
    for (int64_t h = 0; h < op->n_heads; h++) {
        const tsr_op product = {
            .kind = TSR_OP_MUL_MAT,
            .mul_mat = {.type = op->type,
                        .w = (const char *)op->w + (size_t)(h * op->n_rows) * op->w_stride,
                        .w_stride = op->w_stride,
                        .n_rows = op->n_rows,
                        .k = op->k,
                        .x = op->x + h * x_dim,
                        .x_stride = op->n_heads * x_dim,
                        .n_tokens = op->n_tokens,
                        .x_bits = op->x_bits,
                        .y = y + h * y_dim,
                        .y_stride = op->n_heads * y_dim}};
        assert_false(kernel_run(set, &product, 1));
        for (int64_t t = 0; t < op->n_tokens; t++)
            for (int64_t i = 0; i < op->rest; i++)
                y[(t * op->n_heads + h) * y_dim + op->n_rows + i] =
                    op->x[(t * op->n_heads + h) * x_dim + op->k + i];
    }
}

static void check(shape s, uint64_t seed)
{
    size_t w_bytes, x_bytes;
    tsr_op op = make_op(s, seed, &w_bytes, &x_bytes);
    const size_t bytes = (size_t)(s.n_tokens * s.n_heads * (s.n_rows + s.rest)) * sizeof(float);
    float *expected = guarded_alloc(bytes), *y = guarded_alloc(bytes);
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_product_set(i)) != NULL; i++) {
        by_definition(set, &op.mul_heads, expected);
        for (int threads = 1; threads <= 4; threads++) {
            memset(y, 0xff, bytes);
            op.mul_heads.y = y;
            assert_false(kernel_run(set, &op, threads));
            if (memcmp(y, expected, bytes) != 0)
                fail_msg("%s, %s, %d threads, %d tokens: other bits", set->isa, tsr_type_name(s.type),
                         threads, (int)s.n_tokens);
        }
    }
    guarded_free(expected, bytes);
    guarded_free(y, bytes);
    guarded_free((void *)op.mul_heads.w, w_bytes);
    guarded_free((void *)op.mul_heads.x, x_bytes);
}

static void heads_have_the_bits_of_their_products(void **state)
{
    (void)state;
    static const int64_t n_tokens[] = {1, 3, 40};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t block = tsr_type_block_elems(types[i]), k = block == 1 ? 24 : block;
        for (size_t j = 0; j < sizeof n_tokens / sizeof *n_tokens; j++) {
            check((shape){types[i], 5, 32, k, 16, n_tokens[j], 16}, i);
            check((shape){types[i], 3, 20, 2 * k, 0, n_tokens[j], 8}, 50 + i);
        }
    }
}

/* As in DeepSeek V3: into the compressed row, with the rotated elements behind it, and out of it. */
static void rows_of_real_models(void **state)
{
    (void)state;
    check((shape){TSR_TYPE_BF16, 3, 512, 128, 64, 2, 16}, 1);
    check((shape){TSR_TYPE_Q8_0, 3, 128, 512, 0, 70, 16}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_have_the_bits_of_their_products),
        cmocka_unit_test(rows_of_real_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
