/* Selections of positions on a GPU (support/select_case.h): the lists of select, to the last entry, in one
 * round or several; attention over lists, against double precision and the bits of each token alone. */
#include "gpu_run.h"

#include "support/kernel_run.h"
#include "support/select_case.h"

enum { N_SEQUENCES = 2 };

/* The case's index on the device. */
static tsr_kv_index put_index(gpu *g, const attention_case *a)
{
    const size_t n = (size_t)a->n_tokens * sizeof(int32_t);
    return (tsr_kv_index){
        gpu_put(g, a->page_table, (size_t)(a->n_sequences * a->pages_per_sequence) * sizeof(int32_t), false),
        a->pages_per_sequence, gpu_put(g, a->seq_row, n, false), gpu_put(g, a->position, n, false)};
}

static float *put_floats(gpu *g, const float *x, int64_t n)
{
    return gpu_put(g, x, (size_t)n * sizeof *x, n % 8 == 0);
}

static unsigned char *put_cache(gpu *g, const attention_case *a, const unsigned char *bytes)
{
    return gpu_put(g, bytes, a->bytes, a->s.head_dim % 32 == 0);
}

/* -- select -- */

static void check_lists(gpu *g, select_setup s, int64_t past, int64_t n)
{
    select_case c = select_case_create(s, N_SEQUENCES, past, n, (uint64_t)(past + n));
    const size_t bytes = (size_t)select_case_words(&c) * sizeof(int32_t), scratch = g->scratch_bytes;
    const int64_t n_q = c.a.n_tokens * s.n_heads * s.dim;
    int32_t *lists = malloc(bytes);
    tsr_op op =
        select_case_op(&c, put_cache(g, &c.a, c.bytes), put_index(g, &c.a), put_floats(g, c.q, n_q),
                       put_floats(g, c.weights, c.a.n_tokens * s.n_heads), gpu_alloc(g, bytes, false));
    assert_false(gpu_run(g, &op));
    gpu_get(lists, op.select.y, bytes);
    select_case_check(&c, lists);
    gpu_fill(op.select.y, 0xff, bytes);
    g->scratch_bytes = tsr_cuda_select_scratch(&op.select, 3); /* rounds of three tokens */
    const tsr_cuda_stream few = gpu_stream(g, gpu_alloc(g, g->scratch_bytes, true));
    assert_int_equal(tsr_cuda_op_launch(&op, &few), TSR_OK);
    assert_false(gpu_fault(g));
    gpu_get(lists, op.select.y, bytes);
    select_case_check(&c, lists);
    g->scratch_bytes = scratch;
    free(lists);
    select_case_destroy(&c);
    gpu_clear(g);
}

static void lists_have_the_blocks_of_the_largest_scores(void **state)
{
    (void)state;
    static const select_setup setups[] = {
        {TSR_TYPE_F32, 16, 64, 32, 16, 1, 0, true}, {TSR_TYPE_F16, 3, 20, 7, 5, 1, 0, true},
        {TSR_TYPE_F32, 2, 64, 32, 4, 8, 1, false},  {TSR_TYPE_BF16, 5, 33, 10, 3, 5, 2, false},
        {TSR_TYPE_F32, 1, 256, 32, 1, 1, 0, true},  {TSR_TYPE_F16, 64, 32, 48, 40, 1, 3, true},
        {TSR_TYPE_F32, 6, 40, 7, 3, 1, 0, true, 4}, {TSR_TYPE_F32, 2, 40, 7, 3, 2, 1, false, 5},
    };
    gpu g = gpu_open();
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_lists(&g, setups[i], 0, 1);
        check_lists(&g, setups[i], 2, 9);
        check_lists(&g, setups[i], 130, 5);
    }
    check_lists(&g, setups[1], 1100, 1); /* more blocks than threads */
    gpu_close(&g);
}

/* -- attention over lists -- */

static void get_outputs(gpu *g, const tsr_op *op, float *y)
{
    assert_false(gpu_run(g, op));
    gpu_get(y, op->attention.y,
            (size_t)(op->attention.n_tokens * op->attention.n_heads * op->attention.kv.v_dim) * sizeof *y);
}

