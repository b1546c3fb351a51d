/* Which kernel set a machine can run. */
#include "host/kernels.h"

#include <string.h>
#ifdef TSR_HAVE_X86_KERNELS
#include <cpuid.h>
#endif

#include "host/kernels/sets.h"

#ifdef TSR_HAVE_X86_KERNELS
/* By hand, since clang's __builtin_cpu_supports did not know "f16c" before version 15. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* __builtin_cpu_supports also asks the operating system whether it saves the wide registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

const tsr_kernel_set *tsr_kernel_set_select(const char *isa)
{
    const tsr_kernel_set *sets[4]; /* best first */
    int n = 0;
#ifdef TSR_HAVE_X86_KERNELS
    if (has_avx512vnni())
        sets[n++] = &tsr_kernel_set_avx512vnni;
    if (has_avx512())
        sets[n++] = &tsr_kernel_set_avx512;
    if (has_avx2())
        sets[n++] = &tsr_kernel_set_avx2;
#endif
    sets[n++] = &tsr_kernel_set_generic;
    for (int i = 0; i < n; i++)
        if (isa == NULL || strcmp(isa, sets[i]->isa) == 0)
            return sets[i];
    return NULL;
}
