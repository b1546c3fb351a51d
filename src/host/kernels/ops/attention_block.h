/* attention, inside one block of positions: scores, weights, and their products with the values.
 *
 * A block is up to ATTN_BLOCK consecutive slots of one page, aligned inside the page. For each query row (one
 * head of one token): scores, each a sum over the elements of the head in order, in pieces of ATTN_CHAIN that
 * are added in order; m' = max(m, scores); the running sum and the output so far are multiplied by exp(m -
 * m') where m changed; then the weights exp(score - m') are summed (one tree per 16 positions, both halves
 * added) and multiplied into the output, position after position. (Online softmax: Milakov and Gimelshein,
 * arXiv:1805.02867.) A row takes part only in the positions that it may see. Other positions are skipped, not
 * multiplied by zero, so neither garbage there nor the other rows of the call can change the row. Only
 * positions between two that a row sees, which its selection leaves out, are multiplied by zero: keys and
 * values of its own past, whose products add nothing.
 *
 * Keys and values are decoded into a tile in the first-level cache, which all rows of an item share. Keys are
 * transposed first, so that a vector holds one element of several positions: no sum crosses lanes, and all
 * rows of the item share the cost of transposing. */
#ifndef TSR_HOST_KERNELS_OPS_ATTENTION_BLOCK_H
#define TSR_HOST_KERNELS_OPS_ATTENTION_BLOCK_H

#include "host/kernels/ops/rows.h"

enum {
    ATTN_BLOCK = 32,     /* positions; a multiple of every vector's lanes */
    ATTN_ROWS = 64,      /* most query rows of an item */
    ATTN_FLOATS = 16384, /* most query floats of an item: 64 KiB */
    ATTN_CHAIN = 32,     /* elements of a head that are added up in one register */
#if defined(TSR_ISA_AVX512)
    ATTN_SCORE_ROWS = 8, /* rows times two vectors of positions: 16 accumulators of 32 registers */
    ATTN_COLUMNS = 4 * VEC_LANES
#else
    ATTN_SCORE_ROWS = 4, /* 8 of 16 */
    ATTN_COLUMNS = 2 * VEC_LANES
#endif
};

/* One kernel call's scratch. Rows of q, out, total and tile are `stride` floats apart, filled up with
 * zeros. */
typedef struct attn_scratch {
    float q[ATTN_FLOATS];
    float out[ATTN_FLOATS];   /* of the span so far */
    float total[ATTN_FLOATS]; /* of the previous spans */
    /* [element][position] of keys, [position][element] of values */
    float tile[ATTN_BLOCK * TSR_MAX_HEAD_DIM];
    float rows[VEC_LANES * TSR_MAX_HEAD_DIM];         /* some of a block's keys before they are transposed */
    float weight[ATTN_ROWS][ATTN_BLOCK];              /* scores, then weights */
    float top[ATTN_ROWS], sum[ATTN_ROWS];             /* m and the sum of the weights, of the span so far */
    float total_top[ATTN_ROWS], total_sum[ATTN_ROWS]; /* of the previous spans */
    int64_t begin[ATTN_ROWS], end[ATTN_ROWS];         /* positions that a row sees */
    uint32_t seen[ATTN_ROWS];                         /* slots of the block that a row sees, a bit each */
    int from[ATTN_ROWS], to[ATTN_ROWS];               /* the first, and behind the last; from >= to: none */
} attn_scratch;

/* Rows of an item are (token, head) pairs, heads fastest. */
typedef struct attn_item {
    const tsr_op_attention *op;
    int64_t kv_head, first_head, first_token;
    int n_heads, n_rows;
    int64_t seq_row;
    size_t stride;
} attn_item;

/* Elements of a value, filled up to whole vectors. */
ALWAYS_INLINE size_t attn_v_stride(const attn_item *item)
{
    return (size_t)(item->op->kv.v_dim + 31) / 32 * 32;
}

typedef struct attn_block {
    int64_t position; /* of its first slot */
    int begin, end;   /* slots that at least one row sees */
    const unsigned char *k, *v;
} attn_block;

