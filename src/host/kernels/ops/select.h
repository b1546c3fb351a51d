/* select: the blocks of positions with the largest scores, for each token (core/op.h).
 *
 * Scores are products of attention's kernel (attention_block.h): the rows of an item are the heads of one
 * token's index queries. A list takes the blocks in the order of their numbers. It has room for twice the
 * blocks that it selects; when it is full, the lesser half is dropped: a threshold is found by counting
 * digits of the keys, and what is left keeps its order, so a list never has to be sorted. Which blocks are
 * dropped does not depend on when that happens.
 *
 * A work item is a token. Where tokens are few, spans of positions are divided among the threads, which store
 * the scores in the team's memory; the thread that finishes a token's last span fills its lists. */
#ifndef TSR_HOST_KERNELS_OPS_SELECT_H
#define TSR_HOST_KERNELS_OPS_SELECT_H

#include "host/kernels/ops/attention.h"

/* One list of one token. The block that the last positions belong to is open: its key may still grow. */
typedef struct select_list {
    uint32_t *keys;
    int32_t *numbers; /* ascending */
    int64_t n;
    uint32_t least; /* a key that is no larger is not among the best */
    int64_t open;   /* -1: none */
    uint32_t open_key;
} select_list;

typedef struct select_scratch {
    attn_scratch attention; /* first: its kernels expect their scratch here */
    float scores[TSR_MAX_INDEX_HEADS][ATTN_BLOCK];
    uint32_t keys[2 * TSR_MAX_SELECTED];
    int32_t numbers[2 * TSR_MAX_SELECTED];
    select_list lists[TSR_MAX_INDEX_HEADS];
} select_scratch;

/* -- lists -- */

/* A number with the order of the scores; 0: not a number. */
static uint32_t select_key(float score)
{
    uint32_t bits;
    score = score == 0.0f ? 0.0f : score; /* both zeros are equal */
    memcpy(&bits, &score, sizeof bits);
    if (score != score)
        return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The k-th largest of keys[n], and how many are larger. */
static uint32_t select_threshold(const uint32_t *keys, int64_t n, int64_t k, int64_t *n_larger_out)
{
    uint32_t prefix = 0;
    int64_t larger = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        int digit = 255;
        for (int64_t i = 0; i < n; i++)
            counts[keys[i] >> shift & 255] += (uint64_t)(keys[i] ^ prefix) >> (shift + 8) == 0;
        while (larger + counts[digit] < k)
            larger += counts[digit--];
        prefix |= (uint32_t)digit << shift;
    }
    *n_larger_out = larger;
    return prefix;
}

/* Keep the best `kept` entries; of equal keys the first ones. */
static void select_drop(select_list *list, int64_t kept)
{
    int64_t n_larger, n = 0;
    if (list->n <= kept)
        return;
    const uint32_t least = select_threshold(list->keys, list->n, kept, &n_larger);
    int64_t n_equal = kept - n_larger;
    for (int64_t i = 0; i < list->n; i++) {
        if (list->keys[i] < least || (list->keys[i] == least && n_equal-- <= 0))
            continue;
        list->keys[n] = list->keys[i];
        list->numbers[n++] = list->numbers[i];
    }
    list->n = n;
    list->least = least;
}

static void select_close(select_list *list, int64_t n_blocks)
{
    if (list->open < 0 || (list->n >= n_blocks && list->open_key <= list->least))
        return;
    if (list->n == 2 * n_blocks) {
        select_drop(list, n_blocks);
        if (list->open_key <= list->least)
            return;
    }
    list->keys[list->n] = list->open_key;
    list->numbers[list->n++] = (int32_t)list->open;
}

/* Blocks of which the token sees a position. */
static int64_t select_n_seen(const tsr_op_select *op, int64_t t)
{
    return (tsr_kv_seen(&op->kv, op->index.position[t]) + op->block - 1) / op->block;
}

/* Take the scores of n positions from `first` on. */
static void select_take(const tsr_op_select *op, int64_t t, int64_t first, const float *scores, int64_t n,
                        select_list *list)
{
    const int64_t own = select_n_seen(op, t) - 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t number = (first + i) / op->block;
        if (number != list->open) {
            select_close(list, op->n_blocks);
            list->open = number;
            list->open_key = 0;
        }
        const uint32_t key = number > own - op->n_local ? UINT32_MAX : select_key(scores[i]);
        list->open_key = key > list->open_key ? key : list->open_key;
    }
}

static void select_begin(const tsr_op_select *op, select_scratch *s)
{
    for (int64_t l = 0; l < op->n_lists; l++)
        s->lists[l] = (select_list){
            .keys = s->keys + l * 2 * op->n_blocks, .numbers = s->numbers + l * 2 * op->n_blocks, .open = -1};
}

/* Store the lists of a token. */
static void select_finish(const tsr_op_select *op, int64_t t, select_scratch *s)
{
    for (int64_t l = 0; l < op->n_lists; l++) {
        select_list *list = &s->lists[l];
        int32_t *y = op->y + (t * op->n_lists + l) * op->n_blocks;
        select_close(list, op->n_blocks);
        select_drop(list, op->n_blocks);
        for (int64_t i = 0; i < op->n_blocks; i++)
            y[i] = i < list->n ? list->numbers[i] : TSR_NO_BLOCK;
    }
}

