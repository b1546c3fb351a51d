/* Attention and the writing of keys and values on CUDA: against a double-precision softmax over the values
 * that the cache really holds, and bit for bit where the order of operations is promised. Pages are
 * scattered, and what was never written is NaN, so reading it shows. */
#include "gpu_run.h"

#include <math.h>

#include <tsr/types.h>

enum { MAX_TOKENS = 96, N_SEQUENCES = 2 };

typedef struct setup {
    tsr_type type_k, type_v;
    int64_t kv_heads, group, head_dim, page_tokens, window;
    float softcap;
} setup;

/* A cache of N_SEQUENCES sequences and a batch that continues them. */
typedef struct cache {
    gpu *g;
    setup s;
    tsr_kv_view kv; /* base is device memory */
    size_t bytes;
    unsigned char *bytes_back; /* copy of the cache */
    int64_t pages_per_sequence;
    int32_t *page_table, *gpu_page_table;
    int64_t n_tokens; /* of the batch */
    int32_t seq_row[MAX_TOKENS], position[MAX_TOKENS], *gpu_seq_row, *gpu_position;
    float *q, *k, *v, *gpu_q, *gpu_k, *gpu_v; /* of the batch */
} cache;

static int64_t kv_floats(const cache *c)
{
    return c->n_tokens * c->s.kv_heads * c->s.head_dim;
}

static tsr_kv_index cache_index(const cache *c)
{
    return (tsr_kv_index){c->gpu_page_table, c->pages_per_sequence, c->gpu_seq_row, c->gpu_position};
}

static void cache_layout(cache *c, int64_t max_positions)
{
    tsr_kv_view *kv = &c->kv;
    kv->type_k = c->s.type_k, kv->type_v = c->s.type_v;
    kv->n_heads = c->s.kv_heads, kv->head_dim = c->s.head_dim, kv->page_tokens = c->s.page_tokens;
    kv->k_row_bytes = tsr_type_row_bytes(kv->type_k, kv->head_dim);
    kv->v_row_bytes = tsr_type_row_bytes(kv->type_v, kv->head_dim);
    const size_t rows = (size_t)(kv->n_heads * kv->page_tokens);
    kv->v_offset = rows * kv->k_row_bytes;
    kv->page_bytes = rows * (kv->k_row_bytes + kv->v_row_bytes);
    c->pages_per_sequence = (max_positions + kv->page_tokens - 1) / kv->page_tokens;
    const int64_t pages = N_SEQUENCES * c->pages_per_sequence;
    c->bytes = (size_t)pages * kv->page_bytes;
    kv->base = gpu_alloc(c->g, c->bytes, c->s.head_dim % 32 == 0);
    c->bytes_back = malloc(c->bytes);
    c->page_table = calloc((size_t)pages, sizeof(int32_t));
    for (int64_t i = 0; i < pages; i++) /* the pages of a sequence are nowhere near each other */
        c->page_table[i] = (int32_t)(pages - 1 - (i % N_SEQUENCES) * c->pages_per_sequence - i / N_SEQUENCES);
    c->gpu_page_table = gpu_put(c->g, c->page_table, (size_t)pages * sizeof(int32_t), false);
}

static void cache_write(cache *c)
{
    const tsr_op op = {
        .kind = TSR_OP_KV_WRITE,
        .kv_write = {
            .kv = c->kv, .index = cache_index(c), .k = c->gpu_k, .v = c->gpu_v, .n_tokens = c->n_tokens}};
    gpu_run(c->g, &op);
}