/* The first of a token's selected blocks that is not before block `number`, in a list of the KV head. */
static int64_t attn_find_selected(const int32_t *list, int64_t n, int64_t number)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (list[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const int32_t *attn_selected(const attn_item *item, int64_t t)
{
    const tsr_selection *s = &item->op->selected;
    return s->blocks + (t * s->n_lists + (s->n_lists > 1 ? item->kv_head : 0)) * s->n_blocks;
}

/* Bits [from, to) of a word. */
ALWAYS_INLINE uint32_t attn_bits(int64_t from, int64_t to)
{
    from = from > 0 ? from : 0;
    to = to < 32 ? to : 32;
    return from >= to ? 0 : (uint32_t)(((uint64_t)1 << to) - ((uint64_t)1 << from));
}

/* The slots of a block from position `start` on that a token's selection has. */
static uint32_t attn_selected_slots(const attn_item *item, int64_t t, int64_t start)
{
    const tsr_selection *s = &item->op->selected;
    const int32_t *list = attn_selected(item, t);
    uint32_t slots = 0;
    int64_t i = attn_find_selected(list, s->n_blocks, start / s->block);
    for (; i < s->n_blocks && list[i] * s->block < start + ATTN_BLOCK; i++)
        slots |= attn_bits(list[i] * s->block - start, (list[i] + 1) * s->block - start);
    return slots;
}

/* The first position from `position` on that a selection of the item's tokens has; `end`: none before it. */
static int64_t attn_next_selected(const attn_item *item, int64_t position, int64_t end)
{
    const tsr_selection *s = &item->op->selected;
    int64_t first = end;
    if (!s->blocks)
        return position;
    for (int64_t t = item->first_token; t < item->first_token + item->n_rows / item->n_heads; t++) {
        const int32_t *list = attn_selected(item, t);
        const int64_t i = attn_find_selected(list, s->n_blocks, position / s->block);
        if (i < s->n_blocks && list[i] * s->block < first)
            first = list[i] * s->block;
    }
    return first > position ? first : position;
}

/* The slots of a block that each row sees. */
static void attn_see(const attn_item *item, const attn_block *block, attn_scratch *s)
{
    uint32_t selected = UINT32_MAX;
    for (int row = 0; row < item->n_rows; row++) {
        if (item->op->selected.blocks && row % item->n_heads == 0)
            selected = attn_selected_slots(item, item->first_token + row / item->n_heads, block->position);
        const int64_t from = s->begin[row] - block->position, to = s->end[row] - block->position;
        const uint32_t seen = selected & attn_bits(from > block->begin ? from : block->begin,
                                                   to < block->end ? to : block->end);
        s->seen[row] = seen;
        s->from[row] = seen ? __builtin_ctz(seen) : 0;
        s->to[row] = seen ? 32 - __builtin_clz(seen) : 0;
    }
}

/* The block that contains `position`, the first of its positions that a row of the item sees. Rows see
 * positions in [position, end). */
static attn_block attn_block_at(const attn_item *item, int64_t position, int64_t end, attn_scratch *s)
{
    const tsr_kv_view *kv = &item->op->kv;
    const int64_t slot = position % kv->page_tokens, first = slot - slot % ATTN_BLOCK;
    const int64_t n = kv->page_tokens - first < ATTN_BLOCK ? kv->page_tokens - first : ATTN_BLOCK;
    const int64_t start = position - slot + first;
    const attn_block block = {
        .position = start,
        .begin = (int)(position - start),
        .end = (int)(end - start < n ? end - start : n),
        .k = kv_row(kv, &item->op->index, item->seq_row, start, item->kv_head, kv->k_offset, kv->k_row_bytes),
        .v = kv_row(kv, &item->op->index, item->seq_row, start, item->kv_head, kv->v_offset, kv->v_row_bytes),
    };
    attn_see(item, &block, s);
    return block;
}

/* Bytes to prefetch, line by line in between the arithmetic: a core has room for about a dozen lines in
 * flight, and more requests in a burst stall it. */
typedef struct attn_ahead {
    const unsigned char *at, *end;
} attn_ahead;

/* Prefetch rows of `row_bytes` bytes of the block that starts at `rows`; NULL: none. */
ALWAYS_INLINE attn_ahead attn_ahead_of(const unsigned char *rows, const attn_block *block, size_t row_bytes)
{
    if (!rows)
        return (attn_ahead){NULL, NULL};
    return (attn_ahead){rows + (size_t)block->begin * row_bytes, rows + (size_t)block->end * row_bytes};
}

ALWAYS_INLINE void attn_ask(attn_ahead *ahead)
{
    if (ahead->at < ahead->end) {
        __builtin_prefetch(ahead->at);
        ahead->at += 64;
    }
}

/* Decode slots [begin, end) of a block into tile rows 0.. Rows of one head are contiguous. Where they have no
 * gaps in the tile either, they are decoded as one. */
static void attn_decode(const attn_item *item, tsr_type type, const unsigned char *rows, size_t row_bytes,
                        int64_t dim, int begin, int end, float *tile)
{
    rows += (size_t)begin * row_bytes;
    if (item->stride == (size_t)dim && row_bytes == elems_bytes(type, dim)) {
        decode_row(type, rows, (end - begin) * dim, tile);
        return;
    }
    for (int j = 0; j < end - begin; j++)
        decode_row(type, rows + (size_t)j * row_bytes, dim, tile + (size_t)j * item->stride);
}

/* Four floats at each of p, p + step, p + 2 step ..., one vector in all. */
ALWAYS_INLINE vec vec_fours(const float *p, size_t step)
{
#if defined(TSR_ISA_AVX512)
    __m512 a = _mm512_castps128_ps512(_mm_loadu_ps(p));
    a = _mm512_insertf32x4(a, _mm_loadu_ps(p + step), 1);
    a = _mm512_insertf32x4(a, _mm_loadu_ps(p + 2 * step), 2);
    return _mm512_insertf32x4(a, _mm_loadu_ps(p + 3 * step), 3);
#elif defined(TSR_ISA_AVX2)
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step), 1);
#else
    (void)step;
    return vec_load(p);
#endif
}

