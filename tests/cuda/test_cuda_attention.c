/* Attention and the writing of keys and values on CUDA: against a double-precision softmax over the values
 * that the cache really holds, and bit for bit where the order of operations is promised. Pages are
 * scattered, and what was never written is NaN, so reading it shows. */
#include "gpu_run.h"

#include <math.h>

#include "support/attention_case.h"

enum { MAX_TOKENS = ATTENTION_MAX_TOKENS, N_SEQUENCES = 2 };

typedef attention_setup setup;

typedef struct cache {
    gpu *g;
    attention_case a; /* kv.base is device memory */
    unsigned char *bytes_back;
    int32_t *gpu_page_table, *gpu_seq_row, *gpu_position;
    float *q, *k, *v, *gpu_q, *gpu_k, *gpu_v; /* of the batch */
} cache;

static int64_t kv_floats(const cache *c)
{
    return attention_case_kv_floats(&c->a);
}

static tsr_kv_index cache_index(const cache *c)
{
    return (tsr_kv_index){c->gpu_page_table, c->a.pages_per_sequence, c->gpu_seq_row, c->gpu_position};
}

static void cache_write(cache *c)
{
    const tsr_op op = {
        .kind = TSR_OP_KV_WRITE,
        .kv_write = {
            .kv = c->a.kv, .index = cache_index(c), .k = c->gpu_k, .v = c->gpu_v, .n_tokens = c->a.n_tokens}};
    gpu_run(c->g, &op);
}

/* The batch is written to the cache. */
static void cache_batch(cache *c, int64_t past, int64_t n, uint64_t seed)
{
    attention_case_batch(&c->a, past, n);
    free(c->q), free(c->k), free(c->v);
    c->gpu_q = gpu_random(c->g, kv_floats(c) * c->a.s.group, -2, 2, seed, &c->q);
    c->gpu_k = gpu_random(c->g, kv_floats(c), -2, 2, seed + 1, &c->k);
    c->gpu_v = gpu_random(c->g, kv_floats(c), -1, 1, seed + 2, &c->v);
    c->a.q = c->q;
    c->gpu_seq_row = gpu_put(c->g, c->a.seq_row, (size_t)c->a.n_tokens * sizeof(int32_t), false);
    c->gpu_position = gpu_put(c->g, c->a.position, (size_t)c->a.n_tokens * sizeof(int32_t), false);
    cache_write(c);
}

/* Keys and values, of one type, of many positions: eight rows again and again. */
static void cache_fill(cache *c)
{
    enum { ROWS = 8 };
    const size_t row_bytes = c->a.kv.k_row_bytes, n = c->a.bytes / row_bytes;
    for (size_t i = 0; i < n; i++) {
        unsigned char *row = c->bytes_back + i * row_bytes;
        if (i >= ROWS) {
            memcpy(row, row - ROWS * row_bytes, row_bytes);
            continue;
        }
        float *x = random_floats(c->a.kv.k_dim, -1, 1, i);
        assert_int_equal(tsr_type_from_f32(c->a.kv.type_k, x, row, c->a.kv.k_dim), TSR_OK);
        free(x);
    }
    GPU_OK(cudaMemcpy(c->a.kv.base, c->bytes_back, c->a.bytes, cudaMemcpyHostToDevice));
}

/* The cache holds `past` positions of each sequence and the batch's n more. */
static cache cache_create(gpu *g, setup s, int64_t past, int64_t n)
{
    enum { STEP = MAX_TOKENS / N_SEQUENCES, MANY = 32 * STEP };
    cache c = {.g = g};
    attention_case_layout(&c.a, s, N_SEQUENCES, past + n);
    c.a.kv.base = gpu_alloc(g, c.a.bytes, s.head_dim % 32 == 0);
    c.a.cache = c.bytes_back = malloc(c.a.bytes);
    c.gpu_page_table =
        gpu_put(g, c.a.page_table, (size_t)(N_SEQUENCES * c.a.pages_per_sequence) * sizeof(int32_t), false);
    if (past > MANY)
        cache_fill(&c);
    for (int64_t i = 0; i < past && past <= MANY; i += STEP)
        cache_batch(&c, i, past - i < STEP ? past - i : STEP, (uint64_t)i);
    cache_batch(&c, past, n, (uint64_t)past);
    gpu_get(c.bytes_back, c.a.kv.base, c.a.bytes);
    return c;
}