/* Close to the definition; the same bits with and without scratch memory, and for each token alone. */
static void check_attention(gpu *g, attention_setup s, bool by_head, int64_t n_blocks, int64_t block,
                            int64_t past, int64_t n)
{
    uint64_t seed = (uint64_t)past + 5;
    attention_case a = {0};
    attention_case_layout(&a, s, N_SEQUENCES, past + n);
    attention_case_batch(&a, past, n);
    const int64_t q_token = attention_case_q_floats(&a), n_lists = by_head ? s.kv_heads : 1;
    const size_t token = (size_t)attention_case_y_floats(&a), all = (size_t)a.n_tokens * token;
    unsigned char *bytes = malloc(a.bytes);
    float *q = malloc((size_t)(a.n_tokens * q_token) * sizeof *q);
    float *y = malloc(all * sizeof *y), *again = malloc(all * sizeof *y);
    assert_true(bytes && q && y && again);
    select_case_fill(&a, bytes, &seed);
    random_fill(&seed, q, a.n_tokens * q_token, -2.0f, 2.0f);
    int32_t *lists = select_case_draw(&a, n_lists, n_blocks, block, 5, &seed);
    a.cache = bytes;
    a.q = q;
    a.selected = (tsr_selection){lists, n_lists, n_blocks, block};
    a.kv.base = put_cache(g, &a, bytes);
    tsr_op op = attention_case_op(&a, put_index(g, &a), put_floats(g, q, a.n_tokens * q_token),
                                  gpu_alloc(g, all * sizeof *y, false));
    const tsr_op_attention whole = op.attention;
    op.attention.selected.blocks =
        gpu_put(g, lists, (size_t)(a.n_tokens * n_lists * n_blocks) * sizeof *lists, false);
    const int32_t *blocks = op.attention.selected.blocks;
    get_outputs(g, &op, y);
    attention_case_check(&a, y, 1e-5);
    const size_t scratch = g->scratch_bytes;
    g->scratch_bytes = 0;
    get_outputs(g, &op, again);
    assert_memory_equal(y, again, all * sizeof *y);
    g->scratch_bytes = scratch;
    op.attention.n_tokens = 1;
    for (int64_t t = 0; t < a.n_tokens; t += 3) {
        op.attention.q = whole.q + t * q_token;
        op.attention.index.seq_row = whole.index.seq_row + t;
        op.attention.index.position = whole.index.position + t;
        op.attention.selected.blocks = blocks + t * n_lists * n_blocks;
        get_outputs(g, &op, again);
        assert_memory_equal(again, y + (size_t)t * token, token * sizeof *y);
    }
    free(a.page_table);
    free(bytes);
    free(q);
    free(y);
    free(again);
    free(lists);
    gpu_clear(g);
}

static void attention_over_lists_is_close_and_the_same_for_each_token_alone(void **state)
{
    (void)state;
    static const attention_setup heads = {TSR_TYPE_F16, TSR_TYPE_F16, 2, 3, 64, 32, 0, 0};
    static const attention_setup latent = {TSR_TYPE_F32,    TSR_TYPE_F32,  1, 6, 48, 7, 0, 0,
                                           .value_dim = 32, .v_in_k = true};
    static const attention_setup windows = {TSR_TYPE_F32, TSR_TYPE_BF16, 2, 1, 24, 10, 90, 30};
    gpu g = gpu_open();
    for (int64_t past = 0; past <= 600; past += 300 + past) {
        check_attention(&g, latent, false, 40, 1, past, 6);
        check_attention(&g, heads, true, 8, 8, past, 20);
        check_attention(&g, heads, false, 5, 40, past, 1);
        check_attention(&g, latent, false, 300, 1, past, 1);
        check_attention(&g, windows, true, 200, 3, past > 0 ? 80 : 0, 6);
    }
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_the_blocks_of_the_largest_scores),
        cmocka_unit_test(attention_over_lists_is_close_and_the_same_for_each_token_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
