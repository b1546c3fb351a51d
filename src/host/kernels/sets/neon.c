/* The kernels for AArch64: every such processor has NEON with a fused multiply-add and
 * conversions of halves. */
#define TSR_ISA_NEON
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_neon = TSR_KERNEL_SET("neon", false);
