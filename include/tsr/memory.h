/* Who owns bytes on a device: the words of every memory report. */
#ifndef TSR_MEMORY_H
#define TSR_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

typedef enum tsr_memory_owner {
    TSR_MEMORY_WEIGHTS = 0, /* shards of weights, copied or viewed in a mapped file */
    TSR_MEMORY_KV = 1,      /* the KV region at its full size */
    TSR_MEMORY_ARENA = 2,   /* activations of compiled programs */
    TSR_MEMORY_COMM = 3,    /* workspace of the collectives */
    TSR_MEMORY_SCRATCH = 4, /* what kernels of a GPU work in besides the arena; shared by all its programs */
    TSR_MEMORY_OTHER = 5,   /* anything a caller allocates for itself */
    TSR_MEMORY_COUNT = 6
} tsr_memory_owner;

/* "weights", "kv", "arena", "comm", "scratch", "other"; never NULL. */
TSR_API const char *tsr_memory_owner_name(tsr_memory_owner owner);

/* Room for any byte count as text. */
#define TSR_BYTES_TEXT 32

/* A byte count as people read it, in powers of 1024: "31.3 GiB", "512 KiB", "17 B". Writes it to
 * text[TSR_BYTES_TEXT] and returns that. The other way round: tsr_bytes_parse(). */
TSR_API const char *tsr_bytes_text(uint64_t bytes, char *text);

TSR_END_DECLS
#endif
