/* Collectives between host devices come to an end whatever happens: devices that do not come, an abort at any
 * moment, arguments that make no sense, and allocations that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "comm/local.h"
#include "core/event.h"
#include "core/quant/fixed.h"
#include "support/comm_group.h"
#include "support/failing_alloc.h"
#include "support/tiny_kernels.h"

enum { MS = 1000000 };

typedef struct small_buffers {
    int64_t partial[2][3][64]; /* [slot][rank] */
    float y[2][3][64];         /* [collective][rank] */
} small_buffers;

/* Three ranks, two all-reduces; returned compiled. */
static group *small_group(const int *n_threads, small_buffers *buffers)
{
    static const char *const names[] = {"blk.3.sum", "blk.4.sum"};
    group *g = group_open(3, n_threads);
    for (int k = 0; k < 2; k++) {
        void *partial[3] = {buffers->partial[k][0], buffers->partial[k][1], buffers->partial[k][2]};
        tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                    .participants = 7,
                                    .contributors = 7,
                                    .n = 64,
                                    .partial = partial,
                                    .name = names[k]};
        tsr_collective *collective = group_collective(g, &desc);
        for (int r = 0; r < 3; r++) {
            group_op(g, r,
                     (tsr_op){.kind = TSR_OP_MUL_MAT,
                              .name = "partial",
                              .mul_mat = {.k = 3 * k + r, .n_rows = 64, .y = partial[r]}});
            group_op(g, r,
                     (tsr_op){.kind = TSR_OP_ALL_REDUCE,
                              .name = names[k],
                              .all_reduce = {collective, NULL, buffers->y[k][r], 64}});
        }
    }
    group_compile(g);
    return g;
}

static void assert_small_sums(const small_buffers *buffers)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < 64; i++) {
            int64_t sum = 0;
            for (uint64_t r = 0; r < 3; r++)
                sum += tiny_partial_i64(3 * (uint64_t)k + r, i);
            for (int r = 0; r < 3; r++)
                assert_true(buffers->y[k][r][i] == tsr_fixed_to_f32(sum));
        }
}

static void a_device_that_does_not_come_is_named(void **state)
{
    (void)state;
    const int teams[][3] = {{1, 1, 1}, {2, 1, 3}};
    for (size_t t = 0; t < sizeof teams / sizeof *teams; t++) {
        static small_buffers buffers;
        group *g = small_group(teams[t], &buffers);
        for (int late = 0; late < 3; late++) {
            char name[16];
            snprintf(name, sizeof name, "device %d", late);
            group_run(g); /* works before, and again after each reset */
            group_launch(g, 7 & ~((uint64_t)1 << late));
            for (int r = 0; r < 3; r++) {
                tsr_device *device = g->devices[r];
                if (r == late)
                    continue;
                uint64_t start = tsr_clock_ns();
                assert_int_equal(device->ops->synchronize(device, 20 * MS), TSR_ERR_TIMEOUT);
                assert_true(tsr_clock_ns() - start < 2000 * (uint64_t)MS);
                assert_non_null(strstr(tsr_last_error(), "blk.3.sum"));
                assert_non_null(strstr(tsr_last_error(), device->name));
                assert_non_null(strstr(tsr_last_error(), name));
            }
            g->comm->ops->abort(g->comm);
            for (int r = 0; r < 3; r++) {
                tsr_device *device = g->devices[r];
                tsr_status status = device->ops->synchronize(device, 0);
                assert_int_equal(status, r == late ? TSR_OK : TSR_ERR_DEVICE);
                if (r != late)
                    assert_non_null(strstr(tsr_last_error(), name));
            }
            group_launch(g, 1); /* still aborted: ends at once */
            assert_int_equal(g->devices[0]->ops->synchronize(g->devices[0], 0), TSR_ERR_DEVICE);
            g->comm->ops->reset(g->comm);
        }
        group_run(g);
        assert_small_sums(&buffers);
        group_close(g);
    }
}

static void a_receiver_names_its_sender(void **state)
{
    (void)state;
    static float staging[16], x[16], y[16];
    void *buffers[2] = {staging, NULL};
    group *g = group_open(2, NULL);
    tsr_collective_desc desc = {.kind = TSR_OP_SEND,
                                .participants = 3,
                                .contributors = 1,
                                .n = 16,
                                .partial = buffers,
                                .name = "hidden"};
    tsr_collective *collective = group_collective(g, &desc);
    group_op(g, 0, (tsr_op){.kind = TSR_OP_SEND, .name = "send", .send = {collective, x, 16}});
    group_op(g, 1, (tsr_op){.kind = TSR_OP_RECV, .name = "recv", .recv = {collective, y, 16}});
    group_compile(g);
    group_run(g);
    group_launch(g, 2);
    assert_int_equal(g->devices[1]->ops->synchronize(g->devices[1], 20 * MS), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "device 0"));
    group_launch(g, 1); /* it comes after all */
    group_synchronize(g);
    group_launch(g, 1); /* one may be handed over ahead of the receiver, the next has to wait */
    assert_int_equal(g->devices[0]->ops->synchronize(g->devices[0], 0), TSR_OK);
    group_launch(g, 1);
    assert_int_equal(g->devices[0]->ops->synchronize(g->devices[0], 20 * MS), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "device 1"));
    g->comm->ops->abort(g->comm);
    assert_int_equal(g->devices[0]->ops->synchronize(g->devices[0], 0), TSR_ERR_DEVICE);
    g->comm->ops->reset(g->comm);
    group_run(g);
    group_close(g);
}

