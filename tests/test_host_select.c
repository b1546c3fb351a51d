/* Selections of positions on the host: the lists of select, to the last entry, for every kernel set and
 * number of threads; attention over lists, against double precision and over any number of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/select_case.h"

enum { N_SEQUENCES = 3 };

static tsr_kv_index index_of(const attention_case *a)
{
    return (tsr_kv_index){a->page_table, a->pages_per_sequence, a->seq_row, a->position};
}

/* -- select -- */

static void check_lists(select_setup s, int64_t past, int64_t n)
{
    select_case c = select_case_create(s, N_SEQUENCES, past, n, (uint64_t)(past + n));
    const size_t bytes = (size_t)select_case_words(&c) * sizeof(int32_t);
    int32_t *lists = malloc(bytes);
    const tsr_op op = select_case_op(&c, c.bytes, index_of(&c.a), c.q, c.weights, lists);
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++)
        for (int threads = 1; threads <= 4; threads += 1 + threads % 2) {
            memset(lists, 0xff, bytes);
            kernel_run(set, &op, threads);
            select_case_check(&c, lists);
        }
    free(lists);
    select_case_destroy(&c);
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
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_lists(setups[i], 0, 1);
        check_lists(setups[i], 2, 9);
        check_lists(setups[i], 130, 12);
        check_lists(setups[i], 1530, 1); /* spans are divided among threads */
    }
}

/* -- attention over lists -- */

typedef struct selected_case {
    attention_case a;
    unsigned char *bytes;
    float *q;
    int32_t *lists;
} selected_case;

static selected_case selected_create(attention_setup s, bool by_head, int64_t n_blocks, int64_t block,
                                     int64_t past, int64_t n)
{
    uint64_t seed = (uint64_t)past + 5;
    selected_case c = {0};
    attention_case_layout(&c.a, s, N_SEQUENCES, past + n);
    attention_case_batch(&c.a, past, n);
    const int64_t n_q = c.a.n_tokens * attention_case_q_floats(&c.a), n_lists = by_head ? s.kv_heads : 1;
    c.bytes = malloc(c.a.bytes);
    c.q = malloc((size_t)n_q * sizeof *c.q);
    assert_true(c.bytes && c.q);
    select_case_fill(&c.a, c.bytes, &seed);
    random_fill(&seed, c.q, n_q, -2.0f, 2.0f);
    c.lists = select_case_draw(&c.a, n_lists, n_blocks, block, 5, &seed);
    c.a.kv.base = c.bytes;
    c.a.cache = c.bytes;
    c.a.q = c.q;
    c.a.selected = (tsr_selection){c.lists, n_lists, n_blocks, block};
    return c;
}

static void selected_destroy(selected_case *c)
{
    free(c->a.page_table);
    free(c->bytes);
    free(c->q);
    free(c->lists);
}

/* Close to the definition; the bits of any number of threads, and of each token alone. */
static void check_attention(attention_setup s, bool by_head, int64_t n_blocks, int64_t block, int64_t past,
                            int64_t n)
{
    selected_case c = selected_create(s, by_head, n_blocks, block, past, n);
    const size_t token = (size_t)attention_case_y_floats(&c.a), all = (size_t)c.a.n_tokens * token;
    float *y = malloc(all * sizeof *y), *again = malloc(all * sizeof *y);
    const tsr_kernel_set *set;
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++) {
        tsr_op op = attention_case_op(&c.a, index_of(&c.a), c.q, y);
        kernel_run(set, &op, 1);
        attention_case_check(&c.a, y, 2e-6);
        op.attention.y = again;
        kernel_run(set, &op, 3);
        assert_memory_equal(y, again, all * sizeof *y);
        op.attention.n_tokens = 1;
        for (int64_t t = 0; t < c.a.n_tokens; t++) {
            op.attention.q = c.q + t * attention_case_q_floats(&c.a);
            op.attention.index.seq_row = c.a.seq_row + t;
            op.attention.index.position = c.a.position + t;
            op.attention.selected.blocks = c.lists + t * c.a.selected.n_lists * n_blocks;
            kernel_run(set, &op, 1 + (int)(t % 3));
            assert_memory_equal(again, y + (size_t)t * token, token * sizeof *y);
        }
    }
    free(y);
    free(again);
    selected_destroy(&c);
}

static void attention_over_lists_is_close_and_the_same_for_each_token_alone(void **state)
{
    (void)state;
    static const attention_setup heads = {TSR_TYPE_F16, TSR_TYPE_F16, 2, 3, 64, 32, 0, 0};
    static const attention_setup latent = {TSR_TYPE_F32,    TSR_TYPE_F32,  1, 6, 48, 7, 0, 0,
                                           .value_dim = 32, .v_in_k = true};
    static const attention_setup windows = {TSR_TYPE_F32, TSR_TYPE_BF16, 2, 1, 24, 10, 90, 30};
    for (int64_t past = 0; past <= 600; past += 150 + past) {
        check_attention(latent, false, 40, 1, past, 6);
        check_attention(heads, true, 8, 8, past, 5);
        check_attention(heads, false, 5, 40, past, 1);
        check_attention(latent, false, 300, 1, past, 1);
        check_attention(windows, true, 200, 3, past > 0 ? 80 : 0, 6);
    }
}

