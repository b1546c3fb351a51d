/* route, experts_glu and experts_down on CUDA: against double precision (support/experts_case.h), bit for bit
 * where the definition promises it (shards add up, one token as many), and never a weight of an expert that
 * no token uses: those are NaN. */
#include "gpu_run.h"

#include <math.h>

#include "core/quant/fixed.h"
#include "support/experts_case.h"
#include "support/weight_types.h"

static const tsr_type types[] = {COMMON_TYPES, RARE_TYPES, TWO_CODE_TYPES};
enum { N_TYPES = sizeof types / sizeof *types };

#ifndef X_BITS
#define X_BITS 16
#endif

static experts_case create_case(experts_setup s, uint64_t seed)
{
    s.x_bits = X_BITS;
    return experts_case_create(s, seed);
}

/* A case on the device, and its routing there and here. */
typedef struct placed {
    gpu *g;
    experts_case c;
    experts_memory memory;
    float *x;
    tsr_routing routing, routing_back;
    void *words_back;
} placed;

static void *bytes_back(const void *device, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    gpu_get(copy, device, bytes);
    return copy;
}

/* Experts that no token uses stay as gpu_alloc() leaves memory. */
static void put_matrices(placed *p)
{
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        const experts_matrix *m = &p->c.m[i];
        unsigned char *data = gpu_alloc(p->g, m->expert_bytes * (size_t)p->c.s.n_experts, false);
        for (int64_t e = 0; e < p->c.s.n_experts; e++)
            if (experts_case_is_touched(&p->c, e))
                GPU_OK(cudaMemcpy(data + (size_t)e * m->expert_bytes, m->bytes + (size_t)e * m->expert_bytes,
                                  m->expert_bytes, cudaMemcpyHostToDevice));
        p->memory.bias[i] =
            gpu_put(p->g, p->c.bias[i], (size_t)(p->c.s.n_experts * m->n_rows) * sizeof(float), false);
        p->memory.data[i] = data;
        p->memory.expert_stride[i] = m->expert_bytes;
    }
}

static void route(placed *p)
{
    const experts_setup *s = &p->c.s;
    const size_t bytes = (size_t)tsr_routing_words(s->n_tokens, s->n_used, s->n_experts) * 4;
    const size_t logits_bytes = (size_t)(s->n_tokens * s->n_experts) * sizeof(float);
    void *words = gpu_alloc(p->g, bytes, false);
    const float *bias = gpu_put(p->g, p->c.choice_bias, (size_t)s->n_experts * sizeof(float), false);
    const tsr_op op =
        experts_case_route_op(&p->c, gpu_put(p->g, p->c.logits, logits_bytes, false), bias, words);
    assert_false(gpu_run(p->g, &op));
    p->routing = op.route.routing;
    p->words_back = bytes_back(words, bytes);
    p->routing_back = tsr_routing_at(p->words_back, s->n_tokens, s->n_used, s->n_experts);
    experts_case_check_routing(&p->c, &p->routing_back);
}

/* With a table of the experts of the routing the weights are the same; with other experts these are
 * chosen. */
static void check_table(placed *p)
{
    const experts_setup *s = &p->c.s;
    const int64_t n = s->n_tokens * s->n_used;
    const size_t bytes = (size_t)tsr_routing_words(s->n_tokens, s->n_used, s->n_experts) * 4;
    int32_t *table = malloc((size_t)n * sizeof *table), *ids = malloc((size_t)s->n_tokens * sizeof *ids);
    const float *bias = gpu_put(p->g, p->c.choice_bias, (size_t)s->n_experts * sizeof(float), false);
    const float *logits =
        gpu_put(p->g, p->c.logits, (size_t)(s->n_tokens * s->n_experts) * sizeof(float), false);
    void *words = gpu_alloc(p->g, bytes, false);
    tsr_op op = experts_case_route_op(&p->c, logits, bias, words);
    for (int shift = 0; shift < 2; shift++) {
        experts_case_table(&p->c, p->routing_back.expert, shift, table, ids);
        op.route.table = gpu_put(p->g, table, (size_t)n * sizeof *table, false);
        op.route.ids = gpu_put(p->g, ids, (size_t)s->n_tokens * sizeof *ids, false);
        op.route.n_ids = s->n_tokens;
        assert_false(gpu_run(p->g, &op));
        void *back = bytes_back(words, bytes);
        const tsr_routing routing = tsr_routing_at(back, s->n_tokens, s->n_used, s->n_experts);
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(routing.expert[i], (p->routing_back.expert[i] + shift) % s->n_experts);
        if (shift == 0)
            assert_memory_equal(routing.weight, p->routing_back.weight, (size_t)n * sizeof(float));
        free(back);
    }
    free(table);
    free(ids);
}

static placed place(gpu *g, experts_case c)
{
    placed p = {.g = g, .c = c};
    put_matrices(&p);
    p.x = gpu_put(g, c.x, (size_t)(c.s.n_tokens * c.s.n_embd) * sizeof(float), false);
    route(&p);
    check_table(&p);
    return p;
}

