/* The rotary embedding of queries and keys and the write to the cache in one launch: the bits of the three
 * ops one by one, values as computed in double, and never where one of them overwrites what another reads. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>
#include "cuda/device/fuse.h"

enum { TOKENS = 5, KV_HEADS = 2, HEADS = 6, PAGE_TOKENS = 4, PAGES = 3 };

typedef struct shape {
    int64_t dim, n_rot;
    bool interleaved, in_place;
    tsr_type type_k, type_v;
} shape;

/* The three ops, and what they write. */
typedef struct trio {
    tsr_op ops[3];
    size_t kv_bytes;
    float *k, *v, *table; /* copies on the host */
} trio;

static float *make_table(int64_t n_rot)
{
    float *table = malloc((size_t)(TOKENS * n_rot) * sizeof(float) + 1);
    for (int t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < n_rot / 2; i++) {
            table[t * n_rot + 2 * i] = cosf((float)(t * 3 + i));
            table[t * n_rot + 2 * i + 1] = sinf((float)(t * 3 + i));
        }
    return table;
}

static tsr_kv_view make_view(gpu *g, const shape *s, size_t *bytes_out)
{
    tsr_kv_view kv = {.k_row_bytes = tsr_type_row_bytes(s->type_k, s->dim),
                      .v_row_bytes = tsr_type_row_bytes(s->type_v, s->dim),
                      .type_k = s->type_k,
                      .type_v = s->type_v,
                      .n_heads = KV_HEADS,
                      .k_dim = s->dim,
                      .v_dim = s->dim,
                      .page_tokens = PAGE_TOKENS};
    kv.v_offset = KV_HEADS * PAGE_TOKENS * kv.k_row_bytes;
    kv.page_bytes = kv.v_offset + KV_HEADS * PAGE_TOKENS * kv.v_row_bytes;
    *bytes_out = PAGES * kv.page_bytes;
    kv.base = gpu_alloc(g, *bytes_out, true);
    return kv;
}

static tsr_op make_rope(gpu *g, const shape *s, int64_t n_heads, const float *table, uint64_t seed,
                        float **copy)
{
    const int64_t n = TOKENS * n_heads * s->dim;
    float *x = gpu_random(g, n, -2, 2, seed, copy);
    float *y = s->in_place ? x : gpu_alloc(g, (size_t)n * sizeof(float), false);
    return (tsr_op){.kind = TSR_OP_ROPE,
                    .name = "r",
                    .rope = {x, table, y, TOKENS, n_heads, s->dim, s->n_rot, s->interleaved}};
}

static trio trio_make(gpu *g, const shape *s)
{
    static const int32_t pages[PAGES] = {2, 0, 1}, rows[TOKENS] = {0}, positions[TOKENS] = {3, 4, 5, 9, 7};
    trio t = {.table = make_table(s->n_rot)};
    const float *table = gpu_put(g, t.table, (size_t)(TOKENS * s->n_rot) * sizeof(float), false);
    t.ops[0] = make_rope(g, s, HEADS, table, 1, NULL);
    t.ops[1] = make_rope(g, s, KV_HEADS, table, 2, &t.k);
    t.ops[2] = (tsr_op){.kind = TSR_OP_KV_WRITE,
                        .name = "w",
                        .kv_write = {.kv = make_view(g, s, &t.kv_bytes),
                                     .index = {gpu_put(g, pages, sizeof pages, false), PAGES,
                                               gpu_put(g, rows, sizeof rows, false),
                                               gpu_put(g, positions, sizeof positions, false)},
                                     .k = t.ops[1].rope.y,
                                     .v = gpu_random(g, TOKENS * KV_HEADS * s->dim, -1, 1, 3, &t.v),
                                     .n_tokens = TOKENS}};
    return t;
}

static void trio_drop(gpu *g, trio *t)
{
    free(t->k), free(t->v), free(t->table);
    gpu_clear(g);
}

static void check_same(const void *a, const void *b, size_t bytes)
{
    unsigned char *x = malloc(bytes), *y = malloc(bytes);
    gpu_get(x, a, bytes);
    gpu_get(y, b, bytes);
    assert_memory_equal(x, y, bytes);
    free(x), free(y);
}

/* A key of F32 as the cache holds it, against the formula. */
static void check_key(const shape *s, const trio *t, int64_t token, int64_t head, const float *stored)
{
    const float *x = t->k + (token * KV_HEADS + head) * s->dim, *angles = t->table + token * s->n_rot;
    for (int64_t i = 0; i < s->n_rot / 2; i++) {
        const int64_t a = s->interleaved ? 2 * i : i, b = s->interleaved ? 2 * i + 1 : i + s->n_rot / 2;
        const double c = (double)angles[2 * i], d = (double)angles[2 * i + 1];
        assert_true(fabs((double)stored[a] - ((double)x[a] * c - (double)x[b] * d)) < 1e-6);
        assert_true(fabs((double)stored[b] - ((double)x[a] * d + (double)x[b] * c)) < 1e-6);
    }
    for (int64_t i = s->n_rot; i < s->dim; i++)
        assert_true(stored[i] == x[i]);
}

