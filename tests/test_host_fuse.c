/* Host programs against their ops one by one. A device runs neighbouring ops together where it can; every
 * byte of its memory must be what it is when each op is a program of its own: for random decoder layers, with
 * results over operands wherever a graph's layout may put them, on every instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "comm/local.h"
#include "core/comm.h"
#include "host/device.h"
#include "support/kernel_run.h"

enum { MAX_RANKS = 2, MAX_OPS = 64, MAX_COLLECTIVES = 8, MEMORY = 8 << 20, PAGE_TOKENS = 8, PAGES = 12 };

typedef struct shape {
    int64_t n_tokens, width, head_dim, n_heads, n_kv_heads, n_rot, n_ff;
    tsr_type weights, type_k, type_v;
    tsr_reduce_type reduce;
    bool interleaved, biases, post_norms;
    int64_t window;
    int over; /* which result overlaps what */
} shape;

typedef struct rank {
    tsr_device *device;
    unsigned char *memory, *initial, *apart; /* [MEMORY] */
    size_t used;
    tsr_op ops[MAX_OPS];
    int n_ops;
} rank;

/* Devices that run a decoder layer together. */
typedef struct layer {
    shape s;
    uint64_t *seed;
    int n_ranks;
    rank ranks[MAX_RANKS];
    tsr_comm *comm;
    tsr_collective *collectives[MAX_COLLECTIVES];
    int n_collectives;
} layer;

static void *take(rank *r, size_t bytes)
{
    void *p = r->memory + r->used;
    r->used += (bytes + 63) / 64 * 64;
    assert_true(r->used <= MEMORY);
    return p;
}

static float *take_floats(rank *r, int64_t n)
{
    return take(r, (size_t)n * sizeof(float));
}

static float *take_random(layer *l, rank *r, int64_t n)
{
    float *x = take_floats(r, n);
    random_fill(l->seed, x, n, -1, 1);
    return x;
}

static tsr_op *add_op(rank *r, tsr_op_kind kind)
{
    assert_true(r->n_ops < MAX_OPS);
    tsr_op *op = &r->ops[r->n_ops++];
    *op = (tsr_op){.kind = kind, .name = tsr_op_kind_name(kind)};
    return op;
}

/* -- a layer's ops -- */

static float *add_norm(layer *l, rank *r, const float *x, float *y, int64_t n, int64_t n_rows)
{
    add_op(r, TSR_OP_RMS_NORM)->rms_norm = (tsr_op_rms_norm){
        .x = x, .weight = take_random(l, r, n), .y = y, .n = n, .n_rows = n_rows, .eps = 1e-5f};
    return y;
}

static void add_product(layer *l, rank *r, const float *x, void *y, int64_t k, int64_t n_rows, bool partial)
{
    const size_t stride = tsr_type_row_bytes(l->s.weights, k);
    float *row = malloc((size_t)k * sizeof *row);
    unsigned char *w = take(r, stride * (size_t)n_rows);
    for (int64_t i = 0; i < n_rows; i++) {
        random_fill(l->seed, row, k, -0.1f, 0.1f);
        assert_int_equal(tsr_type_from_f32(l->s.weights, row, w + (size_t)i * stride, k), TSR_OK);
    }
    free(row);
    add_op(r, TSR_OP_MUL_MAT)->mul_mat = (tsr_op_mul_mat){.type = l->s.weights,
                                                          .w = w,
                                                          .w_stride = stride,
                                                          .n_rows = n_rows,
                                                          .k = k,
                                                          .x = x,
                                                          .x_stride = k,
                                                          .n_tokens = l->s.n_tokens,
                                                          .partial = partial,
                                                          .reduce = l->s.reduce,
                                                          .granule = 64,
                                                          .limit = 1e6f,
                                                          .y = y,
                                                          .y_stride = n_rows};
}

static void add_bias(layer *l, rank *r, float *x, int64_t n)
{
    if (l->s.biases)
        add_op(r, TSR_OP_ADD)->add =
            (tsr_op_add){x, take_random(l, r, n), x, n, l->s.n_tokens, .broadcast_b = true};
}

static void add_rope(layer *l, rank *r, const float *x, float *y, const float *table, int64_t n_heads)
{
    add_op(r, TSR_OP_ROPE)->rope = (tsr_op_rope){.x = x,
                                                 .table = table,
                                                 .y = y,
                                                 .n_tokens = l->s.n_tokens,
                                                 .n_heads = n_heads,
                                                 .head_dim = l->s.head_dim,
                                                 .n_rot = l->s.n_rot,
                                                 .interleaved = l->s.interleaved};
}

