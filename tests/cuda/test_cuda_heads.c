/* mul_heads on CUDA: against double precision, and a token alone gives the bits that it has among others. */
#include "gpu_run.h"

#include <math.h>

#include "support/weight_types.h"

static const tsr_type types[] = {COMMON_TYPES, RARE_TYPES, TWO_CODE_TYPES};

typedef struct shape {
    tsr_type type;
    int64_t n_heads, n_rows, k, rest, n_tokens;
} shape;

typedef struct heads_case {
    shape s;
    float *w, *x; /* decoded weights; activations */
    tsr_op op;
    size_t y_floats;
} heads_case;

static heads_case make_case(gpu *g, shape s, uint64_t seed)
{
    heads_case c = {.s = s, .y_floats = (size_t)(s.n_tokens * s.n_heads * (s.n_rows + s.rest))};
    const int64_t n_w = s.n_heads * s.n_rows * s.k, n_x = s.n_tokens * s.n_heads * (s.k + s.rest);
    const size_t row_bytes = tsr_type_row_bytes(s.type, s.k), bytes = row_bytes * (size_t)(n_w / s.k);
    unsigned char *encoded = malloc(bytes);
    assert_non_null(encoded);
    c.w = random_floats(n_w, -1, 1, seed);
    c.x = random_floats(n_x, -1, 1, seed + 1);
    assert_int_equal(tsr_type_from_f32(s.type, c.w, encoded, n_w), TSR_OK);
    assert_int_equal(tsr_type_to_f32(s.type, encoded, c.w, n_w), TSR_OK);
    c.op = (tsr_op){.kind = TSR_OP_MUL_HEADS,
                    .mul_heads = {.type = s.type,
                                  .w = gpu_put(g, encoded, bytes, false),
                                  .w_stride = row_bytes,
                                  .n_rows = s.n_rows,
                                  .k = s.k,
                                  .rest = s.rest,
                                  .n_heads = s.n_heads,
                                  .x = gpu_put(g, c.x, (size_t)n_x * sizeof(float), s.k % 4 == 0),
                                  .y = gpu_alloc(g, c.y_floats * sizeof(float), false),
                                  .n_tokens = s.n_tokens}};
    free(encoded);
    return c;
}

/* Each product and sum of k rounds once, or a tree's few times. */
static void check_head(const heads_case *c, int64_t t, int64_t h, const float *y)
{
    const shape *s = &c->s;
    const float *x = c->x + (t * s->n_heads + h) * (s->k + s->rest);
    for (int64_t r = 0; r < s->n_rows; r++) {
        const float *w = c->w + (h * s->n_rows + r) * s->k;
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < s->k; i++) {
            sum += (double)w[i] * (double)x[i];
            magnitude += fabs((double)w[i] * (double)x[i]);
        }
        if (!(fabs((double)y[r] - sum) <= 32 * 0x1p-24 * magnitude + 1e-30))
            fail_msg("%s token %d head %d row %d: %.9g, exact %.9g", tsr_type_name(s->type), (int)t, (int)h,
                     (int)r, (double)y[r], sum);
    }
    for (int64_t i = 0; i < s->rest; i++)
        assert_true(y[s->n_rows + i] == x[s->k + i]);
}

static void check(gpu *g, shape s, uint64_t seed)
{
    heads_case c = make_case(g, s, seed);
    const int64_t y_dim = s.n_rows + s.rest, x_token = s.n_heads * (s.k + s.rest),
                  y_token = s.n_heads * y_dim;
    float *many = malloc(c.y_floats * sizeof(float)), *one = malloc((size_t)y_token * sizeof(float));
    assert_true(many && one);
    assert_false(gpu_run(g, &c.op));
    gpu_get(many, c.op.mul_heads.y, c.y_floats * sizeof(float));
    for (int64_t t = 0; t < s.n_tokens; t++)
        for (int64_t h = 0; h < s.n_heads; h++)
            check_head(&c, t, h, many + (t * s.n_heads + h) * y_dim);
    const float *x = c.op.mul_heads.x;
    c.op.mul_heads.n_tokens = 1;
    for (int64_t t = 0; t < s.n_tokens; t++) {
        c.op.mul_heads.x = x + t * x_token;
        assert_false(gpu_run(g, &c.op));
        gpu_get(one, c.op.mul_heads.y, (size_t)y_token * sizeof(float));
        assert_memory_equal(one, many + t * y_token, (size_t)y_token * sizeof(float));
    }
    free(many);
    free(one);
    free(c.w);
    free(c.x);
    gpu_clear(g);
}

static void heads_are_close_to_exact_for_every_type(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t block = tsr_type_block_elems(types[i]), k = block == 1 ? 24 : block;
        check(&g, (shape){types[i], 3, 10, k, 16, 11}, i);
        check(&g, (shape){types[i], 2, 7, 2 * k, 0, 2}, 50 + i);
    }
    check(&g, (shape){TSR_TYPE_F16, 3, 5, 21, 7, 3}, 99); /* nothing is aligned */
    /* more octets than a warp has lanes */
    check(&g, (shape){TSR_TYPE_F32, 2, 5, 256, 8, 3}, 100);
    check(&g, (shape){TSR_TYPE_BF16, 2, 7, 512, 0, 2}, 101);
    check(&g, (shape){TSR_TYPE_F16, 3, 4, 640, 16, 3}, 102);
    check(&g, (shape){TSR_TYPE_Q8_0, 2, 5, 288, 0, 3}, 103);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_are_close_to_exact_for_every_type)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
