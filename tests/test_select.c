/* The communicator that chooses: it takes the fastest for each size, shows what it measured, and does without
 * those that bring back wrong sums or none. Host devices stand for GPUs, and communicators that wrap the
 * local one for better and worse ways of connecting them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <tsr/runtime.h>

#include "comm/select.h"
#include "comm/local.h"
#include "core/mem.h"
#include "core/runtime.h"
#include "support/failing_alloc.h"

enum { N = 3 };

static const tsr_comm_budget tight = {.smaller_ns = UINT64_MAX}, unlimited = {UINT64_MAX, UINT64_MAX};

/* -- communicators with properties -- */

typedef struct odd_comm {
    tsr_comm base;
    tsr_comm *inner;
    int64_t slow_from; /* elements */
    long delay_us;     /* of those */
    bool forgets;      /* leaves a partial out */
    bool stalls;
    long make_us;       /* to make a collective */
    bool partial_only;  /* does not serve all devices */
    int64_t fails_from; /* elements; 0: never */
    tsr_status failure; /* of those */
    _Atomic bool aborted;
} odd_comm;

static void odd_destroy(tsr_comm *base)
{
    tsr_comm_destroy(((odd_comm *)base)->inner);
    free(base);
}

static tsr_status odd_create(tsr_comm *base, const tsr_collective_desc *desc, tsr_collective **collective_out)
{
    odd_comm *odd = (odd_comm *)base;
    tsr_collective_desc changed = *desc;
    const struct timespec pause = {.tv_nsec = odd->make_us * 1000};
    nanosleep(&pause, NULL);
    if (odd->fails_from && desc->n >= odd->fails_from)
        return tsr_fail(odd->failure, "no more of this");
    if (odd->forgets)
        changed.contributors &= changed.contributors - 1;
    tsr_status status = odd->inner->ops->collective_create(odd->inner, &changed, collective_out);
    if (status == TSR_OK)
        (*collective_out)->comm = base;
    return status;
}

static void odd_collective_destroy(tsr_comm *base, tsr_collective *collective)
{
    tsr_comm *inner = ((odd_comm *)base)->inner;
    inner->ops->collective_destroy(inner, collective);
}

static bool odd_serves(const tsr_comm *base, const tsr_collective_desc *desc)
{
    return !((const odd_comm *)base)->partial_only || __builtin_popcountll(desc->participants) < N;
}

static bool odd_run(tsr_comm *base, tsr_device *device, const tsr_op *op, int thread, int n_threads)
{
    odd_comm *odd = (odd_comm *)base;
    struct timespec pause = {.tv_nsec = odd->delay_us * 1000};
    if (odd->stalls && device->index == 1) {
        pause.tv_nsec = 1000000;
        while (!atomic_load(&odd->aborted))
            nanosleep(&pause, NULL);
        return false;
    }
    if (op->all_reduce.n >= odd->slow_from)
        nanosleep(&pause, NULL);
    return odd->inner->ops->run(odd->inner, device, op, thread, n_threads);
}

/* Host devices never call it; that it is there says that the sums must be tried. */
static tsr_status odd_enqueue(tsr_comm *base, tsr_device *device, const tsr_op *op, void *stream)
{
    (void)base, (void)device, (void)op, (void)stream;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "not here");
}

static void odd_abort(tsr_comm *base)
{
    odd_comm *odd = (odd_comm *)base;
    atomic_store(&odd->aborted, true);
    odd->inner->ops->abort(odd->inner);
}

static void odd_reset(tsr_comm *base)
{
    odd_comm *odd = (odd_comm *)base;
    atomic_store(&odd->aborted, false);
    odd->inner->ops->reset(odd->inner);
}

static bool odd_aborted(tsr_comm *base)
{
    return atomic_load(&((odd_comm *)base)->aborted);
}

static uint64_t odd_missing(tsr_comm *base, const tsr_collective *collective, int index)
{
    tsr_comm *inner = ((odd_comm *)base)->inner;
    return inner->ops->missing(inner, collective, index);
}

static struct tsr_comm_ops ops_named(const char *kind)
{
    return (struct tsr_comm_ops){.kind = kind,
                                 .destroy = odd_destroy,
                                 .collective_create = odd_create,
                                 .collective_destroy = odd_collective_destroy,
                                 .serves = odd_serves,
                                 .run = odd_run,
                                 .enqueue = odd_enqueue,
                                 .aborted = odd_aborted,
                                 .abort = odd_abort,
                                 .reset = odd_reset,
                                 .missing = odd_missing};
}