/* Transpose every 4 x 4 square of four vectors. */
ALWAYS_INLINE void vec_turn(vec a[4])
{
#if defined(TSR_ISA_AVX512)
#define IN_LANE(operation, x, y) _mm512_##operation(x, y)
#define PAIRS(operation, x, y)   (vec) _mm512_##operation((__m512d)(x), (__m512d)(y))
#elif defined(TSR_ISA_AVX2)
#define IN_LANE(operation, x, y) _mm256_##operation(x, y)
#define PAIRS(operation, x, y)   (vec) _mm256_##operation((__m256d)(x), (__m256d)(y))
#endif
#if defined(TSR_ISA_AVX512) || defined(TSR_ISA_AVX2)
    const vec low01 = IN_LANE(unpacklo_ps, a[0], a[1]), high01 = IN_LANE(unpackhi_ps, a[0], a[1]);
    const vec low23 = IN_LANE(unpacklo_ps, a[2], a[3]), high23 = IN_LANE(unpackhi_ps, a[2], a[3]);
    a[0] = PAIRS(unpacklo_pd, low01, low23);
    a[1] = PAIRS(unpackhi_pd, low01, low23);
    a[2] = PAIRS(unpacklo_pd, high01, high23);
    a[3] = PAIRS(unpackhi_pd, high01, high23);
#undef IN_LANE
#undef PAIRS
#else
    const vec w = a[0], x = a[1], y = a[2], z = a[3];
    UNROLL for (int i = 0; i < 4; i++) a[i] = (vec){w[i], x[i], y[i], z[i]};
#endif
}

/* keys[i][j] = rows[j][i] for i < n, a multiple of four, and as many j as a vector has lanes. */
static NOINLINE void attn_turn(const float *rows, size_t stride, size_t n, float *keys, attn_ahead *ahead)
{
    attn_ahead cursor = *ahead; /* in registers */
    for (size_t i = 0; i < n; i += 4, rows += 4, keys += 4 * ATTN_BLOCK) {
        attn_ask(&cursor);
        vec square[4] = {vec_fours(rows, 4 * stride), vec_fours(rows + stride, 4 * stride),
                         vec_fours(rows + 2 * stride, 4 * stride), vec_fours(rows + 3 * stride, 4 * stride)};
        vec_turn(square);
        UNROLL for (int k = 0; k < 4; k++) vec_store(keys + k * ATTN_BLOCK, square[k]);
    }
    *ahead = cursor;
}

