/* The kernel sets; a build has those of its processor family. src/host/kernels.c chooses among them. */
#ifndef TSR_HOST_KERNELS_SETS_SETS_H
#define TSR_HOST_KERNELS_SETS_SETS_H

#include "host/kernel_set.h"

extern const tsr_kernel_set tsr_kernel_set_generic;
extern const tsr_kernel_set tsr_kernel_set_avx2;
extern const tsr_kernel_set tsr_kernel_set_avxvnni;
extern const tsr_kernel_set tsr_kernel_set_avx512;
extern const tsr_kernel_set tsr_kernel_set_avx512vnni;
extern const tsr_kernel_set tsr_kernel_set_avx512bf16;
extern const tsr_kernel_set tsr_kernel_set_amx;
extern const tsr_kernel_set tsr_kernel_set_neon;
extern const tsr_kernel_set tsr_kernel_set_dotprod;

/* Whether products by tiles pass amx_check.h. Call only where the processor has AMX and the thread may use
 * it. */
bool tsr_kernel_amx_agrees(void);

#endif