static void cache_destroy(cache *c)
{
    free(c->bytes_back);
    free(c->a.page_table);
    free(c->q);
    free(c->k);
    free(c->v);
    gpu_clear(c->g);
}

static tsr_op attention_op(const cache *c)
{
    float *y = gpu_alloc(c->g, (size_t)(kv_floats(c) * c->a.s.group) * sizeof(float), false);
    tsr_op op = attention_case_op(&c->a, cache_index(c), c->gpu_q, y);
    if (op.attention.sinks)
        op.attention.sinks = gpu_put(c->g, c->a.sinks, (size_t)op.attention.n_heads * sizeof(float), false);
    return op;
}

/* Run it and bring the outputs back; the caller frees them. */
static float *outputs_of(gpu *g, const tsr_op *op)
{
    const size_t bytes =
        (size_t)(op->attention.n_tokens * op->attention.n_heads * op->attention.kv.v_dim) * sizeof(float);
    float *y = malloc(bytes);
    gpu_run(g, op);
    gpu_get(y, op->attention.y, bytes);
    return y;
}

/* Exponentials, sums and up to 128 additions per segment add less than this. */
static void check_close(const cache *c, const float *y)
{
    attention_case_check(&c->a, y, 1e-5);
}

/* Close to exact, and the same whether the groups of segments are shared out to blocks or not. */
static void check_setup(gpu *g, setup s, int64_t past, int64_t n)
{
    cache c = cache_create(g, s, past, n);
    const tsr_op op = attention_op(&c);
    const size_t scratch = g->scratch_bytes;
    float *y = outputs_of(g, &op);
    check_close(&c, y);
    g->scratch_bytes = 0;
    float *again = outputs_of(g, &op);
    g->scratch_bytes = scratch;
    assert_memory_equal(y, again, (size_t)(c.a.n_tokens * attention_case_y_floats(&c.a)) * sizeof(float));
    free(y);
    free(again);
    cache_destroy(&c);
}

static void attention_is_close_to_exact_in_one_segment_and_in_many(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 32, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 20, 7, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_F16, 3, 2, 80, 16, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 2, 3, 128, 64, 0, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 19, 128, 32, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 7, 96, 33, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 2, 32, 40, 21, 0},
        {TSR_TYPE_F32, TSR_TYPE_BF16, 1, 19, 32, 32, 140, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 1024, 32, 5, 50},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 8, 64, 32, 128, 0, .sinks = true},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 3, 64, 32, 47, 0, .chunked = true},
        {TSR_TYPE_F32, TSR_TYPE_F32, 2, 2, 32, 32, 148, 0, .chunked = true},
        {TSR_TYPE_F16, TSR_TYPE_F32, 2, 3, 64, 32, 0, 0, .value_dim = 100},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 5, 40, 7, 0, 0, .value_dim = 24, .v_in_k = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 6, 96, 33, 0, 0, .value_dim = 64, .v_in_k = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 6, 96, 16, 0, 30, .value_dim = 64, .v_in_k = true},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 2, 5, 192, 16, 100, 0, .sinks = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 2, 256, 48, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 6, 576, 32, 0, 0, .value_dim = 512, .v_in_k = true},
        {TSR_TYPE_BF16, TSR_TYPE_BF16, 1, 19, 128, 32, 0, 30},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 256, 32, 150, 0, .value_dim = 72},
    };
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_setup(&g, setups[i], 0, 1);
        check_setup(&g, setups[i], 45, 5);
        check_setup(&g, setups[i], 295, 1);
        if (i < 4)
            check_setup(&g, setups[i], 1100, 1); /* three groups of segments */
    }
    gpu_close(&g);
}