static tsr_comm *make_odd(const struct tsr_comm_ops *ops, odd_comm properties)
{
    odd_comm *odd = malloc(sizeof *odd);
    *odd = properties;
    odd->base = (tsr_comm){.ops = ops, .n_devices = N};
    assert_int_equal(tsr_comm_local_create(N, &odd->inner), TSR_OK);
    return &odd->base;
}

/* -- what is heard -- */

static char heard[2][512]; /* the last warning, the last other line */

static void hear(tsr_log_level level, const char *text, void *user)
{
    (void)user;
    snprintf(heard[level == TSR_LOG_WARN ? 0 : 1], sizeof heard[0], "%s", text);
}

static const tsr_logger logger = {hear, NULL, TSR_LOG_INFO};

static tsr_runtime *open_hosts(void)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = "host:3,threads=1";
    assert_int_equal(tsr_runtime_open(&config, &rt), TSR_OK);
    heard[0][0] = heard[1][0] = '\0';
    return rt;
}

static const char *kind_for(tsr_comm *choice, int64_t n, uint64_t participants)
{
    static int64_t buffer[4];
    void *partial[N] = {buffer, buffer, buffer};
    tsr_collective *made = NULL;
    const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                      .participants = participants,
                                      .contributors = participants,
                                      .n = n,
                                      .partial = partial,
                                      .name = "sum"};
    assert_int_equal(choice->ops->collective_create(choice, &desc, &made), TSR_OK);
    const char *kind = made->comm->ops->kind;
    assert_ptr_equal(tsr_comm_whole(made->comm), choice);
    choice->ops->collective_destroy(choice, made);
    return kind;
}

/* -- tests -- */

static void each_size_goes_to_the_fastest(void **state)
{
    (void)state;
    const struct tsr_comm_ops quick = ops_named("quick"), steady = ops_named("steady"),
                              last = ops_named("last");
    tsr_runtime *rt = open_hosts();
    tsr_comm *choice = NULL, *members[TSR_COMM_MAX_MEMBERS];
    tsr_comm *comms[] = {make_odd(&steady, (odd_comm){.delay_us = 10000}),
                         make_odd(&quick, (odd_comm){.slow_from = 4096, .delay_us = 150000}),
                         make_odd(&last, (odd_comm){.delay_us = 12000})};
    tsr_comm_row rows[TSR_COMM_MAX_ROWS];
    assert_int_equal(
        tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 3, unlimited, &logger, &choice),
        TSR_OK);
    int n = tsr_comm_select_rows(choice, rows);
    assert_true(n >= 4);
    for (int r = 0; r < n; r++) {
        bool small = rows[r].bytes / sizeof(int64_t) < 4096;
        assert_int_equal(strcmp(rows[r].kind, "quick") == 0, small);
        assert_true(rows[r].latency_ns > 0);
        assert_string_equal(kind_for(choice, (int64_t)(rows[r].bytes / sizeof(int64_t)), 7), rows[r].kind);
    }
    assert_string_equal(kind_for(choice, 1, 7), "quick");
    assert_string_equal(kind_for(choice, (int64_t)1 << 30, 7), rows[n - 1].kind);
    assert_string_equal(kind_for(choice, 100, 3), "quick"); /* some of the devices */
    assert_string_equal(heard[0], "");
    assert_non_null(strstr(heard[1], "collectives between 3 devices: quick up to 16 KiB, "));
    assert_int_equal(tsr_comm_select_members(choice, members), 3);
    assert_ptr_equal(members[0], comms[0]);
    tsr_comm_destroy(choice);
    tsr_runtime_close(rt);
}

static void wrong_sums_and_none_at_all_are_found_out(void **state)
{
    (void)state;
    const struct tsr_comm_ops wrong = ops_named("wrong"), stuck = ops_named("stuck"),
                              good = ops_named("good");
    for (int bad = 0; bad < 2; bad++) {
        tsr_runtime *rt = open_hosts();
        tsr_comm *choice = NULL;
        tsr_comm *comms[] = {bad ? make_odd(&stuck, (odd_comm){.stalls = true})
                                 : make_odd(&wrong, (odd_comm){.forgets = true}),
                             make_odd(&good, (odd_comm){.delay_us = 1})};
        assert_int_equal(
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
            TSR_OK);
        assert_non_null(strstr(heard[0], bad ? "stuck is not used" : "wrong is not used"));
        assert_non_null(strstr(heard[0], bad ? "did not" : "wrong sum"));
        assert_string_equal(kind_for(choice, 100, 7), "good");
        tsr_comm_destroy(choice);
        /* With nothing else there is no communicator. */
        tsr_comm *alone = make_odd(&wrong, (odd_comm){.forgets = true});
        assert_int_equal(
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), &alone, 1, tight, &logger, &choice),
            TSR_ERR_DEVICE);
        assert_non_null(strstr(tsr_last_error(), "wrong sum"));
        tsr_runtime_close(rt);
    }
}

