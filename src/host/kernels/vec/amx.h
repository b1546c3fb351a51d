/* AMX tiles of bytes and of bfloat16: every tile instruction that the kernels use, and nothing else.
 *
 * A tile is up to 16 rows of up to 64 bytes. There are eight tiles, whose shapes one configuration sets
 * together. A product adds to a tile of 32-bit sums D[m][n], for 4-byte groups k of A's rows and of B's
 * columns,
 *
 *     D[m][n] += sum_k sum_{j < 4} A[m][4 k + j] * B[k][4 n + j]
 *
 * (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBSSD and others). Sums wrap.
 *
 * A product of bfloat16 adds to a tile of floats, for pairs k of A's rows and of B's columns (same volume,
 * TDPBF16PS),
 *
 *     D[m][n] += (sum_k A[m][2 k] * B[k][2 n]) + (sum_k A[m][2 k + 1] * B[k][2 n + 1])
 *
 * where each sum begins with zero and takes one fused multiply-add per k, in order; then the two additions.
 * Everything is rounded to nearest even. Numbers below 2^-126 in magnitude count as zero as inputs and become
 * zero as results, whatever MXCSR says. So a D[m][n] depends on its row and column alone, not on the tiles'
 * shapes, and is the same where A and B change places.
 *
 * With TSR_AMX_EMULATED the same operations are plain C, so that kernels can be tested on processors without
 * AMX. Tiles are named by numbers in the source text, since instructions encode them.
 *
 * A thread configures its tiles before it uses them and releases them afterwards: configured tiles make every
 * context switch more expensive. */
#ifndef TSR_HOST_KERNELS_VEC_AMX_H
#define TSR_HOST_KERNELS_VEC_AMX_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64 };

/* The operand of LDTILECFG, in palette 1. */
typedef struct amx_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16]; /* by tile; AMX_TILES of them */
    uint8_t rows[16];
} amx_config;
_Static_assert(sizeof(amx_config) == 64, "the instruction reads 64 bytes");

#if !defined(TSR_AMX_EMULATED)

/* A thread's tiles. */
typedef struct amx_tiles {
    amx_config config;
} amx_tiles;

/* Inline assembly: by the compilers' intrinsics (GCC 12) LDTILECFG reads 8 of the configuration's 64 bytes,
 * and a tile load or store touches no memory. */
#define AMX_CONFIGURE(tiles) __asm__ volatile("ldtilecfg %0" : : "m"((tiles)->config) : "memory")
#define AMX_RELEASE(tiles)   ((void)(tiles), amx_release())
#define AMX_ZERO(tiles, d)   __asm__ volatile("tilezero " AMX_NAME(d) : : : "memory")
/* Load or store rows `stride` bytes apart. */
#define AMX_LOAD(tiles, d, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), " AMX_NAME(d) : : "r"(p), "r"((ptrdiff_t)(stride)) : "memory")
#define AMX_STORE(tiles, a, p, step) \
    __asm__ volatile("tilestored " AMX_NAME(a) ", (%0,%1,1)" : : "r"(p), "r"((ptrdiff_t)(step)) : "memory")
/* A's bytes signed (S) or unsigned (U), then B's. */
#define AMX_DOT_SS(tiles, d, a, b)   AMX_DOT("tdpbssd", d, a, b)
#define AMX_DOT_SU(tiles, d, a, b)   AMX_DOT("tdpbsud", d, a, b)
#define AMX_DOT_US(tiles, d, a, b)   AMX_DOT("tdpbusd", d, a, b)
#define AMX_DOT_UU(tiles, d, a, b)   AMX_DOT("tdpbuud", d, a, b)
#define AMX_DOT_BF16(tiles, d, a, b) AMX_DOT("tdpbf16ps", d, a, b)
#define AMX_DOT(name, d, a, b) \
    __asm__ volatile(name " " AMX_NAME(b) ", " AMX_NAME(a) ", " AMX_NAME(d) : : : "memory")
#define AMX_NAME(tile)  AMX_NAME_(tile)
#define AMX_NAME_(tile) "%%tmm" #tile

static inline void amx_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

#else

#include <assert.h>
#include <math.h>

typedef struct amx_tiles {
    amx_config config;
    uint8_t bytes[AMX_TILES][AMX_ROWS][AMX_ROW_BYTES];
} amx_tiles;

#define AMX_CONFIGURE(tiles)           amx_configure(tiles)
#define AMX_RELEASE(tiles)             amx_release(tiles)
#define AMX_ZERO(tiles, d)             amx_zero(tiles, d)
#define AMX_LOAD(tiles, d, p, stride)  amx_load(tiles, d, p, stride)
#define AMX_STORE(tiles, a, p, stride) amx_store(tiles, a, p, stride)
#define AMX_DOT_SS(tiles, d, a, b)     amx_dot(tiles, d, a, b, 1, 1)
#define AMX_DOT_SU(tiles, d, a, b)     amx_dot(tiles, d, a, b, 1, 0)
#define AMX_DOT_US(tiles, d, a, b)     amx_dot(tiles, d, a, b, 0, 1)
#define AMX_DOT_UU(tiles, d, a, b)     amx_dot(tiles, d, a, b, 0, 0)
#define AMX_DOT_BF16(tiles, d, a, b)   amx_dot_bf16(tiles, d, a, b)

