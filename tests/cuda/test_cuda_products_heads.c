/* Queries, keys and values in one launch, or one for each type of weights, that also rotates queries and keys
 * and writes keys and values to the cache: the bits of the six ops, for any types, sizes and cards.
 * (test_cuda_siblings.c has the choice.) Matrices end where a page ends, so that reading a byte too far
 * leaves the allocation. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

#include "cuda/device/fuse.h"

enum { K = 512, PAGE_TOKENS = 4, PAGES = 3, MOST_TOKENS = 8, N_OPS = 6 };

typedef struct shape {
    tsr_type type, type_k, type_v;
    int64_t n_tokens, heads, kv_heads, dim, n_rot;
    bool interleaved, in_place;
    tsr_type own[TSR_CUDA_PRODUCTS]; /* of one product's weights, if not TSR_TYPE_F32 */
} shape;

/* The six ops, and what they write. */
typedef struct layer {
    tsr_op op[N_OPS];
    void *written[N_OPS];
    size_t bytes[N_OPS];
} layer;

static void write_by(layer *l, int i, void *where, size_t bytes)
{
    l->written[i] = where;
    l->bytes[i] = bytes;
}

static void add_product(gpu *g, const shape *s, layer *l, int i, const float *x, int64_t n_rows)
{
    const size_t bytes = (size_t)(s->n_tokens * n_rows) * sizeof(float);
    const tsr_type type = s->own[i] != TSR_TYPE_F32 ? s->own[i] : s->type;
    l->op[i] = (tsr_op){.kind = TSR_OP_MUL_MAT,
                        .mul_mat = {.type = type,
                                    .w = gpu_weights(g, type, n_rows, K, (uint64_t)i + 1),
                                    .w_stride = tsr_type_row_bytes(type, K),
                                    .n_rows = n_rows,
                                    .k = K,
                                    .x = x,
                                    .x_stride = K,
                                    .n_tokens = s->n_tokens,
                                    .y = gpu_alloc(g, bytes, false),
                                    .y_stride = n_rows}};
    write_by(l, i, l->op[i].mul_mat.y, bytes);
}

static void add_rope(gpu *g, const shape *s, layer *l, int i, const float *table, int64_t n_heads)
{
    float *x = l->op[i - 3].mul_mat.y;
    float *y = s->in_place ? x : gpu_alloc(g, l->bytes[i - 3], false);
    l->op[i] = (tsr_op){.kind = TSR_OP_ROPE,
                        .rope = {x, table, y, s->n_tokens, n_heads, s->dim, s->n_rot, s->interleaved}};
    write_by(l, i, y, l->bytes[i - 3]);
}

static void add_write(gpu *g, const shape *s, layer *l)
{
    static const int32_t pages[PAGES] = {2, 0, 1}, rows[MOST_TOKENS] = {0},
                         positions[MOST_TOKENS] = {3, 4, 5, 9, 7, 0, 1, 11};
    tsr_kv_view kv = {.k_row_bytes = tsr_type_row_bytes(s->type_k, s->dim),
                      .v_row_bytes = tsr_type_row_bytes(s->type_v, s->dim),
                      .type_k = s->type_k,
                      .type_v = s->type_v,
                      .n_heads = s->kv_heads,
                      .k_dim = s->dim,
                      .v_dim = s->dim,
                      .page_tokens = PAGE_TOKENS};
    kv.v_offset = (size_t)(s->kv_heads * PAGE_TOKENS) * kv.k_row_bytes;
    kv.page_bytes = kv.v_offset + (size_t)(s->kv_heads * PAGE_TOKENS) * kv.v_row_bytes;
    kv.base = gpu_alloc(g, PAGES * kv.page_bytes, true);
    l->op[5] = (tsr_op){.kind = TSR_OP_KV_WRITE,
                        .kv_write = {.kv = kv,
                                     .index = {gpu_put(g, pages, sizeof pages, false), PAGES,
                                               gpu_put(g, rows, sizeof rows, false),
                                               gpu_put(g, positions, sizeof positions, false)},
                                     .k = l->op[4].rope.y,
                                     .v = l->op[2].mul_mat.y,
                                     .n_tokens = s->n_tokens}};
    write_by(l, 5, kv.base, PAGES * kv.page_bytes);
}