static tsr_kv_view take_pages(layer *l, rank *r)
{
    const shape *s = &l->s;
    tsr_kv_view kv = {.k_row_bytes = tsr_type_row_bytes(s->type_k, s->head_dim),
                      .v_row_bytes = tsr_type_row_bytes(s->type_v, s->head_dim),
                      .type_k = s->type_k,
                      .type_v = s->type_v,
                      .n_heads = s->n_kv_heads,
                      .k_dim = s->head_dim,
                      .v_dim = s->head_dim,
                      .page_tokens = PAGE_TOKENS};
    kv.v_offset = (size_t)(s->n_kv_heads * PAGE_TOKENS) * kv.k_row_bytes;
    kv.page_bytes = kv.v_offset + (size_t)(s->n_kv_heads * PAGE_TOKENS) * kv.v_row_bytes;
    kv.base = take(r, PAGES * kv.page_bytes);
    return kv;
}

/* Tokens at consecutive positions of one sequence, whose pages are in the opposite order. */
static tsr_kv_index take_index(layer *l, rank *r)
{
    int32_t *pages = take(r, PAGES * sizeof *pages), *row, *position;
    row = take(r, (size_t)l->s.n_tokens * sizeof *row);
    position = take(r, (size_t)l->s.n_tokens * sizeof *position);
    for (int i = 0; i < PAGES; i++)
        pages[i] = PAGES - 1 - i;
    for (int64_t t = 0; t < l->s.n_tokens; t++)
        row[t] = 0, position[t] = (int32_t)(PAGES * PAGE_TOKENS - l->s.n_tokens + t);
    return (tsr_kv_index){pages, PAGES, row, position};
}

/* Attention over h, and its output's product as partials. */
static void add_attention(layer *l, rank *r, const float *h, float *y, void *partial)
{
    const shape *s = &l->s;
    const int64_t n_q = s->n_heads * s->head_dim, n_k = s->n_kv_heads * s->head_dim, T = s->n_tokens;
    float *q = take_floats(r, T * n_q), *k = take_floats(r, T * n_k), *v = take_floats(r, T * n_k);
    float *turned_q = s->over & 1 ? q : take_floats(r, T * n_q);
    float *turned_k = s->over & 2 ? k : take_floats(r, T * n_k);
    const float *table = take_random(l, r, T * s->n_rot);
    const tsr_kv_view kv = take_pages(l, r);
    const tsr_kv_index index = take_index(l, r);
    add_product(l, r, h, q, s->width, n_q, false);
    add_product(l, r, h, k, s->width, n_k, false);
    add_product(l, r, h, v, s->width, n_k, false);
    add_bias(l, r, q, n_q);
    add_bias(l, r, k, n_k);
    add_bias(l, r, v, n_k);
    if (s->post_norms) {
        add_norm(l, r, q, q, s->head_dim, T * s->n_heads);
        add_norm(l, r, k, k, s->head_dim, T * s->n_kv_heads);
    }
    add_rope(l, r, q, turned_q, table, s->n_heads);
    add_rope(l, r, k, turned_k, table, s->n_kv_heads);
    add_op(r, TSR_OP_KV_WRITE)->kv_write = (tsr_op_kv_write){kv, index, turned_k, v, T};
    add_op(r, TSR_OP_ATTENTION)->attention = (tsr_op_attention){.kv = kv,
                                                                .index = index,
                                                                .q = turned_q,
                                                                .y = y,
                                                                .n_tokens = T,
                                                                .n_heads = s->n_heads,
                                                                .scale = 0.1f,
                                                                .window = s->window};
    add_product(l, r, y, partial, n_q, s->width, true);
}

static void add_ffn(layer *l, rank *r, float *h, void *partial)
{
    const int64_t n = l->s.n_ff, T = l->s.n_tokens;
    float *gate = take_floats(r, T * n), *up = take_floats(r, T * n), *fresh = take_floats(r, T * n);
    float *const places[] = {gate, up, fresh, h}; /* h has room for it */
    float *y = places[l->s.over >> 2 & 3];
    add_product(l, r, h, gate, l->s.width, n, false);
    add_product(l, r, h, up, l->s.width, n, false);
    add_op(r, TSR_OP_GLU)->glu = (tsr_op_glu){(tsr_glu_kind)(l->s.over % 5), gate, up, y, .n = n * T};
    add_product(l, r, y, partial, n, l->s.width, true);
}

/* Of every rank: y[r] = the sum of partial[] + residual[r]. */
static void add_sum(layer *l, void *const partial[MAX_RANKS], float *const residual[MAX_RANKS],
                    float *const y[MAX_RANKS])
{
    const uint64_t all = ((uint64_t)1 << l->n_ranks) - 1;
    const int64_t n = l->s.n_tokens * l->s.width;
    const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                      .participants = all,
                                      .contributors = all,
                                      .reduce = l->s.reduce,
                                      .n = n,
                                      .partial = partial,
                                      .name = "sum"};
    tsr_collective **c = &l->collectives[l->n_collectives++];
    assert_int_equal(l->comm->ops->collective_create(l->comm, &desc, c), TSR_OK);
    for (int i = 0; i < l->n_ranks; i++)
        add_op(&l->ranks[i], TSR_OP_ALL_REDUCE)->all_reduce =
            (tsr_op_all_reduce){*c, residual ? residual[i] : NULL, y[i], n};
}

