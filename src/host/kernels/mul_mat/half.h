/* mul_mat for F16 and BF16 weights by AMX tiles, in the order of halves_amx.h, in two ways with the same
 * bits.
 *
 * Few tokens (half_walk): one tile of tokens at most, whose activations fit into scratch. They are divided
 * once per thread. Then a panel of rows is read from end to end, granule by granule, since memory limits the
 * speed.
 *
 * Many tokens (half_tile): a segment of all tokens is divided. A panel's rows of that segment are divided,
 * transposed and multiplied with every token.
 *
 * Tiles turn an infinity into NaN (its low part is NaN) and flush numbers below 2^-126 to zero. So a
 * granule's sum that is not finite is recomputed in the order of the other instruction sets
 * (half_fix_nonfinite). */
#ifndef TSR_HOST_KERNELS_MUL_MAT_HALF_H
#define TSR_HOST_KERNELS_MUL_MAT_HALF_H

#include "host/kernels/mul_mat/halves_amx.h"
#include "host/kernels/mul_mat/plain.h"

enum {
    HALF_TILE_ROWS = 384,   /* most rows of a chunk: how often divided activations are used */
    HALF_TILE_TOKENS = 256, /* most tokens of a chunk: how often transposed weights are used */
    HALF_GROUPS = HALF_TILE_TOKENS / HALF_TILE,
    HALF_AHEAD = 512 /* bytes: of 32 rows a third of the first-level cache */
};

typedef struct half_scratch {
    amx_tiles tiles;
    half_group x[HALF_GROUPS]; /* or the chunks of few tokens, as half_step() takes them */
    half_panel panel;          /* or two chunks of two tiles of rows */
    /* The granule's sums so far: HALF_ROWS rows of every token, then the next rows, so that a panel moves
     * along memory. */
    float sums[HALF_TILE_TOKENS * HALF_TILE_ROWS];
} half_scratch;
_Static_assert(HALF_TILE_TOKENS *HALF_TILE_ROWS <= TOTALS_MAX, "totals of a product");

/* The sum of the granule that ends with `segment` in the order of dot.h. */
static float half_plain_sum(tsr_type type, const product *p, const k_segment *segment, int64_t token,
                            int64_t row)
{
    const unsigned char *w = product_w(p, type, row, 0);
    const plain_x x = {{product_x(p, token)}};
    const int64_t end = segment->granule_end, begin = (end - 1) / segment->granule * segment->granule;
    plain_ahead ahead = plain_ahead_of(p, type, row);
    float total = 0.0f;
    for (int64_t k = begin; k < end; k += DOT_SEGMENT) {
        const int64_t n = end - k < DOT_SEGMENT ? end - k : DOT_SEGMENT;
        float sum[VECTOR_TOKENS][VECTOR_ROWS];
        if (type == TSR_TYPE_F16)
            plain_vector_segment(TSR_TYPE_F16, 1, 1, TSR_CPU_STREAMS, w + elems_bytes(type, k), 0, &ahead, &x,
                                 k, n, sum);
        else
            plain_vector_segment(TSR_TYPE_BF16, 1, 1, TSR_CPU_STREAMS, w + elems_bytes(type, k), 0, &ahead,
                                 &x, k, n, sum);
        total = k == begin ? sum[0][0] : total + sum[0][0];
    }
    return total;
}

/* Recompute the sums of a token that are not finite, of the granule that ends with `segment`. */
ALWAYS_INLINE void half_fix_nonfinite(const product *p, const k_segment *segment, int64_t token, int64_t row,
                                      int n_rows, float sums[HALF_ROWS])
{
    enum { NOT_FINITE = 0x99 }; /* NaNs and infinities */
    uint32_t bad = _mm512_fpclass_ps_mask(_mm512_loadu_ps(sums), NOT_FINITE) |
                   (uint32_t)_mm512_fpclass_ps_mask(_mm512_loadu_ps(sums + 16), NOT_FINITE) << 16;
    for (bad &= (uint32_t)(((uint64_t)1 << n_rows) - 1); bad; bad &= bad - 1) {
        const int r = __builtin_ctz(bad);
        sums[r] = half_plain_sum(p->op->type, p, segment, token, row + r);
    }
}