static layer layer_make(gpu *g, const shape *s)
{
    layer l = {0};
    float *table = malloc((size_t)(s->n_tokens * s->n_rot) * sizeof(float) + 1);
    for (int64_t i = 0; i < s->n_tokens * s->n_rot / 2; i++) {
        table[2 * i] = cosf((float)i);
        table[2 * i + 1] = sinf((float)i);
    }
    const float *there = gpu_put(g, table, (size_t)(s->n_tokens * s->n_rot) * sizeof(float), false);
    const float *x = gpu_random(g, s->n_tokens * K, -2, 2, 7, NULL);
    add_product(g, s, &l, 0, x, s->heads * s->dim);
    add_product(g, s, &l, 1, x, s->kv_heads * s->dim);
    add_product(g, s, &l, 2, x, s->kv_heads * s->dim);
    add_rope(g, s, &l, 3, there, s->heads);
    add_rope(g, s, &l, 4, there, s->kv_heads);
    add_write(g, s, &l);
    free(table);
    return l;
}

/* Launch them together; whether a kernel could. */
static bool together(gpu *g, const layer *l)
{
    int n, n_products;
    const tsr_cuda_products products = tsr_cuda_fuse_products(l->op, 0, 0, N_OPS, &n);
    const tsr_cuda_stream s = gpu_stream(g, NULL);
    assert_int_equal(n, N_OPS);
    assert_int_equal(tsr_cuda_mul_mats(&products, &s, &n_products), TSR_OK);
    assert_false(gpu_fault(g));
    assert_true(n_products == 0 || n_products == products.n);
    return n_products > 0;
}

static void check(gpu *g, const shape *s)
{
    const layer l = layer_make(g, s);
    void *alone[N_OPS];
    for (int i = 0; i < N_OPS; i++)
        assert_false(gpu_run(g, &l.op[i]));
    for (int i = 0; i < N_OPS; i++) {
        alone[i] = malloc(l.bytes[i]);
        gpu_get(alone[i], l.written[i], l.bytes[i]);
    }
    for (int i = 0; i < N_OPS; i++)
        gpu_fill(l.written[i], 0xff, l.bytes[i]);
    assert_true(together(g, &l));
    for (int i = 0; i < N_OPS; i++) {
        void *got = malloc(l.bytes[i]);
        gpu_get(got, l.written[i], l.bytes[i]);
        assert_memory_equal(got, alone[i], l.bytes[i]);
        free(got);
        free(alone[i]);
    }
    gpu_clear(g);
}

static const tsr_type weights[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K, TSR_TYPE_Q5_K,
                                   TSR_TYPE_Q6_K, TSR_TYPE_F16,  TSR_TYPE_BF16};
static const tsr_type caches[] = {TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_BF16, TSR_TYPE_Q4_0, TSR_TYPE_F32};
enum { N_WEIGHTS = sizeof weights / sizeof *weights, N_CACHES = sizeof caches / sizeof *caches };

static bool is_half(tsr_type type)
{
    return type == TSR_TYPE_F16 || type == TSR_TYPE_BF16;
}

/* Whole heads are rotated, or a part of them; heads that begin inside a set of sixteen rows; cards of a few
 * multiprocessors, whose blocks have several turns. */
