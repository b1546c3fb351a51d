/* The kernels of the level "amx" with tiles in plain C: all that runs on a processor with tiles, but for the
 * tile instructions themselves. */
#include "support/amx_emulated.h"

#ifdef TSR_TEST_AMX
#undef NDEBUG /* tiles are checked against their shapes */
#define TSR_ISA_AVX512
#define TSR_ISA_VNNI
#define TSR_ISA_AMX
#define TSR_AMX_EMULATED
#include "host/kernels/sets/amx_check.h"
#include "host/kernels/sets/table.h"

static const tsr_kernel_set set = TSR_KERNEL_SET("amx, emulated", false);

const tsr_kernel_set *amx_emulated(void)
{
    return tsr_kernel_set_select("avx512vnni") ? &set : NULL;
}

bool amx_emulated_agrees(void)
{
    return amx_check_all();
}
#else

const tsr_kernel_set *amx_emulated(void)
{
    return NULL;
}

bool amx_emulated_agrees(void)
{
    return false;
}
#endif
