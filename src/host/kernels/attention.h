/* attention: softmax(scale q k) v over the pages of a sequence, without ever holding a whole row of scores.
 *
 * Positions are taken in blocks of up to 32 consecutive slots of one page, aligned inside the page, in order.
 * For each query row (one head of one token) and block: scores by dot.h's order; m' = max(m, scores); the
 * running sum and the output so far are multiplied by exp(m - m') where m changed; then the weights exp(score
 * - m') are summed (one tree per 16 positions, both halves added) and multiplied into the output, position
 * after position. (Online softmax: Milakov and Gimelshein, arXiv:1805.02867.) A row takes part only in the
 * positions it may see: what it may not see is never multiplied by zero, so neither garbage there nor the
 * other rows of the call can reach it.
 *
 * A work item is a few tokens of one sequence times the query heads that share a KV head: keys and values are
 * converted once per item and block, into scratch in the first two cache levels. The sharing changes nothing
 * in the order above. */
#ifndef TSR_HOST_KERNELS_ATTENTION_H
#define TSR_HOST_KERNELS_ATTENTION_H

#include "host/kernels/rows.h"

enum {
    ATTN_BLOCK = 32,     /* positions; a multiple of DOT_ROWS */
    ATTN_ROWS = 64,      /* most query rows of an item */
    ATTN_FLOATS = 16384, /* most query floats of an item: 64 KiB */
    ATTN_COLUMNS = 4 * VEC_LANES
};

/* One kernel call's scratch. Rows of q, out and tile are `stride` floats apart, filled up with zeros. */
typedef struct attn_scratch {
    float q[ATTN_FLOATS];
    float out[ATTN_FLOATS];
    float tile[ATTN_BLOCK * TSR_MAX_HEAD_DIM]; /* keys, then values, of a block */
    float weight[ATTN_ROWS][ATTN_BLOCK];       /* scores, then weights */
    float top[ATTN_ROWS], sum[ATTN_ROWS];      /* m and the sum of the weights */
    int64_t begin[ATTN_ROWS], end[ATTN_ROWS];  /* positions that a row sees */
    int from[ATTN_ROWS], to[ATTN_ROWS];        /* the same inside the block; from >= to: none */
} attn_scratch;

/* Rows of an item are (token, head) pairs, heads fastest. */
typedef struct attn_item {
    const tsr_op_attention *op;
    int64_t kv_head, first_head, first_token;
    int n_heads, n_rows;
    int64_t seq_row;
    size_t stride;
} attn_item;

typedef struct attn_block {
    int64_t position; /* of its first slot */
    int begin, end;   /* slots that some row sees */
    const unsigned char *k, *v;
} attn_block;

static size_t attn_offset(const attn_item *item, int row)
{
    const tsr_op_attention *op = item->op;
    const int64_t t = item->first_token + row / item->n_heads, head = item->first_head + row % item->n_heads;
    return (size_t)((t * op->n_heads + head) * op->kv.head_dim);
}

/* Copy the queries and set every row to "nothing seen yet". */
static void attn_begin(const attn_item *item, attn_scratch *s)
{
    const tsr_op_attention *op = item->op;
    const size_t head_dim = (size_t)op->kv.head_dim;
    for (int row = 0; row < item->n_rows; row++) {
        const int64_t position = op->index.position[item->first_token + row / item->n_heads];
        float *q = s->q + (size_t)row * item->stride;
        memcpy(q, op->q + attn_offset(item, row), head_dim * sizeof(float));
        memset(q + head_dim, 0, (item->stride - head_dim) * sizeof(float));
        memset(s->out + (size_t)row * item->stride, 0, item->stride * sizeof(float));
        s->top[row] = -__builtin_inff();
        s->sum[row] = 0.0f;
        s->begin[row] = op->window > 0 && position >= op->window ? position - op->window + 1 : 0;
        s->end[row] = position + 1;
    }
}

/* The block that holds `position`, cut to what the item's rows see; [lowest, end) is what any of them
 * does. */