static void placed_destroy(placed *p)
{
    gpu_clear(p->g);
    free(p->words_back);
    experts_case_destroy(&p->c);
}

/* Both ops over a shard, checked; the caller frees the sums. */
static void *run_shard(const placed *p, experts_shard shard, tsr_reduce_type reduce)
{
    const size_t n_hidden = (size_t)(experts_case_slots(&p->c) * (shard.column_end - shard.column_begin));
    const size_t y_bytes = (size_t)(p->c.s.n_tokens * p->c.s.n_embd) * tsr_reduce_bytes(reduce);
    float *hidden = gpu_alloc(p->g, n_hidden * sizeof(float), false);
    void *y = gpu_alloc(p->g, y_bytes, false);
    const tsr_op glu = experts_case_glu_op(&p->c, shard, &p->memory, p->routing, p->x, hidden);
    const tsr_op down = experts_case_down_op(&p->c, shard, &p->memory, p->routing, hidden, reduce, y);
    assert_false(gpu_run(p->g, &glu));
    assert_false(gpu_run(p->g, &down));
    float *hidden_back = bytes_back(hidden, n_hidden * sizeof(float));
    void *y_back = bytes_back(y, y_bytes);
    experts_case_check_glu(&p->c, shard, hidden_back);
    experts_case_check_down(&p->c, shard, hidden_back, p->routing_back.weight, reduce, y_back);
    free(hidden_back);
    return y_back;
}

/* The exact sums of these shards add up to the whole's, to the bit. */
static void check_sum(const placed *p, const experts_shard *shards, int n)
{
    int64_t *left = run_shard(p, experts_case_whole(&p->c), TSR_REDUCE_EXACT);
    const int64_t n_outputs = p->c.s.n_tokens * p->c.s.n_embd;
    for (int i = 0; i < n; i++) {
        int64_t *part = run_shard(p, shards[i], TSR_REDUCE_EXACT);
        for (int64_t j = 0; j < n_outputs; j++)
            left[j] -= part[j];
        free(part);
    }
    for (int64_t j = 0; j < n_outputs; j++)
        assert_true(left[j] == 0);
    free(left);
}

static void check_case(gpu *g, experts_setup s, uint64_t seed)
{
    placed p = place(g, create_case(s, seed));
    const int64_t n = s.n_experts, ff = s.n_ff, cut = s.granule < ff ? s.granule : ff;
    const experts_shard by_expert[] = {{0, n / 3, 0, ff}, {n / 3, n / 3, 0, ff}, {n / 3, n, 0, ff}};
    const experts_shard by_column[] = {{0, n, 0, cut}, {0, n, cut, cut}, {0, n, cut, ff}};
    check_sum(&p, by_expert, 3);
    check_sum(&p, by_column, 3);
    for (int i = 0; i < 3; i++) {
        free(run_shard(&p, by_expert[i], TSR_REDUCE_F32));
        free(run_shard(&p, by_column[i], TSR_REDUCE_BF16));
    }
    placed_destroy(&p);
}

/* -- tests -- */

static void every_type_equals_the_reference(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < N_TYPES; i++) {
        const int64_t block = tsr_type_block_elems(types[i]), unit = block == 1 ? 37 : block;
        const tsr_type gate = block == 1 ? types[(i + 1) % 3] : types[i]; /* beside another type */
        experts_setup s = {gate, types[i], types[i], unit, unit * 2, 3, 2, 1, unit, TSR_GLU_SILU, i % 2};
        check_case(&g, s, (uint64_t)i + 1);
        s.n_tokens = 3; /* two slots per expert: tiles of slots */
        check_case(&g, s, (uint64_t)i + 1);
    }
    gpu_close(&g);
}

static void one_token_and_many_equal_the_reference(void **state)
{
    (void)state;
    static const int64_t n_tokens[] = {1, 8, 40};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof n_tokens / sizeof *n_tokens; i++) {
        check_case(&g,
                   (experts_setup){TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 32, 96, 4, 2, n_tokens[i], 64,
                                   TSR_GLU_GELU_TANH, true},
                   40 + i);
        check_case(&g,
                   (experts_setup){TSR_TYPE_F16, TSR_TYPE_F16, TSR_TYPE_F16, 17, 70, 9, 3, n_tokens[i], 32,
                                   TSR_GLU_SILU, false},
                   50 + i);
    }
    gpu_close(&g);
}

