/* The memory pool against a naive machine of streams: the owner of a block comes after all who had it before,
 * whatever the order in which work happens; each allocation fails once; a full pool says so; and threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "core/mem.h"
#include "core/pool.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/runner.h"

/* -- streams -- */

enum { N_STREAMS = 3, N_BLOCKS = 64, KIB = 1024 };

/* Work on a stream is numbered; `done` of `queued` have happened. after[s][t]: the number on t that all work
 * put on s from now on comes after. */
typedef struct machine {
    long queued[N_STREAMS], done[N_STREAMS], after[N_STREAMS][N_STREAMS];
    int n_live, n_points, fail_get, fail_mark, n_waits;
    size_t live_bytes, most_bytes;
} machine;

typedef struct point {
    int stream;
    long number;
    long after[N_STREAMS]; /* what the stream itself came after by then */
} point;

/* Work on a stream happens up to a number, after what it comes after. */
static void happen(machine *m, int stream, long number)
{
    for (int s = 0; s < N_STREAMS; s++)
        m->done[s] = m->done[s] > m->after[stream][s] ? m->done[s] : m->after[stream][s];
    m->done[stream] = m->done[stream] > number ? m->done[stream] : number;
}

static tsr_status get(void *user, size_t bytes, const char *what, void **data_out)
{
    machine *m = user;
    if (m->fail_get > 0 && --m->fail_get == 0)
        return tsr_fail(TSR_ERR_MEMORY, "%s: the machine has no %zu bytes", what, bytes);
    if (bytes > m->most_bytes - m->live_bytes)
        return tsr_fail(TSR_ERR_MEMORY, "%s: the machine is full", what);
    *data_out = malloc(bytes);
    assert_non_null(*data_out);
    m->n_live++;
    m->live_bytes += bytes;
    return TSR_OK;
}

static void put(void *user, void *data, size_t bytes)
{
    machine *m = user;
    for (int s = 0; s < N_STREAMS; s++)
        m->done[s] = m->queued[s]; /* as freeing memory does */
    m->n_live--;
    m->live_bytes -= bytes;
    free(data);
}

static tsr_status mark(void *user, int stream, void **where)
{
    machine *m = user;
    point *p = *where;
    if (m->fail_mark > 0 && --m->fail_mark == 0)
        return tsr_fail(TSR_ERR_DEVICE, "no mark");
    if (!p) {
        p = calloc(1, sizeof *p);
        assert_non_null(p);
        m->n_points++;
    }
    *p = (point){.stream = stream, .number = m->queued[stream]};
    memcpy(p->after, m->after[stream], sizeof p->after);
    *where = p;
    return TSR_OK;
}

static bool passed(void *user, void *where)
{
    const point *p = where;
    return ((machine *)user)->done[p->stream] >= p->number;
}

static tsr_status wait_for(void *user, int stream, void *where)
{
    machine *m = user;
    const point *p = where;
    m->n_waits++;
    if (stream == TSR_POOL_HOST) {
        happen(m, p->stream, p->number);
        return TSR_OK;
    }
    long *after = m->after[stream];
    after[p->stream] = after[p->stream] > p->number ? after[p->stream] : p->number;
    for (int s = 0; s < N_STREAMS; s++)
        after[s] = after[s] > p->after[s] ? after[s] : p->after[s];
    return TSR_OK;
}

static void drop(void *user, void *where)
{
    ((machine *)user)->n_points--;
    free(where);
}

static const tsr_pool_source source = {get, put, mark, passed, wait_for, drop};

/* -- against a naive model -- */

/* A stretch of memory: who used it last, as told by the test itself. */
typedef struct use {
    void *data;
    long number[N_STREAMS]; /* of the last work on each stream that uses it */
} use;

typedef struct pool_test {
    machine m;
    tsr_pool *pool;
    use uses[N_BLOCKS];
    int n_uses;
    tsr_pool_block *taken[N_BLOCKS];
    int streams[N_BLOCKS];
    size_t bytes[N_BLOCKS];
} pool_test;

static use *use_of(pool_test *t, const void *data)
{
    int i = 0;
    while (i < t->n_uses && t->uses[i].data != data)
        i++;
    assert_in_range(i, 0, N_BLOCKS - 1);
    if (i == t->n_uses)
        t->uses[t->n_uses++] = (use){.data = (void *)data};
    return &t->uses[i];
}