/* n tokens per sequence from position `past` on, the sequences one after another; written to the cache. */
static void cache_batch(cache *c, int64_t past, int64_t n, uint64_t seed)
{
    c->n_tokens = 0;
    for (int row = 0; row < N_SEQUENCES; row++)
        for (int64_t i = 0; i < n; i++, c->n_tokens++) {
            c->seq_row[c->n_tokens] = row;
            c->position[c->n_tokens] = (int32_t)(past + i);
        }
    free(c->q), free(c->k), free(c->v);
    c->gpu_q = gpu_random(c->g, kv_floats(c) * c->s.group, -2, 2, seed, &c->q);
    c->gpu_k = gpu_random(c->g, kv_floats(c), -2, 2, seed + 1, &c->k);
    c->gpu_v = gpu_random(c->g, kv_floats(c), -1, 1, seed + 2, &c->v);
    c->gpu_seq_row = gpu_put(c->g, c->seq_row, (size_t)c->n_tokens * sizeof(int32_t), false);
    c->gpu_position = gpu_put(c->g, c->position, (size_t)c->n_tokens * sizeof(int32_t), false);
    cache_write(c);
}

/* The cache holds `past` positions of each sequence and the batch's n more. */
static cache cache_create(gpu *g, setup s, int64_t past, int64_t n)
{
    enum { STEP = MAX_TOKENS / N_SEQUENCES };
    cache c = {.g = g, .s = s};
    cache_layout(&c, past + n);
    for (int64_t i = 0; i < past; i += STEP)
        cache_batch(&c, i, past - i < STEP ? past - i : STEP, (uint64_t)i);
    cache_batch(&c, past, n, (uint64_t)past);
    gpu_get(c.bytes_back, c.kv.base, c.bytes);
    return c;
}

static void cache_destroy(cache *c)
{
    free(c->bytes_back);
    free(c->page_table);
    free(c->q);
    free(c->k);
    free(c->v);
    gpu_clear(c->g);
}

/* One key or value as the cache holds it. */
static const unsigned char *cache_at(const cache *c, bool value, int64_t row, int64_t position, int64_t head)
{
    const tsr_kv_view *kv = &c->kv;
    const int64_t page = c->page_table[row * c->pages_per_sequence + position / kv->page_tokens];
    const int64_t slot = head * kv->page_tokens + position % kv->page_tokens;
    return c->bytes_back + (size_t)page * kv->page_bytes +
           (value ? kv->v_offset + (size_t)slot * kv->v_row_bytes : (size_t)slot * kv->k_row_bytes);
}

static void cache_get(const cache *c, bool value, int64_t row, int64_t position, int64_t head, float *out)
{
    assert_int_equal(tsr_type_to_f32(value ? c->kv.type_v : c->kv.type_k,
                                     cache_at(c, value, row, position, head), out, c->kv.head_dim),
                     TSR_OK);
}

static tsr_op attention_op(const cache *c)
{
    return (tsr_op){
        .kind = TSR_OP_ATTENTION,
        .attention = {.kv = c->kv,
                      .index = cache_index(c),
                      .q = c->gpu_q,
                      .y = gpu_alloc(c->g, (size_t)(kv_floats(c) * c->s.group) * sizeof(float), false),
                      .n_tokens = c->n_tokens,
                      .n_heads = c->s.kv_heads * c->s.group,
                      .scale = 1.0f / sqrtf((float)c->s.head_dim),
                      .softcap = c->s.softcap,
                      .window = c->s.window}};
}

/* Run it and bring the outputs back; the caller frees them. */
static float *outputs_of(gpu *g, const tsr_op *op)
{
    const size_t bytes =
        (size_t)(op->attention.n_tokens * op->attention.n_heads * op->attention.kv.head_dim) * sizeof(float);
    float *y = malloc(bytes);
    gpu_run(g, op);
    gpu_get(y, op->attention.y, bytes);
    return y;
}

