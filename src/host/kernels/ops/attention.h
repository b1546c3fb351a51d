/* attention: softmax(scale q k) v over the pages of a sequence, without storing a whole row of scores.
 *
 * Positions are processed in spans of ATTN_SPAN, counted from position 0; inside a span, block after block
 * (attention_block.h), each span from an empty state. The states of a row's spans (m, sum, output) are joined
 * in order: m' = max of both, and each side's sum and output times exp(its m - m'). Spans depend on positions
 * alone, so different threads may work on them. This keeps many threads busy on few heads, with the bits of
 * one thread.
 *
 * A work item is a few tokens of one sequence times the query heads that share a KV head. Keys and values are
 * converted once per item and block, into scratch in the first two cache levels. An item takes all spans one
 * after another or, where items are few, a single span, whose state it stores in memory that the team shares.
 * The thread that finishes the last span of a group of rows joins the spans. */
#ifndef TSR_HOST_KERNELS_OPS_ATTENTION_H
#define TSR_HOST_KERNELS_OPS_ATTENTION_H

#include <stdatomic.h>

#include "host/kernels/ops/attention_block.h"

enum {
    ATTN_SPAN = 512,                     /* positions */
    ATTN_SHARED_BYTES = 8 * 1024 * 1024, /* a token's 64 heads of 128 over 100000 positions take 6.6 MB */
    ATTN_SHARED_GROUPS = 1024,           /* of rows: slices of the batch times KV heads */
    ATTN_SPLIT_TOKENS = 8,               /* most tokens of a batch whose spans are divided among threads */
    ATTN_ITEMS_PER_THREAD = 4            /* with fewer items, divide spans */
};

/* How a call is divided. */
typedef struct attn_plan {
    size_t stride;
    int64_t heads, parts;   /* query heads per item; items per KV head of a slice */
    int64_t tokens, slices; /* tokens per slice; slices of the batch */
    int64_t spans;          /* spans that items are divided into; 1: not divided */
    int64_t own_spans;      /* of these, over the op's own keys; the rest over more */
} attn_plan;

/* The team's memory while spans are divided: a counter for each group, then for each row and span its m, sum
 * and output. */
typedef struct attn_shared {
    _Atomic int finished[ATTN_SHARED_GROUPS]; /* finished spans; 0 between calls */
    float states[];
} attn_shared;

/* The index of a row's token and head. */
static size_t attn_index(const attn_item *item, int row)
{
    const int64_t t = item->first_token + row / item->n_heads, head = item->first_head + row % item->n_heads;
    return (size_t)(t * item->op->n_heads + head);
}

/* -- rows over spans -- */

static int64_t attn_first_seen(const tsr_op_attention *op, int64_t position)
{
    if (op->window == 0 || position < op->window)
        return 0;
    return op->chunked ? position / op->window * op->window : position - op->window + 1;
}

/* The positions that each row sees. */
static void attn_look(const attn_item *item, attn_scratch *s)
{
    const tsr_op_attention *op = item->op;
    for (int row = 0; row < item->n_rows; row++) {
        const int64_t position = op->index.position[item->first_token + row / item->n_heads];
        s->begin[row] = attn_first_seen(op, position);
        s->end[row] = tsr_kv_seen(&op->kv, position);
    }
}

/* Copy the queries, begin with no position, and find those that each row sees. */
static void attn_begin(const attn_item *item, attn_scratch *s)
{
    const tsr_op_attention *op = item->op;
    const size_t k_dim = (size_t)op->kv.k_dim;
    attn_look(item, s);
    for (int row = 0; row < item->n_rows; row++) {
        float *q = s->q + (size_t)row * item->stride;
        memcpy(q, op->q + attn_index(item, row) * k_dim, k_dim * sizeof(float));
        memset(q + k_dim, 0, (item->stride - k_dim) * sizeof(float));
        s->total_top[row] = -__builtin_inff();
        s->total_sum[row] = 0.0f;
    }
}

/* The range of positions that at least one row sees. */
static void attn_extent(const attn_item *item, const attn_scratch *s, int64_t *begin_out, int64_t *end_out)
{
    int64_t begin = INT64_MAX, end = 0;
    for (int row = 0; row < item->n_rows; row++) {
        begin = s->begin[row] < begin ? s->begin[row] : begin;
        end = s->end[row] > end ? s->end[row] : end;
    }
    *begin_out = begin;
    *end_out = end;
}

