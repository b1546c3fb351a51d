/* How threads divide the pieces of an op. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "host/share.h"
#include "support/kernel_run.h"

enum { THREADS = 7, PIECES = 20000, OP = 3 };

static tsr_host_shares shares[THREADS];

static void clear(void)
{
    for (int t = 0; t < THREADS; t++)
        tsr_host_shares_clear(&shares[t]);
}

static int64_t next(int64_t n, int thread, int n_threads)
{
    return tsr_host_shares_next(shares, OP, n, thread, n_threads);
}

static void one_thread_takes_all_in_order(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        clear();
        for (int64_t i = 0; i < 10; i++)
            assert_int_equal(next(10, 0, 1), i);
        for (int i = 0; i < 3; i++)
            assert_int_equal(next(10, 0, 1), -1);
    }
}

static void who_is_done_takes_from_the_end_of_the_next_share(void **state)
{
    (void)state;
    static const int64_t first[] = {0, 1, 2, 3, 7, 6}, second[] = {4, 5};
    clear();
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(next(12, 0, 3), first[i]);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(next(12, 1, 3), second[i]);
    assert_int_equal(next(12, 0, 3), first[5]);
    assert_int_equal(next(12, 1, 3), 11); /* of the third, who has not come */
    assert_int_equal(next(12, 2, 3), 8);
}

static void ops_of_a_stage_are_apart(void **state)
{
    (void)state;
    clear();
    for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
        assert_int_equal(tsr_host_shares_next(shares, op, 1, 0, 1), 0);
    for (int op = 0; op < TSR_HOST_RUN_OPS; op++)
        assert_int_equal(tsr_host_shares_next(shares, op, 1, 0, 1), -1);
}

/* Any number of pieces and threads, taken in any order. */
static void every_piece_is_taken_once(void **state)
{
    (void)state;
    uint64_t random = 7;
    for (int round = 0; round < 500; round++) {
        const int n_threads = (int)random_int(&random, 1, THREADS);
        const int64_t n = random_int(&random, 0, 40);
        unsigned char taken[40] = {0};
        int n_done = 0;
        bool done[THREADS] = {0};
        clear();
        while (n_done < n_threads) {
            const int thread = (int)random_int(&random, 0, n_threads - 1);
            const int64_t piece = next(n, thread, n_threads);
            if (piece >= 0) {
                assert_true(piece < n);
                assert_int_equal(taken[piece]++, 0);
            } else {
                n_done += !done[thread];
                done[thread] = true;
            }
        }
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(taken[i], 1);
    }
}

static _Atomic int times[PIECES];

static void *take_all(void *argument)
{
    const int *thread = argument;
    for (int64_t piece; (piece = next(PIECES, *thread, THREADS)) >= 0;)
        atomic_fetch_add_explicit(&times[piece], 1, memory_order_relaxed);
    return NULL;
}

static void every_piece_is_taken_once_by_threads_at_once(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    int numbers[THREADS];
    clear();
    for (int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        assert_int_equal(pthread_create(&threads[t], NULL, take_all, &numbers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (int i = 0; i < PIECES; i++)
        assert_int_equal(times[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_takes_all_in_order),
        cmocka_unit_test(who_is_done_takes_from_the_end_of_the_next_share),
        cmocka_unit_test(ops_of_a_stage_are_apart),
        cmocka_unit_test(every_piece_is_taken_once),
        cmocka_unit_test(every_piece_is_taken_once_by_threads_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
