/* mul_mat with quantized weights for one token or a few. The weights are read once, INT_LANES neighbouring
 * rows at a time, so memory limits the speed, and are unpacked once for several tokens. Lanes are rows. */
#ifndef TSR_HOST_KERNELS_QUANT_VECTOR_H
#define TSR_HOST_KERNELS_QUANT_VECTOR_H

#include "host/kernels/mul_mat/sums.h"
#include "host/kernels/quant/dots.h"

enum { QUANT_SEGMENT = QUANT_BLOCKS * X_BLOCK }; /* elements of K per step, for one token and for many */

#if defined(TSR_ISA_INT_VEC)

/* Add the products of block b, from its integer sums, to each token's lane per row. */
ALWAYS_INLINE void quant_vector_block(tsr_type type, const quant_panel *panel, int b,
                                      quant_token_group token_group, const vec_int dots[QUANT_GROUP_TOKENS],
                                      vec acc[QUANT_GROUP_TOKENS])
{
    UNROLL for (int t = 0; t < token_group.n; t++)
    {
        const x_block *x = quant_token_x(token_group, t);
        acc[t] = vec_fma(int_to_float(dots[t]) * vec_set1(x->scale), quant_scale(type, panel, b), acc[t]);
        UNROLL for (int half = 0; half < quant_minima(type); half++) acc[t] = vec_fma(
            vec_set1(quant_x_sum(x, quant_minima(type), half)), -quant_min(type, panel, b, half), acc[t]);
    }
}

/* Whether prefetching twice (panel_again()) pays, as measured. Of the types whose blocks stand alone only the
 * largest gains, and vectors that are no faster than memory gain nothing. */
ALWAYS_INLINE bool quant_asks_again(tsr_type type)
{
#if defined(TSR_ISA_AVX512)
    return is_super_block(type) || type == TSR_TYPE_Q8_0;
#else
    (void)type;
    return false;
#endif
}

ALWAYS_INLINE void quant_ask_as(const tsr_cpu_reading reading, const unsigned char *at, const size_t bytes)
{
    __asm__("" : "+r"(at)); /* one register: gcc would compute every line's address before the branch */
    UNROLL for (size_t line = 0; line < bytes; line += 64) panel_ask(reading, at + line);
}

/* Prefetch with one branch for all lines. */
ALWAYS_INLINE void quant_ask_lines(tsr_cpu_reading reading, const unsigned char *at, const size_t bytes)
{
    if (reading == TSR_CPU_ONE_STREAM_L2)
        quant_ask_as(TSR_CPU_ONE_STREAM_L2, at, bytes);
    else
        quant_ask_as(TSR_CPU_ONE_STREAM, at, bytes);
}

/* What is prefetched while the panel of rows that begins with `row` is multiplied. An Intel core that reads
 * one row with gaps after another also prefetches the gaps. */
ALWAYS_INLINE panel_ahead quant_ahead_of(const product *p, tsr_type stored, int64_t row)
{
    const bool gaps = p->op->w_stride != elems_bytes(stored, p->op->k);
    return gaps && p->env->reading == TSR_CPU_STREAMS ? panel_lines_of(p, stored, INT_LANES, row)
                                                      : panel_ahead_of(p, stored, INT_LANES, row);
}

/* Prefetch as many bytes as a block of this panel has. The hardware prefetcher cannot follow the rows of a
 * panel alone, too many streams in too few pages. */
ALWAYS_INLINE void quant_ask(tsr_type type, panel_ahead *ahead)
{
    if (ahead->by_lines) {
        const size_t n = type == QUANT_CODE ? ahead->block_bytes
                                            : INT_LANES * elems_bytes(type, QUANT_SEGMENT) / QUANT_BLOCKS;
        for (size_t line = 0; line < n; line += 64)
            __builtin_prefetch(panel_ahead_line(ahead));
        return;
    }
    if (type == QUANT_CODE) {
        const unsigned char *at = panel_ahead_step(ahead, ahead->block_bytes);
        for (size_t line = 0; line < ahead->block_bytes; line += 64)
            panel_ask(ahead->reading, at + line);
        return;
    }
    const size_t bytes = INT_LANES * elems_bytes(type, QUANT_SEGMENT) / QUANT_BLOCKS;
    const unsigned char *at = panel_ahead_step(ahead, bytes);
    quant_ask_lines(ahead->reading, at, bytes);
    if (quant_asks_again(type) && ahead->again > 0)
        quant_ask_lines(ahead->reading, at - ahead->again, bytes);
}