/* Work put on `stream` now (or done by the host now) comes after all that used this memory. */
static void check_order(pool_test *t, const use *u, int stream)
{
    for (int s = 0; s < N_STREAMS; s++) {
        bool ordered = u->number[s] <= t->m.done[s] || s == stream ||
                       (stream != TSR_POOL_HOST && u->number[s] <= t->m.after[stream][s]);
        if (!ordered)
            fail_msg("stream %d got memory that stream %d still uses", stream, s);
    }
}

static void take(pool_test *t, int slot, uint64_t *seed)
{
    int stream = (int)random_below(seed, N_STREAMS + 1) - 1;
    size_t bytes = 1 + random_below(seed, random_below(seed, 2) ? 200 * KIB : 9 * KIB);
    tsr_pool_stats before = tsr_pool_stats_of(t->pool);
    t->m.fail_get = random_below(seed, 8) == 0;
    tsr_status status = tsr_pool_take(t->pool, bytes, stream, "a test", &t->taken[slot]);
    t->m.fail_get = 0;
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_non_null(strstr(tsr_last_error(), "the pool: a test"));
        assert_int_equal(tsr_pool_stats_of(t->pool).taken, before.taken);
        t->taken[slot] = NULL;
        return;
    }
    assert_true(t->taken[slot]->bytes >= bytes);
    for (int i = 0; i < N_BLOCKS; i++)
        assert_true(i == slot || !t->taken[i] || t->taken[i]->data != t->taken[slot]->data);
    check_order(t, use_of(t, t->taken[slot]->data), stream);
    t->streams[slot] = stream;
    memset(t->taken[slot]->data, slot, bytes);
    if (stream != TSR_POOL_HOST)
        use_of(t, t->taken[slot]->data)->number[stream] = ++t->m.queued[stream];
}

static void give(pool_test *t, int slot, uint64_t *seed)
{
    tsr_pool_block *block = t->taken[slot];
    int stream = t->streams[slot];
    if (stream != TSR_POOL_HOST &&
        random_below(seed, 5) == 0) { /* who waits itself gives it back as the host */
        happen(&t->m, stream, t->m.queued[stream]);
        stream = TSR_POOL_HOST;
    }
    t->m.fail_mark = random_below(seed, 20) == 0;
    tsr_pool_give(t->pool, block, stream);
    t->m.fail_mark = 0;
    t->taken[slot] = NULL;
}

static void compare(pool_test *t, size_t *taken_peak, size_t *held_peak)
{
    tsr_pool_stats stats = tsr_pool_stats_of(t->pool);
    size_t taken = 0;
    int n = 0;
    for (int i = 0; i < N_BLOCKS; i++)
        if (t->taken[i]) {
            taken += t->taken[i]->bytes;
            n++;
        }
    *taken_peak = taken > *taken_peak ? taken : *taken_peak;
    *held_peak = t->m.live_bytes > *held_peak ? t->m.live_bytes : *held_peak;
    assert_int_equal(stats.taken, taken);
    assert_int_equal(stats.n_taken, n);
    assert_int_equal(stats.held, t->m.live_bytes);
    assert_int_equal(stats.n_blocks, t->m.n_live);
    assert_int_equal(stats.taken_peak, *taken_peak);
    assert_true(stats.held_peak >= stats.held);
    assert_true((tsr_pool_in_use(t->pool) != NULL) == (n > 0));
}

