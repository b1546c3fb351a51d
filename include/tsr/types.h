/** @file
 * Element types of tensors and the layout of their blocks.
 *
 * The values are those of GGUF files, so a number read from a file is a tsr_type once tsr_type_known()
 * has accepted it. A row of ne[0] elements is stored as ne[0] / block_elems blocks of block_bytes each.
 *
 *     size_t row = tsr_type_row_bytes(TSR_TYPE_Q8_0, 4096);    (4096 / 32) * 34 bytes
 */
#ifndef TSR_TYPES_H
#define TSR_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** Element types; the values are those of GGUF files. */
typedef enum tsr_type {
    TSR_TYPE_F32 = 0,
    TSR_TYPE_F16 = 1,
    TSR_TYPE_Q4_0 = 2,
    TSR_TYPE_Q8_0 = 8,
    TSR_TYPE_Q4_K = 12,
    TSR_TYPE_Q5_K = 13,
    TSR_TYPE_Q6_K = 14,
    TSR_TYPE_I32 = 26,
    TSR_TYPE_I64 = 27,
    TSR_TYPE_BF16 = 30,
    TSR_TYPE_Q4_1 = 3,
    TSR_TYPE_Q5_0 = 6,
    TSR_TYPE_Q5_1 = 7,
    TSR_TYPE_Q2_K = 10,
    TSR_TYPE_Q3_K = 11,
    TSR_TYPE_IQ4_NL = 20,
    TSR_TYPE_IQ4_XS = 23,
    TSR_TYPE_MXFP4 = 39,
    TSR_TYPE_NVFP4 = 40,
    TSR_TYPE_IQ2_XXS = 16,
    TSR_TYPE_IQ2_XS = 17,
    TSR_TYPE_IQ3_XXS = 18,
    TSR_TYPE_IQ1_S = 19,
    TSR_TYPE_IQ3_S = 21,
    TSR_TYPE_IQ2_S = 22,
    TSR_TYPE_IQ1_M = 29,
    TSR_TYPE_TQ1_0 = 34,
    TSR_TYPE_TQ2_0 = 35
} tsr_type;

/** Whether this is a constant of tsr_type. */
TSR_API bool tsr_type_known(int type);

/** Name as GGUF tools print it ("Q4_K"), or "?" for an unknown type. */
TSR_API const char *tsr_type_name(tsr_type type);

/** The type with this name, in any letter case. TSR_ERR_NOT_FOUND: no such type. */
TSR_NODISCARD TSR_API tsr_status tsr_type_parse(const char *name, tsr_type *type_out);

/** Elements in one block (1 for plain types), 0 for an unknown type. */
TSR_API int64_t tsr_type_block_elems(tsr_type type);

/** Bytes in one block, 0 for an unknown type. */
TSR_API size_t tsr_type_block_bytes(tsr_type type);

/** Bytes of one row of n_elems elements; 0 if n_elems is not a multiple of the block or the product
 * overflows. */
TSR_API size_t tsr_type_row_bytes(tsr_type type, int64_t n_elems);

/** Decode n_elems elements from src (whole blocks, any alignment) into dst[n_elems]. Every kernel is tested
 * against this reference; it is not fast. Each value is the exact value, rounded once to f32.
 * TSR_ERR_UNSUPPORTED: an integer type. TSR_ERR_INVALID: n_elems is not a multiple of the block. */
TSR_NODISCARD TSR_API tsr_status tsr_type_to_f32(tsr_type type, const void *src, float *dst, int64_t n_elems);

/** Encode src[n_elems] into whole blocks at dst (any alignment): F32, F16, BF16 (round to nearest even), and
 * the quantized types without a search for the least error. A quantized block with an element that is not
 * finite, or too large for the block's F16 scale, becomes NaN in all elements; of NVFP4, which
 * has no NaN, zeros, and larger elements become its largest. Errors as tsr_type_to_f32(). */
TSR_NODISCARD TSR_API tsr_status tsr_type_from_f32(tsr_type type, const float *src, void *dst,
                                                   int64_t n_elems);

TSR_END_DECLS
#endif
