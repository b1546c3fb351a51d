/* route, experts_glu and experts_down on the host, every instruction set: against double precision
 * (support/experts_case.h), bit for bit where the definition promises it (threads, shards), and never a byte
 * of an expert that no token uses: those are made inaccessible, and every expert ends at an inaccessible
 * page.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/quant/fixed.h"
#include "support/experts_case.h"
#include "support/kernel_run.h"
#include "support/sanitized.h"
#include "support/weight_types.h"

static const tsr_type types[] = {COMMON_TYPES, RARE_TYPES, TWO_CODE_TYPES};
enum { N_TYPES = sizeof types / sizeof *types };

/* -- memory -- */

typedef struct memory {
    experts_memory view;
    unsigned char *base[EXPERTS_MATRICES];
    size_t bytes[EXPERTS_MATRICES];
} memory;

/* Each expert at the end of pages of its own, behind them one that cannot be accessed. */
static memory memory_create(const experts_case *c)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memory m;
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        const size_t bytes = c->m[i].expert_bytes, whole = (bytes + page - 1) / page * page;
        const size_t stride = whole + page;
        m.bytes[i] = stride * (size_t)c->s.n_experts;
        m.base[i] = mmap(NULL, m.bytes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(m.base[i] != MAP_FAILED);
        for (int64_t e = 0; e < c->s.n_experts; e++) {
            unsigned char *expert = m.base[i] + (size_t)e * stride;
            memcpy(expert + whole - bytes, c->m[i].bytes + (size_t)e * bytes, bytes);
            assert_int_equal(mprotect(expert + whole, page, PROT_NONE), 0);
            if (!experts_case_is_touched(c, e))
                assert_int_equal(mprotect(expert, whole, PROT_NONE), 0);
        }
        m.view.bias[i] = c->bias[i];
        m.view.data[i] = m.base[i] + whole - bytes;
        m.view.expert_stride[i] = stride;
    }
    return m;
}

static void memory_destroy(memory *m)
{
    for (int i = 0; i < EXPERTS_MATRICES; i++)
        munmap(m->base[i], m->bytes[i]);
}

/* -- one shard -- */

typedef struct outcome {
    float *hidden; /* [n_slots][columns] */
    void *y;       /* [n_tokens][n_embd] of the reduction */
    size_t hidden_bytes, y_bytes;
} outcome;

static outcome outcome_create(const experts_case *c, experts_shard shard, tsr_reduce_type reduce)
{
    outcome o;
    o.hidden_bytes =
        (size_t)(experts_case_slots(c) * (shard.column_end - shard.column_begin)) * sizeof(float);
    o.y_bytes = (size_t)(c->s.n_tokens * c->s.n_embd) * tsr_reduce_bytes(reduce);
    o.hidden = guarded_alloc(o.hidden_bytes);
    o.y = guarded_alloc(o.y_bytes);
    return o;
}

static void outcome_destroy(outcome *o)
{
    guarded_free(o->hidden, o->hidden_bytes);
    guarded_free(o->y, o->y_bytes);
}

static outcome run_shard(const experts_case *c, const tsr_kernel_set *set, int n_threads, experts_shard shard,
                         const memory *m, tsr_routing routing, tsr_reduce_type reduce)
{
    outcome o = outcome_create(c, shard, reduce);
    const tsr_op glu = experts_case_glu_op(c, shard, &m->view, routing, c->x, o.hidden);
    const tsr_op down = experts_case_down_op(c, shard, &m->view, routing, o.hidden, reduce, o.y);
    assert_false(kernel_run(set, &glu, n_threads));
    assert_false(kernel_run(set, &down, n_threads));
    return o;
}

static tsr_routing run_route(const experts_case *c, const tsr_kernel_set *set, int n_threads, void *words)
{
    const tsr_op op = experts_case_route_op(c, c->logits, c->choice_bias, words);
    assert_false(kernel_run(set, &op, n_threads));
    return op.route.routing;
}

static size_t routing_bytes(const experts_case *c)
{
    return (size_t)tsr_routing_words(c->s.n_tokens, c->s.n_used, c->s.n_experts) * 4;
}

/* With a table of the experts of `routing` the weights are the same; with other experts these are chosen. */
static void check_table(const experts_case *c, const tsr_kernel_set *set, tsr_routing routing)
{
    const int64_t n = c->s.n_tokens * c->s.n_used;
    int32_t *table = malloc((size_t)n * sizeof *table), *ids = malloc((size_t)c->s.n_tokens * sizeof *ids);
    void *words = malloc(routing_bytes(c));
    tsr_op op = experts_case_route_op(c, c->logits, c->choice_bias, words);
    op.route.table = table;
    op.route.ids = ids;
    op.route.n_ids = c->s.n_tokens;
    for (int shift = 0; shift < 2; shift++) {
        experts_case_table(c, routing.expert, shift, table, ids);
        assert_false(kernel_run(set, &op, 2));
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(op.route.routing.expert[i], (routing.expert[i] + shift) % c->s.n_experts);
        if (shift == 0)
            assert_memory_equal(op.route.routing.weight, routing.weight, (size_t)n * sizeof(float));
    }
    free(table);
    free(ids);
    free(words);
}

