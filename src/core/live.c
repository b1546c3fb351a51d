/* See live.h. */
#include "core/live.h"

void tsr_live_add(tsr_live **list, tsr_live *live, const tsr_live_kind *kind)
{
    *live = (tsr_live){.kind = kind, .next = *list, .link = list};
    if (*list)
        (*list)->link = &live->next;
    *list = live;
}

void tsr_live_remove(tsr_live *live)
{
    if (!live->link)
        return;
    *live->link = live->next;
    if (live->next)
        live->next->link = live->link;
    live->link = NULL;
}