/* When it is tried, and when it is measured. */
static void one_that_fails_is_left_out(void **state)
{
    (void)state;
    const struct tsr_comm_ops broken = ops_named("broken"), good = ops_named("good");
    for (int from = 1; from <= 16384; from += 16383) {
        const odd_comm properties = {.fails_from = from, .failure = TSR_ERR_DEVICE};
        tsr_runtime *rt = open_hosts();
        tsr_comm *choice = NULL;
        tsr_comm *comms[] = {make_odd(&broken, properties), make_odd(&good, (odd_comm){.delay_us = 2000})};
        assert_int_equal(
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
            TSR_OK);
        assert_non_null(strstr(heard[0], "broken is not used: no more of this; "));
        assert_non_null(strstr(heard[0], "--collectives"));
        assert_string_equal(kind_for(choice, 100, 7), "good");
        assert_string_equal(kind_for(choice, (int64_t)1 << 20, 7), "good");
        tsr_comm_destroy(choice);
        tsr_comm *alone = make_odd(&broken, (odd_comm){.fails_from = 1, .failure = TSR_ERR_DEVICE});
        assert_int_equal(
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), &alone, 1, tight, &logger, &choice),
            TSR_ERR_DEVICE);
        assert_string_equal(tsr_last_error(), "collectives: broken: no more of this");
        tsr_runtime_close(rt);
    }
}

static void a_lost_device_ends_the_opening_with_advice(void **state)
{
    (void)state;
    const struct tsr_comm_ops deadly = ops_named("deadly"), good = ops_named("good");
    const odd_comm properties = {.fails_from = 1, .failure = TSR_ERR_DEVICE_LOST};
    tsr_runtime *rt = open_hosts();
    tsr_comm *choice = NULL;
    tsr_comm *comms[] = {make_odd(&deadly, properties), make_odd(&good, (odd_comm){.delay_us = 1})};
    assert_int_equal(
        tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
        TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(tsr_last_error(), "'deadly': no more of this; "));
    assert_non_null(strstr(tsr_last_error(), "start again with --collectives staged"));
    tsr_runtime_close(rt);
}

/* Three are measured in any case; sizes between them follow them. */
static void sizes_beyond_the_budget_follow_their_neighbours(void **state)
{
    (void)state;
    const struct tsr_comm_ops quick = ops_named("quick"), steady = ops_named("steady");
    static const size_t measured[] = {4 << 10, 256 << 10, 4 << 20};
    tsr_runtime *rt = open_hosts();
    tsr_comm *choice = NULL;
    tsr_comm *comms[] = {make_odd(&quick, (odd_comm){.slow_from = 4096, .delay_us = 20000}),
                         make_odd(&steady, (odd_comm){.delay_us = 2000})};
    tsr_comm_row rows[TSR_COMM_MAX_ROWS];
    assert_int_equal(
        tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
        TSR_OK);
    int n = tsr_comm_select_rows(choice, rows), found = 0;
    for (int r = 0; r < n; r++)
        if (rows[r].latency_ns > 0)
            assert_int_equal(rows[r].bytes, measured[found++]);
    assert_int_equal(found, 3);
    assert_string_equal(kind_for(choice, 512, 7), "quick");
    assert_string_equal(kind_for(choice, 2048, 7), "quick"); /* 16 KiB */
    assert_string_equal(kind_for(choice, 8192, 7), "steady");
    assert_string_equal(kind_for(choice, 131072, 7), "steady");
    tsr_comm_destroy(choice);
    tsr_runtime_close(rt);
}

/* As the largest that was measured: not in shares, and the report says so. */
static void sizes_above_slow_ones_are_not_measured(void **state)
{
    (void)state;
    const struct tsr_comm_ops quick = ops_named("quick");
    struct tsr_comm_ops shares = ops_named("shares");
    static const struct {
        uint64_t smaller_ns;
        const char *kind; /* of large sums */
        const char *report;
    } cases[] = {{1, "quick", "quick; not measured beyond 4 KiB, since smaller sums took too long"},
                 {1000000000, "shares", "quick up to 16 KiB, shares above"}};
    shares.in_shares = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_runtime *rt = open_hosts();
        tsr_comm *choice = NULL;
        tsr_comm *comms[] = {
            make_odd(&quick, (odd_comm){.slow_from = 4096, .delay_us = 20000, .make_us = 20000}),
            make_odd(&shares, (odd_comm){.delay_us = 2000, .make_us = 20000})};
        const tsr_comm_budget budget = {.smaller_ns = cases[i].smaller_ns};
        tsr_comm_row rows[TSR_COMM_MAX_ROWS];
        assert_int_equal(
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, budget, &logger, &choice),
            TSR_OK);
        if (!strstr(heard[1], cases[i].report))
            fail_msg("'%s' lacks '%s'", heard[1], cases[i].report);
        const int n = tsr_comm_select_rows(choice, rows);
        assert_int_equal(rows[n - 1].bytes, i == 0 ? 4 << 10 : 4 << 20);
        assert_true(rows[n - 1].latency_ns > 0);
        assert_string_equal(kind_for(choice, 512, 7), "quick");
        assert_string_equal(kind_for(choice, 32768, 7), cases[i].kind);
        assert_string_equal(kind_for(choice, (int64_t)1 << 24, 7), cases[i].kind);
        tsr_comm_destroy(choice);
        tsr_runtime_close(rt);
    }
}