/* Whether activations are multiplied as 16 bits, high and low parts; otherwise high parts alone. */
ALWAYS_INLINE bool half_takes_whole(const tsr_op_mul_mat *op)
{
    return !tsr_op_takes_bytes(op->x_bits);
}

/* -- few tokens: one tile at most -- */

/* The chunks of all granules. */
static int64_t half_walk_chunks(const tsr_op_mul_mat *op)
{
    const int64_t granule = segment_first(op, op->k).granule, rest = op->k % granule;
    return op->k / granule * ((granule + HALF_CHUNK - 1) / HALF_CHUNK) + (rest + HALF_CHUNK - 1) / HALF_CHUNK;
}

/* Whether the op has few tokens, whose activations fit into scratch. */
static bool half_walks(const tsr_op_mul_mat *op)
{
    return is_half(op->type) && op->k > 0 && op->n_tokens <= HALF_TILE &&
           half_walk_chunks(op) * op->n_tokens <= (int64_t)HALF_GROUPS * HALF_CHUNKS * HALF_TILE;
}

/* Store one part of a chunk of n_tokens tokens, transposed to be B: HALF_PAIRS rows of n_tokens pairs. */
ALWAYS_INLINE void half_walk_put(half_tile part, int n_tokens, uint32_t *x)
{
    if (n_tokens == 1) {
        memcpy(x, part[0], sizeof part[0]);
        return;
    }
    half_transpose(part);
    for (int i = 0; i < HALF_PAIRS; i++)
        _mm512_mask_storeu_epi32(x + i * n_tokens, half_lanes(n_tokens), _mm512_loadu_si512(part[i]));
}

/* Divide the tokens of an op with few tokens. */
static void half_walk_pack(const product *p, half_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    const int n_tokens = (int)op->n_tokens, part = HALF_PAIRS * n_tokens;
    uint32_t *x = (uint32_t *)(void *)scratch->x;
    half_tile high = {0}, low = {0};
    k_segment segment = segment_first(op, op->k);
    do {
        for (int64_t k = 0; k < segment.n; k += HALF_CHUNK, x += 2 * part) {
            for (int t = 0; t < n_tokens; t++) {
                const half_pairs pairs =
                    half_divide_x(op->type, product_x(p, t) + segment.begin + k, segment.n - k);
                _mm512_storeu_si512(high[t], pairs.high);
                _mm512_storeu_si512(low[t], pairs.low);
            }
            half_walk_put(high, n_tokens, x);
            half_walk_put(low, n_tokens, x + part);
        }
    } while (segment_next(op, &segment));
}

/* A panel that is read along K. */
typedef struct half_way {
    const product *p;
    int64_t row;
    int n_rows;
    size_t row_bytes;
    half_weights (*chunk)[2]; /* two, used in turn, for weights that cannot be loaded in place */
} half_way;

/* Prepare n > 0 elements from k on for half_step(), and prefetch the following ones. Whole chunks of 16 rows
 * of BF16 need no preparation. */
ALWAYS_INLINE void half_way_chunk(tsr_type type, const half_way *way, int64_t k, int64_t n, int turn,
                                  half_source source[2])
{
    const size_t stride = way->p->op->w_stride, at = elems_bytes(type, k);
    const unsigned char *w = (const unsigned char *)way->p->op->w + (size_t)way->row * stride + at;
    const size_t ahead = ahead_in_rows(way->p, HALF_ROWS, at, way->row_bytes, HALF_AHEAD);
    for (int r = 0; r < HALF_ROWS; r++)
        __builtin_prefetch(w + (size_t)r * stride + ahead);
    for (int half = 0; half < 2; half++, w += HALF_TILE * stride) {
        half_weights *chunk = &way->chunk[turn][half];
        const int n_rows = way->n_rows - half * HALF_TILE;
        if (type == TSR_TYPE_BF16 && n >= HALF_CHUNK && n_rows >= HALF_TILE) {
            source[half] = (half_source){w, NULL, stride};
            continue;
        }
        half_fill(type, w, stride, n_rows, n, chunk);
        source[half] = (half_source){chunk->high, chunk->low, sizeof chunk->high[0]};
    }
}