/* 32 are combined at a time. */
static void more_groups_than_are_combined_at_a_time(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_setup(&g, (setup){TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 2, 32, 64, 0, 0}, 33000, 1);
    check_setup(&g, (setup){TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 40, 64, 0, 0, .sinks = true}, 33000, 1);
    gpu_close(&g);
}

/* One token alone gives the bits it has in a batch of several sequences. */
static void attention_of_a_token_does_not_depend_on_its_batch(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 48, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 3, 96, 32, 17, 20},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 3, 96, 32, 17, 20},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 5, 96, 10, 0, 0, .value_dim = 40, .v_in_k = true},
        {TSR_TYPE_F32, TSR_TYPE_F32, 2, 1, 24, 10, 0, 0}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        cache c = cache_create(&g, setups[i], 130, 6);
        const size_t token = (size_t)attention_case_y_floats(&c.a);
        tsr_op op = attention_op(&c);
        float *many = outputs_of(&g, &op);
        op.attention.n_tokens = 1;
        for (int64_t t = 0; t < c.a.n_tokens; t++) {
            op.attention.q = c.gpu_q + t * attention_case_q_floats(&c.a);
            op.attention.index.seq_row = c.gpu_seq_row + t;
            op.attention.index.position = c.gpu_position + t;
            float *one = outputs_of(&g, &op);
            assert_memory_equal(one, many + (size_t)t * token, token * sizeof(float));
            free(one);
        }
        free(many);
        cache_destroy(&c);
    }
    gpu_close(&g);
}

/* A prompt goes in tiles of one sequence's tokens; each token gives the bits it has alone. */
static void check_prompt(gpu *g, setup s, int64_t past, int64_t n)
{
    cache c = cache_create(g, s, past, n);
    const size_t token = (size_t)(s.kv_heads * s.group * s.head_dim);
    tsr_op op = attention_op(&c);
    float *many = outputs_of(g, &op);
    check_close(&c, many);
    op.attention.n_tokens = 1;
    for (int64_t t = 0; t < c.a.n_tokens; t += 5) {
        op.attention.q = c.gpu_q + (size_t)t * token;
        op.attention.index.seq_row = c.gpu_seq_row + t;
        op.attention.index.position = c.gpu_position + t;
        float *one = outputs_of(g, &op);
        assert_memory_equal(one, many + (size_t)t * token, token * sizeof(float));
        free(one);
    }
    free(many);
    cache_destroy(&c);
}

static void a_prompt_gives_the_bits_of_its_tokens(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 32, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 20, 7, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_F16, 1, 7, 80, 16, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 3, 128, 32, 150, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_BF16, 1, 16, 256, 32, 9, 0},
        {TSR_TYPE_F16, TSR_TYPE_Q4_0, 1, 2, 160, 48, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_BF16, 1, 7, 80, 16, 0, 30},
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 1, 256, 32, 70, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 32, 32, 48, 100, 0, .chunked = true},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 3, 128, 32, 0, 0, .sinks = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 1, 64, 64, 0, 0, .sinks = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 2, 4, 96, 32, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 2, 256, 16, 100, 0, .chunked = true},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 7, 128, 32, 0, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 2, 192, 48, 70, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 16, 32, 16, 9, 0},
    };
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_prompt(&g, setups[i], 0, 20);
        check_prompt(&g, setups[i], 240, 33); /* across segments and groups */
        if (setups[i].group == 1)
            check_prompt(&g, setups[i], 30, 70); /* a tile of one sequence's 64 tokens */
    }
    gpu_close(&g);
}

/* Cards with less shared memory hold fewer positions or queries in it at a time; on a small card, a block
 * takes several tokens in turn. */
