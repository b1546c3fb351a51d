/* Attention of a few tokens over long contexts: however small the scratch, all multiprocessors have work, and
 * the bits are the same. */
#include "gpu_run.h"

#include <cudasim.h>

#include "support/attention_case.h"

enum { DRIVER_SCRATCH = 24 << 20 /* as devices have it */ };

typedef struct cache {
    gpu *g;
    attention_case a;
    tsr_op op;
    size_t y_floats;
} cache;

/* n tokens of each of some sequences after `past` positions of random keys and values, in a cache whose page
 * table has room for `n_ctx` positions, of which only the used ones have pages. */
static cache cache_create(gpu *g, attention_setup s, int n_sequences, int64_t past, int64_t n, int64_t n_ctx)
{
    cache c = {.g = g};
    float *q = NULL;
    attention_case_layout(&c.a, s, n_sequences, past + n);
    const int64_t pages = c.a.pages_per_sequence, stride = n_ctx / s.page_tokens;
    int32_t *table = malloc((size_t)(n_sequences * stride) * sizeof *table);
    memset(table, 0x7f, (size_t)(n_sequences * stride) * sizeof *table);
    for (int i = 0; i < n_sequences; i++)
        memcpy(table + i * stride, c.a.page_table + i * pages, (size_t)pages * sizeof *table);
    uint16_t *bytes = malloc(c.a.bytes);
    uint64_t seed = 3;
    for (size_t i = 0; i < c.a.bytes / 2; i++) /* F16 of both signs, 2^-7 to 2 */
        bytes[i] =
            (uint16_t)(0x2000 + random_below(&seed, 0x2000)) ^ (uint16_t)(random_below(&seed, 2) << 15);
    c.a.kv.base = gpu_put(g, bytes, c.a.bytes, true);
    attention_case_batch(&c.a, past, n);
    c.y_floats = (size_t)(c.a.n_tokens * s.kv_heads * s.group * s.head_dim);
    const tsr_kv_index index = {gpu_put(g, table, (size_t)(n_sequences * stride) * sizeof *table, false),
                                stride,
                                gpu_put(g, c.a.seq_row, (size_t)c.a.n_tokens * sizeof(int32_t), false),
                                gpu_put(g, c.a.position, (size_t)c.a.n_tokens * sizeof(int32_t), false)};
    const float *gpu_q = gpu_random(g, (int64_t)c.y_floats, -2, 2, 4, &q);
    c.op = attention_case_op(&c.a, index, gpu_q, gpu_alloc(g, c.y_floats * sizeof(float), false));
    if (s.sinks)
        c.op.attention.sinks = gpu_put(g, c.a.sinks, (size_t)(s.kv_heads * s.group) * sizeof(float), false);
    free(q);
    free(table);
    free(bytes);
    return c;
}

static void cache_destroy(cache *c)
{
    free(c->a.page_table);
    gpu_clear(c->g);
}

/* The outputs, with `bytes` of scratch; the caller frees them. With counters, the last block of a round
 * combines its groups; otherwise another kernel. */
static float *run_with_either(const cache *c, size_t scratch_bytes, bool counters)
{
    float *y = malloc(c->y_floats * sizeof *y);
    void *scratch = NULL;
    if (scratch_bytes > 0)
        GPU_OK(cudaMalloc(&scratch, scratch_bytes));
    GPU_OK(cudaMemset(c->op.attention.y, 0xff, c->y_floats * sizeof *y));
    const uint64_t combined = cudasim_blocks_of("combine_kernel");
    tsr_cuda_stream s = gpu_stream(c->g, scratch);
    s.scratch_bytes = scratch_bytes;
    s.counters = counters ? s.counters : NULL;
    assert_int_equal(tsr_cuda_op_launch(&c->op, &s), TSR_OK);
    assert_false(gpu_fault(c->g)); /* and counters are zeros */
    assert_true(!counters || cudasim_blocks_of("combine_kernel") == combined);
    gpu_get(y, c->op.attention.y, c->y_floats * sizeof *y);
    if (scratch)
        GPU_OK(cudaFree(scratch));
    return y;
}

static float *run_with(const cache *c, size_t scratch_bytes)
{
    return run_with_either(c, scratch_bytes, true);
}