/* Store the block's keys that rows see, transposed, in the tile. Other slots get stale scratch. */
static void attn_load_keys(const attn_item *item, const attn_block *block, attn_scratch *s, attn_ahead *ahead)
{
    const tsr_kv_view *kv = &item->op->kv;
    for (int j = block->begin / VEC_LANES * VEC_LANES; j < block->end; j += VEC_LANES) {
        const int begin = block->begin > j ? block->begin : j;
        const int end = block->end < j + VEC_LANES ? block->end : j + VEC_LANES;
        attn_decode(item, kv->type_k, block->k, kv->k_row_bytes, kv->k_dim, begin, end,
                    s->rows + (size_t)(begin - j) * item->stride);
        attn_turn(s->rows, item->stride, (size_t)(kv->k_dim + 3) / 4 * 4, s->tile + j, ahead);
    }
}

/* weight[row..row + n_rows)[j..j + 2 vectors) = q[row] . k[j], before scale. */
ALWAYS_INLINE void attn_scores_tile(const int n_rows, const attn_item *item, int row, size_t j,
                                    attn_scratch *s, attn_ahead *ahead)
{
    const float *q = s->q + (size_t)row * item->stride;
    const size_t k_dim = (size_t)item->op->kv.k_dim;
    for (size_t at = 0; at < k_dim; at += ATTN_CHAIN) {
        const size_t end = at + ATTN_CHAIN < k_dim ? at + ATTN_CHAIN : k_dim;
        vec acc[ATTN_SCORE_ROWS][2] = {0};
        for (size_t i = at; i < end; i++) {
            const float *k = s->tile + i * ATTN_BLOCK + j;
            attn_ask(ahead);
            const vec k0 = vec_load_once(k), k1 = vec_load_once(k + VEC_LANES);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                const vec element = vec_set1(q[(size_t)r * item->stride + i]);
                acc[r][0] = vec_fma(element, k0, acc[r][0]);
                acc[r][1] = vec_fma(element, k1, acc[r][1]);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int half = 0; half < 2; half++)
        {
            float *score = s->weight[row + r] + j + (size_t)half * VEC_LANES;
            vec_store(score, at == 0 ? acc[r][half] : vec_add(vec_load(score), acc[r][half]));
        }
    }
}

/* Scores of all rows. Scores of slots outside the block are computed from stale scratch and never read. */
static void attn_scores(const attn_item *item, const attn_block *block, attn_scratch *s, attn_ahead *ahead)
{
    for (size_t j = (size_t)block->begin / (2 * VEC_LANES) * (2 * VEC_LANES); j < (size_t)block->end;
         j += 2 * VEC_LANES) {
        int row = 0;
        for (; row + ATTN_SCORE_ROWS <= item->n_rows; row += ATTN_SCORE_ROWS)
            attn_scores_tile(ATTN_SCORE_ROWS, item, row, j, s, ahead);
        for (; row + 4 <= item->n_rows && ATTN_SCORE_ROWS > 4; row += 4)
            attn_scores_tile(4, item, row, j, s, ahead);
        for (; row + 2 <= item->n_rows; row += 2)
            attn_scores_tile(2, item, row, j, s, ahead);
        if (row < item->n_rows)
            attn_scores_tile(1, item, row, j, s, ahead);
    }
}

/* x[i] *= factor, whole vectors. */
ALWAYS_INLINE void attn_scale(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i += 16)
        v16_store(x + i, v16_mul(v16_load(x + i), v16_set1(factor)));
}

