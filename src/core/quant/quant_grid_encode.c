/* Encoders of the types with code books. They are simple (quant_encode.c): the largest magnitude of a
 * sub-block fixes its scale, and every group takes the entry with the least squared error under it. */
#include <math.h>
#include <stdbool.h>

#include "core/quant/quant_each.h"
#include "core/quant/quant_grids.h"
#include "core/quant/quant_round.h"

/* A code book: entries of `elems` codes of `bits` bits, which choose values. */
typedef struct grid_book {
    const uint16_t *entries;
    int n, bits, elems;
    float values[8];
} grid_book;

#define ENTRY(e) e,
static const uint16_t entries_iq2_xxs[] = {TSR_QUANT_GRID_IQ2_XXS(ENTRY)};
static const uint16_t entries_iq2_xs[] = {TSR_QUANT_GRID_IQ2_XS(ENTRY)};
static const uint16_t entries_iq2_s[] = {TSR_QUANT_GRID_IQ2_S(ENTRY)};
static const uint16_t entries_iq3_xxs[] = {TSR_QUANT_GRID_IQ3_XXS(ENTRY)};
static const uint16_t entries_iq3_s[] = {TSR_QUANT_GRID_IQ3_S(ENTRY)};
static const uint16_t entries_iq1[] = {TSR_QUANT_GRID_IQ1_S(ENTRY)};

static const grid_book book_iq2_xxs = {entries_iq2_xxs, 256, 2, 8, {TSR_QUANT_GRID_VALUES_IQ2_XXS}};
static const grid_book book_iq2_xs = {entries_iq2_xs, 512, 2, 8, {TSR_QUANT_GRID_VALUES_IQ2_XS}};
static const grid_book book_iq2_s = {entries_iq2_s, 1024, 2, 8, {TSR_QUANT_GRID_VALUES_IQ2_S}};
static const grid_book book_iq3_xxs = {entries_iq3_xxs, 256, 3, 4, {TSR_QUANT_GRID_VALUES_IQ3_XXS}};
static const grid_book book_iq3_s = {entries_iq3_s, 512, 3, 4, {TSR_QUANT_GRID_VALUES_IQ3_S}};
static const grid_book book_iq1 = {entries_iq1, 2048, 2, 8, {TSR_QUANT_GRID_VALUES_IQ1_S}};

/* The entry nearest to x. An entry's error is that of its lower codes and that of its upper codes, which are
 * computed once for all entries. */
static int nearest_entry(const grid_book *book, const float *x)
{
    enum { MOST = 256 };
    const int bits = book->bits * book->elems / 2, n_codes = 1 << bits, mask = (1 << book->bits) - 1;
    float error[2][MOST];
    for (int half = 0; half < 2; half++)
        for (int codes = 0; codes < n_codes; codes++) {
            error[half][codes] = 0.0f;
            for (int i = 0; i < book->elems / 2; i++) {
                const float value = book->values[codes >> book->bits * i & mask];
                const float away = x[half * book->elems / 2 + i] - value;
                error[half][codes] += away * away;
            }
        }
    int best = 0;
    float least = INFINITY;
    for (int e = 0; e < book->n; e++) {
        const int codes = book->entries[e];
        const float sum = error[0][codes & (n_codes - 1)] + error[1][codes >> bits];
        if (sum < least)
            least = sum, best = e;
    }
    return best;
}

/* Eight elements: their signs, and the indices of their magnitudes in units of `scale`, one or two. `even`:
 * the number of signs is made even at the least element's expense. */
static unsigned encode_group(const grid_book *book, const float *x, float scale, bool even, int index[2])
{
    float size[8];
    unsigned signs = 0;
    int least = 0;
    for (int i = 0; i < 8; i++) {
        size[i] = fabsf(x[i]) * tsr_quant_reciprocal(scale);
        signs |= (unsigned)(x[i] < 0.0f) << i;
        if (size[i] < size[least])
            least = i;
    }
    if (even && __builtin_parity(signs))
        signs ^= 1u << least;
    for (int i = 0; i * book->elems < 8; i++)
        index[i] = nearest_entry(book, size + i * book->elems);
    return signs;
}

