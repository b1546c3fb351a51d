/* The types that a matrix may have, for arrays of tests. */
#ifndef TSR_TESTS_WEIGHT_TYPES_H
#define TSR_TESTS_WEIGHT_TYPES_H

#include <tsr/types.h>

/* clang-format off */
/* The types with code books and of three values share kernels: slow tests take two of them. */
#define CODE_TYPES                                                                               \
    TSR_TYPE_IQ1_S, TSR_TYPE_IQ1_M, TSR_TYPE_IQ2_XXS, TSR_TYPE_IQ2_XS, TSR_TYPE_IQ2_S,           \
    TSR_TYPE_IQ3_XXS, TSR_TYPE_IQ3_S, TSR_TYPE_TQ1_0, TSR_TYPE_TQ2_0
#define TWO_CODE_TYPES TSR_TYPE_IQ1_M, TSR_TYPE_IQ3_S
/* Those that CUDA multiplies as floats, and those that have a table of values. */
#define FLOAT_TYPES                                                                              \
    TSR_TYPE_Q4_1, TSR_TYPE_Q5_0, TSR_TYPE_Q5_1, TSR_TYPE_Q2_K, TSR_TYPE_Q3_K, TSR_TYPE_IQ4_XS,  \
    TSR_TYPE_NVFP4
#define TABLE_TYPES TSR_TYPE_IQ4_NL, TSR_TYPE_MXFP4
#define RARE_TYPES FLOAT_TYPES, TABLE_TYPES
#define COMMON_TYPES                                                                             \
    TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,      \
    TSR_TYPE_Q5_K, TSR_TYPE_Q6_K
#define WEIGHT_TYPES COMMON_TYPES, RARE_TYPES, CODE_TYPES
/* clang-format on */

#endif
