/* The kernels for x86-64 with AVX-512 F, BW, VL, DQ and VNNI (Cascade Lake, Ice Lake, Zen 4 and later). */
#define TSR_ISA_AVX512
#define TSR_ISA_VNNI
#include "host/kernels/table.h"

const tsr_kernel_set tsr_kernel_set_avx512vnni = TSR_KERNEL_SET("avx512vnni");