static void random_use_keeps_the_streams_order(void **state)
{
    (void)state;
    int n_waits = 0;
    for (uint64_t round = 1; round <= 20; round++) {
        uint64_t seed = round;
        pool_test t = {.m.most_bytes = (300 + 300 * (round % 4)) * KIB};
        size_t taken_peak = 0, held_peak = 0, most = round % 3 ? SIZE_MAX : 500 * KIB;
        runner_ok(tsr_pool_create(&source, &t.m, "the pool", most, &t.pool), "create");
        for (int step = 0; step < 2000; step++) {
            int slot = (int)random_below(&seed, 8), s = (int)random_below(&seed, N_STREAMS);
            if (random_below(&seed, 4) == 0 && t.m.done[s] < t.m.queued[s])
                happen(&t.m, s, t.m.done[s] + 1);
            if (random_below(&seed, 100) == 0)
                tsr_pool_trim(t.pool, random_below(&seed, 400 * KIB));
            if (t.taken[slot])
                give(&t, slot, &seed);
            else
                take(&t, slot, &seed);
            if (t.n_uses == N_BLOCKS) /* addresses come back, so old ones are forgotten once all is done */
                for (t.n_uses = 0, s = 0; s < N_STREAMS; s++)
                    t.m.done[s] = t.m.queued[s];
            compare(&t, &taken_peak, &held_peak);
        }
        for (int i = 0; i < N_BLOCKS; i++)
            if (t.taken[i])
                give(&t, i, &seed);
        tsr_pool_trim(t.pool, 0);
        assert_int_equal(t.m.n_live, 0);
        tsr_pool_destroy(t.pool);
        assert_int_equal(t.m.n_points, 0);
        n_waits += t.m.n_waits;
    }
    assert_true(n_waits > 0);
}

/* -- one thing each -- */

static tsr_pool_block *taken(tsr_pool *pool, size_t bytes, int stream)
{
    tsr_pool_block *block = NULL;
    runner_ok(tsr_pool_take(pool, bytes, stream, "a test", &block), "take");
    return block;
}

static void another_stream_gets_a_block_when_its_point_has_passed(void **state)
{
    (void)state;
    machine m = {.most_bytes = SIZE_MAX};
    tsr_pool *pool;
    runner_ok(tsr_pool_create(&source, &m, "the pool", SIZE_MAX, &pool), "create");
    tsr_pool_block *first = taken(pool, 5000, 0);
    m.queued[0] = 1;
    tsr_pool_give(pool, first, 0);
    tsr_pool_block *same = taken(pool, 5000, 0);
    assert_ptr_equal(same, first); /* the same stream: at once */
    tsr_pool_give(pool, same, 0);
    tsr_pool_block *other = taken(pool, 5000, 1);
    assert_ptr_not_equal(other, first);
    m.done[0] = 1;
    tsr_pool_block *late = taken(pool, 5000, 2);
    assert_ptr_equal(late, first);
    assert_int_equal(m.n_waits, 0);
    tsr_pool_give(pool, late, 2);
    tsr_pool_give(pool, other, TSR_POOL_HOST);
    tsr_pool_destroy(pool);
    assert_int_equal(m.n_live, 0);
}

/* Error paths give a block back unused; who had it before may still be using it. */
static void a_block_given_back_unused_is_still_in_use_by_the_one_before(void **state)
{
    (void)state;
    machine m = {.most_bytes = SIZE_MAX};
    tsr_pool *pool;
    runner_ok(tsr_pool_create(&source, &m, "the pool", SIZE_MAX, &pool), "create");
    tsr_pool_block *first = taken(pool, 5000, 0);
    m.queued[0] = 1;
    tsr_pool_give(pool, first, 0);
    tsr_pool_give(pool, taken(pool, 5000, 0), TSR_POOL_HOST);
    tsr_pool_block *host = taken(pool, 5000, TSR_POOL_HOST);
    assert_ptr_not_equal(host, first);
    tsr_pool_give(pool, host, TSR_POOL_HOST);
    tsr_pool_destroy(pool);
}

static void a_full_pool_makes_the_stream_wait_and_then_says_so(void **state)
{
    (void)state;
    machine m = {.most_bytes = SIZE_MAX};
    tsr_pool *pool;
    tsr_pool_block *block = NULL;
    runner_ok(tsr_pool_create(&source, &m, "device cuda0: scratch memory", 64 * KIB, &pool), "create");
    tsr_pool_block *a = taken(pool, 64 * KIB, 0);
    m.queued[0] = 1;
    assert_int_equal(tsr_pool_take(pool, 1, 1, "checksums", &block), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(),
                           "device cuda0: scratch memory: checksums needs 4096 bytes, 65536 of "
                           "at most 65536 are in use"));
    assert_null(block);
    tsr_pool_give(pool, a, 0);
    assert_ptr_equal(block = taken(pool, 64 * KIB, 1), a);
    assert_int_equal(m.n_waits, 1);
    assert_int_equal(m.after[1][0], 1);
    tsr_pool_give(pool, block, 1);
    block = taken(pool, 4 * KIB, 1); /* in place of the free one, which is too large for it */
    assert_int_equal(block->bytes, 4 * KIB);
    assert_int_equal(tsr_pool_stats_of(pool).held, 4 * KIB);
    tsr_pool_reset_peaks(pool);
    assert_int_equal(tsr_pool_stats_of(pool).held_peak, 4 * KIB);
    tsr_pool_give(pool, block, TSR_POOL_HOST);
    assert_int_equal(tsr_pool_take(pool, SIZE_MAX, 0, "all", &block), TSR_ERR_MEMORY);
    assert_int_equal(tsr_pool_take(pool, SIZE_MAX / 2 + 1, 0, "half", &block), TSR_ERR_MEMORY);
    tsr_pool_destroy(pool);
    tsr_pool_destroy(NULL);
}