/* The scales of sub-blocks of n elements, 0 .. most, in units of d * (2 scale + 1) * unit, where a
 * sub-block's largest magnitude is `top` units. False where the block is not finite. */
static bool odd_scales(const float *x, int n, int most, float top, float unit, uint16_t *d_out, float *d,
                       int *scales)
{
    const float largest = fabsf(tsr_quant_extreme(x, TSR_QUANT_SUPER_BLOCK)) / top;
    if (!tsr_quant_store_scale(largest / (unit * (float)(2 * most + 1)), d_out, d))
        return false;
    for (int s = 0; s < TSR_QUANT_SUPER_BLOCK / n; s++) {
        const float step = fabsf(tsr_quant_extreme(x + n * s, n)) / (top * unit);
        scales[s] = tsr_quant_nearest((step * tsr_quant_reciprocal(*d) - 1.0f) / 2.0f, 0, most);
    }
    return true;
}

static float odd_scale(float d, int scale, float unit)
{
    return d * (float)(2 * scale + 1) * unit;
}

static tsr_block_iq2_xxs encode_iq2_xxs(const float *x)
{
    tsr_block_iq2_xxs block = {.d = TSR_QUANT_F16_NAN};
    int scales[8], index[2];
    uint16_t half;
    float d;
    if (!odd_scales(x, 32, 15, 43.0f, 0.125f, &half, &d, scales))
        return block;
    block.d = half;
    for (int s = 0; s < 8; s++) {
        uint32_t word = (uint32_t)scales[s] << 28;
        for (int g = 0; g < 4; g++) {
            const float scale = odd_scale(d, scales[s], 0.125f);
            word |= (encode_group(&book_iq2_xxs, x + 32 * s + 8 * g, scale, true, index) & 127) << 7 * g;
            block.q[8 * s + g] = (uint8_t)index[0];
        }
        memcpy(block.q + 8 * s + 4, &word, sizeof word);
    }
    return block;
}
TSR_QUANT_ENCODER(iq2_xxs, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq2_xs encode_iq2_xs(const float *x)
{
    tsr_block_iq2_xs block = {.d = TSR_QUANT_F16_NAN};
    int scales[16], index[2];
    uint16_t half;
    float d;
    if (!odd_scales(x, 16, 15, 43.0f, 0.125f, &half, &d, scales))
        return block;
    block.d = half;
    for (int g = 0; g < 32; g++) {
        const float scale = odd_scale(d, scales[g / 2], 0.125f);
        const unsigned signs = encode_group(&book_iq2_xs, x + 8 * g, scale, true, index) & 127;
        block.q[g] = (uint16_t)((unsigned)index[0] | signs << 9);
        block.scales[g / 4] |= (uint8_t)(scales[g / 2] << g / 2 % 2 * 4);
    }
    return block;
}
TSR_QUANT_ENCODER(iq2_xs, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq2_s encode_iq2_s(const float *x)
{
    tsr_block_iq2_s block = {.d = TSR_QUANT_F16_NAN};
    int scales[16], index[2];
    uint16_t half;
    float d;
    if (!odd_scales(x, 16, 15, 43.0f, 0.125f, &half, &d, scales))
        return block;
    block.d = half;
    for (int g = 0; g < 32; g++) {
        const float scale = odd_scale(d, scales[g / 2], 0.125f);
        block.signs[g] = (uint8_t)encode_group(&book_iq2_s, x + 8 * g, scale, false, index);
        block.q[g] = (uint8_t)index[0];
        block.high[g / 4] |= (uint8_t)(index[0] >> 8 << g % 4 * 2);
        block.scales[g / 4] |= (uint8_t)(scales[g / 2] << g / 2 % 2 * 4);
    }
    return block;
}
TSR_QUANT_ENCODER(iq2_s, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq3_xxs encode_iq3_xxs(const float *x)
{
    tsr_block_iq3_xxs block = {.d = TSR_QUANT_F16_NAN};
    int scales[8], index[2];
    uint16_t half;
    float d;
    if (!odd_scales(x, 32, 15, 62.0f, 0.25f, &half, &d, scales))
        return block;
    block.d = half;
    for (int s = 0; s < 8; s++) {
        uint32_t word = (uint32_t)scales[s] << 28;
        for (int g = 0; g < 4; g++) {
            const float scale = odd_scale(d, scales[s], 0.25f);
            word |= (encode_group(&book_iq3_xxs, x + 32 * s + 8 * g, scale, true, index) & 127) << 7 * g;
            for (int i = 0; i < 2; i++)
                block.q[8 * s + 2 * g + i] = (uint8_t)index[i];
        }
        memcpy(block.words + 4 * s, &word, sizeof word);
    }
    return block;
}
TSR_QUANT_ENCODER(iq3_xxs, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq3_s encode_iq3_s(const float *x)
{
    tsr_block_iq3_s block = {.d = TSR_QUANT_F16_NAN};
    int scales[8], index[2];
    uint16_t half;
    float d;
    if (!odd_scales(x, 32, 15, 15.0f, 1.0f, &half, &d, scales))
        return block;
    block.d = half;
    for (int g = 0; g < 32; g++) {
        const float scale = odd_scale(d, scales[g / 4], 1.0f);
        block.signs[g] = (uint8_t)encode_group(&book_iq3_s, x + 8 * g, scale, false, index);
        for (int i = 0; i < 2; i++) {
            block.q[2 * g + i] = (uint8_t)index[i];
            block.high[g / 4] |= (uint8_t)(index[i] >> 8 << (2 * g + i) % 8);
        }
        if (g % 4 == 0)
            block.scales[g / 8] |= (uint8_t)(scales[g / 4] << g / 4 % 2 * 4);
    }
    return block;
}
TSR_QUANT_ENCODER(iq3_s, TSR_QUANT_SUPER_BLOCK)

/* Whether the sum of n elements is negative: then delta is, too. */
static bool leans_down(const float *x, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum < 0.0f;
}

/* The index of eight elements of IQ1. */
static int encode_shifted(const float *x, float scale, bool negative)
{
    float scaled[8];
    for (int i = 0; i < 8; i++)
        scaled[i] = x[i] * tsr_quant_reciprocal(scale) + (negative ? 0.125f : -0.125f);
    return nearest_entry(&book_iq1, scaled);
}

static tsr_block_iq1_s encode_iq1_s(const float *x)
{
    tsr_block_iq1_s block = {.d = TSR_QUANT_F16_NAN};
    int scales[8];
    uint16_t half;
    float d;
    if (!odd_scales(x, 32, 7, 1.0f, 1.0f, &half, &d, scales))
        return block;
    block.d = half;
    for (int s = 0; s < 8; s++) {
        const bool negative = leans_down(x + 32 * s, 32);
        unsigned high = (unsigned)scales[s] << 12 | (unsigned)negative << 15;
        for (int g = 0; g < 4; g++) {
            const int index = encode_shifted(x + 32 * s + 8 * g, odd_scale(d, scales[s], 1.0f), negative);
            block.q[4 * s + g] = (uint8_t)index;
            high |= (unsigned)index >> 8 << 3 * g;
        }
        block.high[s] = (uint16_t)high;
    }
    return block;
}
TSR_QUANT_ENCODER(iq1_s, TSR_QUANT_SUPER_BLOCK)

static tsr_block_iq1_m encode_iq1_m(const float *x)
{
    tsr_block_iq1_m block = {.q = {0}};
    int scales[16] = {0};
    uint16_t half;
    float d;
    const bool finite = odd_scales(x, 16, 7, 1.0f, 1.0f, &half, &d, scales);
    for (int j = 0; j < 4; j++)
        block.scales[j] = (uint16_t)(((finite ? half : TSR_QUANT_F16_NAN) >> 4 * j & 15) << 12);
    for (int g = 0; g < 32 && finite; g++) {
        const bool negative = leans_down(x + 8 * g, 8);
        const int index = encode_shifted(x + 8 * g, odd_scale(d, scales[g / 2], 1.0f), negative);
        block.q[g] = (uint8_t)index;
        block.high[g / 2] |= (uint8_t)((index >> 8 | negative << 3) << g % 2 * 4);
        if (g % 2 == 0)
            block.scales[g / 8] |= (uint16_t)(scales[g / 2] << g / 2 % 4 * 3);
    }
    return block;
}
TSR_QUANT_ENCODER(iq1_m, TSR_QUANT_SUPER_BLOCK)
