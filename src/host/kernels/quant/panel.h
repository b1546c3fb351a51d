/* The building blocks of the rules of every quantized type (types_block.h, types_k.h, types_table.h): the
 * constants that describe a type, and vectors of packed bytes whose lanes are rows. */
#ifndef TSR_HOST_KERNELS_QUANT_PANEL_H
#define TSR_HOST_KERNELS_QUANT_PANEL_H

#include "host/kernels/vec/int_vec.h"
#include "host/kernels/quant/weights.h"
#include "host/kernels/quant/x_blocks.h"

enum { QUANT_BLOCKS = TSR_QUANT_SUPER_BLOCK / TSR_QUANT_BLOCK };

/* Constants of a type. */
typedef struct quant_traits {
    int group_blocks; /* blocks whose quants share bytes */
    int x_limit;      /* largest magnitude of an activation's integer: 32 products stay below 2^31 */
    int offset;       /* added to q in the type's bytes; subtracted from sums, which is cheaper */
    int parts;        /* 16 bytes of every row in a group, for words made of parts; 0: by columns */
    int pair_header;  /* bytes before 16 bytes of nibbles, where two blocks are loaded together; or 0 */
    int minima;       /* minima per block: 0, 1, or 2 (one per half) */
    bool is_signed;   /* whether the type's bytes are signed */
    bool sub_scales;  /* two scales per block, one per half */
    bool below_16;    /* whether all bytes of the type are below 16 */
    bool above_32;    /* whether products with bytes need sums of 32 bits */
    bool by_nibbles;  /* low bits of a byte: a block, high bits: the next block; for types without
                       * sub-scales */
} quant_traits;

/* -- one element at a time -- */

/* A block of 32 weights as in the formula: scale * q[i] - min. */
typedef struct quant_block {
    int16_t q[X_BLOCK]; /* in the order of x_block */
    float scale, min[2];
} quant_block;

ALWAYS_INLINE void quant_put(quant_block *out, int i, int value)
{
    out->q[i % 2 * 16 + i / 2] = (int16_t)value;
}

/* -- lanes are rows -- */

#if defined(TSR_ISA_INT_VEC)

/* A panel of unpacked super-blocks (codes.h): quants in parts, sub-scales, scales. */
typedef struct code_panel {
    _Alignas(64) uint8_t q[2 * QUANT_BLOCKS][4][sizeof(vec_int)];
    uint8_t sub[INT_LANES][2 * QUANT_BLOCKS];
    float scale[INT_LANES];
} code_panel;

/* The part of a panel that is not quants. */
typedef struct quant_panel {
    uint16_t half[2 * QUANT_BLOCKS][INT_LANES]; /* d of each block, then m; or [0] d, [1] dmin */
    uint32_t word[QUANT_BLOCKS][INT_LANES];     /* packed scales; or a block's exponent or fifth bits */
    vec_int high[8];                            /* Q5_K, Q3_K: the highest bits of all blocks */
    code_panel codes;
} quant_panel;

/* Vectors of four bytes of each row, low bits first, then high bits. As parts, the same four vectors have the
 * same bytes in another order. */
typedef struct quant_group {
    vec_int bytes[24];
} quant_group;

/* The even and the odd elements, as many of each. */
typedef struct quant_pair {
    vec_int even, odd;
} quant_pair;

/* Copies of the rows of a matrix's last panel, where the panel has fewer rows than a vector has lanes. */
typedef struct quant_edge {
    unsigned char row[INT_LANES][QUANT_BLOCKS * sizeof(tsr_block_q8_0)]; /* no type's blocks are longer */
} quant_edge;

/* Cold, so that the compiler keeps registers for the loops of the other panels. */
__attribute__((cold, noinline)) static void quant_edge_copy(const unsigned char *w, size_t stride, int n_rows,
                                                            size_t bytes, quant_edge *edge)
{
    for (int r = 0; r < INT_LANES; r++)
        memcpy(edge->row[r], w + (size_t)(r < n_rows ? r : n_rows - 1) * stride, bytes);
}

/* The first `bytes` bytes, at most a panel's, of the n_rows >= 1 rows at w of type `stored`, `stride` bytes
 * apart. Rows past the last repeat the last. Valid as long as `edge` exists. */
