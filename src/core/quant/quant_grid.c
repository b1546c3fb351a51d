/* The types with code books: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S and IQ1_M. Decoders follow the
 * layouts in quant.h line by line; the encoders are in quant_grid_encode.c. */
#include <stdbool.h>

#include "core/quant/quant_each.h"
#include "core/quant/quant_grids.h"

/* The codes of an entry as bytes. */
#define PAIRS(e) ((uint64_t)((e)&0xff) | (uint64_t)((e) >> 8) << 32)
#define FOURS(e) ((PAIRS(e) | PAIRS(e) << 12) & 0x000f000f000f000fu)
#define CODES(e) ((FOURS(e) | FOURS(e) << 6) & 0x0303030303030303u)
#define CODES_3(e)                                                                        \
    ((uint32_t)((e)&7) | (uint32_t)((e) >> 3 & 7) << 8 | (uint32_t)((e) >> 6 & 7) << 16 | \
     (uint32_t)((e) >> 9) << 24)

/* The entry's values as bytes, from its codes; the lists of TSR_QUANT_GRID_VALUES_... as arithmetic. */
#define IQ2(e) (17 * CODES(e) + 0x0808080808080808u + (CODES(e) >> 1 & 0x0101010101010101u)),
#define IQ1(e) \
    (~(CODES(e) | CODES(e) >> 1) & 0x0101010101010101u) * 0xf8 + (CODES(e) >> 1 & 0x0101010101010101u) * 8,
#define IQ3_XXS(e) \
    (8 * CODES_3(e) + 0x04040404u + 2 * (CODES_3(e) & CODES_3(e) >> 1 & CODES_3(e) >> 2 & 0x01010101u)),
#define IQ3_S(e) (2 * CODES_3(e) + 0x01010101u),

const uint64_t tsr_quant_grid_iq2_xxs[256] = {TSR_QUANT_GRID_IQ2_XXS(IQ2)};
const uint64_t tsr_quant_grid_iq2_xs[512] = {TSR_QUANT_GRID_IQ2_XS(IQ2)};
const uint64_t tsr_quant_grid_iq2_s[1024] = {TSR_QUANT_GRID_IQ2_S(IQ2)};
const uint64_t tsr_quant_grid_iq1[2048] = {TSR_QUANT_GRID_IQ1_S(IQ1)};
const uint32_t tsr_quant_grid_iq3_xxs[256] = {TSR_QUANT_GRID_IQ3_XXS(IQ3_XXS)};
const uint32_t tsr_quant_grid_iq3_s[512] = {TSR_QUANT_GRID_IQ3_S(IQ3_S)};