/* Add the products of n blocks from b on with those of the token group, and prefetch as many blocks. */
ALWAYS_INLINE void quant_vector_some(tsr_type type, const bool bytes, const quant_panel *panel,
                                     const quant_group *group, int b, const int n,
                                     quant_token_group token_group, panel_ahead *ahead,
                                     vec acc[QUANT_GROUP_TOKENS])
{
    const quant_token_group blocks = quant_token_group_at(token_group, b);
    vec_int dots[QUANT_GROUP_MAX][QUANT_GROUP_TOKENS];
    UNROLL for (int i = 0; i < n; i++) quant_ask(type, ahead);
    quant_dots(type, bytes, panel, group, b, n, blocks, dots);
    UNROLL for (int i = 0; i < n; i++)
        quant_vector_block(type, panel, b + i, quant_token_group_at(blocks, i), dots[i], acc);
}

/* Add the products of the group that begins with block b. */
ALWAYS_INLINE void quant_vector_group(tsr_type type, const bool bytes, const int_rows *rows,
                                      const quant_panel *panel, int b, quant_token_group token_group,
                                      panel_ahead *ahead, vec acc[QUANT_GROUP_TOKENS])
{
    const int at_once = quant_blocks_at_once(type, bytes, token_group.n);
    quant_group group;
    if (quant_by_columns(type, bytes))
        quant_group_load(type, rows, panel, b, &group);
    else
        quant_group_parts(type, rows, panel, b, &group);
    UNROLL for (int i = 0; i < quant_group_blocks(type); i += at_once)
        quant_vector_some(type, bytes, panel, &group, b + i, at_once, token_group, ahead, acc);
}

#if defined(TSR_ISA_AVX512)
/* Add the products of blocks b and b + 1. */
ALWAYS_INLINE void quant_vector_pair(tsr_type type, const bool bytes, const int_rows *rows,
                                     quant_panel *panel, int b, quant_token_group token_group,
                                     panel_ahead *ahead, vec acc[QUANT_GROUP_TOKENS])
{
    quant_group pair[2];
    quant_pair_load(type, rows, b, panel, pair);
    UNROLL for (int i = 0; i < 2; i++)
    {
        if (quant_by_columns(type, bytes))
            int_transpose(pair[i].bytes); /* the nibbles of a block */
        quant_vector_some(type, bytes, panel, &pair[i], b + i, 1, token_group, ahead, acc);
    }
}
#endif

/* Add the products of one panel: a super-block, unrolled so that its shifts are by constants. */
ALWAYS_INLINE void quant_vector_super(tsr_type type, const bool bytes, const int_rows *rows,
                                      quant_token_group token_group, panel_ahead *ahead,
                                      vec acc[QUANT_GROUP_TOKENS])
{
    quant_panel panel;
    quant_header_load(type, rows, 0, &panel);
    UNROLL for (int b = 0; b < QUANT_BLOCKS; b += quant_group_blocks(type))
        quant_vector_group(type, bytes, rows, &panel, b, token_group, ahead, acc);
}