/* Fold the tiles' sums of a granule into the product. */
static void half_walk_fold(const product *p, const k_segment *segment, int64_t row, int n_rows,
                           amx_tiles *tiles)
{
    const int n_tokens = (int)p->op->n_tokens;
    float sums[HALF_ROWS * HALF_TILE], of_token[HALF_ROWS];
    const size_t stride = (size_t)n_tokens * sizeof *sums;
    (void)tiles;
    AMX_STORE(tiles, 0, sums, stride);
    AMX_STORE(tiles, 1, sums + HALF_TILE * n_tokens, stride);
    for (int t = 0; t < n_tokens; t++) {
        for (int r = 0; r < HALF_ROWS; r++)
            of_token[r] = sums[r * n_tokens + t];
        half_fix_nonfinite(p, segment, t, row, n_rows, of_token);
        fold_granule(p, segment, t, row, n_rows, of_token);
    }
}

/* Each chunk is prepared before the previous one is multiplied: tiles and stores have a long latency. */
ALWAYS_INLINE void half_walk_type(tsr_type type, const bool whole, const product *p, half_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    amx_tiles *tiles = &scratch->tiles;
    const int n_tokens = (int)op->n_tokens;
    for (int64_t row = p->row; row < p->row_end; row += HALF_ROWS) {
        const int n_rows = p->row_end - row < HALF_ROWS ? (int)(p->row_end - row) : HALF_ROWS;
        const half_way way = {p, row, n_rows, elems_bytes(type, op->k), scratch->panel.chunk};
        const uint32_t *x = (const uint32_t *)(const void *)scratch->x;
        k_segment segment = segment_first(op, op->k);
        do {
            half_source now[2], next[2];
            int turn = 0;
            half_way_chunk(type, &way, segment.begin, segment.n, turn, next);
            AMX_ZERO(tiles, 0);
            AMX_ZERO(tiles, 1);
            for (int64_t k = 0; k < segment.n; k += HALF_CHUNK, x += 2 * HALF_PAIRS * n_tokens) {
                const int64_t left = segment.n - k - HALF_CHUNK;
                memcpy(now, next, sizeof now);
                if (left > 0)
                    half_way_chunk(type, &way, segment.begin + k + HALF_CHUNK, left, turn ^= 1, next);
                half_step(type, whole, tiles, now, x, n_tokens);
            }
            half_walk_fold(p, &segment, row, n_rows, tiles);
        } while (segment_next(op, &segment));
    }
}

/* Multiply all tokens of an op with few tokens, after half_walk_pack(). */
static void half_walk(const product *p, half_scratch *scratch)
{
    half_begin(&scratch->tiles, (int)p->op->n_tokens);
    const bool whole = half_takes_whole(p->op), is_f16 = p->op->type == TSR_TYPE_F16;
    if (is_f16 && whole)
        half_walk_type(TSR_TYPE_F16, true, p, scratch);
    else if (is_f16)
        half_walk_type(TSR_TYPE_F16, false, p, scratch);
    else if (whole)
        half_walk_type(TSR_TYPE_BF16, true, p, scratch);
    else
        half_walk_type(TSR_TYPE_BF16, false, p, scratch);
    half_end(&scratch->tiles);
}

/* -- many tokens -- */

/* Divide a segment of some tokens, and prefetch the tokens after it: their rows are far apart in memory. */
static void half_pack(const product *p, const k_segment *segment, int64_t first, int n_tokens,
                      half_group *groups)
{
    for (int i = 0; i < n_tokens; i++) {
        const float *x = product_x(p, first + i) + segment->begin;
        const float *later =
            product_x(p, first + (i + X_AHEAD < n_tokens ? i + X_AHEAD : i)) + segment->begin;
        half_group *group = &groups[i / HALF_TILE];
        for (int64_t k = 0; k < segment->n; k += HALF_CHUNK) {
            const half_pairs pairs = half_divide_x(p->op->type, x + k, segment->n - k);
            __builtin_prefetch(later + k);
            __builtin_prefetch(later + k + HALF_CHUNK / 2);
            _mm512_storeu_si512(group->chunk[k / HALF_CHUNK].high[i % HALF_TILE], pairs.high);
            _mm512_storeu_si512(group->chunk[k / HALF_CHUNK].low[i % HALF_TILE], pairs.low);
        }
    }
}

