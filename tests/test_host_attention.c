/* Attention and the writing of keys and values on the host: against a double-precision softmax over the
 * values that the cache really holds, and bit for bit where the order of operations is promised. Pages are
 * scattered, and what was never written is NaN, so reading it shows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tsr/types.h>

#include "support/attention_case.h"
#include "support/kernel_run.h"

enum { MAX_TOKENS = ATTENTION_MAX_TOKENS, N_SEQUENCES = 3 };

typedef attention_setup setup;

typedef struct cache {
    attention_case a;
    float *q, *k, *v; /* of the batch */
    size_t q_bytes;
} cache;

static tsr_kv_index cache_index(const cache *c)
{
    return (tsr_kv_index){c->a.page_table, c->a.pages_per_sequence, c->a.seq_row, c->a.position};
}

static tsr_op write_op(const cache *c)
{
    return (tsr_op){
        .kind = TSR_OP_KV_WRITE,
        .kv_write = {
            .kv = c->a.kv, .index = cache_index(c), .k = c->k, .v = c->v, .n_tokens = c->a.n_tokens}};
}

static tsr_op attention_op(const cache *c, float *y)
{
    return attention_case_op(&c->a, cache_index(c), c->q, y);
}

static void cache_batch(cache *c, int64_t past, int64_t n, uint64_t *seed)
{
    attention_case_batch(&c->a, past, n);
    const int64_t kv_floats = attention_case_kv_floats(&c->a);
    random_fill(seed, c->q, kv_floats * c->a.s.group, -2.0f, 2.0f);
    random_fill(seed, c->k, kv_floats, -2.0f, 2.0f);
    random_fill(seed, c->v, kv_floats, -1.0f, 1.0f);
}

/* The cache holds `past` positions of each sequence and the batch's n more. */
static cache cache_create(setup s, int64_t past, int64_t n, uint64_t seed)
{
    cache c = {0};
    const tsr_kernel_set *set = kernel_run_set(0);
    attention_case_layout(&c.a, s, N_SEQUENCES, past + n);
    c.a.cache = c.a.kv.base = guarded_alloc(c.a.bytes);
    const size_t floats = (size_t)(MAX_TOKENS * s.kv_heads * attention_case_widest(&c.a));
    c.q_bytes = floats * (size_t)s.group * sizeof(float);
    c.a.q = c.q = guarded_alloc(c.q_bytes);
    c.k = malloc(floats * sizeof(float));
    c.v = malloc(floats * sizeof(float));
    for (int64_t i = 0; i < past; i += MAX_TOKENS / N_SEQUENCES) {
        const int64_t step = past - i < MAX_TOKENS / N_SEQUENCES ? past - i : MAX_TOKENS / N_SEQUENCES;
        cache_batch(&c, i, step, &seed);
        const tsr_op op = write_op(&c);
        kernel_run(set, &op, 1);
    }
    cache_batch(&c, past, n, &seed);
    const tsr_op op = write_op(&c);
    kernel_run(set, &op, 1);
    return c;
}

static void cache_destroy(cache *c)
{
    guarded_free(c->a.kv.base, c->a.bytes);
    guarded_free(c->q, c->q_bytes);
    free(c->a.page_table);
    free(c->k);
    free(c->v);
}

static size_t output_floats(const cache *c)
{
    return (size_t)(c->a.n_tokens * attention_case_y_floats(&c->a));
}

static void check_setup(setup s, int64_t past, int64_t n)
{
    cache c = cache_create(s, past, n, 1 + (uint64_t)past);
    const size_t bytes = output_floats(&c) * sizeof(float);
    float *y = guarded_alloc(bytes), *again = guarded_alloc(bytes), *avx2 = guarded_alloc(bytes);
    const tsr_kernel_set *set;
    bool has_avx2 = false; /* the sets after it must agree with it */
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++) {
        tsr_op op = attention_op(&c, y);
        kernel_run(set, &op, 1);
        attention_case_check(&c.a, y, 2e-6); /* softcap's tanh adds as much as the exponential */
        op.attention.y = again;
        for (int threads = 2; threads <= 5; threads++) {
            memset(again, 0xff, bytes);
            kernel_run(set, &op, threads);
            assert_memory_equal(y, again, bytes);
        }
        if (has_avx2)
            assert_memory_equal(y, avx2, bytes);
        if (strcmp(set->isa, "avx2") == 0) {
            has_avx2 = true;
            memcpy(avx2, y, bytes);
        }
    }
    guarded_free(y, bytes);
    guarded_free(again, bytes);
    guarded_free(avx2, bytes);
    cache_destroy(&c);
}