/* Add the products of one panel of blocks that stand alone. */
ALWAYS_INLINE void quant_vector_blocks(tsr_type type, const bool bytes, const int_rows *rows, int n_blocks,
                                       quant_token_group token_group, panel_ahead *ahead,
                                       vec acc[QUANT_GROUP_TOKENS])
{
    quant_panel panel;
    int b = 0;
#if defined(TSR_ISA_AVX512)
    if (quant_loads_pairs(type))
        for (; b + 1 < n_blocks; b += 2)
            quant_vector_pair(type, bytes, rows, &panel, b, token_group, ahead, acc);
#endif
    if (b < n_blocks)
        quant_header_load(type, rows, b, &panel);
    for (; b < n_blocks; b++) {
        if (b + 1 < n_blocks)
            quant_header_load(type, rows, b + 1, &panel);
        quant_vector_group(type, bytes, rows, &panel, b, token_group, ahead, acc);
    }
}

ALWAYS_INLINE void quant_vector_panel(tsr_type type, const bool bytes, const int_rows *rows, int n_blocks,
                                      quant_token_group token_group, panel_ahead *ahead,
                                      vec acc[QUANT_GROUP_TOKENS])
{
    if (is_super_block(type))
        quant_vector_super(type, bytes, rows, token_group, ahead, acc);
    else
        quant_vector_blocks(type, bytes, rows, n_blocks, token_group, ahead, acc);
}

/* Multiply a panel of rows from `row` on with the token group, whose first token is `token`. */
ALWAYS_INLINE void quant_vector_rows(tsr_type type, const bool bytes, const product *p, int64_t row,
                                     int64_t token, quant_token_group token_group)
{
    const int n_rows = p->row_end - row < INT_LANES ? (int)(p->row_end - row) : INT_LANES;
    const tsr_type stored = quant_stored(type, p->op->type);
    panel_ahead ahead = quant_ahead_of(p, stored, row);
    k_segment segment = segment_first(p->op, QUANT_SEGMENT);
    quant_edge edge;
    vec acc[QUANT_GROUP_TOKENS] = {0};
    do {
        const int_rows rows = quant_rows(stored, product_w(p, stored, row, segment.begin), p->op->w_stride,
                                         n_rows, elems_bytes(stored, segment.n), &edge);
        if (segment.opens)
            UNROLL for (int t = 0; t < token_group.n; t++) acc[t] = (vec){0};
        quant_vector_panel(type, bytes, &rows, (int)(segment.n / X_BLOCK),
                           quant_token_group_at(token_group, segment.begin / X_BLOCK), &ahead, acc);
        if (segment.closes)
            UNROLL for (int t = 0; t < token_group.n; t++)
            {
                float sums[INT_LANES];
                vec_store(sums, acc[t]);
                fold_granule(p, &segment, token + t, row, n_rows, sums);
            }
    } while (segment_next(p->op, &segment));
}

/* Multiply a panel with tokens from `token` on, n at a time; returns the first token that is left. */
ALWAYS_INLINE int64_t quant_vector_tokens(tsr_type type, const bool bytes, const product *p, int64_t row,
                                          int64_t token, const int n, const x_block *x)
{
    const size_t stride = (size_t)(p->op->k / X_BLOCK);
    for (; p->token_end - token >= n; token += n)
        quant_vector_rows(type, bytes, p, row, token,
                          (quant_token_group){x + (size_t)token * stride, stride, n});
    return token;
}

/* quant_vector_tokens() with constant arguments. A function each, since compilers take a multiple of the time
 * for one function that has all of them. */
typedef int64_t quant_walk(const product *p, int64_t row, int64_t token, const x_block *x);

#define WALK_OF(n, constant, name, kind, bytes)                                                    \
    static NOINLINE int64_t name##_walk_##kind##_##n(const product *p, int64_t row, int64_t token, \
                                                     const x_block *x)                             \
    {                                                                                              \
        return quant_vector_tokens(constant, bytes, p, row, token, n, x);                          \
    }
#define WALKS_OF(constant, name)                            \
    FOR_EACH_WALKERS(WALK_OF, constant, name, words, false) \
    FOR_EACH_WALKERS(WALK_OF, constant, name, bytes, true)
FOR_EACH_QUANT_TYPE(WALKS_OF)
#undef WALKS_OF
#undef WALK_OF