static inline void amx_configure(amx_tiles *tiles)
{
    assert(tiles->config.palette == 1 && tiles->config.start_row == 0);
    for (int t = 0; t < AMX_TILES; t++)
        assert(tiles->config.rows[t] <= AMX_ROWS && tiles->config.row_bytes[t] <= AMX_ROW_BYTES);
    memset(tiles->bytes, 0, sizeof tiles->bytes);
}

/* Sets all shapes to 0, so that using a tile before the next configuration fails an assertion. */
static inline void amx_release(amx_tiles *tiles)
{
    tiles->config = (amx_config){0};
}

static inline void amx_zero(amx_tiles *tiles, int d)
{
    assert(tiles->config.rows[d] > 0);
    memset(tiles->bytes[d], 0, sizeof tiles->bytes[d]);
}

static inline void amx_load(amx_tiles *tiles, int d, const void *p, size_t stride)
{
    amx_zero(tiles, d);
    for (size_t row = 0; row < tiles->config.rows[d]; row++)
        memcpy(tiles->bytes[d][row], (const uint8_t *)p + row * stride, tiles->config.row_bytes[d]);
}

static inline void amx_store(const amx_tiles *tiles, int a, void *p, size_t stride)
{
    assert(tiles->config.rows[a] > 0);
    for (size_t row = 0; row < tiles->config.rows[a]; row++)
        memcpy((uint8_t *)p + row * stride, tiles->bytes[a][row], tiles->config.row_bytes[a]);
}

static inline int32_t amx_byte(uint8_t byte, int is_signed)
{
    return is_signed ? (int8_t)byte : byte;
}

static inline void amx_assert_shapes(const amx_config *config, int d, int a, int b)
{
    assert(config->rows[d] > 0 && config->rows[d] == config->rows[a]);
    assert(config->row_bytes[d] == config->row_bytes[b] && config->row_bytes[a] == 4 * config->rows[b]);
    (void)config, (void)d, (void)a, (void)b;
}

static inline void amx_dot(amx_tiles *tiles, int d, int a, int b, int a_signed, int b_signed)
{
    const amx_config *config = &tiles->config;
    amx_assert_shapes(config, d, a, b);
    for (int m = 0; m < config->rows[d]; m++)
        for (int n = 0; n < config->row_bytes[d] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &tiles->bytes[d][m][4 * n], sizeof sum);
            for (int k = 0; k < config->rows[b]; k++)
                for (int j = 0; j < 4; j++)
                    sum += (uint32_t)(amx_byte(tiles->bytes[a][m][4 * k + j], a_signed) *
                                      amx_byte(tiles->bytes[b][k][4 * n + j], b_signed));
            memcpy(&tiles->bytes[d][m][4 * n], &sum, sizeof sum);
        }
}

static inline float amx_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* The first (0) or second (1) bfloat16 of a dword. */
static inline float amx_bf16(uint32_t pair, int second)
{
    const uint32_t bits = second ? pair & 0xffff0000 : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_flush(x);
}

/* Columns that a tile does not have are zeros. */
static inline void amx_dot_bf16(amx_tiles *tiles, int d, int a, int b)
{
    enum { WORDS = AMX_ROW_BYTES / 4 };
    const amx_config *config = &tiles->config;
    amx_assert_shapes(config, d, a, b);
    for (int m = 0; m < config->rows[d]; m++) {
        float even[WORDS] = {0}, odd[WORDS] = {0}, sums[WORDS];
        uint32_t x[WORDS], y[WORDS];
        memcpy(x, tiles->bytes[a][m], sizeof x);
        for (int k = 0; k < config->rows[b]; k++) {
            memcpy(y, tiles->bytes[b][k], sizeof y);
            for (int n = 0; n < WORDS; n++) {
                even[n] = amx_flush(fmaf(amx_bf16(x[k], 0), amx_bf16(y[n], 0), even[n]));
                odd[n] = amx_flush(fmaf(amx_bf16(x[k], 1), amx_bf16(y[n], 1), odd[n]));
            }
        }
        memcpy(sums, tiles->bytes[d][m], sizeof sums);
        for (int n = 0; n < WORDS; n++)
            sums[n] = amx_flush(amx_flush(sums[n]) + amx_flush(even[n] + odd[n]));
        memcpy(tiles->bytes[d][m], sums, config->row_bytes[d]);
    }
}

#endif
#endif