static void attention_is_close_and_does_not_depend_on_threads(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 32, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 20, 7, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_F16, 3, 2, 80, 16, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 2, 3, 128, 64, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 7, 96, 33, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 2, 32, 40, 21, 0},
        {TSR_TYPE_F32, TSR_TYPE_BF16, 1, 70, 32, 32, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 1024, 32, 5, 50},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 8, 64, 32, 128, 0, .sinks = true},
        {TSR_TYPE_F32, TSR_TYPE_F32, 2, 3, 32, 32, 46, 0, .chunked = true}, /* 45 and 46 in two chunks */
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 64, 10, 24, 0, .chunked = true},
        {TSR_TYPE_F16, TSR_TYPE_F32, 2, 3, 64, 32, 0, 0, .value_dim = 100},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 5, 40, 7, 0, 0, .value_dim = 24, .v_in_k = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 6, 96, 33, 0, 0, .value_dim = 64, .v_in_k = true},
        {TSR_TYPE_BF16, TSR_TYPE_BF16, 1, 70, 576, 32, 0, 0, .value_dim = 512, .v_in_k = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_setup(setups[i], 0, 1);
        check_setup(setups[i], 45, 1);
        check_setup(setups[i], 70, 18);
    }
}

/* Long contexts are cut into spans, which a team divides where items are few: one token of three sequences
 * does that, 18 of each do not. Spans start inside pages and blocks, windows inside spans. */
static void spans_of_long_contexts_are_joined_by_any_number_of_threads(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 2, 32, 48, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 5, 32, 33, 700, 0, .sinks = true},
        {TSR_TYPE_F32, TSR_TYPE_BF16, 1, 1, 20, 7, 0, 30},
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 2, 32, 32, 1020, 0, .chunked = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_setup(setups[i], 511, 1);
        check_setup(setups[i], 1530, 1);
        check_setup(setups[i], 1014, 18);
    }
}

static void check_batch(setup of, int64_t past)
{
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        cache c = cache_create(of, past, 25, 3);
        const size_t floats = output_floats(&c), token_floats = (size_t)attention_case_y_floats(&c.a);
        float *many = malloc(floats * sizeof(float)), *one = malloc(token_floats * sizeof(float));
        tsr_op op = attention_op(&c, many);
        kernel_run(set, &op, 3);
        op.attention.y = one;
        op.attention.n_tokens = 1;
        for (int64_t t = 0; t < c.a.n_tokens; t++) {
            op.attention.q = c.q + t * attention_case_q_floats(&c.a);
            op.attention.index.seq_row = c.a.seq_row + t;
            op.attention.index.position = c.a.position + t;
            kernel_run(set, &op, 1 + (int)(t % 3));
            assert_memory_equal(one, many + (size_t)t * token_floats, token_floats * sizeof(float));
        }
        free(many);
        free(one);
        cache_destroy(&c);
    }
}

/* One token alone gives the bits it has in a batch of several sequences. */
static void attention_of_a_token_does_not_depend_on_its_batch(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 48, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 3, 96, 32, 17, 20},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 5, 96, 10, 0, 0, .value_dim = 40, .v_in_k = true},
        {TSR_TYPE_F32, TSR_TYPE_F32, 2, 1, 24, 10, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 2, 1, 24, 10, 60, 0, .chunked = true}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_batch(setups[i], 50);
        check_batch(setups[i], 1010);
    }
}

