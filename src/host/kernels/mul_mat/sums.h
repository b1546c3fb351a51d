/* The common part of all mul_mat kernels: the description of a product, how K is cut, and where sums go.
 *
 * K is cut at granule ends and, inside a granule, into segments whose length depends on the kernel. A kernel
 * computes the sum of a whole granule, fold_granule() turns it into the op's output format. */
#ifndef TSR_HOST_KERNELS_MUL_MAT_SUMS_H
#define TSR_HOST_KERNELS_MUL_MAT_SUMS_H

#include "core/quant/fixed.h"
#include "host/kernel_set.h"
#include "host/kernels/mul_mat/totals.h"
#include "host/kernels/quant/weights.h"

/* Rows [row, row_end) of an op's matrix times tokens [token, token_end). Token i is read from row x_rows[i]
 * of op->x, and its results go to row y_rows[i] of op->y; NULL: row i. */
typedef struct product {
    const tsr_op_mul_mat *op;
    const int32_t *x_rows, *y_rows; /* [op->n_tokens] or NULL */
    int64_t row, row_end;
    int64_t token, token_end;
    const tsr_kernel_env *env;
    unsigned char *packed; /* packed activations (pack.h) of n_packed rows; NULL: not packed */
    int64_t n_packed;
    const float *weights; /* [op->n_tokens] factors of the sums, which are added to op->y; NULL: stored */
    bool *fault;          /* set when an exact partial is out of range */
    exact_totals *totals; /* where exact sums of many tokens are added up; NULL: in op->y */
} product;

ALWAYS_INLINE const float *product_x(const product *p, int64_t token)
{
    return p->op->x + (p->x_rows ? p->x_rows[token] : token) * p->op->x_stride;
}

/* The address of element k of a row's weights: the first of a block; of a K type, of a super-block. */
ALWAYS_INLINE const unsigned char *product_w(const product *p, tsr_type type, int64_t row, int64_t k)
{
    return (const unsigned char *)p->op->w + (size_t)row * p->op->w_stride + elems_bytes(type, k);
}

/* Weights to prefetch, a few cache lines at a time: rows are too short for the hardware prefetcher.
 * Prefetching past the matrix is harmless. */
typedef struct rows_ahead {
    const unsigned char *w; /* rows `stride` bytes apart */
    size_t stride;
    int line, lines_per_step;
} rows_ahead;

/* Prefetch the first `bytes` bytes of n_rows rows in n_steps steps. */
ALWAYS_INLINE rows_ahead rows_ahead_of(const unsigned char *w, size_t stride, const int n_rows, size_t bytes,
                                       int n_steps)
{
    const int n_lines = (int)((bytes + 63) / 64) * n_rows;
    return (rows_ahead){w, stride, 0, (n_lines + n_steps - 1) / n_steps};
}

/* Every step prefetches the same number of lines, even past the last: a varying count is mispredicted. */
ALWAYS_INLINE void rows_ahead_step(rows_ahead *ahead, const int n_rows)
{
    for (int i = 0; i < ahead->lines_per_step; i++) {
        const unsigned line = (unsigned)ahead->line++;
        __builtin_prefetch(ahead->w + line % (unsigned)n_rows * ahead->stride + line / (unsigned)n_rows * 64);
    }
}

/* The distance from byte `at` of rows of row_bytes bytes, of which `rows` are read together, to the data that
 * is read `ahead` bytes later: in the same row, or in the row that is read after it. */
ALWAYS_INLINE size_t ahead_in_rows(const product *p, int rows, size_t at, size_t row_bytes, size_t ahead)
{
    return ahead + (ahead + at < row_bytes ? 0 : (size_t)rows * p->op->w_stride - row_bytes);
}

/* The prefetch stream of one token's product with a panel of rows: the next panel, or a later one, row after
 * row, or line after line of all rows. */
typedef struct panel_ahead {
    const unsigned char *at, *end; /* the rest of a row of the next panel; by lines: the rest of the rows */
    size_t row_bytes, stride;      /* by lines row_bytes are of all rows, with gaps */
    bool by_lines;
    int64_t lines;      /* of each row that panel_ahead_line() has not finished */
    size_t again;       /* distance back to a line that is prefetched again; 0: none */
    size_t block_bytes; /* of a panel's rows, 32 elements each, of super-blocks */
    tsr_cpu_reading reading;
} panel_ahead;

/* Prefetch a line. */
ALWAYS_INLINE void panel_ask(tsr_cpu_reading reading, const unsigned char *line)
{
    if (reading == TSR_CPU_ONE_STREAM_L2)
        __builtin_prefetch(line, 0, 2);
    else
        __builtin_prefetch(line);
}