/* Softmax of one head of one token, straight from the definition. */
static void attention_exact(const cache *c, int64_t t, int64_t head, double *out)
{
    const int64_t dim = c->s.head_dim, position = c->position[t];
    const int64_t first = c->s.window > 0 && position + 1 > c->s.window ? position + 1 - c->s.window : 0;
    const float *q = c->q + (t * c->s.kv_heads * c->s.group + head) * dim;
    double *score = calloc((size_t)position + 1, sizeof(double)), top = -INFINITY, sum = 0;
    float row[1024];
    for (int64_t p = first; p <= position; p++) {
        cache_get(c, false, c->seq_row[t], p, head / c->s.group, row);
        for (int64_t i = 0; i < dim; i++)
            score[p] += (double)q[i] * (double)row[i];
        score[p] /= sqrt((double)dim);
        if (c->s.softcap > 0)
            score[p] = (double)c->s.softcap * tanh(score[p] / (double)c->s.softcap);
        top = fmax(top, score[p]);
    }
    memset(out, 0, (size_t)dim * sizeof(double));
    for (int64_t p = first; p <= position; p++) {
        const double weight = exp(score[p] - top);
        cache_get(c, true, c->seq_row[t], p, head / c->s.group, row);
        sum += weight;
        for (int64_t i = 0; i < dim; i++)
            out[i] += weight * (double)row[i];
    }
    for (int64_t i = 0; i < dim; i++)
        out[i] /= sum;
    free(score);
}

/* Scores carry an absolute error of about |q||k| / sqrt(dim) * 2^-21, below 3e-6 * sqrt(dim) for these
 * inputs; it moves each weight by that much relatively, and the output by at most twice that, since |v| <= 1.
 * Exponentials, sums and up to 128 additions per segment add less than 1e-5. */
static void check_close(const cache *c, const float *y)
{
    const int64_t dim = c->s.head_dim, heads = c->s.kv_heads * c->s.group;
    const double bound = 1e-5 + 6e-7 * sqrt((double)dim);
    double exact[1024];
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t head = 0; head < heads; head++) {
            attention_exact(c, t, head, exact);
            for (int64_t i = 0; i < dim; i++) {
                const double got = (double)y[(t * heads + head) * dim + i];
                if (!(fabs(got - exact[i]) <= bound))
                    fail_msg("token %d head %d element %d: %.9g, exact %.9g, bound %.3g", (int)t, (int)head,
                             (int)i, got, exact[i], bound);
            }
        }
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
    assert_memory_equal(y, again, (size_t)(kv_floats(&c) * s.group) * sizeof(float));
    free(y);
    free(again);
    cache_destroy(&c);
}

static void test_attention_is_close_to_exact_split_or_not(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 32, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 20, 7, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_F16, 3, 2, 80, 16, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 2, 3, 128, 64, 0, 0},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 7, 96, 33, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 2, 32, 40, 21, 0},
        {TSR_TYPE_F32, TSR_TYPE_BF16, 1, 19, 32, 32, 140, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 1024, 32, 5, 50},
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

/* One token alone gives the bits it has in a batch of several sequences. */
static void test_a_token_does_not_feel_its_batch(void **state)
{
    (void)state;
    static const setup setups[] = {{TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 48, 0, 0},
                                   {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, 1, 3, 96, 32, 17, 20},
                                   {TSR_TYPE_F32, TSR_TYPE_F32, 2, 1, 24, 10, 0, 0}};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        cache c = cache_create(&g, setups[i], 130, 6);
        const size_t token = (size_t)(c.s.kv_heads * c.s.group * c.s.head_dim);
        tsr_op op = attention_op(&c);
        float *many = outputs_of(&g, &op);
        op.attention.n_tokens = 1;
        for (int64_t t = 0; t < c.n_tokens; t++) {
            op.attention.q = c.gpu_q + (size_t)t * token;
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
    for (int64_t t = 0; t < c.n_tokens; t += 5) {
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

static void test_a_prompt_gives_the_bits_of_its_tokens(void **state)
{
    (void)state;
    static const setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 4, 64, 32, 0, 0},
        {TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, 20, 7, 0, 0},
        {TSR_TYPE_BF16, TSR_TYPE_F16, 1, 7, 80, 16, 0, 30},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 3, 128, 32, 150, 0},
        {TSR_TYPE_Q4_0, TSR_TYPE_BF16, 1, 16, 256, 32, 9, 0},
        {TSR_TYPE_F16, TSR_TYPE_Q4_0, 1, 2, 160, 48, 0, 0},
    };
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_prompt(&g, setups[i], 0, 20);
        check_prompt(&g, setups[i], 240, 33); /* across segments and groups */
    }
    gpu_close(&g);
}

