/* Memory pools; see pool.h. The blocks are one list, which is searched linearly: a pool has a few dozen at
 * most. */
#include "core/pool.h"

#include <pthread.h>
#include <stdint.h>

#include "core/mem.h"

enum { SMALLEST_BYTES = 4096, STEPS = 4 }; /* a page; size classes per power of two */

struct tsr_pool {
    const tsr_pool_source *source;
    void *user;
    const char *name;
    size_t most_bytes;
    pthread_mutex_t lock; /* protects all members below */
    tsr_pool_block *blocks;
    tsr_pool_stats stats;
};

size_t tsr_pool_class_bytes(size_t bytes)
{
    size_t power = SMALLEST_BYTES;
    if (bytes <= power)
        return power;
    if (bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    while (power <= bytes / 2)
        power *= 2;
    return tsr_align_up(bytes, power / STEPS);
}

tsr_status tsr_pool_create(const tsr_pool_source *source, void *user, const char *name, size_t most_bytes,
                           tsr_pool **pool_out)
{
    tsr_status status = TSR_OK;
    tsr_pool *pool = NULL;
    TSR_TRY(TSR_NEW(&pool, "a memory pool"));
    pool->source = source;
    pool->user = user;
    pool->name = name;
    pool->most_bytes = most_bytes;
    pthread_mutex_init(&pool->lock, NULL);
    *pool_out = pool;
out:
    return status;
}

/* -- blocks -- */

static void release_block(tsr_pool *pool, tsr_pool_block *block)
{
    tsr_pool_block **link = &pool->blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    pool->source->put(pool->user, block->data, block->bytes);
    if (block->point)
        pool->source->drop(pool->user, block->point);
    pool->stats.held -= block->bytes;
    pool->stats.n_blocks--;
    tsr_mem_free(block);
}

static tsr_status add_block(tsr_pool *pool, size_t bytes, const char *what, tsr_pool_block **block_out)
{
    tsr_status status = TSR_OK;
    tsr_pool_block *block = NULL;
    TSR_TRY(TSR_NEW(&block, "a block of a memory pool"));
    TSR_TRY(pool->source->get(pool->user, bytes, what, &block->data));
    block->bytes = bytes;
    block->next = pool->blocks;
    pool->blocks = block;
    pool->stats.n_blocks++;
    pool->stats.held += bytes;
    pool->stats.held_peak = TSR_MAX(pool->stats.held_peak, pool->stats.held);
    *block_out = block;
    block = NULL;
out:
    tsr_mem_free(block);
    return status;
}

/* Whether work that begins on `stream` now runs after the last use of the block. */
static bool in_order(tsr_pool *pool, tsr_pool_block *block, int stream)
{
    if (block->pending && block->stream != stream && pool->source->passed(pool->user, block->point))
        block->pending = false;
    return !block->pending || block->stream == stream;
}

/* The smallest free block that is large enough and not mostly wasted. `any`: includes blocks that must be
 * waited for. */
static tsr_pool_block *find_block(tsr_pool *pool, size_t bytes, int stream, bool any)
{
    tsr_pool_block *best = NULL;
    for (tsr_pool_block *b = pool->blocks; b; b = b->next)
        if (!b->what && b->bytes >= bytes && b->bytes / 2 <= bytes && (!best || b->bytes < best->bytes) &&
            (any || in_order(pool, b, stream)))
            best = b;
    return best;
}

static tsr_pool_block *largest_free(const tsr_pool *pool)
{
    tsr_pool_block *largest = NULL;
    for (tsr_pool_block *b = pool->blocks; b; b = b->next)
        if (!b->what && (!largest || b->bytes > largest->bytes))
            largest = b;
    return largest;
}

static void trim(tsr_pool *pool, size_t kept)
{
    tsr_pool_block *block;
    while (pool->stats.held - pool->stats.taken > kept && (block = largest_free(pool)) != NULL)
        release_block(pool, block);
}

/* -- taking and giving -- */

static bool has_room(const tsr_pool *pool, size_t bytes)
{
    return bytes <= pool->most_bytes && pool->stats.held <= pool->most_bytes - bytes;
}

/* In this order: a block that is free in time; a new one; one to wait for; a new one in place of all free
 * blocks. */
static tsr_status find_or_add(tsr_pool *pool, size_t bytes, int stream, const char *what,
                              tsr_pool_block **block_out)
{
    tsr_status status = TSR_OK;
    tsr_pool_block *block = find_block(pool, bytes, stream, false);
    if (!block && has_room(pool, bytes)) {
        status = add_block(pool, bytes, what, &block);
        if (status != TSR_OK && status != TSR_ERR_MEMORY)
            return tsr_fail_in(status, "%s", pool->name);
    }
    if (!block && (block = find_block(pool, bytes, stream, true)) != NULL) {
        status = pool->source->wait(pool->user, stream, block->point);
        block->pending &= stream != TSR_POOL_HOST || status != TSR_OK; /* the next user may be on a third
                                                                        * stream */
        if (status != TSR_OK)
            return status;
        tsr_fail_clear();
    }
    if (!block) {
        trim(pool, 0);
        if (!has_room(pool, bytes))
            return tsr_fail(TSR_ERR_MEMORY, "%s: %s needs %zu bytes, %zu of at most %zu are in use",
                            pool->name, what, bytes, pool->stats.taken, pool->most_bytes);
        status = add_block(pool, bytes, what, &block);
        if (status != TSR_OK)
            return tsr_fail_in(status, "%s", pool->name);
        tsr_fail_clear();
    }
    *block_out = block;
    return TSR_OK;
}

tsr_status tsr_pool_take(tsr_pool *pool, size_t bytes, int stream, const char *what,
                         tsr_pool_block **block_out)
{
    tsr_pool_block *block = NULL;
    pthread_mutex_lock(&pool->lock);
    tsr_status status = find_or_add(pool, tsr_pool_class_bytes(bytes), stream, what, &block);
    if (status == TSR_OK) {
        block->what = what;
        pool->stats.n_taken++;
        pool->stats.taken += block->bytes;
        pool->stats.taken_peak = TSR_MAX(pool->stats.taken_peak, pool->stats.taken);
        *block_out = block;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* A block whose last use cannot be marked is released: the source waits for its users. */
void tsr_pool_give(tsr_pool *pool, tsr_pool_block *block, int stream)
{
    tsr_status status = TSR_OK;
    if (!block)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stats.n_taken--;
    pool->stats.taken -= block->bytes;
    block->what = NULL; /* work pending when the block was taken may still be pending */
    if (stream != TSR_POOL_HOST && pool->source->mark) {
        status = pool->source->mark(pool->user, stream, &block->point);
        block->stream = stream;
        block->pending = true;
    }
    if (status != TSR_OK)
        release_block(pool, block);
    pthread_mutex_unlock(&pool->lock);
}

void tsr_pool_trim(tsr_pool *pool, size_t kept)
{
    pthread_mutex_lock(&pool->lock);
    trim(pool, kept);
    pthread_mutex_unlock(&pool->lock);
}

void tsr_pool_destroy(tsr_pool *pool)
{
    if (!pool)
        return;
    while (pool->blocks)
        release_block(pool, pool->blocks);
    pthread_mutex_destroy(&pool->lock);
    tsr_mem_free(pool);
}

/* -- queries -- */

tsr_pool_stats tsr_pool_stats_of(tsr_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    tsr_pool_stats stats = pool->stats;
    pthread_mutex_unlock(&pool->lock);
    return stats;
}

void tsr_pool_reset_peaks(tsr_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stats.taken_peak = pool->stats.taken;
    pool->stats.held_peak = pool->stats.held;
    pthread_mutex_unlock(&pool->lock);
}

const char *tsr_pool_in_use(tsr_pool *pool)
{
    const char *what = NULL;
    pthread_mutex_lock(&pool->lock);
    for (const tsr_pool_block *b = pool->blocks; b && !what; b = b->next)
        what = b->what;
    pthread_mutex_unlock(&pool->lock);
    return what;
}