/* Abort at a random moment of a running program, many times: everybody ends, and the next run is right. */
static void an_abort_at_any_moment_ends_the_run(void **state)
{
    (void)state;
    const int teams[][3] = {{1, 1, 1}, {2, 1, 3}};
    for (size_t t = 0; t < sizeof teams / sizeof *teams; t++) {
        static small_buffers buffers;
        group *g = small_group(teams[t], &buffers);
        for (int run = 0; run < 300; run++) {
            for (int i = 0; i < 4; i++)
                group_launch(g, 7);
            for (volatile int spin = 0; spin < run * 37 % 5000; spin++)
                continue;
            g->comm->ops->abort(g->comm);
            for (int r = 0; r < 3; r++) {
                tsr_status status = g->devices[r]->ops->synchronize(g->devices[r], 0);
                assert_true(status == TSR_OK || status == TSR_ERR_DEVICE);
            }
            g->comm->ops->reset(g->comm);
            memset(&buffers, 0, sizeof buffers);
            group_run(g);
            assert_small_sums(&buffers);
        }
        group_close(g);
    }
}

static void nonsense_is_refused_with_the_collectives_name(void **state)
{
    (void)state;
    static int64_t buffer[8];
    void *both[2] = {buffer, buffer}, *one[2] = {buffer, NULL};
    const int64_t begin[3] = {0, 4, 8};
    const tsr_collective_desc bad[] = {
        {.kind = TSR_OP_ADD, .participants = 3, .contributors = 3, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 0, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 7, .contributors = 3, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 1, .contributors = 3, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 3, .contributors = 0, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 3, .contributors = 3, .n = 8, .partial = one},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 3, .contributors = 3, .n = 8, .partial = NULL},
        {.kind = TSR_OP_ALL_REDUCE, .participants = 3, .contributors = 3, .n = -1, .partial = both},
        {.kind = TSR_OP_SEND, .participants = 3, .contributors = 3, .n = 8, .partial = both},
        {.kind = TSR_OP_ALL_GATHER, .participants = 3, .n = 8, .n_rows = 1, .partial = both},
        {.kind = TSR_OP_ALL_GATHER, .participants = 3, .n = 8, .n_rows = 1, .begin = begin, .partial = one},
        {.kind = TSR_OP_ALL_GATHER, .participants = 1, .n = 8, .n_rows = 1, .begin = begin, .partial = both},
    };
    tsr_comm *comm = NULL;
    assert_int_equal(tsr_comm_local_create(0, &comm), TSR_ERR_INVALID);
    assert_int_equal(tsr_comm_local_create(65, &comm), TSR_ERR_INVALID);
    assert_null(comm);
    assert_int_equal(tsr_comm_local_create(2, &comm), TSR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tsr_collective_desc desc = bad[i];
        tsr_collective *collective = NULL;
        desc.name = "blk.9.sum";
        assert_int_equal(comm->ops->collective_create(comm, &desc, &collective), TSR_ERR_INVALID);
        assert_non_null(strstr(tsr_last_error(), "blk.9.sum"));
        assert_null(collective);
    }
    comm->ops->collective_destroy(comm, NULL);
    tsr_comm_destroy(comm);
    tsr_comm_destroy(NULL);
}

static tsr_status make_collectives(void)
{
    static int64_t buffer[8];
    void *partial[2] = {buffer, buffer};
    const int64_t begin[3] = {0, 4, 8};
    tsr_status status = TSR_OK;
    tsr_comm *comm = NULL;
    tsr_collective *sum = NULL, *whole = NULL;
    tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                .participants = 3,
                                .contributors = 3,
                                .n = 8,
                                .partial = partial,
                                .name = "sum"};

    TSR_TRY(tsr_comm_local_create(2, &comm));
    TSR_TRY(comm->ops->collective_create(comm, &desc, &sum));
    desc.kind = TSR_OP_ALL_GATHER;
    desc.n_rows = 1;
    desc.begin = begin;
    TSR_TRY(comm->ops->collective_create(comm, &desc, &whole));
out:
    if (comm) {
        comm->ops->collective_destroy(comm, sum); /* the older first */
        comm->ops->collective_destroy(comm, whole);
    }
    tsr_comm_destroy(comm);
    return status;
}

static void each_allocation_can_fail(void **state)
{
    (void)state;
    bool done = false;
    int n = 1;
    for (; !done; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = make_collectives();
        done = !failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, done ? TSR_OK : TSR_ERR_MEMORY);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true(n > 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_does_not_come_is_named),
        cmocka_unit_test(a_receiver_names_its_sender),
        cmocka_unit_test(an_abort_at_any_moment_ends_the_run),
        cmocka_unit_test(nonsense_is_refused_with_the_collectives_name),
        cmocka_unit_test(each_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