/* A core whose request buffers are full drops prefetch instructions, and a kernel that is faster than memory
 * fills the buffers: on AMD's Zen 5, lines that are prefetched at 60 GB/s where memory delivers 40 arrive no
 * sooner than lines that are not prefetched. Prefetched again PANEL_AGAIN bytes later, nearly all lines
 * arrive in time; for lines that arrived the first time this costs one instruction. */
enum { PANEL_AGAIN = 4096 };

/* The distance for rows of which `used` bytes are read. Of rows with gaps, the same bytes of an earlier
 * row. */
ALWAYS_INLINE size_t panel_again(const product *p, size_t used)
{
    const size_t stride = p->op->w_stride;
    if (p->env->reading == TSR_CPU_STREAMS)
        return 0;
    return used == stride ? PANEL_AGAIN : (PANEL_AGAIN / (used + 1) + 1) * stride;
}

/* How many panels ahead to prefetch, on processors that prefetch into the second-level cache. There is room
 * for more than the next panel, and short rows take less time than memory's latency. Plain weights become
 * slower by this. */
ALWAYS_INLINE int64_t panels_ahead(const product *p, tsr_type type, size_t panel_bytes)
{
    enum { AT_LEAST = 32768 }; /* bytes */
    if (p->env->reading != TSR_CPU_ONE_STREAM_L2 || is_plain(type))
        return 1;
    return (int64_t)(AT_LEAST / (panel_bytes + 1)) + 1;
}

/* The prefetch stream while the panel of `rows` rows that begins with `row` is multiplied. */
ALWAYS_INLINE panel_ahead panel_ahead_of(const product *p, tsr_type type, int rows, int64_t row)
{
    const size_t stride = p->op->w_stride, used = elems_bytes(type, p->op->k);
    const int64_t ahead = panels_ahead(p, type, (size_t)rows * used);
    const unsigned char *next = product_w(p, type, row + ahead * rows, 0);
    const size_t row_bytes = used == stride ? (size_t)rows * stride : used; /* without gaps, one long row */
    return (panel_ahead){next,
                         next + row_bytes,
                         row_bytes,
                         stride,
                         false,
                         0,
                         panel_again(p, used),
                         (size_t)rows * elems_bytes(type, TSR_QUANT_SUPER_BLOCK) / 8,
                         p->env->reading};
}

/* The same panel by lines: the first of every row, then the second, and so on. A row that begins amid a line
 * has one line more. */
ALWAYS_INLINE panel_ahead panel_lines_of(const product *p, tsr_type type, int rows, int64_t row)
{
    panel_ahead ahead = panel_ahead_of(p, type, rows, row);
    ahead.by_lines = true;
    ahead.row_bytes = (size_t)rows * ahead.stride;
    ahead.end = ahead.at + ahead.row_bytes;
    ahead.lines = (int64_t)(elems_bytes(type, p->op->k) + 62) / 64 + 1;
    return ahead;
}

/* The next line of the panel; after the last line of the rows, these lines again. */
ALWAYS_INLINE const unsigned char *panel_ahead_line(panel_ahead *ahead)
{
    const unsigned char *at = ahead->at;
    ahead->at += ahead->stride;
    if (ahead->at == ahead->end) {
        const size_t along = --ahead->lines > 0 ? 64 : 0;
        ahead->at += along - ahead->row_bytes;
        ahead->end += along;
    }
    return at;
}

/* The start of the next `bytes` bytes. Prefetching past a row or the matrix is harmless. */
ALWAYS_INLINE const unsigned char *panel_ahead_step(panel_ahead *ahead, size_t bytes)
{
    const unsigned char *at = ahead->at;
    ahead->at += bytes;
    if (ahead->at >= ahead->end) {
        ahead->at = ahead->end - ahead->row_bytes + ahead->stride;
        ahead->end += ahead->stride;
    }
    return at;
}

/* The layout of activations of many tokens, packed once for all threads of a team (pack.h): stage after stage
 * of K, in each stage all tokens. */
typedef struct pack_layout {
    int64_t longest; /* most elements of a stage */
    int64_t group;   /* tokens that one thread packs; there is room for whole groups */
    size_t bytes;    /* of a token in a stage */
} pack_layout;

ALWAYS_INLINE int64_t packed_rows(int64_t n, const pack_layout *layout)
{
    return (n + layout->group - 1) / layout->group * layout->group;
}

/* The address of rows from `row` of the packed activations on in a stage. */
ALWAYS_INLINE void *product_packed(const product *p, const pack_layout *layout, int64_t stage, int64_t row)
{
    return p->packed + (size_t)(stage * packed_rows(p->n_packed, layout) + row) * layout->bytes;
}