static attn_block attn_block_at(const attn_item *item, int64_t position, int64_t lowest, int64_t end,
                                attn_scratch *s)
{
    const tsr_kv_view *kv = &item->op->kv;
    const int64_t slot = position % kv->page_tokens, first = slot - slot % ATTN_BLOCK;
    const int64_t n = kv->page_tokens - first < ATTN_BLOCK ? kv->page_tokens - first : ATTN_BLOCK;
    const int64_t start = position - slot + first;
    const attn_block block = {
        .position = start,
        .begin = (int)(lowest > start ? lowest - start : 0),
        .end = (int)(end - start < n ? end - start : n),
        .k = kv_row(kv, &item->op->index, item->seq_row, start, item->kv_head, kv->k_offset, kv->k_row_bytes),
        .v = kv_row(kv, &item->op->index, item->seq_row, start, item->kv_head, kv->v_offset, kv->v_row_bytes),
    };
    for (int row = 0; row < item->n_rows; row++) {
        const int64_t from = s->begin[row] - start, to = s->end[row] - start;
        s->from[row] = (int)(from > 0 ? (from < block.end ? from : block.end) : 0);
        s->to[row] = (int)(to < block.end ? to : block.end);
    }
    return block;
}

/* Decode what the rows see of the block's keys (or values) into the tile, and ask memory for the rows at
 * `ahead` (NULL: none), which are needed after this tile has been worked on. */
static void attn_load(const attn_item *item, const attn_block *block, tsr_type type,
                      const unsigned char *rows, size_t row_bytes, const unsigned char *ahead,
                      size_t ahead_bytes, float *tile)
{
    for (int j = block->begin; j < block->end; j++) {
        for (size_t line = 0; ahead && line < ahead_bytes; line += 64)
            __builtin_prefetch(ahead + (size_t)j * ahead_bytes + line);
        decode_row(type, rows + (size_t)j * row_bytes, item->op->kv.head_dim,
                   tile + (size_t)j * item->stride);
    }
}

/* weight[row][j] = q[row] . k[j], before scale. Slots outside [begin, end) get sums of stale scratch that
 * nobody looks at. */
static void attn_scores(const attn_item *item, const attn_block *block, attn_scratch *s)
{
    for (int row = 0; row < item->n_rows; row += DOT_TOKENS) {
        const int n = item->n_rows - row < DOT_TOKENS ? item->n_rows - row : DOT_TOKENS;
        for (int j = block->begin / DOT_ROWS * DOT_ROWS; j < block->end; j += DOT_ROWS) {
            for (size_t at = 0; at < item->stride; at += DOT_SEGMENT) {
                const size_t length = item->stride - at < DOT_SEGMENT ? item->stride - at : DOT_SEGMENT;
                float sums[DOT_TOKENS * DOT_ROWS];
                dot_tile(n, s->tile + (size_t)j * item->stride + at, item->stride,
                         s->q + (size_t)row * item->stride + at, item->stride, (int64_t)length, sums);
                for (int i = 0; i < n * DOT_ROWS; i++) {
                    float *score = &s->weight[row + i / DOT_ROWS][j + i % DOT_ROWS];
                    *score = at == 0 ? sums[i] : *score + sums[i];
                }
            }
        }
    }
}

/* Scores to weights for one row; brings its sum, its top and its output so far up to date. */
static void attn_softmax(const attn_item *item, int row, attn_scratch *s)
{
    const tsr_op_attention *op = item->op;
    float *weight = s->weight[row];
    v16 score[2];
    for (int i = 0; i < 2; i++) {
        score[i] = v16_mul(v16_load(weight + 16 * i), v16_set1(op->scale));
        if (op->softcap > 0.0f)
            score[i] = v16_mul(v16_set1(op->softcap), v16_tanh(v16_div(score[i], v16_set1(op->softcap))));
        v16_store(weight + 16 * i, score[i]);
    }
    for (int j = 0; j < ATTN_BLOCK; j++)
        if (j < s->from[row] || j >= s->to[row])
            weight[j] = -__builtin_inff();
    score[0] = v16_load(weight);
    score[1] = v16_load(weight + 16);

    const float seen = v16_max_lane(v16_max(score[0], score[1]));
    if (seen > s->top[row]) {
        const float shrink = f32_exp(s->top[row] - seen);
        float *out = s->out + (size_t)row * item->stride;
        for (size_t i = 0; i < item->stride; i++)
            out[i] *= shrink;
        s->sum[row] *= shrink;
        s->top[row] = seen;
    }
    const v16 top = v16_set1(s->top[row]);
    for (int i = 0; i < 2; i++) {
        score[i] = v16_exp(v16_sub(score[i], top));
        v16_store(weight + 16 * i, score[i]);
    }
    s->sum[row] += v16_sum(score[0]) + v16_sum(score[1]);
}

