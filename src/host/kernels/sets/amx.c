/* The kernels for x86-64 with AVX-512, VNNI and AMX tiles (Sapphire Rapids and later). */
#define TSR_ISA_AVX512
#define TSR_ISA_VNNI
#define TSR_ISA_AMX
#include "host/kernels/sets/amx_check.h"
#include "host/kernels/sets/table.h"

const tsr_kernel_set tsr_kernel_set_amx = TSR_KERNEL_SET("amx", false);

bool tsr_kernel_amx_agrees(void)
{
    return amx_check_all();
}
