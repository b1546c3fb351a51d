/* The kernel sets that this build has; src/host/kernels.c chooses among them. */
#ifndef TSR_HOST_KERNELS_SETS_H
#define TSR_HOST_KERNELS_SETS_H

#include "host/kernels.h"

extern const tsr_kernel_set tsr_kernel_set_generic;
#ifdef TSR_HAVE_X86_KERNELS
extern const tsr_kernel_set tsr_kernel_set_avx2;
extern const tsr_kernel_set tsr_kernel_set_avx512;
extern const tsr_kernel_set tsr_kernel_set_avx512vnni;
#endif

#endif
