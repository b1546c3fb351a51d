/* Attention over the keys of two layers, and keys of several positions, on a GPU: against double precision,
 * the same bits with and without scratch memory, and those of each token alone. */
#include "gpu_run.h"

#include "support/kernel_run.h"
#include "support/select_case.h"

enum { N_SEQUENCES = 2 };

/* A case with random keys, and its copy on the device. */
typedef struct placed {
    attention_case a;
    unsigned char *bytes;
    int32_t *lists;
    tsr_kv_index index;
    tsr_selection selected; /* on the device */
} placed;

static placed place(gpu *g, attention_setup s, int64_t n_blocks, int64_t past, int64_t n, uint64_t seed)
{
    placed p = {0};
    attention_case_layout(&p.a, s, N_SEQUENCES, past + n);
    attention_case_batch(&p.a, past, n);
    p.bytes = malloc(p.a.bytes);
    assert_non_null(p.bytes);
    select_case_fill(&p.a, p.bytes, &seed);
    p.a.cache = p.bytes;
    p.a.kv.base = gpu_put(g, p.bytes, p.a.bytes, s.head_dim % 32 == 0);
    const size_t words = (size_t)p.a.n_tokens * sizeof(int32_t);
    p.index = (tsr_kv_index){
        gpu_put(g, p.a.page_table, (size_t)(N_SEQUENCES * p.a.pages_per_sequence) * sizeof(int32_t), false),
        p.a.pages_per_sequence, gpu_put(g, p.a.seq_row, words, false),
        gpu_put(g, p.a.position, words, false)};
    if (n_blocks > 0) {
        p.lists = select_case_draw(&p.a, 1, n_blocks, 1, 5, &seed);
        p.a.selected = p.selected = (tsr_selection){p.lists, 1, n_blocks, 1};
        p.selected.blocks = gpu_put(g, p.lists, words * (size_t)n_blocks, false);
    }
    return p;
}

static void displace(placed *p)
{
    free(p->a.page_table);
    free(p->bytes);
    free(p->lists);
}

static void get_outputs(gpu *g, const tsr_op *op, float *y)
{
    assert_int_equal(tsr_cuda_op_check(op), TSR_OK);
    assert_false(gpu_run(g, op));
    gpu_get(y, op->attention.y,
            (size_t)(op->attention.n_tokens * op->attention.n_heads * op->attention.kv.v_dim) * sizeof *y);
}

static void check_more(gpu *g, attention_setup own, attention_setup other, int64_t n_blocks, int64_t past,
                       int64_t n)
{
    placed c = place(g, own, 0, past, n, 3), m = place(g, other, n_blocks, past, n, 4);
    const int64_t q_token = attention_case_q_floats(&c.a);
    const size_t token = (size_t)attention_case_y_floats(&c.a), all = (size_t)c.a.n_tokens * token;
    float *q, *y = malloc(all * sizeof *y), *again = malloc(all * sizeof *y);
    const float *gpu_q = gpu_random(g, c.a.n_tokens * q_token, -2, 2, 5, &q);
    c.a.q = q;
    c.a.more = &m.a;
    tsr_op op = attention_case_op(&c.a, c.index, gpu_q, gpu_alloc(g, all * sizeof *y, false));
    if (op.attention.sinks)
        op.attention.sinks = gpu_put(g, c.a.sinks, (size_t)op.attention.n_heads * sizeof(float), false);
    op.attention.more = (tsr_attention_more){m.a.kv, m.index, m.selected};
    get_outputs(g, &op, y);
    attention_case_check(&c.a, y, 1e-5);
    const size_t scratch = g->scratch_bytes;
    g->scratch_bytes = 0;
    get_outputs(g, &op, again);
    assert_memory_equal(y, again, all * sizeof *y);
    g->scratch_bytes = scratch;
    op.attention.n_tokens = 1;
    for (int64_t t = 0; t < c.a.n_tokens; t += 2) {
        op.attention.q = gpu_q + t * q_token;
        op.attention.index.seq_row = op.attention.more.index.seq_row = c.index.seq_row + t;
        op.attention.index.position = op.attention.more.index.position = c.index.position + t;
        if (n_blocks > 0)
            op.attention.more.selected.blocks = m.selected.blocks + t * n_blocks;
        get_outputs(g, &op, again);
        assert_memory_equal(again, y + (size_t)t * token, token * sizeof *y);
    }
    free(q), free(y), free(again);
    displace(&c);
    displace(&m);
    gpu_clear(g);
}

static void attention_joins_more_keys_to_its_own(void **state)
{
    (void)state;
    const attention_setup own = {TSR_TYPE_F32, TSR_TYPE_F32, 1, 6, 48, 7, 24, 0, true, .v_in_k = true};
    attention_setup other = {TSR_TYPE_F32, TSR_TYPE_F32, 1, 6, 48, 10, 0, 0, .v_in_k = true, .ratio = 4};
    const attention_setup heads = {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 3, 64, 32, 300, 30};
    const attention_setup all = {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 3, 64, 32, 0, 30};
    gpu g = gpu_open();
    for (int64_t past = 0; past <= 1200; past += 150 + 2 * past) {
        other.ratio = 4;
        check_more(&g, own, other, 8, past, 6);
        check_more(&g, own, other, 0, past, 1);
        other.ratio = 9;
        check_more(&g, own, other, 0, past, 20);
        check_more(&g, heads, all, 0, past, 1);
    }
    gpu_close(&g);
}

static void keys_of_several_positions_are_written_with_the_last(void **state)
{
    (void)state;
    enum { PAST = 4, N = 9, RATIO = 3, DIM = 20 };
    gpu g = gpu_open();
    placed p = place(
        &g, (attention_setup){TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, DIM, 2, 0, 0, .v_in_k = true, .ratio = RATIO},
        0, PAST, N, 1);
    float *v, row[DIM];
    const float *gpu_v = gpu_random(&g, p.a.n_tokens * DIM, -1, 1, 2, &v);
    const tsr_op op = {
        .kind = TSR_OP_KV_WRITE,
        .kv_write = {.kv = p.a.kv, .index = p.index, .k = gpu_v, .v = gpu_v, .n_tokens = p.a.n_tokens}};
    gpu_fill(p.a.kv.base, 0xff, p.a.bytes);
    assert_false(gpu_run(&g, &op));
    gpu_get(p.bytes, p.a.kv.base, p.a.bytes);
    for (int64_t t = 0; t < p.a.n_tokens; t++)
        if ((p.a.position[t] + 1) % RATIO == 0)
            assert_memory_equal(attention_case_at(&p.a, false, p.a.seq_row[t], p.a.position[t] / RATIO, 0),
                                v + t * DIM, sizeof row);
    memset(row, 0xff, sizeof row);
    for (int64_t at = (PAST + N) / RATIO; at < p.a.pages_per_sequence * 2; at++)
        assert_memory_equal(attention_case_at(&p.a, false, 0, at, 0), row, sizeof row);
    assert_memory_equal(attention_case_at(&p.a, false, 0, 0, 0), row, sizeof row); /* before the batch */
    free(v);
    displace(&p);
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_joins_more_keys_to_its_own),
        cmocka_unit_test(keys_of_several_positions_are_written_with_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
