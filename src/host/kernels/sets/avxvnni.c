/* The kernels for x86-64 with AVX2 and AVX-VNNI (Alder Lake and later, Zen 5 and later): AVX2's vectors, and
 * one instruction to add up products of integers where AVX2 takes two or three. */
#define TSR_ISA_AVX2
#define TSR_ISA_VNNI
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_avxvnni = TSR_KERNEL_SET("avxvnni", false);
