/* The objects that exist on a runtime, as an intrusive list, so that leaks can be reported by name, and
 * not only as bytes of an owner, when the runtime closes.
 *
 *     tsr_track(&rt->tracked, &buffer->tracked, &buffer_kind);    (cannot fail: the entry is in the object)
 *     tsr_untrack(&buffer->tracked);                              (fine for one that was never added) */
#ifndef TSR_CORE_TRACK_H
#define TSR_CORE_TRACK_H

#include <stddef.h>

typedef struct tsr_tracked tsr_tracked;

typedef struct tsr_tracked_kind {
    const char *name; /* "buffer" */
    /* Write a name of the object for messages; at most `size` bytes with the final zero. NULL: unnamed. */
    void (*describe)(const tsr_tracked *tracked, char *text, size_t size);
    /* Bytes that the object itself has charged on a device. NULL: its bytes are charged by other objects. */
    size_t (*bytes)(const tsr_tracked *tracked, int device);
} tsr_tracked_kind;

struct tsr_tracked {
    const tsr_tracked_kind *kind;
    tsr_tracked *next, **link; /* link NULL: in no list */
};

static inline void tsr_track(tsr_tracked **list, tsr_tracked *tracked, const tsr_tracked_kind *kind)
{
    *tracked = (tsr_tracked){.kind = kind, .next = *list, .link = list};
    if (*list)
        (*list)->link = &tracked->next;
    *list = tracked;
}

static inline void tsr_untrack(tsr_tracked *tracked)
{
    if (!tracked->link)
        return;
    *tracked->link = tracked->next;
    if (tracked->next)
        tracked->next->link = tracked->link;
    tracked->link = NULL;
}

/* The object that an entry is part of. */
#define TSR_TRACKED_OBJECT(entry, type) ((const type *)((const char *)(entry)-offsetof(type, tracked)))

#endif