static void the_size_of_the_card_does_not_change_the_bits(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 4, 64, 32, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_BF16, 1, 2, 128, 32, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 128, 32, 90, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 4, 256, 32, 0, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_Q4_0, 1, 4, 256, 32, 90, 0},
    };
    static const size_t sizes[] = {160 << 10, 99 << 10, 76 << 10};
    gpu g = gpu_open();
    const size_t most = g.props.shared_bytes;
    const int n_sms = g.props.n_sms;
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        cache c = cache_create(&g, setups[i], 280, 20);
        tsr_op op = attention_op(&c);
        const size_t bytes = (size_t)(c.a.n_tokens * attention_case_y_floats(&c.a)) * sizeof(float);
        float *whole = outputs_of(&g, &op);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            g.props.shared_bytes = sizes[k] < most ? sizes[k] : most;
            g.props.n_sms = k == 0 ? 1 : n_sms;
            float *again = outputs_of(&g, &op);
            assert_memory_equal(whole, again, bytes);
            free(again);
        }
        g.props.shared_bytes = most;
        g.props.n_sms = n_sms;
        free(whole);
        cache_destroy(&c);
    }
    gpu_close(&g);
}

/* A later token's infinite key and value must not reach the tokens before it. */
static void check_hidden_infinities(gpu *g, tsr_type type)
{
    enum { DIM = 32, LAST = 79 /* of the second sequence, in a tile with those before it */ };
    cache c = cache_create(g, (setup){type, type, 1, 2, DIM, 32, 0, 0}, 3, 40);
    tsr_op op = attention_op(&c);
    float *before = outputs_of(g, &op);
    for (int i = 0; i < DIM; i++)
        c.k[LAST * DIM + i] = c.v[LAST * DIM + i] = INFINITY;
    c.gpu_k = gpu_put(g, c.k, (size_t)kv_floats(&c) * sizeof(float), false);
    c.gpu_v = gpu_put(g, c.v, (size_t)kv_floats(&c) * sizeof(float), false);
    cache_write(&c);
    float *after = outputs_of(g, &op);
    for (int64_t t = 0; t < c.a.n_tokens; t++)
        if (t != LAST)
            assert_memory_equal(before + t * 2 * DIM, after + t * 2 * DIM, 2 * DIM * sizeof(float));
    assert_true(isnan(after[LAST * 2 * DIM]));
    free(before);
    free(after);
    cache_destroy(&c);
}

static void what_a_token_may_not_see_cannot_reach_it(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_hidden_infinities(&g, TSR_TYPE_F32);
    check_hidden_infinities(&g, TSR_TYPE_F16);
    check_hidden_infinities(&g, TSR_TYPE_BF16);
    check_hidden_infinities(&g, TSR_TYPE_Q8_0);
    check_hidden_infinities(&g, TSR_TYPE_Q4_0);
    gpu_close(&g);
}

/* Values times 2^14, far beyond the range of halves in products with weights, give outputs times 2^14. */
static void the_size_of_values_does_not_change_the_bits(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    gpu g = gpu_open();
    for (int i = 0; i < 2; i++) {
        cache c = cache_create(&g, (setup){types[i], types[i], 1, 2, 64, 32, 0, 0}, 0, 40);
        tsr_op op = attention_op(&c);
        float *small = outputs_of(&g, &op);
        for (int64_t k = 0; k < kv_floats(&c); k++)
            c.v[k] *= 0x1p14f;
        c.gpu_v = gpu_put(&g, c.v, (size_t)kv_floats(&c) * sizeof(float), false);
        cache_write(&c);
        float *large = outputs_of(&g, &op);
        const int64_t n = c.a.n_tokens * attention_case_y_floats(&c.a);
        for (int64_t k = 0; k < n; k++)
            small[k] *= 0x1p14f;
        assert_memory_equal(small, large, (size_t)n * sizeof(float));
        free(small);
        free(large);
        cache_destroy(&c);
    }
    gpu_close(&g);
}

