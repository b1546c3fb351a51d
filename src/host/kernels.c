/* Selection of a kernel set; see kernels.h. */
#include "host/kernels.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "host/cpu.h"
#include "host/kernels/sets/sets.h"

/* A level of this build; `lacking` as in cpu.h, NULL: it always runs. */
typedef struct level {
    const tsr_kernel_set *set;
    const char *(*lacking)(void);
} level;

#ifdef TSR_HAVE_AMX
/* A processor, an emulator or a hypervisor with other tiles would change results unnoticed; checking a small
 * product takes microseconds. */
static const char *lacking_for_amx(void)
{
    const char *lacking = tsr_cpu_lacking_for_amx();
    return lacking || tsr_kernel_amx_agrees() ? lacking : "its AMX tiles compute wrong sums";
}
#endif

/* Best first. */
static const level build_levels[] = {
#ifdef TSR_HAVE_AMX
    {&tsr_kernel_set_amx, lacking_for_amx},
#endif
#ifdef TSR_HAVE_AVX512VNNI
    {&tsr_kernel_set_avx512bf16, tsr_cpu_lacking_for_avx512bf16},
    {&tsr_kernel_set_avx512vnni, tsr_cpu_lacking_for_avx512vnni},
#endif
#ifdef TSR_HAVE_AVX512
    {&tsr_kernel_set_avx512, tsr_cpu_lacking_for_avx512},
#endif
#ifdef TSR_HAVE_AVXVNNI
    {&tsr_kernel_set_avxvnni, tsr_cpu_lacking_for_avxvnni},
#endif
#ifdef TSR_HAVE_AVX2
    {&tsr_kernel_set_avx2, tsr_cpu_lacking_for_avx2},
#endif
#ifdef TSR_HAVE_DOTPROD
    {&tsr_kernel_set_dotprod, tsr_cpu_lacking_for_dotprod},
#endif
#ifdef TSR_HAVE_NEON
    {&tsr_kernel_set_neon, NULL},
#endif
    {&tsr_kernel_set_generic, NULL},
};
enum { N_LEVELS = sizeof build_levels / sizeof *build_levels };
_Static_assert((int)N_LEVELS <= (int)TSR_KERNEL_LEVELS, "room for every level");

static const char *lacking_for(const level *l)
{
    return l->lacking ? l->lacking() : NULL;
}

int tsr_kernel_levels(tsr_kernel_level levels[TSR_KERNEL_LEVELS])
{
    for (int i = 0; i < N_LEVELS; i++)
        levels[i] = (tsr_kernel_level){build_levels[i].set, lacking_for(&build_levels[i])};
    return N_LEVELS;
}

/* Only the requested level is checked: tiles are not requested from Linux for other levels. */
const tsr_kernel_set *tsr_kernel_set_select(const char *isa)
{
    for (int i = 0; i < N_LEVELS; i++)
        if ((!isa || strcmp(isa, build_levels[i].set->isa) == 0) && !lacking_for(&build_levels[i]))
            return build_levels[i].set;
    return NULL;
}

tsr_status tsr_kernel_set_find(const char *isa, const tsr_kernel_set **set_out)
{
    const tsr_kernel_set *set = tsr_kernel_set_select(isa);
    const char *why = "this build has none";
    tsr_status status = TSR_ERR_INVALID;
    char here[128] = "";
    if (set) {
        *set_out = set;
        return TSR_OK;
    }
    for (int i = 0, used = 0; i < N_LEVELS; i++) {
        const char *name = build_levels[i].set->isa, *lacking = lacking_for(&build_levels[i]);
        if (strcmp(isa, name) == 0) {
            why = lacking;
            status = TSR_ERR_UNSUPPORTED;
        }
        if (!lacking)
            used += snprintf(here + used, sizeof here - (size_t)used, "%s%s", used ? ", " : "", name);
    }
    return tsr_fail(status, "no kernels for the instruction set '%s': %s; this machine runs %s", isa, why,
                    here);
}