/* -- more keys -- */

/* Close to the definition; the bits of any number of threads, and of each token alone. Early tokens see no
 * other key, and selections of the first ones are empty. */
static void check_more(attention_setup own, attention_setup other, int64_t n_blocks, int64_t past, int64_t n)
{
    selected_case c = selected_create(own, false, 1, 1, past, n);
    selected_case m = selected_create(other, false, n_blocks > 0 ? n_blocks : 1, 1, past, n);
    const size_t token = (size_t)attention_case_y_floats(&c.a), all = (size_t)c.a.n_tokens * token;
    float *y = malloc(all * sizeof *y), *again = malloc(all * sizeof *y);
    const tsr_kernel_set *set;
    c.a.selected.blocks = NULL;
    m.a.selected.blocks = n_blocks > 0 ? m.lists : NULL;
    c.a.more = &m.a;
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++) {
        tsr_op op = attention_case_op(&c.a, index_of(&c.a), c.q, y);
        op.attention.more = (tsr_attention_more){m.a.kv, index_of(&m.a), m.a.selected};
        kernel_run(set, &op, 1);
        attention_case_check(&c.a, y, 2e-6);
        op.attention.y = again;
        kernel_run(set, &op, 3);
        assert_memory_equal(y, again, all * sizeof *y);
        op.attention.n_tokens = 1;
        for (int64_t t = 0; t < c.a.n_tokens; t++) {
            op.attention.q = c.q + t * attention_case_q_floats(&c.a);
            op.attention.index.seq_row = op.attention.more.index.seq_row = c.a.seq_row + t;
            op.attention.index.position = op.attention.more.index.position = c.a.position + t;
            op.attention.more.selected.blocks = n_blocks > 0 ? m.lists + t * n_blocks : NULL;
            kernel_run(set, &op, 1 + (int)(t % 4));
            assert_memory_equal(again, y + (size_t)t * token, token * sizeof *y);
        }
    }
    free(y);
    free(again);
    selected_destroy(&c);
    selected_destroy(&m);
}

static void attention_joins_more_keys_to_its_own(void **state)
{
    (void)state;
    const attention_setup own = {TSR_TYPE_F32, TSR_TYPE_F32, 1, 6, 48, 7, 24, 0, true, .v_in_k = true};
    attention_setup other = {TSR_TYPE_F32, TSR_TYPE_F32, 1, 6, 48, 10, 0, 0, .v_in_k = true, .ratio = 4};
    const attention_setup heads = {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 3, 64, 32, 700, 30};
    const attention_setup all = {TSR_TYPE_F16, TSR_TYPE_Q8_0, 2, 3, 64, 32, 0, 30};
    for (int64_t past = 0; past <= 2300; past += 150 + 2 * past) {
        other.ratio = 4;
        check_more(own, other, 8, past, 6);
        check_more(own, other, 0, past, 1);
        other.ratio = 9;
        check_more(own, other, 0, past, 20);
        check_more(heads, all, 0, past, 2);
    }
}

static void keys_of_several_positions_are_written_with_the_last(void **state)
{
    (void)state;
    enum { PAST = 4, N = 9, RATIO = 3, DIM = 20 };
    attention_case a = {0};
    const tsr_kernel_set *set;
    uint64_t seed = 7;
    attention_case_layout(
        &a, (attention_setup){TSR_TYPE_F32, TSR_TYPE_F32, 1, 1, DIM, 2, 0, 0, .v_in_k = true, .ratio = RATIO},
        N_SEQUENCES, PAST + N);
    attention_case_batch(&a, PAST, N);
    float *v = malloc((size_t)a.n_tokens * DIM * sizeof *v), row[DIM];
    unsigned char *bytes = malloc(a.bytes);
    random_fill(&seed, v, a.n_tokens * DIM, -1, 1);
    a.cache = a.kv.base = bytes;
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++) {
        const tsr_op op = {
            .kind = TSR_OP_KV_WRITE,
            .kv_write = {.kv = a.kv, .index = index_of(&a), .k = v, .v = v, .n_tokens = a.n_tokens}};
        memset(bytes, 0xff, a.bytes);
        kernel_run(set, &op, 2);
        for (int64_t t = 0; t < a.n_tokens; t++)
            if ((a.position[t] + 1) % RATIO == 0)
                assert_memory_equal(attention_case_at(&a, false, a.seq_row[t], a.position[t] / RATIO, 0),
                                    v + t * DIM, sizeof row);
        memset(row, 0xff, sizeof row);
        for (int64_t p = (PAST + N) / RATIO; p < a.pages_per_sequence * 2; p++)
            assert_memory_equal(attention_case_at(&a, false, 0, p, 0), row, sizeof row);
        assert_memory_equal(attention_case_at(&a, false, 0, 0, 0), row, sizeof row); /* before the batch */
    }
    free(v);
    free(bytes);
    free(a.page_table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_the_blocks_of_the_largest_scores),
        cmocka_unit_test(attention_over_lists_is_close_and_the_same_for_each_token_alone),
        cmocka_unit_test(attention_joins_more_keys_to_its_own),
        cmocka_unit_test(keys_of_several_positions_are_written_with_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