/* out[row..row + n_rows)[column..] += weight[row][j] v[j][column..] for j in [from, to), n_vecs machine
 * vectors. */
ALWAYS_INLINE void attn_add_tile(const int n_rows, const int n_vecs, const attn_item *item, int row,
                                 size_t column, int from, int to, attn_scratch *s)
{
    vec acc[DOT_TOKENS][ATTN_COLUMNS / VEC_LANES];
    float *out = s->out + (size_t)row * item->stride + column;
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_vecs; c++) acc[r][c] =
        vec_load(out + (size_t)r * item->stride + c * VEC_LANES);
    for (int j = from; j < to; j++) {
        const float *v = s->tile + (size_t)j * item->stride + column;
        vec weight[DOT_TOKENS];
        UNROLL for (int r = 0; r < n_rows; r++) weight[r] = vec_set1(s->weight[row + r][j]);
        UNROLL for (int c = 0; c < n_vecs; c++)
        {
            const vec value = vec_load(v + c * VEC_LANES);
            UNROLL for (int r = 0; r < n_rows; r++) acc[r][c] = vec_fma(weight[r], value, acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_vecs; c++)
        vec_store(out + (size_t)r * item->stride + c * VEC_LANES, acc[r][c]);
}

/* The same over all columns for 1 or DOT_TOKENS rows. */
static void attn_add(const int n_rows, const attn_item *item, int row, int from, int to, attn_scratch *s)
{
    size_t column = 0;
    for (; column + ATTN_COLUMNS <= item->stride; column += ATTN_COLUMNS)
        if (n_rows == 1)
            attn_add_tile(1, ATTN_COLUMNS / VEC_LANES, item, row, column, from, to, s);
        else
            attn_add_tile(DOT_TOKENS, ATTN_COLUMNS / VEC_LANES, item, row, column, from, to, s);
    for (; column < item->stride; column += VEC_LANES)
        if (n_rows == 1)
            attn_add_tile(1, 1, item, row, column, from, to, s);
        else
            attn_add_tile(DOT_TOKENS, 1, item, row, column, from, to, s);
}

/* Rows in groups: the positions that all of a group see together, those before and after row by row. */
static void attn_values(const attn_item *item, attn_scratch *s)
{
    for (int row = 0; row < item->n_rows; row += DOT_TOKENS) {
        const int n = item->n_rows - row < DOT_TOKENS ? item->n_rows - row : DOT_TOKENS;
        int from = 0, to = n == DOT_TOKENS ? ATTN_BLOCK : 0;
        for (int r = row; r < row + n; r++) {
            from = s->from[r] > from ? s->from[r] : from;
            to = s->to[r] < to ? s->to[r] : to;
        }
        const bool together = from < to;
        for (int r = row; r < row + n && together; r++)
            if (s->from[r] < from)
                attn_add(1, item, r, s->from[r], from, s);
        if (together)
            attn_add(DOT_TOKENS, item, row, from, to, s);
        for (int r = row; r < row + n; r++) {
            const int rest = together ? to : s->from[r];
            if (rest < s->to[r])
                attn_add(1, item, r, rest, s->to[r], s);
        }
    }
}

static void attn_end(const attn_item *item, const attn_scratch *s)
{
    for (int row = 0; row < item->n_rows; row++) {
        const float inverse = 1.0f / s->sum[row];
        const float *out = s->out + (size_t)row * item->stride;
        float *y = item->op->y + attn_offset(item, row);
        for (int64_t i = 0; i < item->op->kv.head_dim; i++)
            y[i] = out[i] * inverse;
    }
}

/* All positions for the rows of one item; its tokens belong to one sequence. */
static void attn_run(const attn_item *item, attn_scratch *s)
{
    const tsr_kv_view *kv = &item->op->kv;
    attn_begin(item, s);
    int64_t lowest = INT64_MAX, end = 0;
    for (int row = 0; row < item->n_rows; row++) {
        lowest = s->begin[row] < lowest ? s->begin[row] : lowest;
        end = s->end[row] > end ? s->end[row] : end;
    }
    for (int64_t position = lowest; position < end;) {
        const attn_block block = attn_block_at(item, position, lowest, end, s);
        position = block.position + block.end;
        attn_load(item, &block, kv->type_k, block.k, kv->k_row_bytes, block.v, kv->v_row_bytes, s->tile);
        attn_scores(item, &block, s);
        for (int row = 0; row < item->n_rows; row++)
            if (s->from[row] < s->to[row])
                attn_softmax(item, row, s);
        const unsigned char *next = NULL;
        if (position < end)
            next = kv_row(kv, &item->op->index, item->seq_row, position, item->kv_head, kv->k_offset,
                          kv->k_row_bytes);
        attn_load(item, &block, kv->type_v, block.v, kv->v_row_bytes, next, kv->k_row_bytes, s->tile);
        attn_values(item, s);
    }
    attn_end(item, s);
}

/* How many query heads share an item: all that share a KV head, or fewer where that leaves threads idle, at
 * the price of converting keys and values once more. */
static int64_t attn_item_heads(const tsr_op_attention *op, size_t stride, int n_threads)
{
    const int64_t group = op->n_heads / op->kv.n_heads, most = (int64_t)(ATTN_FLOATS / stride);
    int64_t heads = group < most ? group : most;
    while (heads > 1 && op->n_tokens * op->kv.n_heads * ((group + heads - 1) / heads) < n_threads)
        heads = (heads + 1) / 2;
    return heads < ATTN_ROWS ? heads : ATTN_ROWS;
}

/* Tokens [t, t + n_tokens) of one item, cut where the sequence changes. */
static void attn_tokens(attn_item item, int64_t t, int64_t n_tokens, attn_scratch *s)
{
    const int32_t *seq_row = item.op->index.seq_row;
    for (const int64_t end = t + n_tokens; t < end;) {
        int64_t next = t + 1;
        while (next < end && seq_row[next] == seq_row[t])
            next++;
        item.first_token = t;
        item.n_rows = (int)(next - t) * item.n_heads;
        item.seq_row = seq_row[t];
        attn_run(&item, s);
        t = next;
    }
}

static void kernel_attention(const tsr_op *record, const tsr_kernel_env *env)
{
    const tsr_op_attention *op = &record->attention;
    if (op->n_heads == 0 || op->n_tokens == 0)
        return;
    const size_t stride = (size_t)(op->kv.head_dim + 31) / 32 * 32;
    const int64_t group = op->n_heads / op->kv.n_heads;
    const int64_t heads = attn_item_heads(op, stride, env->n_threads);
    const int64_t parts = (group + heads - 1) / heads; /* of a group */
    int64_t tokens = (int64_t)(ATTN_FLOATS / stride) / heads;
    tokens = tokens > ATTN_ROWS / heads ? ATTN_ROWS / heads : tokens;
    const int64_t slices = (op->n_tokens + tokens - 1) / tokens; /* of the batch */

    /* Late tokens see the most positions: hand them out first, so that no thread starts a long item last. */
    for (int64_t i; (i = tsr_kernel_next(env)) < slices * op->kv.n_heads * parts;) {
        const int64_t kv_head = i % (op->kv.n_heads * parts) / parts, first = i % parts * heads;
        const int64_t t = (slices - 1 - i / (op->kv.n_heads * parts)) * tokens;
        const attn_item item = {
            .op = op,
            .kv_head = kv_head,
            .first_head = kv_head * group + first,
            .n_heads = (int)(group - first < heads ? group - first : heads),
            .stride = stride,
        };
        attn_tokens(item, t, op->n_tokens - t < tokens ? op->n_tokens - t : tokens, env->scratch);
    }
}

#endif
