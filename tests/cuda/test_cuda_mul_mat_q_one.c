/* mul_mat with quantized weights for one token, which has a form of its own where rows begin at multiples of
 * 16 bytes: the same bits as the forms for few and for many tokens give the token, for any number of chunks
 * of a part of K, any granule, and any number of turns of a block. */
#include "gpu_run.h"

#include <tsr/types.h>

#include "core/mem.h"
#include "core/quant/fixed.h"

enum { TOKENS = 64, ROWS = 75 };

/* Rows of `k` elements that begin at multiples of 16 bytes, and activations. */
typedef struct matrix {
    tsr_type type;
    int64_t k;
    size_t stride, bytes;
    unsigned char *data;
    float *x; /* [TOKENS][k] */
} matrix;

static matrix matrix_create(tsr_type type, int64_t k)
{
    matrix m = {.type = type, .k = k, .stride = (tsr_type_row_bytes(type, k) + 15) / 16 * 16};
    float *values = random_floats(ROWS * k, -1, 1, 2);
    m.bytes = (ROWS - 1) * m.stride + tsr_type_row_bytes(type, k);
    m.data = calloc(1, m.bytes);
    m.x = random_floats(TOKENS * k, -2, 2, 1);
    for (int64_t r = 0; r < ROWS; r++)
        assert_int_equal(tsr_type_from_f32(type, values + r * k, m.data + (size_t)r * m.stride, k), TSR_OK);
    free(values);
    return m;
}

static void matrix_destroy(matrix *m)
{
    free(m->data);
    free(m->x);
}

/* Results of `n` tokens from `first` on with activations of `bits`, [n][ROWS]; granule 0: whole sums. The
 * caller frees them. */
static void *results_of(gpu *g, const matrix *m, int bits, int64_t first, int64_t n, int64_t granule)
{
    const size_t bytes = (size_t)(n * ROWS) * (granule > 0 ? sizeof(int64_t) : sizeof(float));
    const tsr_op op = {
        .kind = TSR_OP_MUL_MAT,
        .mul_mat = {.type = m->type,
                    .w = gpu_put(g, m->data, m->bytes, true),
                    .w_stride = m->stride,
                    .n_rows = ROWS,
                    .k = m->k,
                    .x = gpu_put(g, m->x + first * m->k, (size_t)(n * m->k) * sizeof(float), true),
                    .x_stride = m->k,
                    .n_tokens = n,
                    .x_bits = bits,
                    .partial = granule > 0,
                    .reduce = TSR_REDUCE_EXACT,
                    .granule = granule,
                    .limit = granule > 0 ? tsr_fixed_limit((m->k + granule - 1) / granule) : 0,
                    .y = gpu_alloc(g, bytes, true),
                    .y_stride = ROWS}};
    void *y = malloc(bytes);
    assert_false(gpu_run(g, &op));
    gpu_get(y, op.mul_mat.y, bytes);
    gpu_clear(g);
    return y;
}

static void check_bits(gpu *g, const matrix *m, int bits, int64_t granule)
{
    static const int64_t counts[] = {2, 5, 8, TOKENS};
    const size_t token_bytes = ROWS * (granule > 0 ? sizeof(int64_t) : sizeof(float));
    void *alone = results_of(g, m, bits, 1, 1, granule);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char *all = results_of(g, m, bits, 0, counts[i], granule);
        assert_memory_equal(all + token_bytes, alone, token_bytes);
        free(all);
    }
    free(alone);
}

static void check(gpu *g, const matrix *m, int64_t granule)
{
    check_bits(g, m, 16, granule);
    check_bits(g, m, 8, granule);
}

static void check_type(tsr_type type)
{
    /* Chunks of a part: two, and none in some; four; ten and fewer; eighteen, from activations in scratch
     * memory. */
    static const int64_t ks[] = {1280, 4096, 9472, 17920};
    const bool plain = tsr_type_block_elems(type) == 32;
    gpu g = gpu_open();
    g.props.n_sms = 2; /* blocks take several turns */
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        matrix m = matrix_create(type, ks[i] - (plain && i > 0 ? 128 : 0)); /* an odd number of chunks */
        check(&g, &m, 0);
        check(&g, &m, plain ? 128 : 256);
        check(&g, &m, 768);
        matrix_destroy(&m);
    }
    gpu_close(&g);
}

static void q8_0_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_Q8_0);
}

static void q4_0_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_Q4_0);
}

static void q4_k_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_Q4_K);
}

static void q5_k_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_Q5_K);
}

static void q6_k_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_Q6_K);
}

static void iq4_nl_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_IQ4_NL);
}

static void mxfp4_has_the_bits_of_more_tokens(void **state)
{
    (void)state;
    check_type(TSR_TYPE_MXFP4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8_0_has_the_bits_of_more_tokens),
        cmocka_unit_test(q4_0_has_the_bits_of_more_tokens),
        cmocka_unit_test(q4_k_has_the_bits_of_more_tokens),
        cmocka_unit_test(q5_k_has_the_bits_of_more_tokens),
        cmocka_unit_test(q6_k_has_the_bits_of_more_tokens),
        cmocka_unit_test(iq4_nl_has_the_bits_of_more_tokens),
        cmocka_unit_test(mxfp4_has_the_bits_of_more_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