/* One piece of K, elements [begin, begin + n), and its place in a granule. */
typedef struct k_segment {
    int64_t begin, n;
    int64_t longest; /* elements in a segment */
    int64_t granule, granule_end;
    bool opens, closes; /* first, last segment of its granule */
} k_segment;

/* The segment at `begin` of a granule that ends at `granule_end`. */
ALWAYS_INLINE k_segment segment_at(int64_t begin, int64_t longest, int64_t granule, int64_t granule_end,
                                   bool opens)
{
    const int64_t left = granule_end - begin;
    return (k_segment){begin,          left < longest ? left : longest, longest, granule, granule_end, opens,
                       left <= longest};
}

/* The first segment. A BF16 partial is one sum over K: cut at granules it would be rounded between them. */
ALWAYS_INLINE k_segment segment_first(const tsr_op_mul_mat *op, int64_t longest)
{
    const bool in_granules = op->partial && op->reduce != TSR_REDUCE_BF16;
    const int64_t granule = in_granules && op->granule < op->k ? op->granule : op->k;
    return segment_at(0, longest, granule, granule, true);
}

/* Step to the next segment; false after the last. */
ALWAYS_INLINE bool segment_next(const tsr_op_mul_mat *op, k_segment *segment)
{
    const int64_t begin = segment->begin + segment->n;
    if (begin == op->k)
        return false;
    const bool opens = begin == segment->granule_end;
    int64_t end = segment->granule_end;
    if (opens)
        end = op->k - end < segment->granule ? op->k : end + segment->granule;
    *segment = segment_at(begin, segment->longest, segment->granule, end, opens);
    return true;
}

/* The part of K that many tokens multiply together: consecutive segments. */
enum { STAGE_SEGMENTS = 8 };

typedef struct k_stage {
    int64_t index;    /* in the op; -1: before the first */
    int64_t begin, n; /* elements */
    int n_segments;
    k_segment segments[STAGE_SEGMENTS];
} k_stage;

/* Fill the stage with segments from *next on, and step over them: as many as fit the length of the longest
 * segment, all but the last whole blocks of 32. False after the last. */
ALWAYS_INLINE bool stage_next(const tsr_op_mul_mat *op, k_segment *next, k_stage *stage)
{
    bool more;
    *stage = (k_stage){.index = stage->index + 1, .begin = next->begin};
    do {
        stage->segments[stage->n_segments++] = *next;
        stage->n += next->n;
        more = segment_next(op, next);
    } while (more && stage->n_segments < STAGE_SEGMENTS && stage->n % 32 == 0 &&
             stage->n + next->n <= next->longest);
    return more;
}

#if defined(TSR_ISA_AVX2)
/* tsr_fixed_from_f32() of eight values below 2^18 in magnitude, added to the eight totals at `totals` (to
 * zero if `first`). A value is a multiple of 2^-12 and a remainder of at most 2^-13, both exact. Each
 * becomes a 32-bit integer, and the first, shifted, is even, so rounding the second rounds the whole, ties
 * included. */
ALWAYS_INLINE void fold_exact8(__m256 value, bool first, int64_t *totals)
{
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(value, _mm256_set1_ps(0x1p12f)));
    const __m256 rest = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(0x1p-12f), value);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(rest, _mm256_set1_ps((float)TSR_FIXED_ONE)));
    UNROLL for (int half = 0; half < 2; half++)
    {
        __m256i *at = (__m256i *)(void *)(totals + 4 * half);
        const __m128i h = half ? _mm256_extracti128_si256(high, 1) : _mm256_castsi256_si128(high);
        const __m128i l = half ? _mm256_extracti128_si256(low, 1) : _mm256_castsi256_si128(low);
        const __m256i fixed =
            _mm256_add_epi64(_mm256_slli_epi64(_mm256_cvtepi32_epi64(h), TSR_FIXED_FRACTION_BITS - 12),
                             _mm256_cvtepi32_epi64(l));
        const __m256i before = first ? _mm256_setzero_si256() : _mm256_loadu_si256(at);
        _mm256_storeu_si256(at, _mm256_add_epi64(before, fixed));
    }
}
#endif