/* The states of all rows over [begin, end), inside one span, into s->out, top and sum. */
static void attn_span(const attn_item *item, int64_t begin, int64_t end, attn_scratch *s)
{
    const tsr_kv_view *kv = &item->op->kv;
    memset(s->out, 0, (size_t)item->n_rows * item->stride * sizeof(float));
    for (int row = 0; row < item->n_rows; row++) {
        s->top[row] = -__builtin_inff();
        s->sum[row] = 0.0f;
    }
    begin = attn_next_selected(item, begin, end);
    while (begin < end) {
        const attn_block block = attn_block_at(item, begin, end, s);
        begin = attn_next_selected(item, block.position + block.end, end);
        const unsigned char *next = NULL;
        if (begin < end)
            next = kv_row(kv, &item->op->index, item->seq_row, begin, item->kv_head, kv->k_offset,
                          kv->k_row_bytes);
        attn_block_run(item, &block, next, s);
    }
}

/* Join one row's state of a span to the state of the previous spans. A row that saw no position has a sum of
 * zero; otherwise the sum is at least exp(0) = 1, the weight of the largest score. (A sum that is not a
 * number is not zero.) */
static void attn_join(float *top, float *sum, float *out, float span_top, float span_sum,
                      const float *span_out, size_t n)
{
    if (span_sum == 0.0f)
        return;
    if (*sum == 0.0f) {
        *top = span_top;
        *sum = span_sum;
        memcpy(out, span_out, n * sizeof(float));
        return;
    }
    const float highest = span_top > *top ? span_top : *top;
    const float before = f32_exp(*top - highest), now = f32_exp(span_top - highest);
    *top = highest;
    *sum = *sum * before + span_sum * now;
    for (size_t i = 0; i < n; i += 16) {
        const v16 old = v16_mul(v16_load(out + i), v16_set1(before));
        v16_store(out + i, v16_fma(v16_load(span_out + i), v16_set1(now), old));
    }
}

/* Store a finished row: its output divided by the sum of its weights, to which its head's sink is added. */
static void attn_put(const attn_item *item, int row, float top, float sum, const float *out)
{
    const tsr_op_attention *op = item->op;
    float factor = 1.0f / sum;
    float *y = op->y + attn_index(item, row) * (size_t)op->kv.v_dim;
    if (op->sinks) {
        const float sink = op->sinks[item->first_head + row % item->n_heads];
        const float highest = sink > top ? sink : top, keep = f32_exp(top - highest);
        factor = keep / (sum * keep + f32_exp(sink - highest));
    }
    for (int64_t i = 0; i < op->kv.v_dim; i++)
        y[i] = out[i] * factor;
}

/* The op over the other keys of an op that has more. */
static tsr_op_attention attn_more(const tsr_op_attention *op)
{
    tsr_op_attention more = *op;
    more.kv = op->more.kv;
    more.index = op->more.index;
    more.selected = op->more.selected;
    more.window = 0;
    return more;
}

/* Process all spans of one item, one after another, behind those before. */
static void attn_all_spans(const attn_item *item, attn_scratch *s)
{
    int64_t begin, end;
    attn_extent(item, s, &begin, &end);
    while (begin < end) {
        const int64_t span_end = (begin / ATTN_SPAN + 1) * ATTN_SPAN;
        attn_span(item, begin, span_end < end ? span_end : end, s);
        begin = span_end;
        for (int row = 0; row < item->n_rows; row++) {
            const size_t at = (size_t)row * item->stride;
            attn_join(&s->total_top[row], &s->total_sum[row], s->total + at, s->top[row], s->sum[row],
                      s->out + at, attn_v_stride(item));
        }
    }
}

static void attn_run(const attn_item *item, attn_scratch *s)
{
    attn_begin(item, s);
    attn_all_spans(item, s);
    if (item->op->more.kv.base) {
        const tsr_op_attention op = attn_more(item->op);
        attn_item more = *item;
        more.op = &op;
        attn_look(&more, s);
        attn_all_spans(&more, s);
    }
    for (int row = 0; row < item->n_rows; row++)
        attn_put(item, row, s->total_top[row], s->total_sum[row], s->total + (size_t)row * item->stride);
}

