/* How many rows and tokens a tile has, by the registers of each instruction set. */
#ifndef TSR_HOST_KERNELS_QUANT_TILE_SIZE_H
#define TSR_HOST_KERNELS_QUANT_TILE_SIZE_H

#include "host/kernels/quant/x_blocks.h"
#include "host/kernels/vec/int_vec.h"

enum {
#if defined(TSR_ISA_AMX)
    QUANT_VECTORS = 2, /* of INT_LANES rows in a tile */
    QUANT_TOKENS = 16,
    QUANT_STEPS = X_BLOCK / 4, /* rows of B: four elements of each row of the matrix */
#elif defined(TSR_ISA_AVX512)
    QUANT_VECTORS = 2,
    QUANT_TOKENS = 6,          /* 2 x 6 integer and as many float sums of 32 registers */
    QUANT_STEPS = X_BLOCK / 2, /* pairs of elements */
#elif defined(TSR_ISA_AVX2)
    QUANT_VECTORS = 4,
    QUANT_TOKENS = 2, /* 4 x 2 integer sums of 16 registers; the float sums stay in memory */
    QUANT_STEPS = X_BLOCK / 2,
#elif defined(TSR_ISA_NEON)
    QUANT_VECTORS = 4,
    QUANT_TOKENS = 4,          /* 4 x 4 integer sums of 32 registers */
    QUANT_STEPS = X_BLOCK / 4, /* of four elements */
#endif
#if defined(TSR_ISA_INT_VEC)
    QUANT_ROWS = QUANT_VECTORS * INT_LANES
#else
    QUANT_ROWS = 4,
    QUANT_TOKENS = 4
#endif
};

#endif
