/* See live.h. */
#include "core/live.h"

#include "core/runtime.h"

void tsr_live_add(tsr_runtime *rt, tsr_live *live, const tsr_live_kind *kind)
{
    *live = (tsr_live){.kind = kind, .next = rt->live, .link = &rt->live};
    if (rt->live)
        rt->live->link = &live->next;
    rt->live = live;
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