/* Add n granule sums to n totals in fixed point; `first`: the totals are new. */
ALWAYS_INLINE void fold_exact(const float *sums, int n, bool first, float limit, int64_t *totals, bool *fault)
{
#if defined(TSR_ISA_AVX512)
    /* Eight sums at a time; limit > 0, and the comparison is false for NaN. */
    for (; n > 0; n -= 8, sums += 8, totals += 8) {
        const __mmask8 lanes = (__mmask8)(n >= 8 ? 0xff : (1 << n) - 1);
        const __m256 sum = _mm256_maskz_loadu_ps(lanes, sums);
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), sum);
        const __mmask8 ok = _mm256_cmp_ps_mask(size, _mm256_set1_ps(limit), _CMP_LT_OQ);
        const __m512d scaled = _mm512_mul_pd(_mm512_maskz_cvtps_pd(ok, sum), _mm512_set1_pd(TSR_FIXED_ONE));
        const __m512i fixed = _mm512_cvtpd_epi64(scaled);
        const __m512i before = _mm512_maskz_loadu_epi64(first ? 0 : lanes, totals);
        _mm512_mask_storeu_epi64(totals, lanes, _mm512_add_epi64(before, fixed));
        *fault |= (ok & lanes) != lanes;
    }
#else
#if defined(TSR_ISA_AVX2)
    const __m256 small = _mm256_set1_ps(limit < 0x1p18f ? limit : 0x1p18f);
    for (; n >= 8; n -= 8, sums += 8, totals += 8) {
        const __m256 sum = _mm256_loadu_ps(sums);
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), sum);
        if (_mm256_movemask_ps(_mm256_cmp_ps(size, small, _CMP_LT_OQ)) != 0xff)
            break; /* large, or not numbers: one by one from here on */
        fold_exact8(sum, first, totals);
    }
#endif
    for (int i = 0; i < n; i++) {
        const bool ok = tsr_fixed_in_range(sums[i], limit);
        const int64_t fixed = tsr_fixed_from_f32(ok ? sums[i] : 0.0f);
        *fault |= !ok;
        totals[i] = first ? fixed : totals[i] + fixed;
    }
#endif
}

/* Add n granule sums times `weight` to outputs from `at` on. */
static void fold_weighted(const product *p, float weight, const float *sums, int n, int64_t at)
{
    enum { MOST = 64 };
    const tsr_op_mul_mat *op = p->op;
    float weighted[MOST];
    for (; n > 0; n -= MOST, sums += MOST, at += MOST) {
        const int some = n < MOST ? n : MOST;
        for (int i = 0; i < some; i++)
            weighted[i] = weight * sums[i];
        for (int i = 0; i < some && op->reduce == TSR_REDUCE_F32; i++)
            ((float *)op->y)[at + i] += weighted[i];
        if (op->reduce == TSR_REDUCE_EXACT)
            fold_exact(weighted, some, false, op->limit, (int64_t *)op->y + at, p->fault);
    }
}

/* Add the sums of the granule that ends with `segment` to outputs [row, row + n) of a token. */
ALWAYS_INLINE void fold_granule(const product *p, const k_segment *segment, int64_t token, int64_t row, int n,
                                const float *sums)
{
    const tsr_op_mul_mat *op = p->op;
    const int64_t at = (p->y_rows ? p->y_rows[token] : token) * op->y_stride + row;
    const bool first = segment->granule_end == segment->granule;
    if (p->weights) {
        fold_weighted(p, p->weights[token], sums, n, at);
        return;
    }
    if (op->partial && op->reduce == TSR_REDUCE_EXACT) {
        fold_exact(sums, n, first, op->limit, (int64_t *)op->y + at, p->fault);
        return;
    }
    if (op->partial && op->reduce == TSR_REDUCE_BF16) {
        for (int i = 0; i < n; i++)
            ((uint16_t *)op->y)[at + i] = tsr_f32_to_bf16(sums[i]);
        return;
    }
    float *y = (float *)op->y + at;
    for (int i = 0; i < n; i++)
        y[i] = first ? sums[i] : y[i] + sums[i];
}

/* fold_granule() for n_tokens tokens and n_rows rows of a tile that is `rows` wide, whole vectors. Row r of
 * token t is sums[t * rows + r]. `at`: the position of these sums in the totals. */
ALWAYS_INLINE void fold_tile(const product *p, const k_segment *segment, int64_t token, int n_tokens,
                             int64_t row, int n_rows, const int rows, const float *sums, int64_t at)
{
    const tsr_op_mul_mat *op = p->op;
    if (p->totals)
        totals_add(sums, n_tokens * rows, segment->granule_end == segment->granule, at, p->totals);
    if (p->totals && segment->granule_end < op->k)
        return;
    for (int64_t t = 0; t < n_tokens; t++) {
        const int64_t y_row = p->y_rows ? p->y_rows[token + t] : token + t;
        if (p->totals)
            totals_take(p->totals, at + t * rows, n_rows, (int64_t *)op->y + y_row * op->y_stride + row);
        else
            fold_granule(p, segment, token + t, row, n_rows, sums + t * rows);
    }
}

#endif