ALWAYS_INLINE int_rows quant_rows(tsr_type stored, const unsigned char *w, size_t stride, int n_rows,
                                  size_t bytes, quant_edge *edge)
{
    if (n_rows >= INT_LANES)
        return int_rows_of(stored, w, stride);
    quant_edge_copy(w, stride, n_rows, bytes, edge);
    return int_rows_of(stored, edge->row[0], sizeof edge->row[0]);
}

/* Bytes to words. */
ALWAYS_INLINE quant_pair quant_split_u8(vec_bits bytes)
{
    return (quant_pair){(vec_int)(bytes & 0x00ff00ff), (vec_int)((vec_word)bytes >> 8)};
}

ALWAYS_INLINE quant_pair quant_split_i8(vec_bits bytes)
{
    const vec_short words = (vec_short)bytes;
    return (quant_pair){(vec_int)((words << 8) >> 8), (vec_int)(words >> 8)};
}

/* The low four bits of each byte, looked up in a table, plus an offset. The high bits must be zero. */
ALWAYS_INLINE vec_bits quant_look_up(vec_bits nibbles, const int8_t values[16], int offset)
{
    const byte16 table = byte16_load(values) + (uint8_t)offset;
#if defined(TSR_ISA_AVX512)
    return (vec_bits)_mm512_shuffle_epi8(_mm512_broadcast_i32x4((__m128i)table), (__m512i)nibbles);
#elif defined(TSR_ISA_NEON)
    return (vec_bits)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)nibbles);
#else
    return (vec_bits)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)table), (__m256i)nibbles);
#endif
}

/* Bits shifted left by `by` places; right where `by` is negative. */
ALWAYS_INLINE vec_bits quant_shift(vec_bits bits, int by)
{
    return by > 0 ? bits << by : bits >> -by;
}

/* Vector i of four bytes of a group. */
ALWAYS_INLINE vec_bits quant_bytes(const quant_group *group, int i)
{
    return (vec_bits)group->bytes[i];
}

/* One half per row. Stored one by one: assembling a vector would occupy the unit that also transposes. */
ALWAYS_INLINE void quant_copy_halves(const int_rows *rows, size_t at, uint16_t out[INT_LANES])
{
    const int_rows again = int_rows_again(rows);
    UNROLL for (int r = 0; r < INT_LANES; r++)
    {
        memcpy(&out[r], int_row(&again, r) + at, sizeof out[r]);
        __asm__("" : "+m"(out[r]));
    }
}

ALWAYS_INLINE void quant_copy_words(const int_rows *rows, size_t at, uint32_t out[INT_LANES])
{
    const int_rows again = int_rows_again(rows);
    UNROLL for (int r = 0; r < INT_LANES; r++)
    {
        memcpy(&out[r], int_row(&again, r) + at, sizeof out[r]);
        __asm__("" : "+m"(out[r]));
    }
}

/* 16 bytes of each row as words: from four words on fewer instructions than single copies. */
ALWAYS_INLINE void quant_load_words(const int_rows *rows, size_t at, uint32_t out[4][INT_LANES])
{
    vec_int words[4];
    int_load_rows(rows, at, words);
    UNROLL for (int i = 0; i < 4; i++) int_store(out[i], words[i]);
}

/* n times 16 bytes of each row, for types whose words can be made of parts. */
ALWAYS_INLINE void quant_load_parts(const int_rows *rows, size_t at, const int n, vec_int *out)
{
    UNROLL for (int i = 0; i + 1 < n; i += 2) int_load_two_parts(rows, at + 16 * (size_t)i, out + 4 * i);
    if (n % 2 != 0)
        int_load_parts(rows, at + 16 * (size_t)(n - 1), out + 4 * (n - 1));
}

/* n times 16 bytes of each row, transposed, for types whose words cannot be made of parts. */
ALWAYS_INLINE void quant_load(const int_rows *rows, size_t at, const int n, vec_int *out)
{
    UNROLL for (int i = 0; i < n; i++) int_load_rows(rows, at + 16 * (size_t)i, out + 4 * i);
}

/* INT_LANES halves as floats. */
ALWAYS_INLINE vec vec_from_halves(const uint16_t *half)
{
#if defined(TSR_ISA_AVX512)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)half));
#elif defined(TSR_ISA_NEON)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half)));
#else
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)half));
#endif
}

#endif
#endif