/* -- checks of a case -- */

/* With a number of threads as with one, and close to exact. */
static void check_shard(const experts_case *c, const tsr_kernel_set *set, experts_shard shard,
                        const memory *m, tsr_routing routing, tsr_reduce_type reduce)
{
    outcome one = run_shard(c, set, 1, shard, m, routing, reduce);
    experts_case_check_glu(c, shard, one.hidden);
    experts_case_check_down(c, shard, one.hidden, routing.weight, reduce, one.y);
    outcome many = run_shard(c, set, 3, shard, m, routing, reduce);
    assert_memory_equal(one.hidden, many.hidden, one.hidden_bytes);
    assert_memory_equal(one.y, many.y, one.y_bytes);
    outcome_destroy(&many);
    outcome_destroy(&one);
}

/* The exact sums of these shards add up to the whole's, to the bit. */
static void check_sum(const experts_case *c, const tsr_kernel_set *set, const memory *m, tsr_routing routing,
                      const experts_shard *shards, int n)
{
    outcome whole = run_shard(c, set, 1, experts_case_whole(c), m, routing, TSR_REDUCE_EXACT);
    int64_t *left = whole.y;
    const int64_t n_outputs = c->s.n_tokens * c->s.n_embd;
    for (int i = 0; i < n; i++) {
        outcome part = run_shard(c, set, 1, shards[i], m, routing, TSR_REDUCE_EXACT);
        for (int64_t j = 0; j < n_outputs; j++)
            left[j] -= ((const int64_t *)part.y)[j];
        outcome_destroy(&part);
    }
    for (int64_t j = 0; j < n_outputs; j++)
        assert_true(left[j] == 0);
    outcome_destroy(&whole);
}

/* Experts and columns divided over three devices each, one of which has none. */
static void check_shards(const experts_case *c, const tsr_kernel_set *set, const memory *m,
                         tsr_routing routing)
{
    const int64_t n = c->s.n_experts, ff = c->s.n_ff, cut = c->s.granule < ff ? c->s.granule : ff;
    const experts_shard by_expert[] = {{0, n / 3, 0, ff}, {n / 3, n / 3, 0, ff}, {n / 3, n, 0, ff}};
    const experts_shard by_column[] = {{0, n, 0, cut}, {0, n, cut, cut}, {0, n, cut, ff}};
    check_sum(c, set, m, routing, by_expert, 3);
    check_sum(c, set, m, routing, by_column, 3);
    for (int i = 0; i < 3; i++) {
        check_shard(c, set, by_expert[i], m, routing, TSR_REDUCE_F32);
        check_shard(c, set, by_column[i], m, routing, TSR_REDUCE_BF16);
    }
}

static void check_case(experts_setup s, uint64_t seed)
{
    experts_case c = experts_case_create(s, seed);
    memory m = memory_create(&c);
    const size_t bytes = routing_bytes(&c);
    void *words = guarded_alloc(bytes);
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_product_set(i)) != NULL; i++) {
        for (int j = 0; j < EXPERTS_MATRICES; j++)
            c.m[j].product_error = kernel_run_product_error(set, c.m[j].type, s.x_bits);
        memset(words, 0xff, bytes);
        const tsr_routing routing = run_route(&c, set, 1 + i % 4, words);
        experts_case_check_routing(&c, &routing);
        check_table(&c, set, routing);
        for (int reduce = TSR_REDUCE_EXACT; reduce <= TSR_REDUCE_BF16; reduce++)
            check_shard(&c, set, experts_case_whole(&c), &m, routing, (tsr_reduce_type)reduce);
        check_shards(&c, set, &m, routing);
    }
    guarded_free(words, bytes);
    memory_destroy(&m);
    experts_case_destroy(&c);
}

/* -- tests -- */

static void every_type_equals_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        const int64_t block = tsr_type_block_elems(types[i]), unit = block == 1 ? 37 : block;
        const tsr_type up = types[i]; /* beside another type where blocks allow it */
        const tsr_type gate = block == 1 ? types[(i + 1) % 3] : up;
        for (int x_bits = 8; x_bits <= (block == 1 ? 8 : 16); x_bits += 8)
            check_case((experts_setup){gate, up, types[i], unit, unit * 2, 3, 2, 2, unit, TSR_GLU_SILU, i % 2,
                                       .x_bits = x_bits},
                       (uint64_t)i + 1);
    }
}

