/* A type's codec over many blocks, made of its functions for one:
 *
 *     static void decode_TYPE(const tsr_block_TYPE *block, float *dst);
 *     static tsr_block_TYPE encode_TYPE(const float *src);
 *
 * Each block is copied, since a caller's pointer need not be aligned. */
#ifndef TSR_CORE_QUANT_QUANT_EACH_H
#define TSR_CORE_QUANT_QUANT_EACH_H

#include <string.h>

#include "core/quant/quant.h"

/* Define tsr_quant_decode_TYPE(), of blocks of n elements. */
#define TSR_QUANT_DECODER(type, n)                                                      \
    void tsr_quant_decode_##type(const void *src, float *dst, int64_t n_blocks)         \
    {                                                                                   \
        for (int64_t b = 0; b < n_blocks; b++) {                                        \
            tsr_block_##type block;                                                     \
            memcpy(&block, (const char *)src + (size_t)b * sizeof block, sizeof block); \
            decode_##type(&block, dst + b * (n));                                       \
        }                                                                               \
    }

/* Define tsr_quant_encode_TYPE(). */
#define TSR_QUANT_ENCODER(type, n)                                                \
    void tsr_quant_encode_##type(const float *src, void *dst, int64_t n_blocks)   \
    {                                                                             \
        for (int64_t b = 0; b < n_blocks; b++) {                                  \
            const tsr_block_##type block = encode_##type(src + b * (n));          \
            memcpy((char *)dst + (size_t)b * sizeof block, &block, sizeof block); \
        }                                                                         \
    }

#endif
