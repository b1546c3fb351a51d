/* A pool of temporary memory: blocks in size classes, kept for reuse.
 *
 * A block may be returned before the work in a stream that uses it has run. Another stream then gets the
 * block only after a point marked in the first stream: either the point has passed, or the other stream
 * waits for it. The same stream gets the block immediately, and the host only when the point has passed.
 *
 *     tsr_pool_take(pool, bytes, stream, "checksums", &block);
 *     ... enqueue work on `stream` that uses block->data ...
 *     tsr_pool_give(pool, block, stream);
 *
 * Classes are four to each power of two, so a block is at most a quarter larger than the requested size. A
 * pool may be used by several threads. */
#ifndef TSR_CORE_POOL_H
#define TSR_CORE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

/* The host itself, in place of a stream. */
enum { TSR_POOL_HOST = -1 };

/* Source of a pool's memory, and the streams that use it. Called with the pool locked. */
typedef struct tsr_pool_source {
    tsr_status (*get)(void *user, size_t bytes, const char *what, void **data_out);
    void (*put)(void *user, void *data, size_t bytes); /* allowed while work in flight uses it */

    /* Points in streams; all NULL where a block is returned only after its last use. mark: everything
     * enqueued on the stream so far comes before the point; *point is a previous mark's point to be
     * reused, or NULL. wait: work enqueued on the stream from now on comes after the point; TSR_POOL_HOST:
     * return after it. */
    tsr_status (*mark)(void *user, int stream, void **point);
    bool (*passed)(void *user, void *point);
    tsr_status (*wait)(void *user, int stream, void *point);
    void (*drop)(void *user, void *point);
} tsr_pool_source;

typedef struct tsr_pool_block {
    struct tsr_pool_block *next;
    void *data;       /* aligned as the source aligns */
    size_t bytes;     /* size of its class */
    const char *what; /* its use, a literal; NULL: free */
    void *point;      /* after its last use; NULL: not used yet */
    int stream;       /* of the point */
    bool pending;     /* the point was not observed to have passed */
} tsr_pool_block;

typedef struct tsr_pool_stats {
    size_t taken, taken_peak; /* bytes in blocks that are in use */
    size_t held, held_peak;   /* bytes obtained from the source, free blocks included */
    int n_blocks, n_taken;
} tsr_pool_stats;

typedef struct tsr_pool tsr_pool;

/* `name` begins messages ("device cuda0: scratch memory"); it and `source` are borrowed. most_bytes: limit
 * of the pool's size; SIZE_MAX: no limit. */
tsr_status tsr_pool_create(const tsr_pool_source *source, void *user, const char *name, size_t most_bytes,
                           tsr_pool **pool_out);

/* All blocks must have been returned. NULL is fine. */
void tsr_pool_destroy(tsr_pool *pool);

/* A block of at least `bytes` bytes, contents undefined, for work on `stream`. Free blocks are released
 * before TSR_ERR_MEMORY, which names pool, `what` and bytes. */
tsr_status tsr_pool_take(tsr_pool *pool, size_t bytes, int stream, const char *what,
                         tsr_pool_block **block_out);

/* All work that uses the block is enqueued on `stream`; TSR_POOL_HOST: no work uses it any more. NULL is
 * fine. */
void tsr_pool_give(tsr_pool *pool, tsr_pool_block *block, int stream);

/* Release free blocks to the source, the largest first, until at most `kept` bytes are held free. */
void tsr_pool_trim(tsr_pool *pool, size_t kept);

tsr_pool_stats tsr_pool_stats_of(tsr_pool *pool);
void tsr_pool_reset_peaks(tsr_pool *pool);

/* The use of some block in use; NULL: all are free. */
const char *tsr_pool_in_use(tsr_pool *pool);

/* The size of the class that serves `bytes` bytes; SIZE_MAX where there is none. */
size_t tsr_pool_class_bytes(size_t bytes);

#endif
