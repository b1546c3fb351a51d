/* What exists on a runtime: a list through the objects themselves, so that what somebody forgot to destroy
 * can be told by name, and not only as bytes of some kind, when the runtime closes.
 *
 *     tsr_live_add(&rt->live, &buffer->live, &buffer_kind);      (cannot fail; the object's memory is the
 * entry's)
 *     tsr_live_remove(&buffer->live);                      (fine for one that was never added) */
#ifndef TSR_CORE_LIVE_H
#define TSR_CORE_LIVE_H

#include <stddef.h>

typedef struct tsr_live tsr_live;

typedef struct tsr_live_kind {
    const char *name; /* "buffer" */
    /* A name for this one, for messages; at most `size` bytes with the final zero. NULL: they have none. */
    void (*describe)(const tsr_live *live, char *text, size_t size);
    /* Bytes that it holds itself on a device, as they were charged. NULL: others hold them for it. */
    size_t (*bytes)(const tsr_live *live, int device);
} tsr_live_kind;

struct tsr_live {
    const tsr_live_kind *kind;
    tsr_live *next, **link; /* link NULL: in no list */
};

void tsr_live_add(tsr_live **list, tsr_live *live, const tsr_live_kind *kind);
void tsr_live_remove(tsr_live *live);

/* The object that an entry is part of. */
#define TSR_LIVE_OBJECT(entry, type) ((const type *)((const char *)(entry)-offsetof(type, live)))

#endif