static void large_sizes_that_cannot_be_measured_go_in_shares(void **state)
{
    (void)state;
    const struct tsr_comm_ops whole = ops_named("whole");
    struct tsr_comm_ops shares = ops_named("shares");
    tsr_runtime *rt = open_hosts();
    tsr_comm *choice = NULL;
    shares.in_shares = true;
    tsr_comm *comms[] = {make_odd(&whole, (odd_comm){.fails_from = 8192, .failure = TSR_ERR_MEMORY}),
                         make_odd(&shares, (odd_comm){.delay_us = 5000})};
    assert_int_equal(
        tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
        TSR_OK);
    assert_string_equal(heard[0], "");
    ((odd_comm *)comms[0])->fails_from = 0;
    assert_string_equal(kind_for(choice, 512, 7), "whole");
    assert_string_equal(kind_for(choice, 2048, 7), "whole");
    assert_string_equal(kind_for(choice, 8192, 7), "shares");
    assert_string_equal(kind_for(choice, (int64_t)1 << 24, 7), "shares");
    tsr_comm_destroy(choice);
    tsr_runtime_close(rt);
}

static void what_serves_some_devices_is_used_for_those(void **state)
{
    (void)state;
    const struct tsr_comm_ops pairs = ops_named("pairs");
    tsr_runtime *rt = open_hosts();
    tsr_comm *choice = NULL;
    tsr_comm *comms[] = {make_odd(&pairs, (odd_comm){.partial_only = true}), NULL};
    tsr_comm_row rows[TSR_COMM_MAX_ROWS];
    assert_int_equal(tsr_comm_local_create(N, &comms[1]), TSR_OK);
    assert_int_equal(
        tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, &logger, &choice),
        TSR_OK);
    assert_int_equal(tsr_comm_select_rows(choice, rows), 1);
    assert_string_equal(rows[0].kind, "staged");
    assert_int_equal(rows[0].latency_ns, 0); /* nothing to measure it against */
    assert_string_equal(kind_for(choice, 100, 7), "staged");
    assert_string_equal(kind_for(choice, 100, 5), "pairs");
    tsr_comm_destroy(choice);
    tsr_runtime_close(rt);
}

static void each_allocation_can_fail(void **state)
{
    (void)state;
    const struct tsr_comm_ops one = ops_named("one"), two = ops_named("two");
    tsr_runtime *rt = open_hosts();
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        tsr_comm *choice = NULL;
        tsr_comm *comms[] = {make_odd(&one, (odd_comm){.delay_us = 1}),
                             make_odd(&two, (odd_comm){.delay_us = 1})};
        failing_alloc_set(n);
        tsr_status status =
            tsr_comm_select_create(rt->devices, N, tsr_device_set_all(N), comms, 2, tight, NULL, &choice);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_true(status == TSR_OK || status == TSR_ERR_MEMORY);
        if (status == TSR_OK)
            tsr_comm_destroy(choice); /* what cannot be measured for lack of memory is not */
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired)
            break;
    }
    tsr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_size_goes_to_the_fastest),
        cmocka_unit_test(wrong_sums_and_none_at_all_are_found_out),
        cmocka_unit_test(one_that_fails_is_left_out),
        cmocka_unit_test(a_lost_device_ends_the_opening_with_advice),
        cmocka_unit_test(sizes_beyond_the_budget_follow_their_neighbours),
        cmocka_unit_test(sizes_above_slow_ones_are_not_measured),
        cmocka_unit_test(large_sizes_that_cannot_be_measured_go_in_shares),
        cmocka_unit_test(what_serves_some_devices_is_used_for_those),
        cmocka_unit_test(each_allocation_can_fail),
    };
    return cmocka_run_group_tests_name("choosing a communicator", tests, NULL, NULL);
}
