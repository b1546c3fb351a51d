/* The kernels for any machine, with the compiler's baseline instructions. */
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_generic = TSR_KERNEL_SET("generic", false);
