/* A pool of memory for needs that come and go: blocks in size classes, kept for whoever needs one next.
 *
 * Memory that work in a stream uses may be given back before that work has happened. Another stream then gets
 * the block only after a point marked in the first: because the point has passed, or because the other stream
 * is made to wait for it. The same stream gets it at once, and the host only when the point has passed.
 *
 *     tsr_pool_take(pool, bytes, stream, "checksums", &block);
 *     ... enqueue work on `stream` that uses block->data ...
 *     tsr_pool_give(pool, block, stream);
 *
 * Classes are four to each power of two, so a block is at most a quarter larger than what it was taken for.
 * A pool may be used by several threads. */
#ifndef TSR_CORE_POOL_H
#define TSR_CORE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

/* In place of a stream: the host itself. */
enum { TSR_POOL_HOST = -1 };

/* Where a pool's memory comes from, and the streams that use it. Called with the pool locked. */
typedef struct tsr_pool_source {
    tsr_status (*get)(void *user, size_t bytes, const char *what, void **data_out);
    void (*put)(void *user, void *data, size_t bytes); /* fine while work that uses it is under way */

    /* Points in streams; all NULL where whoever gives a block back has finished with it. mark: all that is on
     * the stream now lies before the point; *point is one of an earlier mark, to be used again, or NULL.
     * wait: what is put on the stream from now on comes after the point; TSR_POOL_HOST: return after it. */
    tsr_status (*mark)(void *user, int stream, void **point);
    bool (*passed)(void *user, void *point);
    tsr_status (*wait)(void *user, int stream, void *point);
    void (*drop)(void *user, void *point);
} tsr_pool_source;

typedef struct tsr_pool_block {
    struct tsr_pool_block *next;
    void *data;       /* as aligned as the source aligns */
    size_t bytes;     /* of its class */
    const char *what; /* that it is taken for, a literal; NULL: it is free */
    void *point;      /* after its last use; NULL: there was none yet */
    int stream;       /* that the point is in */
    bool pending;     /* the point was not seen to have passed */
} tsr_pool_block;

typedef struct tsr_pool_stats {
    size_t taken, taken_peak; /* bytes in blocks that are in use */
    size_t held, held_peak;   /* bytes that the source gave, the free ones included */
    int n_blocks, n_taken;
} tsr_pool_stats;

typedef struct tsr_pool tsr_pool;

/* `name` begins messages ("device cuda0: scratch memory"); it and `source` are borrowed. most_bytes: what the
 * pool holds at most; SIZE_MAX: no limit. */
tsr_status tsr_pool_create(const tsr_pool_source *source, void *user, const char *name, size_t most_bytes,
                           tsr_pool **pool_out);

/* All blocks were given back. NULL is fine. */
void tsr_pool_destroy(tsr_pool *pool);

/* A block of at least `bytes` bytes, contents undefined, for work on `stream`. TSR_ERR_MEMORY names pool,
 * `what` and bytes; what is free is given up for it before. */
tsr_status tsr_pool_take(tsr_pool *pool, size_t bytes, int stream, const char *what,
                         tsr_pool_block **block_out);

/* What uses the block is on `stream` by now; TSR_POOL_HOST: nothing uses it any more. NULL is fine. */
void tsr_pool_give(tsr_pool *pool, tsr_pool_block *block, int stream);

/* Give free blocks back to the source, the largest first, until at most `kept` bytes are held free. */
void tsr_pool_trim(tsr_pool *pool, size_t kept);

tsr_pool_stats tsr_pool_stats_of(tsr_pool *pool);
void tsr_pool_reset_peaks(tsr_pool *pool);

/* What some block is taken for; NULL: none is. */
const char *tsr_pool_in_use(tsr_pool *pool);

/* The size of the class that serves `bytes` bytes; SIZE_MAX where there is none. */
size_t tsr_pool_class_bytes(size_t bytes);

#endif
