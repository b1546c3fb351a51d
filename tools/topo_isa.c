/* The kernels of host devices; see topo_isa.h. */
#include "topo_isa.h"

#include <stdio.h>

void tool_print_isa(const tsr_isa_list *list)
{
    const char *separator = "; this machine runs ";
    printf("\nkernels of host devices: %s%s", list->levels[list->chosen].name,
           list->by_environment ? " (TSR_ISA)" : "");
    for (int i = 0; i < list->n_levels; i++)
        if (!*list->levels[i].lacking) {
            printf("%s%s", separator, list->levels[i].name);
            separator = ", ";
        }
    printf("\n");
    for (int i = 0; i < list->n_levels; i++)
        if (*list->levels[i].lacking)
            printf("  not %s: %s\n", list->levels[i].name, list->levels[i].lacking);
}

json_t *tool_json_isa(const tsr_isa_list *list)
{
    json_t *levels = json_array();
    for (int i = 0; i < list->n_levels; i++) {
        const tsr_isa_level *level = &list->levels[i];
        json_array_append_new(levels, json_pack("{s:s, s:s?}", "name", level->name, "lacking",
                                                *level->lacking ? level->lacking : NULL));
    }
    return json_pack("{s:s, s:b, s:o}", "chosen", list->levels[list->chosen].name, "by_environment",
                     list->by_environment, "levels", levels);
}
