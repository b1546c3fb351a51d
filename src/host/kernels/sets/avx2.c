/* The kernels for x86-64 with AVX2, FMA and F16C (Haswell, Zen and later). */
#define TSR_ISA_AVX2
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_avx2 = TSR_KERNEL_SET("avx2", false);
