/* What exists on a runtime: a list through the objects themselves, so that what somebody forgot to destroy
 * can be told by name, and not only as bytes of some kind, when the runtime closes.
 *
 *     tsr_track(&rt->tracked, &buffer->tracked, &buffer_kind);      (cannot fail; the object's memory is the
 * entry's)
 *     tsr_untrack(&buffer->tracked);                      (fine for one that was never added) */
#ifndef TSR_CORE_TRACK_H
#define TSR_CORE_TRACK_H

#include <stddef.h>

typedef struct tsr_tracked tsr_tracked;

typedef struct tsr_tracked_kind {
    const char *name; /* "buffer" */
    /* A name for this one, for messages; at most `size` bytes with the final zero. NULL: they have none. */
    void (*describe)(const tsr_tracked *tracked, char *text, size_t size);
    /* Bytes that it holds itself on a device, as they were charged. NULL: others hold them for it. */
    size_t (*bytes)(const tsr_tracked *tracked, int device);
} tsr_tracked_kind;

struct tsr_tracked {
    const tsr_tracked_kind *kind;
    tsr_tracked *next, **link; /* link NULL: in no list */
};

void tsr_track(tsr_tracked **list, tsr_tracked *tracked, const tsr_tracked_kind *kind);
void tsr_untrack(tsr_tracked *tracked);

/* The object that an entry is part of. */
#define TSR_TRACKED_OBJECT(entry, type) ((const type *)((const char *)(entry)-offsetof(type, tracked)))

#endif
