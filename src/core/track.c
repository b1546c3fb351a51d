/* The list of tracked objects; see track.h. */
#include "core/track.h"

void tsr_track(tsr_tracked **list, tsr_tracked *tracked, const tsr_tracked_kind *kind)
{
    *tracked = (tsr_tracked){.kind = kind, .next = *list, .link = list};
    if (*list)
        (*list)->link = &tracked->next;
    *list = tracked;
}

void tsr_untrack(tsr_tracked *tracked)
{
    if (!tracked->link)
        return;
    *tracked->link = tracked->next;
    if (tracked->next)
        tracked->next->link = tracked->link;
    tracked->link = NULL;
}
