/* The kernels for AArch64 with the dot product instructions of Armv8.2 (Cortex-A76, Neoverse N1, Apple M1 and
 * later): NEON's kernels, and one instruction that adds up four products of bytes. */
#define TSR_ISA_NEON
#define TSR_ISA_DOTPROD
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_dotprod = TSR_KERNEL_SET("dotprod", false);