/* The activations of some tokens in one segment. */
typedef struct half_tokens {
    const half_group *groups;
    int64_t first;
    int n;
} half_tokens;

/* Activations packed for all threads: a token is the HALF_TILE-th part of a group. */
static const pack_layout half_layout = {HALF_SEGMENT, HALF_TILE, sizeof(half_group) / HALF_TILE};

/* Segment number `index` of some tokens: packed, otherwise divided into `groups`. */
static half_tokens half_tokens_of(const product *p, const k_segment *segment, int64_t index, int64_t first,
                                  int n_tokens, half_group *groups)
{
    if (p->packed)
        return (half_tokens){product_packed(p, &half_layout, index, first), first, n_tokens};
    half_pack(p, segment, first, n_tokens, groups);
    return (half_tokens){groups, first, n_tokens};
}

/* Multiply the panel that begins with `row` with the tokens. `at`: the position of the panel's sums in
 * scratch. */
static void half_panel_multiply(const product *p, const k_segment *segment, int64_t row,
                                const half_tokens *tokens, int64_t at, half_scratch *scratch)
{
    const int n_tokens = tokens->n;
    const tsr_op_mul_mat *op = p->op;
    const int n_rows = p->row_end - row < HALF_ROWS ? (int)(p->row_end - row) : HALF_ROWS;
    const int n_chunks = (int)((segment->n + HALF_CHUNK - 1) / HALF_CHUNK);
    const unsigned char *next = product_w(p, op->type, row + HALF_ROWS, segment->begin);
    rows_ahead ahead = rows_ahead_of(next, op->w_stride, HALF_ROWS, elems_bytes(op->type, segment->n),
                                     (n_tokens + HALF_TOKENS - 1) / HALF_TOKENS);
    for (int t = 0; t < n_tokens; t += HALF_TOKENS, at += HALF_TOKENS * HALF_ROWS) {
        const int n = n_tokens - t < HALF_TOKENS ? n_tokens - t : HALF_TOKENS;
        float *sums = scratch->sums + at;
        rows_ahead_step(&ahead, HALF_ROWS);
        half_multiply(op->type, half_takes_whole(op), n, &scratch->tiles, &scratch->panel,
                      tokens->groups + t / HALF_TILE, n_chunks, segment->opens, sums);
        if (!segment->closes)
            continue;
        for (int i = 0; i < n; i++)
            half_fix_nonfinite(p, segment, tokens->first + t + i, row, n_rows, sums + i * HALF_ROWS);
        fold_tile(p, segment, tokens->first + t, n, row, n_rows, HALF_ROWS, sums, at);
    }
}

/* Multiply one segment of the product's rows. */
static void half_tile_rows(const product *p, const k_segment *segment, const half_tokens *tokens,
                           half_scratch *scratch)
{
    const tsr_op_mul_mat *op = p->op;
    const unsigned char *w = (const unsigned char *)op->w + elems_bytes(op->type, segment->begin);
    int64_t at = 0;
    for (int64_t row = p->row; row < p->row_end; row += HALF_ROWS, at += HALF_ROWS * HALF_TILE_TOKENS) {
        const int n_rows = p->row_end - row < HALF_ROWS ? (int)(p->row_end - row) : HALF_ROWS;
        half_panel_fill(op->type, w + (size_t)row * op->w_stride, op->w_stride, n_rows, segment->n,
                        &scratch->panel);
        half_panel_multiply(p, segment, row, tokens, at, scratch);
    }
}

static void half_tiles(const product *p, half_scratch *scratch)
{
    half_begin(&scratch->tiles, 0);
    for (int64_t t = p->token; t < p->token_end; t += HALF_TILE_TOKENS) {
        const int n_tokens = (int)(p->token_end - t < HALF_TILE_TOKENS ? p->token_end - t : HALF_TILE_TOKENS);
        k_segment segment = segment_first(p->op, HALF_SEGMENT);
        int64_t index = 0;
        do {
            const half_tokens tokens = half_tokens_of(p, &segment, index++, t, n_tokens, scratch->x);
            half_tile_rows(p, &segment, &tokens, scratch);
        } while (segment_next(p->op, &segment));
    }
    half_end(&scratch->tiles);
}

#endif