static uint64_t launches_so_far(void)
{
    return cudasim_calls_of("cudaLaunchKernel");
}

/* 64 query heads, 8 KV heads: a batch of 2 to 16 tokens whose sequences may be 128K long. */
static void a_few_tokens_fill_the_card_whatever_the_capacity(void **state)
{
    (void)state;
    enum { N_SMS = 132, N_CTX = 128 << 10 };
    const attention_setup s = {TSR_TYPE_F16, TSR_TYPE_F16, 8, 8, 128, 32, 0, 0};
    gpu g = gpu_open();
    g.props.n_sms = N_SMS;
    static const struct {
        int n_sequences;
        int64_t n;
        uint64_t most_rounds;
    } batches[] = {{2, 1, 2}, {2, 4, 6}, {16, 1, 12}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        cache c = cache_create(&g, s, batches[i].n_sequences, 260, batches[i].n, N_CTX);
        const uint64_t blocks = cudasim_blocks_of("halves_token_kernel"), launches = launches_so_far();
        float *y = run_with(&c, DRIVER_SCRATCH);
        const uint64_t tiles = c.a.n_tokens > 8; /* a launch that looks for them */
        const uint64_t rounds = launches_so_far() - launches - tiles;
        assert_in_range(rounds, 1, batches[i].most_rounds);
        assert_true(cudasim_blocks_of("halves_token_kernel") - blocks >= rounds * 2 * N_SMS);
        float *unsplit = run_with(&c, 0);
        assert_memory_equal(y, unsplit, c.y_floats * sizeof *y);
        free(y);
        free(unsplit);
        cache_destroy(&c);
    }
    gpu_close(&g);
}

/* A group of 256 positions takes so much scratch; what earlier rounds came to takes the same. */
static size_t scratch_of_group(const cache *c)
{
    return (size_t)(c->a.n_tokens * c->a.s.kv_heads * c->a.s.group * (c->a.s.head_dim + 2)) * sizeof(float);
}

static void the_scratch_does_not_change_the_bits(void **state)
{
    (void)state;
    static const attention_setup setups[] = {
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 64, 32, 0, 0},
        {TSR_TYPE_F16, TSR_TYPE_F16, 2, 1, 160, 32, 0, 0}, /* more elements than threads */
        {TSR_TYPE_F16, TSR_TYPE_F16, 1, 2, 64, 32, 700, 30, .sinks = true},
        {TSR_TYPE_Q8_0, TSR_TYPE_Q8_0, 1, 9, 96, 32, 0, 0},
    };
    static const int groups[] = {1, 2, 3, 4, 5, 6, 7, 20};
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        for (int64_t n = 1; n <= 3; n += 2) {
            cache c = cache_create(&g, setups[i], 2, 1277, n, 4096); /* some tokens are in the sixth group */
            float *unsplit = run_with(&c, 0);
            for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
                for (int counters = 0; counters < 2; counters++) {
                    float *y = run_with_either(&c, (size_t)groups[k] * scratch_of_group(&c), counters != 0);
                    assert_memory_equal(y, unsplit, c.y_floats * sizeof *y);
                    free(y);
                }
            }
            free(unsplit);
            cache_destroy(&c);
        }
    }
    gpu_close(&g);
}

/* 9 to 32 tokens: tokens of one sequence make tiles, the others do not, in one batch. */
static void tiles_and_rounds_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    const attention_setup s = {TSR_TYPE_F16, TSR_TYPE_F16, 1, 8, 64, 32, 0, 0};
    gpu g = gpu_open();
    for (int n_sequences = 2; n_sequences <= 4; n_sequences++) {
        cache c = cache_create(&g, s, n_sequences, 600, 5, 4096);
        float *unsplit = run_with(&c, 0);
        for (int groups = 2; groups <= 5; groups++) {
            float *y = run_with(&c, (size_t)groups * scratch_of_group(&c));
            assert_memory_equal(y, unsplit, c.y_floats * sizeof *y);
            free(y);
        }
        free(unsplit);
        cache_destroy(&c);
    }
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_tokens_fill_the_card_whatever_the_capacity),
        cmocka_unit_test(the_scratch_does_not_change_the_bits),
        cmocka_unit_test(tiles_and_rounds_give_the_bits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
