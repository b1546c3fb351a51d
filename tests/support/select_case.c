/* See select_case.h. */
#include "support/select_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/random.h"

static void fill_row(tsr_type type, bool integers, int64_t n, unsigned char *row, uint64_t *seed)
{
    float values[1024];
    random_fill(seed, values, n, integers ? -2.49f : -1.0f, integers ? 2.49f : 1.0f);
    for (int64_t i = 0; i < n && integers; i++)
        values[i] = roundf(values[i]);
    assert_int_equal(tsr_type_from_f32(type, values, row, n), TSR_OK);
}

static void fill(const attention_case *a, bool integers, unsigned char *bytes, uint64_t *seed)
{
    attention_case written = *a;
    written.cache = bytes;
    for (int64_t row = 0; row < a->n_sequences; row++)
        for (int64_t p = 0; p < a->pages_per_sequence * a->s.page_tokens; p++)
            for (int64_t head = 0; head < a->s.kv_heads; head++) {
                unsigned char *key = (unsigned char *)attention_case_at(&written, false, row, p, head);
                unsigned char *value = (unsigned char *)attention_case_at(&written, true, row, p, head);
                fill_row(a->kv.type_k, integers, a->kv.k_dim, key, seed);
                if (!a->kv.v_in_k)
                    fill_row(a->kv.type_v, false, a->kv.v_dim, value, seed);
            }
}

void select_case_fill(const attention_case *a, unsigned char *bytes, uint64_t *seed)
{
    fill(a, false, bytes, seed);
}

select_case select_case_create(select_setup s, int n_sequences, int64_t past, int64_t n, uint64_t seed)
{
    select_case c = {.s = s, .n_lists = s.weighted ? 1 : s.n_heads};
    const attention_setup index = {s.type,         s.type,          1, s.n_heads, s.dim, s.page_tokens,
                                   .v_in_k = true, .ratio = s.ratio};
    attention_case_layout(&c.a, index, n_sequences, past + n);
    attention_case_batch(&c.a, past, n);
    const int64_t n_q = c.a.n_tokens * s.n_heads * s.dim, n_w = c.a.n_tokens * s.n_heads;
    c.bytes = malloc(c.a.bytes);
    c.q = malloc((size_t)n_q * sizeof *c.q);
    c.weights = malloc((size_t)n_w * sizeof *c.weights);
    assert_true(c.bytes && c.q && c.weights);
    fill(&c.a, true, c.bytes, &seed);
    c.a.cache = c.bytes;
    random_fill(&seed, c.q, n_q, -2.49f, 2.49f);
    random_fill(&seed, c.weights, n_w, -4.49f, 4.49f);
    for (int64_t i = 0; i < n_q; i++)
        c.q[i] = roundf(c.q[i]);
    for (int64_t i = 0; i < n_w; i++)
        c.weights[i] = roundf(c.weights[i]) / 8;
    return c;
}

void select_case_destroy(select_case *c)
{
    free(c->a.page_table);
    free(c->bytes);
    free(c->q);
    free(c->weights);
}

int64_t select_case_words(const select_case *c)
{
    return c->a.n_tokens * c->n_lists * c->s.n_blocks;
}

tsr_op select_case_op(const select_case *c, unsigned char *cache, tsr_kv_index index, const float *q,
                      const float *weights, int32_t *y)
{
    tsr_op op = {.kind = TSR_OP_SELECT,
                 .select = {.kv = c->a.kv,
                            .index = index,
                            .q = q,
                            .weights = c->s.weighted ? weights : NULL,
                            .y = y,
                            .n_tokens = c->a.n_tokens,
                            .n_heads = c->s.n_heads,
                            .n_lists = c->n_lists,
                            .n_blocks = c->s.n_blocks,
                            .block = c->s.block,
                            .n_local = c->s.n_local}};
    op.select.kv.base = cache;
    return op;
}

/* The score of a position, from the definition. */
static double score_of(const select_case *c, int64_t t, int64_t list, int64_t position)
{
    float key[1024];
    double score = 0;
    attention_case_get(&c->a, false, c->a.seq_row[t], position, 0, key);
    for (int64_t h = 0; h < c->s.n_heads; h++) {
        const float *q = c->q + (t * c->s.n_heads + h) * c->s.dim;
        double product = 0;
        for (int64_t i = 0; i < c->s.dim; i++)
            product += (double)q[i] * (double)key[i];
        if (c->s.weighted)
            score += (double)c->weights[t * c->s.n_heads + h] * fmax(product, 0);
        else if (h == list)
            return product;
    }
    return score;
}

static void check_list(const select_case *c, int64_t t, int64_t l, const int32_t *list)
{
    const int64_t n_seen = tsr_kv_seen(&c->a.kv, c->a.position[t]);
    const int64_t n = (n_seen + c->s.block - 1) / c->s.block;
    double *scores = malloc((size_t)(n + 1) * sizeof *scores);
    assert_non_null(scores);
    for (int64_t b = 0; b < n; b++)
        scores[b] = b > n - 1 - c->s.n_local ? INFINITY : -INFINITY;
    for (int64_t p = 0; p < n_seen; p++)
        scores[p / c->s.block] = fmax(scores[p / c->s.block], score_of(c, t, l, p));
    int64_t at = 0;
    for (int64_t b = 0; b < n; b++) {
        int64_t rank = 0;
        for (int64_t i = 0; i < n; i++)
            rank += scores[i] > scores[b] || (scores[i] == scores[b] && i < b);
        if (rank < c->s.n_blocks && list[at++] != b)
            fail_msg("token %d list %d: entry %d is %d, exact %d", (int)t, (int)l, (int)at - 1, list[at - 1],
                     (int)b);
    }
    for (; at < c->s.n_blocks; at++)
        assert_int_equal(list[at], TSR_NO_BLOCK);
    free(scores);
}

void select_case_check(const select_case *c, const int32_t *lists)
{
    for (int64_t t = 0; t < c->a.n_tokens; t++)
        for (int64_t l = 0; l < c->n_lists; l++)
            check_list(c, t, l, lists + (t * c->n_lists + l) * c->s.n_blocks);
}

int32_t *select_case_draw(const attention_case *a, int64_t n_lists, int64_t n_blocks, int64_t block,
                          int64_t rarity, uint64_t *seed)
{
    int32_t *lists = malloc((size_t)(a->n_tokens * n_lists * n_blocks) * sizeof *lists);
    assert_non_null(lists);
    for (int64_t i = 0; i < a->n_tokens * n_lists; i++) {
        const int64_t n_seen = tsr_kv_seen(&a->kv, a->position[i / n_lists]);
        const int64_t last = (n_seen + block - 1) / block - 1;
        int32_t *list = lists + i * n_blocks;
        int64_t n = 0;
        for (int64_t b = 0; b <= last && n < n_blocks; b++)
            if (random_below(seed, (uint64_t)rarity) == 0 || (b == last && n == 0))
                list[n++] = (int32_t)b;
        while (n < n_blocks)
            list[n++] = TSR_NO_BLOCK;
    }
    return lists;
}
