/* Inference: bounds on the offsets of unplaced items in a partial packing.
 *
 * In one section (a set of items that are all live at the same step) items are stacked without overlap, each
 * at or above its release, like jobs on one machine. Taking jobs in the order of their releases finishes
 * earliest, so this order gives a lower bound on the end of the section, gaps included. A section that ends
 * above the capacity is a dead end. The release of an item is its lowest free offset or, for a skipped item,
 * the lowest end of an item that can still be placed under it. */
#include "alloc/pack/search.h"
#include "core/mem.h"

/* The lowest end of an item that can be placed under a skipped item; INT64_MAX: there is none. */
static int64_t lowest_support(const tsr_pack_search *s, const int *list, int n, int item)
{
    int64_t end = s->offset[item] + s->size[item], lowest = INT64_MAX;
    for (int i = 0; i < n && s->offset[list[i]] < end; i++) {
        int other = list[i];
        if (other != item && !s->fixed[other] && s->release[other] < end &&
            tsr_pack_search_meet(s, item, other))
            lowest = TSR_MIN(lowest, s->release[other] + s->size[other]);
    }
    return lowest;
}

/* Set the releases of all items, and list the skipped items in s->moved by release. Returns the number of
 * skipped items, or TSR_PACK_NONE. */
static int set_releases(tsr_pack_search *s, const int *list, int n)
{
    int n_skipped = 0;
    for (int i = 0; i < n; i++)
        s->release[list[i]] = s->offset[list[i]];
    for (int i = 0; i < n; i++) {
        int item = list[i], at = n_skipped;
        if (!s->skipped[item])
            continue;
        int64_t release = lowest_support(s, list, n, item);
        if (release == INT64_MAX)
            return TSR_PACK_NONE;
        s->release[item] = release;
        for (; at > 0 && s->release[s->moved[at - 1]] > release; at--)
            s->moved[at] = s->moved[at - 1];
        s->moved[at] = item;
        n_skipped++;
    }
    return n_skipped;
}

/* Set s->schedule to the list, sorted by release. */
static void set_schedule(tsr_pack_search *s, const int *list, int n, int n_skipped)
{
    int out = 0, next = 0;
    for (int i = 0; i < n; i++) {
        if (s->skipped[list[i]])
            continue;
        while (next < n_skipped && s->release[s->moved[next]] < s->offset[list[i]])
            s->schedule[out++] = s->moved[next++];
        s->schedule[out++] = list[i];
    }
    while (next < n_skipped)
        s->schedule[out++] = s->moved[next++];
}

static void find_span(const tsr_pack_search *s, const int *list, int n, int *first, int *end)
{
    *first = s->n_sections;
    *end = 0;
    for (int i = 0; i < n; i++) {
        *first = TSR_MIN(*first, s->first[list[i]]);
        *end = TSR_MAX(*end, s->end[list[i]]);
    }
}

bool tsr_pack_search_infer(tsr_pack_search *s, const int *list, int n)
{
    int64_t *height = s->height, most = 0;
    int first, end, n_skipped = set_releases(s, list, n);

    if (n_skipped == TSR_PACK_NONE)
        return false;
    set_schedule(s, list, n, n_skipped);
    find_span(s, list, n, &first, &end);
    for (int t = first; t < end; t++)
        height[t] = 0;
    for (int i = 0; i < n; i++) {
        int item = s->schedule[i], item_end = s->end[item];
        int64_t release = s->release[item], size = s->size[item];
        for (int t = s->first[item]; t < item_end; t++)
            height[t] = TSR_MAX(height[t], release) + size;
    }
    for (int t = first; t < end; t++)
        most = TSR_MAX(most, height[t]);
    return most <= s->capacity;
}

/* -- choosing the next item -- */

/* An item can be decided on if no unplaced item that is live at the same time fits below it. */
static bool can_decide(const tsr_pack_search *s, const int *list, int n, int item)
{
    if (s->skipped[item] || s->fixed[item])
        return false;
    for (int i = 0; i < n && s->offset[list[i]] < s->offset[item]; i++)
        if (!s->fixed[list[i]] && s->offset[list[i]] + s->size[list[i]] <= s->offset[item] &&
            tsr_pack_search_meet(s, list[i], item))
            return false;
    return true;
}

/* The lowest item. One exists unless the component is a dead end: in every packing that continues this one,
 * the lowest item is not skipped, and no unplaced item ends below it. */
static int choose_lowest(const tsr_pack_search *s, const int *list, int n)
{
    int64_t lowest_end = INT64_MAX;
    for (int i = 0; i < n; i++)
        if (!s->fixed[list[i]])
            lowest_end = TSR_MIN(lowest_end, s->offset[list[i]] + s->size[list[i]]);
    for (int i = 0; i < n && s->offset[list[i]] < lowest_end; i++)
        if (!s->skipped[list[i]] && !s->fixed[list[i]])
            return list[i];
    return TSR_PACK_NONE;
}

/* The section in which the fewest items can be the lowest. A section may waste capacity - height bytes, so
 * its lowest item starts at most that far above the lowest release. */
static int narrowest_section(tsr_pack_search *s, const int *list, int n)
{
    int first, end, best = TSR_PACK_NONE;
    find_span(s, list, n, &first, &end);
    for (int t = first; t < end; t++) {
        s->latest[t] = INT64_MAX;
        s->n_lowest[t] = 0;
    }
    for (int i = 0; i < n; i++)
        for (int t = s->first[list[i]]; t < s->end[list[i]]; t++)
            s->latest[t] = TSR_MIN(s->latest[t], s->release[list[i]]);
    for (int t = first; t < end; t++)
        if (s->latest[t] < INT64_MAX)
            s->latest[t] += s->capacity - s->height[t];
    for (int i = 0; i < n; i++)
        for (int t = s->first[list[i]]; t < s->end[list[i]]; t++)
            s->n_lowest[t] += s->release[list[i]] <= s->latest[t];
    for (int t = first; t < end; t++)
        if (s->n_lowest[t] > 0 && (best == TSR_PACK_NONE || s->n_lowest[t] < s->n_lowest[best] ||
                                   (s->n_lowest[t] == s->n_lowest[best] && s->latest[t] < s->latest[best])))
            best = t;
    return best;
}

int tsr_pack_search_choose(tsr_pack_search *s, const int *list, int n, tsr_pack_choice choice)
{
    int section = narrowest_section(s, list, n);
    if (choice == TSR_PACK_BY_SECTION || s->n_lowest[section] == 1)
        for (int i = 0; i < n && s->offset[list[i]] <= s->latest[section]; i++)
            if (s->first[list[i]] <= section && section < s->end[list[i]] && can_decide(s, list, n, list[i]))
                return list[i];
    return choose_lowest(s, list, n);
}