/* Columns [head, head + 1) * n of the n_tokens rows of x, `heads` of them per row, as device memory. */
static float *put_head(gpu *g, const float *x, int64_t n_tokens, int64_t heads, int64_t head, int64_t n)
{
    float *part = malloc((size_t)(n_tokens * n) * sizeof(float));
    for (int64_t t = 0; t < n_tokens; t++)
        memcpy(part + t * n, x + (t * heads + head) * n, (size_t)n * sizeof(float));
    float *device = gpu_put(g, part, (size_t)(n_tokens * n) * sizeof(float), false);
    free(part);
    return device;
}

/* Head by head on different devices: a device holds some KV heads and their query heads. */
static void check_head_shards(gpu *g, tsr_type type)
{
    enum { HEADS = 4, GROUP = 3, DIM = 64, TOKENS = 10 };
    cache whole = cache_create(g, (setup){type, type, HEADS, GROUP, DIM, 32, 0, 0}, 0, 5);
    cache part = cache_create(g, (setup){type, type, 1, GROUP, DIM, 32, 0, 0}, 0, 5);
    tsr_op op = attention_op(&whole);
    float *y = outputs_of(g, &op);
    for (int head = 0; head < HEADS; head++) {
        part.gpu_k = put_head(g, whole.k, TOKENS, HEADS, head, DIM);
        part.gpu_v = put_head(g, whole.v, TOKENS, HEADS, head, DIM);
        part.gpu_q = put_head(g, whole.q, TOKENS, HEADS, head, GROUP * DIM);
        cache_write(&part);
        op = attention_op(&part);
        float *one = outputs_of(g, &op);
        for (int t = 0; t < TOKENS; t++)
            assert_memory_equal(one + t * GROUP * DIM, y + (t * HEADS + head) * GROUP * DIM,
                                GROUP * DIM * sizeof(float));
        free(one);
    }
    free(y);
    cache_destroy(&whole);
    cache_destroy(&part);
}

static void head_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    gpu g = gpu_open();
    check_head_shards(&g, TSR_TYPE_F16);
    check_head_shards(&g, TSR_TYPE_Q8_0);
    check_head_shards(&g, TSR_TYPE_Q4_0);
    gpu_close(&g);
}

/* Stored bytes are those of the reference encoder. */
static void kv_write_stores_what_the_encoders_make(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    gpu g = gpu_open();
    for (int i = 0; i < 5; i++) {
        cache c = cache_create(&g, (setup){types[i], types[4 - i], 2, 1, 96, 8, 0, 0}, 9, 4);
        for (int64_t t = 0; t < c.a.n_tokens; t++)
            for (int64_t head = 0; head < 2; head++)
                for (int value = 0; value < 2; value++) {
                    unsigned char encoded[96 * 4];
                    const float *x = (value ? c.v : c.k) + (t * 2 + head) * 96;
                    assert_int_equal(tsr_type_from_f32(types[value ? 4 - i : i], x, encoded, 96), TSR_OK);
                    assert_memory_equal(attention_case_at(&c.a, value, c.a.seq_row[t], c.a.position[t], head),
                                        encoded, value ? c.a.kv.v_row_bytes : c.a.kv.k_row_bytes);
                }
        cache_destroy(&c);
    }
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_write_stores_what_the_encoders_make),
        cmocka_unit_test(attention_is_close_to_exact_in_one_segment_and_in_many),
        cmocka_unit_test(more_groups_than_are_combined_at_a_time),
        cmocka_unit_test(attention_of_a_token_does_not_depend_on_its_batch),
        cmocka_unit_test(a_prompt_gives_the_bits_of_its_tokens),
        cmocka_unit_test(the_size_of_the_card_does_not_change_the_bits),
        cmocka_unit_test(what_a_token_may_not_see_cannot_reach_it),
        cmocka_unit_test(the_size_of_values_does_not_change_the_bits),
        cmocka_unit_test(head_shards_give_the_bits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