/* walks[n]: the function for n tokens. */
static void quant_walks_of(tsr_type type, bool bytes, quant_walk *walks[QUANT_GROUP_TOKENS + 1])
{
    switch (quant_kernels(type)) {
#define WALK(n, name) walks[n] = bytes ? name##_walk_bytes_##n : name##_walk_words_##n;
#define WALKS_CASE(constant, name)   \
    case constant:                   \
        FOR_EACH_WALKERS(WALK, name) \
        break;
        FOR_EACH_QUANT_TYPE(WALKS_CASE)
#undef WALKS_CASE
#undef WALK
    default:
        break;
    }
}

/* Multiply the product's tokens with each panel of its rows. Weights that the first token group has read are
 * in the caches for the next groups. */
static void quant_vector_walk(const product *p, const bool bytes, const x_block *x)
{
    quant_walk *walks[QUANT_GROUP_TOKENS + 1] = {0};
    quant_walks_of(p->op->type, bytes, walks);
    for (int64_t row = p->row; row < p->row_end; row += INT_LANES) {
        int64_t token = p->token;
        for (int n = QUANT_GROUP_TOKENS; n > 0; n /= 2)
            token = walks[n](p, row, token, x);
    }
}

/* Whether AVX2's vectors of eight rows are faster than sixteen rows, with the same bits. Q8_0 is limited by
 * memory more than by arithmetic: Zen 5 reads eight rows a tenth faster than sixteen; Zen 4, which prefetches
 * into its second-level cache, does not. Other types take enough instructions for longer vectors to win.
 * Packed activations were packed for several tokens, in the layout of longer vectors. */
ALWAYS_INLINE bool quant_vector_is_short(const product *p)
{
#if defined(TSR_ISA_AVX512)
    return p->env->reading == TSR_CPU_ONE_STREAM && p->op->type == TSR_TYPE_Q8_0 && p->op->n_tokens == 1 &&
           !p->packed;
#else
    (void)p;
    return false;
#endif
}

/* The product by AVX2's kernels, with blocks of words. */
void tsr_kernel_avx2_q8_0_vector(const product *p, const x_block *x);
#if defined(TSR_ISA_AVX2) && !defined(TSR_ISA_VNNI)
void tsr_kernel_avx2_q8_0_vector(const product *p, const x_block *x)
{
    quant_vector_walk(p, false, x);
}
#endif

/* Prepare n encoded blocks. */
ALWAYS_INLINE void quant_x_walks(tsr_type type, bool bytes, x_block *x, int64_t n)
{
    (void)type, (void)bytes, (void)x, (void)n; /* words are ready */
#if defined(TSR_ISA_DIGITS)
    if (!bytes && quant_takes_digits(type))
        x_pack_digits(x, n, quant_offset(type));
#endif
#if defined(TSR_ISA_BYTES)
    if (bytes && quant_by_columns(type, bytes))
        byte_x_begin(type, x, n);
#endif
}

/* Encode the op's tokens [token, token_end) for quant_vector(); the blocks of the first are at x. */
static void quant_vector_encode(const product *p, int64_t token, int64_t token_end, x_block *x)
{
    const bool bytes = quant_multiplies_bytes(p->op) && !quant_vector_is_short(p);
    for (int64_t t = token; t < token_end; t++, x += p->op->k / X_BLOCK) {
        const int64_t n = p->op->k / X_BLOCK;
        quant_x_encode(p->op, product_x(p, t), p->op->k, bytes, x);
        quant_x_walks(p->op->type, bytes, x, n);
    }
}

/* Multiply the product's tokens; the blocks of the op's first token are at x. */
static void quant_vector(const product *p, const x_block *x)
{
#if defined(TSR_ISA_AVX512)
    if (quant_vector_is_short(p)) {
        tsr_kernel_avx2_q8_0_vector(p, x);
        return;
    }
#endif
    quant_vector_walk(p, quant_multiplies_bytes(p->op), x);
}

#endif
#endif
