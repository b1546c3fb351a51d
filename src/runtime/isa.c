/* The default kernels of host devices. TSR_ISA is read only here. */
#include "runtime/isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "host/kernels.h"

tsr_status tsr_isa_from_environment(const char **name_out)
{
    const char *name = getenv("TSR_ISA");
    const tsr_kernel_set *set;
    if (!name || !*name) {
        *name_out = NULL;
        return TSR_OK;
    }
    tsr_status status = tsr_kernel_set_find(name, &set);
    if (status != TSR_OK)
        return tsr_fail_in(status, "environment variable TSR_ISA");
    *name_out = name;
    return TSR_OK;
}

tsr_status tsr_isa_discover(tsr_isa_list *list_out)
{
    tsr_kernel_level levels[TSR_KERNEL_LEVELS];
    tsr_isa_list list = {.n_levels = tsr_kernel_levels(levels), .chosen = -1};
    const char *asked;
    if (!list_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_isa_discover: list_out must not be NULL");
    tsr_status status = tsr_isa_from_environment(&asked);
    if (status != TSR_OK)
        return status;
    list.by_environment = asked != NULL;
    for (int i = 0; i < list.n_levels; i++) {
        tsr_isa_level *level = &list.levels[i];
        const char *lacking = levels[i].lacking;
        snprintf(level->name, sizeof level->name, "%s", levels[i].set->isa);
        snprintf(level->lacking, sizeof level->lacking, "%s", lacking ? lacking : "");
        if (list.chosen < 0 && (asked ? strcmp(level->name, asked) == 0 : !lacking))
            list.chosen = i;
    }
    *list_out = list;
    return TSR_OK;
}
