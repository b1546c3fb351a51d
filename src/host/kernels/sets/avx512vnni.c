/* The kernels for x86-64 with AVX-512 F, BW, VL, DQ and VNNI (Cascade Lake, Ice Lake, Zen 4 and later), and
 * those with BF16 in addition (Cooper Lake, Sapphire Rapids, Zen 4 and later), which needs a few more
 * instructions. */
#define TSR_ISA_AVX512
#define TSR_ISA_VNNI
#define TSR_ISA_PAIRS
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_avx512vnni = TSR_KERNEL_SET("avx512vnni", false);
const tsr_kernel_set tsr_kernel_set_avx512bf16 = TSR_KERNEL_SET("avx512bf16", true);