/* -- spans divided among threads -- */

/* A row's state in one span: m, sum, 14 unused floats, output. */
enum { ATTN_STATE_HEAD = 16 };

static float *attn_state(attn_shared *shared, const attn_plan *plan, const attn_item *item, int row,
                         int64_t span)
{
    const size_t index = attn_index(item, row) * (size_t)plan->spans + (size_t)span;
    return shared->states + index * (ATTN_STATE_HEAD + plan->stride);
}

/* Process one span of one item; spans of other keys are behind those of its own. */
static void attn_run_span(const attn_item *item, const attn_plan *plan, int64_t span, attn_shared *shared,
                          attn_scratch *s)
{
    int64_t begin, end;
    const tsr_op_attention op = attn_more(item->op);
    const bool is_more = span >= plan->own_spans;
    const int64_t first = (is_more ? span - plan->own_spans : span) * ATTN_SPAN;
    attn_item part = *item;
    attn_begin(item, s);
    if (is_more) {
        part.op = &op;
        attn_look(&part, s);
    }
    attn_extent(&part, s, &begin, &end);
    begin = begin > first ? begin : first;
    end = end < first + ATTN_SPAN ? end : first + ATTN_SPAN;
    attn_span(&part, begin, end, s);
    for (int row = 0; row < item->n_rows; row++) {
        float *state = attn_state(shared, plan, item, row, span);
        state[0] = s->top[row];
        state[1] = s->sum[row];
        if (s->sum[row] != 0.0f)
            memcpy(state + ATTN_STATE_HEAD, s->out + (size_t)row * item->stride,
                   attn_v_stride(item) * sizeof(float));
    }
}

/* Join the spans of one item's rows. */
static void attn_finish(const attn_item *item, const attn_plan *plan, attn_shared *shared, attn_scratch *s)
{
    for (int row = 0; row < item->n_rows; row++) {
        float top = -__builtin_inff(), sum = 0.0f;
        for (int64_t span = 0; span < plan->spans; span++) {
            const float *state = attn_state(shared, plan, item, row, span);
            attn_join(&top, &sum, s->total, state[0], state[1], state + ATTN_STATE_HEAD, attn_v_stride(item));
        }
        attn_put(item, row, top, sum, s->total);
    }
}

/* -- the op -- */

/* Tokens [t, end) up to the next change of the sequence, as an item. */
static attn_item attn_item_at(const attn_plan *plan, const tsr_op_attention *op, int64_t t, int64_t end,
                              int64_t kv_head, int64_t part)
{
    const int64_t group = op->n_heads / op->kv.n_heads, first = part * plan->heads;
    int64_t next = t + 1;
    while (next < end && op->index.seq_row[next] == op->index.seq_row[t])
        next++;
    const int n_heads = (int)(group - first < plan->heads ? group - first : plan->heads);
    return (attn_item){
        .op = op,
        .kv_head = kv_head,
        .first_head = kv_head * group + first,
        .first_token = t,
        .n_heads = n_heads,
        .n_rows = (int)(next - t) * n_heads,
        .seq_row = op->index.seq_row[t],
        .stride = plan->stride,
    };
}

/* The number of spans that the keys of a batch reach into. */
static int64_t attn_count_spans(const tsr_kv_view *kv, const tsr_kv_index *index, int64_t n_tokens)
{
    int64_t seen = 0;
    for (int64_t t = 0; t < n_tokens; t++)
        seen = tsr_kv_seen(kv, index->position[t]) > seen ? tsr_kv_seen(kv, index->position[t]) : seen;
    return (seen + ATTN_SPAN - 1) / ATTN_SPAN;
}

/* All heads that share a KV head make one item. Where that leaves threads idle, spans are divided. Where
 * spans are also too few, items get fewer heads, at the price of converting keys and values once more. */