/* A later token's infinite key and value must not reach the tokens before it. */
static void what_a_token_may_not_see_cannot_reach_it(void **state)
{
    (void)state;
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        cache c = cache_create((setup){TSR_TYPE_F32, TSR_TYPE_F32, 1, 2, 32, 32, 0, 0}, 3, 12, 3);
        const size_t floats = output_floats(&c), token_floats = (size_t)attention_case_y_floats(&c.a);
        float *before = malloc(floats * sizeof(float)), *after = malloc(floats * sizeof(float));
        tsr_op op = attention_op(&c, before);
        kernel_run(set, &op, 1);
        const int64_t last = 11; /* of the first sequence */
        for (int i = 0; i < 32; i++)
            c.k[last * 32 + i] = c.v[last * 32 + i] = INFINITY;
        const tsr_op write = write_op(&c);
        kernel_run(set, &write, 1);
        op.attention.y = after;
        kernel_run(set, &op, 1);
        for (int64_t t = 0; t < c.a.n_tokens; t++)
            if (t != last)
                assert_memory_equal(before + (size_t)t * token_floats, after + (size_t)t * token_floats,
                                    token_floats * sizeof(float));
        free(before);
        free(after);
        cache_destroy(&c);
    }
}

/* Head by head on different devices: a device holds some KV heads and their query heads. */
static void head_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { HEADS = 4, GROUP = 3, DIM = 64, TOKENS = 15 };
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++) {
        cache whole = cache_create((setup){TSR_TYPE_F16, TSR_TYPE_F16, HEADS, GROUP, DIM, 32, 0, 0}, 0, 5, 3);
        cache part = cache_create((setup){TSR_TYPE_F16, TSR_TYPE_F16, 1, GROUP, DIM, 32, 0, 0}, 0, 5, 3);
        float y[TOKENS][HEADS][GROUP * DIM], one[TOKENS][GROUP * DIM];
        tsr_op op = attention_op(&whole, &y[0][0][0]);
        kernel_run(set, &op, 2);
        for (int head = 0; head < HEADS; head++) {
            for (int t = 0; t < TOKENS; t++) {
                memcpy(part.k + t * DIM, whole.k + (t * HEADS + head) * DIM, DIM * sizeof(float));
                memcpy(part.v + t * DIM, whole.v + (t * HEADS + head) * DIM, DIM * sizeof(float));
                memcpy(part.q + t * GROUP * DIM, whole.q + (t * HEADS + head) * GROUP * DIM, sizeof one[0]);
            }
            const tsr_op write = write_op(&part);
            kernel_run(set, &write, 1);
            op = attention_op(&part, &one[0][0]);
            kernel_run(set, &op, 4); /* more threads than heads */
            for (int t = 0; t < TOKENS; t++)
                assert_memory_equal(one[t], y[t][head], sizeof one[t]);
        }
        cache_destroy(&whole);
        cache_destroy(&part);
    }
}

/* Stored bytes are those of the reference encoder. */
static void kv_write_stores_what_the_encoders_make(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    const tsr_kernel_set *set;
    for (int s = 0; (set = kernel_run_set(s)) != NULL; s++)
        for (int i = 0; i < 5; i++) {
            cache c = cache_create((setup){types[i], types[4 - i], 2, 1, 96, 8, 0, 0}, 9, 4, 3);
            memset(c.a.kv.base, 0xff, c.a.bytes);
            const tsr_op op = write_op(&c);
            kernel_run(set, &op, 3);
            for (int64_t t = 0; t < c.a.n_tokens; t++)
                for (int64_t head = 0; head < 2; head++) {
                    unsigned char encoded[96 * 4];
                    float stored[96], expected[96];
                    const float *k = c.k + (t * 2 + head) * 96;
                    assert_int_equal(tsr_type_from_f32(types[i], k, encoded, 96), TSR_OK);
                    assert_int_equal(tsr_type_to_f32(types[i], encoded, expected, 96), TSR_OK);
                    attention_case_get(&c.a, false, c.a.seq_row[t], c.a.position[t], head, stored);
                    assert_memory_equal(stored, expected, sizeof stored);
                }
            cache_destroy(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_write_stores_what_the_encoders_make),
        cmocka_unit_test(attention_is_close_and_does_not_depend_on_threads),
        cmocka_unit_test(spans_of_long_contexts_are_joined_by_any_number_of_threads),
        cmocka_unit_test(attention_of_a_token_does_not_depend_on_its_batch),
        cmocka_unit_test(what_a_token_may_not_see_cannot_reach_it),
        cmocka_unit_test(head_shards_give_the_bits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