/* Where a rank's activations are; each has room for any of them. */
typedef struct places {
    float *x, *h, *y, *sum, *last;
    void *partial[2];
} places;

static places add_first_half(layer *l, rank *r, uint64_t seed)
{
    const shape *s = &l->s;
    const int64_t most = s->n_tokens * (s->n_ff + s->width + s->n_heads * s->head_dim) + 16;
    places p = {take_floats(r, most), take_floats(r, most), take_floats(r, most)};
    random_fill(&seed, p.x, s->n_tokens * s->width, -1, 1);
    for (int i = 0; i < 2; i++)
        p.partial[i] = take(r, (size_t)(s->n_tokens * s->width) * sizeof(int64_t));
    float *const sums[] = {p.x, take_floats(r, most), p.y /* what the product reads */, p.x};
    p.sum = sums[s->over >> 4 & 3];
    add_norm(l, r, p.x, p.h, s->width, s->n_tokens);
    add_attention(l, r, p.h, p.y, p.partial[0]);
    return p;
}

/* With post_norms what is added is normalised before, as Gemma 2 does. The next norm's result may overlap
 * the residual, whole or with an offset. */
static void add_second_half(layer *l, rank *r, places *p)
{
    const shape *s = &l->s;
    if (s->post_norms) {
        add_norm(l, r, p->sum, p->sum, s->width, s->n_tokens);
        add_op(r, TSR_OP_ADD)->add = (tsr_op_add){p->sum, p->x, p->sum, s->width, s->n_tokens, false};
    }
    if (s->over & 64 && p->sum != p->x)
        p->h = p->x + (s->over & 128 ? 16 : 0);
    add_norm(l, r, p->sum, p->h, s->width, s->n_tokens);
    add_ffn(l, r, p->h, p->partial[1]);
    p->last = s->over & 256 ? p->h : p->sum;
}

static void add_end(layer *l, rank *r, const places *p)
{
    enum { VOCAB = 77 };
    const int64_t T = l->s.n_tokens;
    float *logits = take_floats(r, T * VOCAB);
    add_norm(l, r, p->last, p->y, l->s.width, T);
    add_product(l, r, p->y, logits, l->s.width, VOCAB, false);
    add_op(r, TSR_OP_ARGMAX)->argmax =
        (tsr_op_argmax){logits, take(r, (size_t)T * sizeof(int32_t)), VOCAB, T};
}

/* A layer, a last norm and the likeliest of some outputs. */
static void make_ops(layer *l)
{
    const uint64_t seed = *l->seed;
    places p[MAX_RANKS];
    void *partial[2][MAX_RANKS];
    float *x[MAX_RANKS], *sum[MAX_RANKS], *last[MAX_RANKS];
    for (int i = 0; i < l->n_ranks; i++) {
        p[i] = add_first_half(l, &l->ranks[i], seed);
        for (int j = 0; j < 2; j++)
            partial[j][i] = p[i].partial[j];
        x[i] = p[i].x, sum[i] = p[i].sum;
    }
    add_sum(l, partial[0], l->s.post_norms ? NULL : x, sum);
    for (int i = 0; i < l->n_ranks; i++) {
        add_second_half(l, &l->ranks[i], &p[i]);
        last[i] = p[i].last;
    }
    add_sum(l, partial[1], sum, last);
    for (int i = 0; i < l->n_ranks; i++)
        add_end(l, &l->ranks[i], &p[i]);
}

/* -- running it both ways -- */

/* Programs of ops [begin, end) of every rank. */
static void run_ops(layer *l, int begin, int end)
{
    tsr_device_program *programs[MAX_RANKS];
    for (int i = 0; i < l->n_ranks; i++) {
        tsr_device *d = l->ranks[i].device;
        assert_int_equal(d->ops->program_create(d, l->ranks[i].ops + begin, end - begin, &programs[i]),
                         TSR_OK);
    }
    for (int i = 0; i < l->n_ranks; i++)
        assert_int_equal(l->ranks[i].device->ops->launch(l->ranks[i].device, programs[i]), TSR_OK);
    for (int i = 0; i < l->n_ranks; i++)
        assert_int_equal(l->ranks[i].device->ops->synchronize(l->ranks[i].device, 0), TSR_OK);
    for (int i = 0; i < l->n_ranks; i++)
        l->ranks[i].device->ops->program_destroy(l->ranks[i].device, programs[i]);
}