static attn_plan attn_divide(const tsr_op_attention *op, int n_threads, bool has_shared)
{
    const int64_t group = op->n_heads / op->kv.n_heads;
    const int64_t widest = op->kv.k_dim > op->kv.v_dim ? op->kv.k_dim : op->kv.v_dim;
    attn_plan plan = {.stride = (size_t)(widest + 31) / 32 * 32, .spans = 1};
    const int64_t most = (int64_t)(ATTN_FLOATS / plan.stride);
    plan.heads = group < most ? group : most;
    plan.heads = plan.heads < ATTN_ROWS ? plan.heads : ATTN_ROWS;
    plan.tokens = (most < ATTN_ROWS ? most : ATTN_ROWS) / plan.heads;
    plan.slices = (op->n_tokens + plan.tokens - 1) / plan.tokens;
    const int64_t groups = plan.slices * op->kv.n_heads;
    if (has_shared && n_threads > 1 && op->n_tokens <= ATTN_SPLIT_TOKENS &&
        plan.slices * op->n_heads <= ATTN_SHARED_GROUPS &&
        groups < (int64_t)n_threads * ATTN_ITEMS_PER_THREAD) {
        const int64_t own = attn_count_spans(&op->kv, &op->index, op->n_tokens);
        const int64_t spans =
            own + (op->more.kv.base ? attn_count_spans(&op->more.kv, &op->more.index, op->n_tokens) : 0);
        const size_t states = (size_t)(op->n_tokens * op->n_heads * spans);
        if (states <=
            (ATTN_SHARED_BYTES - sizeof(attn_shared)) / sizeof(float) / (plan.stride + ATTN_STATE_HEAD))
            plan.spans = spans, plan.own_spans = own;
    }
    while (plan.heads > 1 && groups * plan.spans * ((group + plan.heads - 1) / plan.heads) < n_threads)
        plan.heads = (plan.heads + 1) / 2;
    plan.parts = (group + plan.heads - 1) / plan.heads;
    return plan;
}

/* Process span `span` of all items of a group of rows (a slice and a KV head's part). */
static void attn_group_span(const attn_plan *plan, const tsr_op_attention *op, int64_t t, int64_t end,
                            int64_t kv_head, int64_t part, int64_t span, const tsr_kernel_env *env)
{
    attn_shared *shared = env->shared;
    for (int64_t at = t; at < end;) {
        const attn_item item = attn_item_at(plan, op, at, end, kv_head, part);
        attn_run_span(&item, plan, span, shared, env->scratch);
        at += item.n_rows / item.n_heads;
    }
    const int64_t group = (t / plan->tokens * op->kv.n_heads + kv_head) * plan->parts + part;
    if (atomic_fetch_add_explicit(&shared->finished[group], 1, memory_order_acq_rel) + 1 < plan->spans)
        return;
    atomic_store_explicit(&shared->finished[group], 0, memory_order_relaxed);
    for (int64_t at = t; at < end;) {
        const attn_item item = attn_item_at(plan, op, at, end, kv_head, part);
        attn_finish(&item, plan, shared, env->scratch);
        at += item.n_rows / item.n_heads;
    }
}

static void kernel_attention(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_attention *op = &record->attention;
    if (op->n_heads == 0 || op->n_tokens == 0)
        return;
    const attn_plan plan = attn_divide(op, env->n_threads, env->shared != NULL);
    const int64_t per_slice = op->kv.n_heads * plan.parts * plan.spans;

    /* Late tokens see the most positions: distribute them first, so that no thread starts a long item
     * last. */
    for (int64_t i; (i = tsr_kernel_next(env)) < plan.slices * per_slice;) {
        const int64_t t = (plan.slices - 1 - i / per_slice) * plan.tokens;
        const int64_t end = t + plan.tokens < op->n_tokens ? t + plan.tokens : op->n_tokens;
        const int64_t kv_head = i % per_slice / (plan.parts * plan.spans);
        const int64_t part = i / plan.spans % plan.parts, span = i % plan.spans;
        if (plan.spans > 1) {
            attn_group_span(&plan, op, t, end, kv_head, part, span, env);
            continue;
        }
        for (int64_t at = t; at < end;) {
            const attn_item item = attn_item_at(&plan, op, at, end, kv_head, part);
            attn_run(&item, env->scratch);
            at += item.n_rows / item.n_heads;
        }
    }
}

#endif