static void one_token_and_many_equal_the_reference(void **state)
{
    (void)state;
    static const int64_t n_tokens[] = {1, 2, 150};
    for (size_t i = 0; i < sizeof n_tokens / sizeof *n_tokens; i++) {
        check_case((experts_setup){TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 32, 96, 4, 2, n_tokens[i], 64,
                                   TSR_GLU_GELU_TANH, true},
                   40 + i);
        check_case((experts_setup){TSR_TYPE_F16, TSR_TYPE_F16, TSR_TYPE_F16, 17, 70, 9, 3, n_tokens[i], 32,
                                   TSR_GLU_SILU, false},
                   50 + i);
    }
}

/* Long enough to be packed, few enough to walk along weights: gate's and up's columns, then down's. */
static void packed_rows_of_few_tokens_equal_the_reference(void **state)
{
    (void)state;
    static const tsr_type quantized[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_K};
    for (int i = TSR_TEST_FIRST(3); i < 8; i += TSR_TEST_EVERY(3)) { /* 3: of both types, in all forms */
        const tsr_type type = quantized[i % 2];
        const bool long_down = i / 2 % 2;
        check_case((experts_setup){type, type, type, long_down ? 256 : 4096, long_down ? 4096 : 256, 3, 2,
                                   long_down ? 2 : 4, 256, TSR_GLU_SILU, true, .x_bits = i < 4 ? 8 : 16},
                   90 + (uint64_t)i);
    }
}