/* Store all blocks of a token that has no more than a list. */
static void select_all(const tsr_op_select *op, int64_t t)
{
    const int64_t n = select_n_seen(op, t);
    for (int64_t i = 0; i < op->n_lists * op->n_blocks; i++)
        op->y[t * op->n_lists * op->n_blocks + i] =
            i % op->n_blocks < n ? (int32_t)(i % op->n_blocks) : TSR_NO_BLOCK;
}

/* -- scores -- */

/* The heads of a token as rows of attention's kernel. `attention` keeps the op that the item refers to. */
static attn_item select_item(const tsr_op_select *op, int64_t t, tsr_op_attention *attention)
{
    *attention = (tsr_op_attention){
        .kv = op->kv, .index = op->index, .q = op->q, .n_tokens = op->n_tokens, .n_heads = op->n_heads};
    return (attn_item){.op = attention,
                       .first_token = t,
                       .n_heads = (int)op->n_heads,
                       .n_rows = (int)op->n_heads,
                       .seq_row = op->index.seq_row[t],
                       .stride = (size_t)(op->kv.k_dim + 31) / 32 * 32};
}

/* The scores of the lists from the products of the heads. */
static void select_weigh(const tsr_op_select *op, int64_t t, select_scratch *s)
{
    const float *weights = op->weights + t * op->n_heads;
    if (!op->weights) {
        memcpy(s->scores, s->attention.weight, (size_t)op->n_heads * sizeof s->scores[0]);
        return;
    }
    for (int half = 0; half < ATTN_BLOCK; half += 16) {
        v16 sum = v16_zero();
        for (int64_t h = 0; h < op->n_heads; h++) {
            const v16 positive = v16_max(v16_load(s->attention.weight[h] + half), v16_zero());
            sum = v16_fma(v16_set1(weights[h]), positive, sum);
        }
        v16_store(s->scores[0] + half, sum);
    }
}

/* Score the positions [begin, end) of a token: into its lists, or, where `shared` is not NULL, there:
 * [n_lists][stride], from position 0 on. */
static void select_span(const tsr_op_select *op, int64_t t, int64_t begin, int64_t end, float *shared,
                        int64_t stride, select_scratch *s)
{
    tsr_op_attention attention;
    attn_ahead nothing = {NULL, NULL};
    const attn_item item = select_item(op, t, &attention);
    attn_begin(&item, &s->attention);
    while (begin < end) {
        const attn_block block = attn_block_at(&item, begin, end, &s->attention);
        const int64_t n = block.position + block.end - begin;
        attn_load_keys(&item, &block, &s->attention, &nothing);
        attn_scores(&item, &block, &s->attention, &nothing);
        select_weigh(op, t, s);
        for (int64_t l = 0; l < op->n_lists; l++) {
            if (shared)
                memcpy(shared + l * stride + begin, s->scores[l] + block.begin, (size_t)n * sizeof(float));
            else
                select_take(op, t, begin, s->scores[l] + block.begin, n, &s->lists[l]);
        }
        begin += n;
    }
}

/* -- the op -- */

/* Spans that a token's positions are divided into; 1: not divided. */
static int64_t select_spans(const tsr_op_select *op, const tsr_kernel_env *env)
{
    int64_t last = 0;
    for (int64_t t = 0; t < op->n_tokens; t++)
        last = op->index.position[t] > last ? op->index.position[t] : last;
    const int64_t spans = last / ATTN_SPAN + 1;
    const size_t floats = (size_t)(op->n_tokens * op->n_lists * spans * ATTN_SPAN);
    const bool divides = env->shared && env->n_threads > 1 && op->n_tokens <= ATTN_SPLIT_TOKENS;
    return divides && floats <= (ATTN_SHARED_BYTES - sizeof(attn_shared)) / sizeof(float) ? spans : 1;
}

/* Score one span of a token, and fill its lists if no other span is left. */
static void select_part(const tsr_op_select *op, int64_t t, int64_t span, int64_t n_spans,
                        const tsr_kernel_env *env)
{
    attn_shared *shared = env->shared;
    const int64_t stride = n_spans * ATTN_SPAN, end = tsr_kv_seen(&op->kv, op->index.position[t]);
    const int64_t span_end = (span + 1) * ATTN_SPAN;
    float *scores = shared->states + t * op->n_lists * stride;
    select_span(op, t, span * ATTN_SPAN, span_end < end ? span_end : end, scores, stride, env->scratch);
    if (atomic_fetch_add_explicit(&shared->finished[t], 1, memory_order_acq_rel) + 1 < n_spans)
        return;
    atomic_store_explicit(&shared->finished[t], 0, memory_order_relaxed);
    select_begin(op, env->scratch);
    for (int64_t l = 0; l < op->n_lists; l++)
        select_take(op, t, 0, scores + l * stride, end, &((select_scratch *)env->scratch)->lists[l]);
    select_finish(op, t, env->scratch);
}

static void kernel_select(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_select *op = &record->select;
    const int64_t n_spans = select_spans(op, env);
    for (int64_t i; (i = tsr_kernel_next(env)) < op->n_tokens * n_spans;) {
        const int64_t t = op->n_tokens - 1 - i / n_spans; /* late tokens see the most positions */
        if (select_n_seen(op, t) <= op->n_blocks) {
            if (i % n_spans == 0)
                select_all(op, t);
        } else if (n_spans > 1) {
            select_part(op, t, i % n_spans, n_spans, env);
        } else {
            select_begin(op, env->scratch);
            select_span(op, t, 0, tsr_kv_seen(&op->kv, op->index.position[t]), NULL, 0, env->scratch);
            select_finish(op, t, env->scratch);
        }
    }
}

#endif
