/* The kernels for x86-64 with AVX-512 F, BW, VL and DQ (Skylake-X, Zen 4 and later). */
#define TSR_ISA_AVX512
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_avx512 = TSR_KERNEL_SET("avx512", false);