static void classes_waste_a_quarter_at_most(void **state)
{
    (void)state;
    assert_int_equal(tsr_pool_class_bytes(0), 4096);
    assert_int_equal(tsr_pool_class_bytes(4097), 5120);
    assert_int_equal(tsr_pool_class_bytes(24 << 20), 24 << 20);
    for (size_t bytes = 4096, before = 0; bytes < 3000000; bytes += 37) {
        size_t class = tsr_pool_class_bytes(bytes);
        assert_true(class >= bytes && class >= before && class - bytes <= bytes / 4);
        assert_int_equal(tsr_pool_class_bytes(class), class);
        before = class;
    }
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    for (int n = 1;; n++) {
        machine m = {.most_bytes = SIZE_MAX};
        int64_t blocks = failing_alloc_live();
        tsr_pool *pool = NULL;
        tsr_pool_block *a = NULL, *b = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_pool_create(&source, &m, "the pool", SIZE_MAX, &pool);
        if (status == TSR_OK)
            status = tsr_pool_take(pool, 100, 0, "a", &a);
        if (status == TSR_OK)
            status = tsr_pool_take(pool, 100, 1, "b", &b);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_true(status == (fired ? TSR_ERR_MEMORY : TSR_OK) ||
                    (fired && a && b)); /* the second try may do */
        if (pool) {
            tsr_pool_give(pool, a, 0);
            tsr_pool_give(pool, b, 1);
            tsr_pool_destroy(pool);
        }
        assert_int_equal(m.n_live, 0);
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired)
            break;
    }
}

/* -- threads -- */

static tsr_status get_plain(void *user, size_t bytes, const char *what, void **data_out)
{
    (void)user, (void)what;
    *data_out = malloc(bytes);
    return *data_out ? TSR_OK : TSR_ERR_MEMORY;
}

static void put_plain(void *user, void *data, size_t bytes)
{
    (void)user, (void)bytes;
    free(data);
}

static void *use_blocks(void *argument)
{
    tsr_pool *pool = argument;
    uint64_t seed = (uintptr_t)&seed;
    for (int i = 0; i < 2000; i++) {
        size_t bytes = 1 + random_below(&seed, 20000);
        tsr_pool_block *block = NULL;
        if (tsr_pool_take(pool, bytes, TSR_POOL_HOST, "a thread", &block) != TSR_OK)
            return pool;
        memset(block->data, (int)i, bytes); /* a data race, if two had it */
        if (i % 100 == 0)
            tsr_pool_trim(pool, 10000);
        tsr_pool_give(pool, block, TSR_POOL_HOST);
    }
    return NULL;
}

static void threads_may_share_a_pool(void **state)
{
    (void)state;
    enum { N_THREADS = 4 };
    static const tsr_pool_source plain = {.get = get_plain, .put = put_plain};
    pthread_t threads[N_THREADS];
    tsr_pool *pool;
    runner_ok(tsr_pool_create(&plain, NULL, "the pool", SIZE_MAX, &pool), "create");
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_blocks, pool), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(tsr_pool_stats_of(pool).taken, 0);
    tsr_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_keeps_the_streams_order),
        cmocka_unit_test(another_stream_gets_a_block_when_its_point_has_passed),
        cmocka_unit_test(a_block_given_back_unused_is_still_in_use_by_the_one_before),
        cmocka_unit_test(a_full_pool_makes_the_stream_wait_and_then_says_so),
        cmocka_unit_test(classes_waste_a_quarter_at_most),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(threads_may_share_a_pool),
    };
    return cmocka_run_group_tests_name("memory pool", tests, NULL, NULL);
}
