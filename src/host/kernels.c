/* Which kernel sets this build has, and which of them this machine can run. */
#include "host/kernels.h"

#include <stdio.h>
#include <string.h>
#ifdef TSR_HAVE_X86_KERNELS
#include <cpuid.h>
#endif

#include "core/status.h"
#include "host/kernels/sets.h"

#ifdef TSR_HAVE_X86_KERNELS
/* By hand, since clang's __builtin_cpu_supports did not know "f16c" before version 15. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* __builtin_cpu_supports also asks the operating system whether it saves the wide registers. */
static const char *lacking_for_avx2(void)
{
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? NULL : "the processor has no AVX2, FMA or F16C";
}

static const char *lacking_for_avx512(void)
{
    const char *lacking = lacking_for_avx2();
    const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return lacking || has ? lacking : "the processor has no AVX-512 F, BW, VL or DQ";
}

static const char *lacking_for_avx512vnni(void)
{
    const char *lacking = lacking_for_avx512();
    return lacking || __builtin_cpu_supports("avx512vnni") ? lacking : "the processor has no AVX-512 VNNI";
}
#endif

int tsr_kernel_levels(tsr_kernel_level levels[TSR_KERNEL_LEVELS])
{
    int n = 0;
#ifdef TSR_HAVE_X86_KERNELS
    levels[n++] = (tsr_kernel_level){&tsr_kernel_set_avx512vnni, lacking_for_avx512vnni()};
    levels[n++] = (tsr_kernel_level){&tsr_kernel_set_avx512, lacking_for_avx512()};
    levels[n++] = (tsr_kernel_level){&tsr_kernel_set_avx2, lacking_for_avx2()};
#endif
    levels[n++] = (tsr_kernel_level){&tsr_kernel_set_generic, NULL};
    return n;
}

const tsr_kernel_set *tsr_kernel_set_select(const char *isa)
{
    tsr_kernel_level levels[TSR_KERNEL_LEVELS];
    const int n = tsr_kernel_levels(levels);
    for (int i = 0; i < n; i++)
        if (!levels[i].lacking && (isa == NULL || strcmp(isa, levels[i].set->isa) == 0))
            return levels[i].set;
    return NULL;
}

tsr_status tsr_kernel_set_find(const char *isa, const tsr_kernel_set **set_out)
{
    tsr_kernel_level levels[TSR_KERNEL_LEVELS];
    const int n = tsr_kernel_levels(levels);
    const char *why = "this build does not know it";
    char here[128] = "";
    for (int i = 0, used = 0; i < n; i++) {
        if (isa && strcmp(isa, levels[i].set->isa) == 0)
            why = levels[i].lacking;
        if (levels[i].lacking)
            continue;
        if (!isa || !why) {
            *set_out = levels[i].set;
            return TSR_OK;
        }
        used +=
            snprintf(here + used, sizeof here - (size_t)used, "%s%s", used ? ", " : "", levels[i].set->isa);
    }
    return tsr_fail(TSR_ERR_UNSUPPORTED, "no kernels for the instruction set '%s': %s; this machine has %s",
                    isa, why, here);
}