static void one_launch_has_the_bits_of_six(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const int n_sms = g.props.n_sms;
    for (int i = 0; i < N_WEIGHTS; i++)
        for (int j = 0; j < N_CACHES; j++) {
            const bool half = is_half(weights[i]);
            const tsr_type k = caches[half ? j / 2 * 2 : j], v = caches[half ? 2 : N_CACHES - 1 - j];
            const bool odd = (i + j) % 2 == 0 && tsr_type_block_elems(k) == 1 && tsr_type_block_elems(v) == 1;
            g.props.n_sms = j % 3 == 0 ? 1 : j % 3 == 1 ? 3 : n_sms;
            check(&g, &(shape){weights[i], k, v, 1 + (i + 3 * j) % MOST_TOKENS, 3, 2, odd ? 40 : 64,
                               j % 2 == 0 ? 40 : 36, true, (i + j) % 2 == 0});
        }
    g.props.n_sms = n_sms;
    gpu_close(&g);
}

static void and_so_has_one_of_halves_of_heads(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const int n_sms = g.props.n_sms;
    for (int i = 0; i < N_WEIGHTS; i++)
        for (int j = 0; j < N_CACHES; j += 2) {
            const int64_t dim = j == 2 ? 128 : j == 4 ? 192 : 64;
            g.props.n_sms = j == 0 ? 1 : j == 2 ? 9 : n_sms;
            check(&g, &(shape){weights[i], caches[j], caches[N_CACHES - 1 - j], 1 + (i + 3 * j) % MOST_TOKENS,
                               5, 2, dim, dim, false, (i + j) % 4 == 0});
        }
    g.props.n_sms = n_sms;
    gpu_close(&g);
}

/* As in layers of Q4_K_M files, and in others. */
static void and_so_have_launches_of_several_types(void **state)
{
    (void)state;
    static const tsr_type own[][TSR_CUDA_PRODUCTS] = {
        {TSR_TYPE_Q4_K, TSR_TYPE_Q4_K, TSR_TYPE_Q6_K}, {TSR_TYPE_Q8_0, TSR_TYPE_Q5_K, TSR_TYPE_Q5_K},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q6_K, TSR_TYPE_Q8_0}, {TSR_TYPE_F16, TSR_TYPE_F16, TSR_TYPE_Q8_0},
        {TSR_TYPE_Q6_K, TSR_TYPE_BF16, TSR_TYPE_Q6_K},
    };
    gpu g = gpu_open();
    for (int i = 0; i < (int)(sizeof own / sizeof *own); i++)
        for (int j = 0; j < 4; j++) {
            const bool halves = j % 2 == 1, quantized = !halves && i < 3;
            shape s = {TSR_TYPE_F32,
                       quantized ? TSR_TYPE_Q8_0 : TSR_TYPE_F16,
                       quantized ? TSR_TYPE_Q4_0 : TSR_TYPE_BF16,
                       j < 2 ? 1 : 2 + (i + j) % (MOST_TOKENS - 1),
                       3,
                       2,
                       64,
                       64,
                       !halves,
                       (i + j) % 2 == 0};
            memcpy(s.own, own[i], sizeof s.own);
            check(&g, &s);
        }
    gpu_close(&g);
}

/* Then the ops are launched in other ways. */
static void what_is_quantized_together_needs_one_block(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const shape half = {TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_F16, 1, 2, 1, 64, 64, true, true};
    layer l = layer_make(&g, &half);
    assert_false(together(&g, &l));
    shape few = half;
    few.type = TSR_TYPE_Q8_0;
    l = layer_make(&g, &few);
    assert_true(together(&g, &l));
    g.props.shared_bytes = (size_t)99 << 10; /* for one group of warps */
    assert_false(together(&g, &l));
    few.type_k = TSR_TYPE_F16;
    l = layer_make(&g, &few);
    assert_true(together(&g, &l));
    few.own[2] = TSR_TYPE_Q5_0; /* no launch writes values, so none writes keys */
    l = layer_make(&g, &few);
    assert_false(together(&g, &l));
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_has_the_bits_of_six),
        cmocka_unit_test(and_so_has_one_of_halves_of_heads),
        cmocka_unit_test(and_so_have_launches_of_several_types),
        cmocka_unit_test(what_is_quantized_together_needs_one_block),
    };
    return cmocka_run_group_tests_name("queries, keys and values", tests, NULL, NULL);
}