static void check_against_formula(const shape *s, const trio *t)
{
    const tsr_kv_view *kv = &t->ops[2].kv_write.kv;
    float *stored = malloc(kv->k_row_bytes);
    if (s->type_k == TSR_TYPE_F32) /* token 1: position 4, page 0, slot 0 */
        for (int64_t head = 0; head < KV_HEADS; head++) {
            gpu_get(stored, kv->base + (size_t)(head * PAGE_TOKENS) * kv->k_row_bytes, kv->k_row_bytes);
            check_key(s, t, 1, head, stored);
        }
    free(stored);
}

static void check_shape(gpu *g, shape s, bool with_q)
{
    trio apart = trio_make(g, &s), together = trio_make(g, &s);
    const tsr_op *ops = together.ops + (with_q ? 0 : 1);
    const tsr_cuda_rope_kv_ops found = tsr_cuda_fuse_rope_kv(ops, with_q ? 3 : 2);
    assert_int_equal(found.n_ops, with_q ? 3 : 2);
    const tsr_cuda_stream stream = gpu_stream(g, NULL);
    for (int i = with_q ? 0 : 1; i < 3; i++)
        gpu_run(g, &apart.ops[i]);
    assert_int_equal(tsr_cuda_rope_kv(found.q, found.k, found.write, &stream), TSR_OK);
    GPU_OK(cudaStreamSynchronize(g->stream));
    check_same(apart.ops[2].kv_write.kv.base, together.ops[2].kv_write.kv.base, apart.kv_bytes);
    check_same(apart.ops[1].rope.y, together.ops[1].rope.y,
               (size_t)(TOKENS * KV_HEADS * s.dim) * sizeof(float));
    check_same(apart.ops[0].rope.y, together.ops[0].rope.y, (size_t)(TOKENS * HEADS * s.dim) * sizeof(float));
    check_against_formula(&s, &together);
    trio_drop(g, &apart);
    free(together.k), free(together.v), free(together.table);
}

static void one_launch_has_the_bits_of_three(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    static const struct {
        int64_t dim, n_rot;
        bool interleaved;
    } shapes[] = {{128, 128, false}, {128, 128, true}, {96, 64, false}, {96, 20, true}, {64, 0, false}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < 5; type++)
            for (int in_place = 0; in_place < 2; in_place++)
                check_shape(&g,
                            (shape){shapes[i].dim, shapes[i].n_rot, shapes[i].interleaved, in_place,
                                    types[type], types[4 - type]},
                            type % 2 == in_place);
    check_shape(&g, (shape){70, 64, false, true, TSR_TYPE_F16, TSR_TYPE_F32},
                true); /* no whole group at the end */
    gpu_close(&g);
}

static void what_overlaps_stays_apart(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const shape s = {64, 64, false, false, TSR_TYPE_F16, TSR_TYPE_F16};
    trio t = trio_make(&g, &s);
    tsr_op ops[3];
#define APART(change, n)                                          \
    do {                                                          \
        memcpy(ops, t.ops, sizeof ops);                           \
        change;                                                   \
        assert_int_equal(tsr_cuda_fuse_rope_kv(ops, 3).n_ops, n); \
    } while (0)
    APART((void)0, 3);
    APART(ops[1].rope.y = (float *)ops[0].rope.x;
          ops[2].kv_write.k = ops[1].rope.y, 0); /* q's x is dead by then */
    APART(ops[0].rope.y = (float *)ops[1].rope.x, 0);
    APART(ops[0].rope.y = (float *)ops[2].kv_write.v, 0);
    APART(ops[1].rope.y = (float *)ops[1].rope.x + 64; ops[2].kv_write.k = ops[1].rope.y, 0);
    APART(ops[2].kv_write.k = ops[0].rope.y, 0); /* others than the keys just made */
    APART(ops[2].kv_write.n_tokens--, 0);
    APART(ops[1].rope.n_rot = 48, 0);                               /* pairs across warps */
    APART(ops[0].kind = TSR_OP_SCALE, 0);                           /* no rope at all */
    assert_int_equal(tsr_cuda_fuse_rope_kv(t.ops, 2).n_ops, 0);     /* the segment ends */
    assert_int_equal(tsr_cuda_fuse_rope_kv(t.ops + 1, 2).n_ops, 2); /* the queries went before */
#undef APART
    trio_drop(&g, &t);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_has_the_bits_of_three),
        cmocka_unit_test(what_overlaps_stays_apart),
    };
    return cmocka_run_group_tests_name("ropes and the write to the cache", tests, NULL, NULL);
}