static void check_layer(layer *l, const char *isa)
{
    make_ops(l);
    for (int i = 0; i < l->n_ranks; i++)
        memcpy(l->ranks[i].initial, l->ranks[i].memory, l->ranks[i].used);
    for (int op = 0; op < l->ranks[0].n_ops; op++)
        run_ops(l, op, op + 1);
    for (int i = 0; i < l->n_ranks; i++) {
        memcpy(l->ranks[i].apart, l->ranks[i].memory, l->ranks[i].used);
        memcpy(l->ranks[i].memory, l->ranks[i].initial, l->ranks[i].used);
    }
    run_ops(l, 0, l->ranks[0].n_ops);
    for (int i = 0; i < l->n_ranks; i++)
        if (memcmp(l->ranks[i].memory, l->ranks[i].apart, l->ranks[i].used) != 0)
            fail_msg(
                "%s, rank %d of %d, %d threads: %lld tokens, width %lld, heads of %lld, FFN of %lld, over "
                "%#x: not what the ops give one by one",
                isa, i, l->n_ranks, l->ranks[i].device->n_threads, (long long)l->s.n_tokens,
                (long long)l->s.width, (long long)l->s.head_dim, (long long)l->s.n_ff, l->s.over);
}

static shape draw_shape(uint64_t *seed)
{
    static const tsr_type kv[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    static const tsr_type weights[] = {TSR_TYPE_F32, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    static const int64_t tokens[] = {1, 1, 1, 2, 3, 9, 50};
    shape s = {.n_tokens = tokens[random_int(seed, 0, 6)],
               .width = 32 * random_int(seed, 1, 9),
               .head_dim = 32 * random_int(seed, 1, 4),
               .n_kv_heads = random_int(seed, 1, 3),
               .n_ff = 32 * random_int(seed, 1, 12),
               .weights = weights[random_int(seed, 0, 3)],
               .type_k = kv[random_int(seed, 0, 4)],
               .type_v = kv[random_int(seed, 0, 4)],
               .reduce = (tsr_reduce_type)random_int(seed, 0, 2),
               .interleaved = random_int(seed, 0, 1),
               .biases = random_int(seed, 0, 2) == 0,
               .post_norms = random_int(seed, 0, 2) == 0,
               .window = random_int(seed, 0, 1) * random_int(seed, 1, 60),
               .over = (int)random_int(seed, 0, 511)};
    s.n_heads = s.n_kv_heads * random_int(seed, 1, 3);
    s.n_rot = random_int(seed, 0, 1) ? s.head_dim : 2 * random_int(seed, 0, s.head_dim / 2);
    return s;
}

static void layer_open(layer *l, uint64_t *seed, const tsr_kernel_set *set)
{
    *l = (layer){.s = draw_shape(seed), .seed = seed, .n_ranks = (int)random_int(seed, 1, MAX_RANKS)};
    assert_int_equal(tsr_comm_local_create(l->n_ranks, &l->comm), TSR_OK);
    const int n_threads = (int)random_int(seed, 1, 3);
    for (int i = 0; i < l->n_ranks; i++) {
        rank *r = &l->ranks[i];
        const tsr_host_device_config config = {.name = i ? "host:1" : "host:0",
                                               .index = i,
                                               .n_threads = n_threads,
                                               .total_threads = 16, /* they need not poll */
                                               .numa_node = -1,
                                               .kernels = set};
        assert_int_equal(tsr_host_device_create(&config, &r->device), TSR_OK);
        r->memory = aligned_alloc(64, MEMORY);
        r->initial = malloc(MEMORY);
        r->apart = malloc(MEMORY);
        assert_true(r->memory && r->initial && r->apart);
        memset(r->memory, 0, MEMORY);
    }
}

static void layer_close(layer *l)
{
    for (int i = 0; i < l->n_ranks; i++) {
        tsr_device_destroy(l->ranks[i].device);
        free(l->ranks[i].memory), free(l->ranks[i].initial), free(l->ranks[i].apart);
    }
    for (int i = 0; i < l->n_collectives; i++)
        l->comm->ops->collective_destroy(l->comm, l->collectives[i]);
    tsr_comm_destroy(l->comm);
}

static void programs_give_what_their_ops_give_one_by_one(void **state)
{
    (void)state;
    enum { ROUNDS = 25 };
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_set(i)); i++) {
        uint64_t seed = 20;
        for (int round = 0; round < ROUNDS; round++) {
            layer *l = malloc(sizeof *l);
            assert_non_null(l);
            layer_open(l, &seed, set);
            check_layer(l, set->isa);
            layer_close(l);
            free(l);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_give_what_their_ops_give_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