static void one_expert_or_all_of_them(void **state)
{
    (void)state;
    static const struct {
        int64_t n_experts, n_used;
    } counts[] = {{1, 1}, {7, 1}, {7, 7}, {2, 2}, {64, 8}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check_case((experts_setup){TSR_TYPE_BF16, TSR_TYPE_F16, TSR_TYPE_F32, 24, 40, counts[i].n_experts,
                                   counts[i].n_used, 5, 16, TSR_GLU_SILU, i % 2 == 0},
                   60 + i);
}

/* Biases, probabilities of both kinds, and sums that are added to others. */
static void biases_belong_to_one_device(void **state)
{
    (void)state;
    for (int i = TSR_TEST_FIRST(3); i < 8; i += TSR_TEST_EVERY(3)) {
        const tsr_type type = i % 2 ? TSR_TYPE_MXFP4 : TSR_TYPE_F16;
        check_case((experts_setup){type, type, type, 32, 96, 6, 3, i < 4 ? 1 : 30, 32,
                                   i % 4 < 2 ? TSR_GLU_CLAMPED : TSR_GLU_SILU, i % 4 > 0,
                                   i % 2 ? TSR_GATING_SIGMOID : TSR_GATING_SOFTMAX, .biased = true},
                   80 + (uint64_t)i);
    }
}

static void groups_of_experts_compete(void **state)
{
    (void)state;
    for (int i = 0; i < EXPERTS_N_CHOICES; i++)
        check_case(experts_case_choices[i], 300 + (uint64_t)i);
}

static void sums_go_onto_others(void **state)
{
    (void)state;
    experts_case c = experts_case_create(
        (experts_setup){TSR_TYPE_F16, TSR_TYPE_F16, TSR_TYPE_F16, 20, 40, 5, 2, 7, 16, TSR_GLU_SILU, true},
        5);
    memory m = memory_create(&c);
    const size_t bytes = routing_bytes(&c);
    const int64_t n = c.s.n_tokens * c.s.n_embd;
    void *words = guarded_alloc(bytes);
    const tsr_kernel_set *set;
    for (int k = 0; (set = kernel_run_set(k)) != NULL; k++) {
        const tsr_routing routing = run_route(&c, set, 1, words);
        for (int reduce = TSR_REDUCE_EXACT; reduce <= TSR_REDUCE_BF16; reduce++) {
            outcome o = run_shard(&c, set, 2, experts_case_whole(&c), &m, routing, (tsr_reduce_type)reduce);
            void *once = malloc(o.y_bytes);
            assert_non_null(once);
            memcpy(once, o.y, o.y_bytes);
            tsr_op down = experts_case_down_op(&c, experts_case_whole(&c), &m.view, routing, o.hidden,
                                               (tsr_reduce_type)reduce, o.y);
            down.experts_down.onto = true;
            assert_false(kernel_run(set, &down, 3));
            experts_case_check_twice((tsr_reduce_type)reduce, n, once, o.y);
            free(once);
            outcome_destroy(&o);
        }
    }
    guarded_free(words, bytes);
    memory_destroy(&m);
    experts_case_destroy(&c);
}

static void routers_that_tie_or_overflow(void **state)
{
    (void)state;
    experts_setup s;
    for (int i = 0; experts_case_strange_router(i, 10, &s); i++) {
        experts_case c = experts_case_create(s, 1);
        const size_t bytes = routing_bytes(&c);
        void *words = guarded_alloc(bytes);
        assert_false(experts_case_strange_logits((int)s.n_tokens, s.n_experts, c.logits)); /* that is all */
        for (int t = 0; t < s.n_tokens; t++)
            assert_true(experts_case_strange_logits(t, s.n_experts, c.logits + t * s.n_experts));
        experts_case_choose(&c);
        const tsr_kernel_set *set;
        for (int k = 0; (set = kernel_run_product_set(k)) != NULL; k++)
            for (int threads = 1; threads <= 4; threads += 3) {
                memset(words, 0xff, bytes);
                const tsr_routing routing = run_route(&c, set, threads, words);
                experts_case_check_routing(&c, &routing);
            }
        guarded_free(words, bytes);
        experts_case_destroy(&c);
    }
}

/* Weights that are not numbers make sums that are not: reported, not wrapped. */
static void weights_that_are_no_numbers_are_reported(void **state)
{
    (void)state;
    experts_setup s = {TSR_TYPE_F32, TSR_TYPE_F32, TSR_TYPE_F32, 8, 8, 3, 2, 1, 8, TSR_GLU_SILU, true};
    experts_case c = experts_case_create(s, 3);
    c.logits[0] = INFINITY;
    experts_case_choose(&c);
    memory m = memory_create(&c);
    const size_t bytes = routing_bytes(&c);
    void *words = guarded_alloc(bytes);
    const tsr_kernel_set *set;
    for (int k = 0; (set = kernel_run_product_set(k)) != NULL; k++) {
        const tsr_routing routing = run_route(&c, set, 1, words);
        outcome o = outcome_create(&c, experts_case_whole(&c), TSR_REDUCE_EXACT);
        const tsr_op glu = experts_case_glu_op(&c, experts_case_whole(&c), &m.view, routing, c.x, o.hidden);
        const tsr_op down = experts_case_down_op(&c, experts_case_whole(&c), &m.view, routing, o.hidden,
                                                 TSR_REDUCE_EXACT, o.y);
        assert_false(kernel_run(set, &glu, 2));
        assert_true(kernel_run(set, &down, 2));
        outcome_destroy(&o);
    }
    guarded_free(words, bytes);
    memory_destroy(&m);
    experts_case_destroy(&c);
}

/* An FFN without a gate: the matrix that is gate and up is multiplied once, with the bits of twice. */
static void up_may_be_the_gate(void **state)
{
    (void)state;
    const experts_setup s = {.gate = TSR_TYPE_Q8_0,
                             .up = TSR_TYPE_Q8_0,
                             .down = TSR_TYPE_F32,
                             .n_embd = 64,
                             .n_ff = 40,
                             .n_experts = 5,
                             .n_used = 2,
                             .n_tokens = 9,
                             .granule = 16,
                             .glu = TSR_GLU_RELU,
                             .biased = true};
    experts_case c = experts_case_create(s, 5);
    memory m = memory_create(&c), copy = memory_create(&c);
    const size_t bytes = routing_bytes(&c);
    void *words = guarded_alloc(bytes);
    const tsr_kernel_set *set = kernel_run_set(0);
    const tsr_routing routing = run_route(&c, set, 1, words);
    m.view.bias[EXPERTS_GATE] = m.view.bias[EXPERTS_UP];
    m.view.data[EXPERTS_GATE] = m.view.data[EXPERTS_UP];
    outcome once = run_shard(&c, set, 2, experts_case_whole(&c), &m, routing, TSR_REDUCE_EXACT);
    m.view.data[EXPERTS_GATE] = copy.view.data[EXPERTS_UP];
    outcome twice = run_shard(&c, set, 2, experts_case_whole(&c), &m, routing, TSR_REDUCE_EXACT);
    assert_memory_equal(once.hidden, twice.hidden, once.hidden_bytes);
    outcome_destroy(&once);
    outcome_destroy(&twice);
    guarded_free(words, bytes);
    memory_destroy(&copy);
    memory_destroy(&m);
    experts_case_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_equals_the_reference),
        cmocka_unit_test(one_token_and_many_equal_the_reference),
        cmocka_unit_test(packed_rows_of_few_tokens_equal_the_reference),
        cmocka_unit_test(one_expert_or_all_of_them),
        cmocka_unit_test(biases_belong_to_one_device),
        cmocka_unit_test(sums_go_onto_others),
        cmocka_unit_test(groups_of_experts_compete),
        cmocka_unit_test(routers_that_tie_or_overflow),
        cmocka_unit_test(weights_that_are_no_numbers_are_reported),
        cmocka_unit_test(up_may_be_the_gate),
    };
    return cmocka_run_group_tests_name("experts on the host", tests, NULL, NULL);
}