/* A later token's infinite key and value must not reach the tokens before it. */
static void test_what_a_token_may_not_see_cannot_reach_it(void **state)
{
    (void)state;
    enum { DIM = 32, LAST = 23 /* of the second sequence, in a tile with those before it */ };
    gpu g = gpu_open();
    cache c = cache_create(&g, (setup){TSR_TYPE_F32, TSR_TYPE_F32, 1, 2, DIM, 32, 0, 0}, 3, 12);
    tsr_op op = attention_op(&c);
    float *before = outputs_of(&g, &op);
    for (int i = 0; i < DIM; i++)
        c.k[LAST * DIM + i] = c.v[LAST * DIM + i] = INFINITY;
    c.gpu_k = gpu_put(&g, c.k, (size_t)kv_floats(&c) * sizeof(float), false);
    c.gpu_v = gpu_put(&g, c.v, (size_t)kv_floats(&c) * sizeof(float), false);
    cache_write(&c);
    float *after = outputs_of(&g, &op);
    for (int64_t t = 0; t < c.n_tokens; t++)
        if (t != LAST)
            assert_memory_equal(before + t * 2 * DIM, after + t * 2 * DIM, 2 * DIM * sizeof(float));
    free(before);
    free(after);
    cache_destroy(&c);
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
static void test_head_shards_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { HEADS = 4, GROUP = 3, DIM = 64, TOKENS = 10 };
    gpu g = gpu_open();
    cache whole = cache_create(&g, (setup){TSR_TYPE_F16, TSR_TYPE_F16, HEADS, GROUP, DIM, 32, 0, 0}, 0, 5);
    cache part = cache_create(&g, (setup){TSR_TYPE_F16, TSR_TYPE_F16, 1, GROUP, DIM, 32, 0, 0}, 0, 5);
    tsr_op op = attention_op(&whole);
    float *y = outputs_of(&g, &op);
    for (int head = 0; head < HEADS; head++) {
        part.gpu_k = put_head(&g, whole.k, TOKENS, HEADS, head, DIM);
        part.gpu_v = put_head(&g, whole.v, TOKENS, HEADS, head, DIM);
        part.gpu_q = put_head(&g, whole.q, TOKENS, HEADS, head, GROUP * DIM);
        cache_write(&part);
        op = attention_op(&part);
        float *one = outputs_of(&g, &op);
        for (int t = 0; t < TOKENS; t++)
            assert_memory_equal(one + t * GROUP * DIM, y + (t * HEADS + head) * GROUP * DIM,
                                GROUP * DIM * sizeof(float));
        free(one);
    }
    free(y);
    cache_destroy(&whole);
    cache_destroy(&part);
    gpu_close(&g);
}

/* Stored bytes are those of the reference encoder. */
static void test_kv_write_stores_what_the_encoders_make(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    gpu g = gpu_open();
    for (int i = 0; i < 5; i++) {
        cache c = cache_create(&g, (setup){types[i], types[4 - i], 2, 1, 96, 8, 0, 0}, 9, 4);
        for (int64_t t = 0; t < c.n_tokens; t++)
            for (int64_t head = 0; head < 2; head++)
                for (int value = 0; value < 2; value++) {
                    unsigned char encoded[96 * 4];
                    const float *x = (value ? c.v : c.k) + (t * 2 + head) * 96;
                    assert_int_equal(tsr_type_from_f32(types[value ? 4 - i : i], x, encoded, 96), TSR_OK);
                    assert_memory_equal(cache_at(&c, value, c.seq_row[t], c.position[t], head), encoded,
                                        value ? c.kv.v_row_bytes : c.kv.k_row_bytes);
                }
        cache_destroy(&c);
    }
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_write_stores_what_the_encoders_make),
        cmocka_unit_test(test_attention_is_close_to_exact_split_or_not),
        cmocka_unit_test(test_a_token_does_not_feel_its_batch),
        cmocka_unit_test(test_a_prompt_gives_the_bits_of_its_tokens),
        cmocka_unit_test(test_what_a_token_may_not_see_cannot_reach_it),
        cmocka_unit_test(test_head_shards_give_the_bits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