/* Turn the scores of one row into weights, and update its sum, its top and its output. */
static NOINLINE void attn_softmax(const attn_item *item, int row, attn_scratch *s)
{
    const tsr_op_attention *op = item->op;
    float *weight = s->weight[row];
    v16 score[2];
    for (int i = 0; i < 2; i++) {
        score[i] = v16_mul(v16_load(weight + 16 * i), v16_set1(op->scale));
        if (op->softcap > 0.0f)
            score[i] = v16_mul(v16_set1(op->softcap), v16_tanh(v16_div(score[i], v16_set1(op->softcap))));
    }
    if (s->seen[row] != UINT32_MAX) {
        v16_store(weight, score[0]);
        v16_store(weight + 16, score[1]);
        for (int j = 0; j < ATTN_BLOCK; j++)
            if (!(s->seen[row] >> j & 1))
                weight[j] = -__builtin_inff();
        score[0] = v16_load(weight);
        score[1] = v16_load(weight + 16);
    }
    const float seen = v16_top(v16_max(score[0], score[1]));
    if (seen > s->top[row]) {
        const float shrink = f32_exp(s->top[row] - seen);
        attn_scale(s->out + (size_t)row * item->stride, attn_v_stride(item), shrink);
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
                                 size_t column, int from, int to, attn_scratch *s, attn_ahead *ahead)
{
    vec acc[4][ATTN_COLUMNS / VEC_LANES];
    float *out = s->out + (size_t)row * item->stride + column;
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_vecs; c++) acc[r][c] =
        vec_load(out + (size_t)r * item->stride + c * VEC_LANES);
    for (int j = from; j < to; j++) {
        const float *v = s->tile + (size_t)j * item->stride + column;
        vec value[ATTN_COLUMNS / VEC_LANES];
        attn_ask(ahead);
        UNROLL for (int c = 0; c < n_vecs; c++) value[c] = vec_load_once(v + c * VEC_LANES);
        UNROLL for (int r = 0; r < n_rows; r++)
        {
            const vec weight = vec_set1(s->weight[row + r][j]);
            UNROLL for (int c = 0; c < n_vecs; c++) acc[r][c] = vec_fma(weight, value[c], acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_vecs; c++)
        vec_store(out + (size_t)r * item->stride + c * VEC_LANES, acc[r][c]);
}

/* attn_add_tile() over all columns. */
ALWAYS_INLINE void attn_add_n(const int n_rows, const attn_item *item, int row, int from, int to,
                              attn_scratch *s, attn_ahead *ahead)
{
    size_t column = 0;
    const size_t end = attn_v_stride(item);
    for (; column + ATTN_COLUMNS <= end; column += ATTN_COLUMNS)
        attn_add_tile(n_rows, ATTN_COLUMNS / VEC_LANES, item, row, column, from, to, s, ahead);
    for (; column < end; column += VEC_LANES)
        attn_add_tile(n_rows, 1, item, row, column, from, to, s, ahead);
}

/* Add rows [row, row + n_rows), which all see [from, to). */
static void attn_add(int n_rows, const attn_item *item, int row, int from, int to, attn_scratch *s,
                     attn_ahead *ahead)
{
    if (from >= to)
        return;
    if (n_rows == 4)
        attn_add_n(4, item, row, from, to, s, ahead);
    else if (n_rows == 2)
        attn_add_n(2, item, row, from, to, s, ahead);
    else
        attn_add_n(1, item, row, from, to, s, ahead);
}

/* Add the values to groups of rows: positions that all rows of a group see for the whole group, the others
 * row by row. */
static void attn_values(const attn_item *item, attn_scratch *s, attn_ahead *ahead)
{
    for (int row = 0, n; row < item->n_rows; row += n) {
        const int rest = item->n_rows - row;
        n = rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
        int from = s->from[row], to = s->to[row];
        for (int r = row + 1; r < row + n; r++) {
            from = s->from[r] > from ? s->from[r] : from;
            to = s->to[r] < to ? s->to[r] : to;
        }
        if (from >= to) { /* no position in common */
            for (int r = row; r < row + n; r++)
                attn_add(1, item, r, s->from[r], s->to[r], s, ahead);
            continue;
        }
        for (int r = row; r < row + n; r++)
            attn_add(1, item, r, s->from[r], from, s, ahead);
        attn_add(n, item, row, from, to, s, ahead);
        for (int r = row; r < row + n; r++)
            attn_add(1, item, r, to, s->to[r], s, ahead);
    }
}

/* Process one block, and prefetch the keys at `next` (NULL: none), which follow it. */
static void attn_block_run(const attn_item *item, const attn_block *block, const unsigned char *next,
                           attn_scratch *s)
{
    const tsr_kv_view *kv = &item->op->kv;
    attn_ahead values = attn_ahead_of(kv->v_in_k ? NULL : block->v, block, kv->v_row_bytes);
    attn_ahead keys = attn_ahead_of(next, block, kv->k_row_bytes);
    attn_load_keys(item, block, s, &values);
    attn_scores(item, block, s, &values);
    for (int row = 0; row < item->n_rows; row++)
        if (s->from[row] < s->to[row])
            attn_softmax(item, row, s);
    attn_decode(item, kv->type_v, block->v, kv->v_row_bytes, kv->v_dim, block->begin, block->end,
                s->tile + (size_t)block->begin * item->stride);
    attn_values(item, s, &keys);
}

#endif