static uint32_t load_word(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* d * (2 * scale + 1) * unit; exact. */
static float odd_scale(uint16_t d, unsigned scale, float unit)
{
    return tsr_f16_to_f32(d) * (float)(2 * scale + 1) * unit;
}

/* The n elements of an entry: negative where a bit of `signs` is set. */
static void decode_entry(uint64_t entry, int n, unsigned signs, float scale, float *dst)
{
    for (int i = 0; i < n; i++) {
        const int value = (int8_t)(entry >> 8 * i);
        dst[i] = scale * (float)(signs >> i & 1 ? -value : value);
    }
}

static void decode_iq2_xxs(const tsr_block_iq2_xxs *block, float *dst)
{
    for (int g = 0; g < 32; g++) {
        const uint8_t *q = block->q + g / 4 * 8;
        const uint32_t word = load_word(q + 4);
        const uint8_t signs = tsr_quant_even_signs(word >> g % 4 * 7 & 127);
        decode_entry(tsr_quant_grid_iq2_xxs[q[g % 4]], 8, signs, odd_scale(block->d, word >> 28, 0.125f),
                     dst + 8 * g);
    }
}
TSR_QUANT_DECODER(iq2_xxs, TSR_QUANT_SUPER_BLOCK)

static void decode_iq2_xs(const tsr_block_iq2_xs *block, float *dst)
{
    for (int g = 0; g < 32; g++) {
        const unsigned scale = block->scales[g / 4] >> g / 2 % 2 * 4 & 15;
        decode_entry(tsr_quant_grid_iq2_xs[block->q[g] & 511], 8, tsr_quant_even_signs(block->q[g] >> 9),
                     odd_scale(block->d, scale, 0.125f), dst + 8 * g);
    }
}
TSR_QUANT_DECODER(iq2_xs, TSR_QUANT_SUPER_BLOCK)

static void decode_iq2_s(const tsr_block_iq2_s *block, float *dst)
{
    for (int g = 0; g < 32; g++) {
        const unsigned scale = block->scales[g / 4] >> g / 2 % 2 * 4 & 15;
        const unsigned index = block->q[g] | (block->high[g / 4] >> g % 4 * 2 & 3u) << 8;
        decode_entry(tsr_quant_grid_iq2_s[index], 8, block->signs[g], odd_scale(block->d, scale, 0.125f),
                     dst + 8 * g);
    }
}
TSR_QUANT_DECODER(iq2_s, TSR_QUANT_SUPER_BLOCK)

static void decode_iq3_xxs(const tsr_block_iq3_xxs *block, float *dst)
{
    for (int g = 0; g < 64; g++) {
        const uint32_t word = load_word(block->words + g / 8 * 4);
        const unsigned signs = tsr_quant_even_signs(word >> g % 8 / 2 * 7 & 127);
        decode_entry(tsr_quant_grid_iq3_xxs[block->q[g]], 4, signs >> g % 2 * 4,
                     odd_scale(block->d, word >> 28, 0.25f), dst + 4 * g);
    }
}
TSR_QUANT_DECODER(iq3_xxs, TSR_QUANT_SUPER_BLOCK)

static void decode_iq3_s(const tsr_block_iq3_s *block, float *dst)
{
    for (int g = 0; g < 64; g++) {
        const unsigned scale = block->scales[g / 16] >> g / 8 % 2 * 4 & 15;
        const unsigned index = block->q[g] | (block->high[g / 8] >> g % 8 & 1u) << 8;
        decode_entry(tsr_quant_grid_iq3_s[index], 4, (unsigned)block->signs[g / 2] >> g % 2 * 4,
                     odd_scale(block->d, scale, 1.0f), dst + 4 * g);
    }
}
TSR_QUANT_DECODER(iq3_s, TSR_QUANT_SUPER_BLOCK)

/* The elements of an IQ1 entry. */
static void decode_shifted(uint64_t entry, bool negative, float scale, float *dst)
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * (float)((int8_t)(entry >> 8 * i) + (negative ? -1 : 1));
}

static void decode_iq1_s(const tsr_block_iq1_s *block, float *dst)
{
    for (int g = 0; g < 32; g++) {
        const unsigned high = block->high[g / 4];
        const unsigned index = block->q[g] | (high >> g % 4 * 3 & 7) << 8;
        decode_shifted(tsr_quant_grid_iq1[index], high >> 15, odd_scale(block->d, high >> 12 & 7, 0.125f),
                       dst + 8 * g);
    }
}
TSR_QUANT_DECODER(iq1_s, TSR_QUANT_SUPER_BLOCK)

static void decode_iq1_m(const tsr_block_iq1_m *block, float *dst)
{
    for (int g = 0; g < 32; g++) {
        const unsigned high = block->high[g / 2] >> g % 2 * 4 & 15, s = (unsigned)g / 2;
        const unsigned index = block->q[g] | (high & 7) << 8;
        decode_shifted(tsr_quant_grid_iq1[index], high >> 3,
                       odd_scale(tsr_quant_iq1_m_d(block), block->scales[s / 4] >> s % 4 * 3 & 7, 0.125f),
                       dst + 8 * g);
    }
}
TSR_QUANT_DECODER(iq1_m, TSR_QUANT_SUPER_BLOCK)