static void one_expert_or_all_of_them(void **state)
{
    (void)state;
    static const struct {
        int64_t n_experts, n_used;
    } counts[] = {{1, 1}, {7, 1}, {7, 7}, {2, 2}, {64, 8}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check_case(&g,
                   (experts_setup){TSR_TYPE_BF16, TSR_TYPE_F16, TSR_TYPE_F32, 24, 40, counts[i].n_experts,
                                   counts[i].n_used, 5, 16, TSR_GLU_SILU, i % 2 == 0},
                   60 + i);
    gpu_close(&g);
}

static void biases_belong_to_one_device(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < 8; i++) {
        const tsr_type type = i % 2 ? TSR_TYPE_MXFP4 : TSR_TYPE_F16;
        check_case(&g,
                   (experts_setup){type, i % 4 ? type : TSR_TYPE_F32, type, 32, 96, 6, 3, i < 4 ? 1 : 30, 32,
                                   i % 4 < 2 ? TSR_GLU_CLAMPED : TSR_GLU_SILU, i % 4 > 0,
                                   i % 2 ? TSR_GATING_SIGMOID : TSR_GATING_SOFTMAX, .biased = true},
                   80 + (uint64_t)i);
    }
    gpu_close(&g);
}

static void groups_of_experts_compete(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < EXPERTS_N_CHOICES; i++)
        check_case(&g, experts_case_choices[i], 300 + (uint64_t)i);
    gpu_close(&g);
}

static void sums_go_onto_others(void **state)
{
    (void)state;
    gpu g = gpu_open();
    for (int i = 0; i < 6; i++) {
        const tsr_reduce_type reduce = (tsr_reduce_type)(i / 2);
        placed p = place(&g, create_case((experts_setup){TSR_TYPE_F16, TSR_TYPE_F16, TSR_TYPE_F16, 20, 40, 5,
                                                         2, i % 2 ? 30 : 1, 16, TSR_GLU_SILU, true},
                                         5));
        const int64_t n = p.c.s.n_tokens * p.c.s.n_embd;
        const size_t y_bytes = (size_t)n * tsr_reduce_bytes(reduce);
        const size_t hidden_bytes = (size_t)(experts_case_slots(&p.c) * p.c.s.n_ff) * sizeof(float);
        float *hidden = gpu_alloc(&g, hidden_bytes, false);
        void *y = gpu_alloc(&g, y_bytes, false);
        const experts_shard whole = experts_case_whole(&p.c);
        const tsr_op glu = experts_case_glu_op(&p.c, whole, &p.memory, p.routing, p.x, hidden);
        tsr_op down = experts_case_down_op(&p.c, whole, &p.memory, p.routing, hidden, reduce, y);
        assert_false(gpu_run(&g, &glu));
        assert_false(gpu_run(&g, &down));
        void *once = bytes_back(y, y_bytes);
        down.experts_down.onto = true;
        assert_false(gpu_run(&g, &down));
        void *twice = bytes_back(y, y_bytes);
        experts_case_check_twice(reduce, n, once, twice);
        free(once);
        free(twice);
        placed_destroy(&p);
    }
    gpu_close(&g);
}

/* By one block, as with few tokens, and by several. */
static void routers_that_tie_or_overflow(void **state)
{
    (void)state;
    enum { STRANGE = 10 };
    gpu g = gpu_open();
    experts_setup s;
    for (int i = 0; experts_case_strange_router(i / 2, i % 2 ? STRANGE : STRANGE - 4, &s); i++) {
        experts_case c = create_case(s, 1);
        for (int t = 0; t < s.n_tokens; t++)
            assert_true(
                experts_case_strange_logits(STRANGE - 1 - t, s.n_experts, c.logits + t * s.n_experts));
        experts_case_choose(&c);
        placed p = place(&g, c); /* checks it */
        placed_destroy(&p);
    }
    gpu_close(&g);
}

/* Weights that are not numbers make sums that are not: reported, not wrapped. */
static void weights_that_are_no_numbers_are_reported(void **state)
{
    (void)state;
    gpu g = gpu_open();
    const experts_setup s = {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 8, 8, 3, 2, 1, 8, TSR_GLU_SILU, true};
    experts_case c = create_case(s, 3);
    c.logits[0] = INFINITY;
    experts_case_choose(&c);
    placed p = place(&g, c);
    float *hidden = gpu_alloc(&g, (size_t)(s.n_used * s.n_ff) * sizeof(float), false);
    void *y = gpu_alloc(&g, (size_t)s.n_embd * sizeof(int64_t), false);
    const experts_shard whole = experts_case_whole(&c);
    const tsr_op glu = experts_case_glu_op(&c, whole, &p.memory, p.routing, p.x, hidden);
    const tsr_op down = experts_case_down_op(&c, whole, &p.memory, p.routing, hidden, TSR_REDUCE_EXACT, y);
    assert_false(gpu_run(&g, &glu));
    assert_true(gpu_run(&g, &down));
    placed_destroy(&p);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_equals_the_reference),
        cmocka_unit_test(one_token_and_many_equal_the_reference),
        cmocka_unit_test(one_expert_or_all_of_them),
        cmocka_unit_test(biases_belong_to_one_device),
        cmocka_unit_test(sums_go_onto_others),
        cmocka_unit_test(groups_of_experts_compete),
        cmocka_unit_test(routers_that_tie_or_overflow),
        cmocka_unit_test(weights_that_are_no_numbers_are_reported),
    };
    return cmocka_run_group_tests_name("experts on CUDA", tests, NULL, NULL);
}
