#include "support/comm_group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/local.h"
#include "support/tiny_kernels.h"

group *group_open(int n, const int *n_threads)
{
    group *g = calloc(1, sizeof *g);
    int total = 0;
    g->n = n;
    for (int i = 0; i < n; i++)
        total += n_threads ? n_threads[i] : 1;
    for (int i = 0; i < n; i++)
        g->devices[i] = tiny_device(i, n_threads ? n_threads[i] : 1, total);
    assert_int_equal(tsr_comm_local_create(n, &g->comm), TSR_OK);
    return g;
}

tsr_collective *group_collective(group *g, const tsr_collective_desc *desc)
{
    tsr_collective *collective = NULL;
    assert_int_equal(g->comm->ops->collective_create(g->comm, desc, &collective), TSR_OK);
    g->collectives[g->n_collectives++] = collective;
    return collective;
}

void group_op(group *g, int rank, tsr_op op)
{
    assert_true(g->n_ops[rank] < MAX_OPS);
    g->ops[rank][g->n_ops[rank]++] = op;
}

void group_compile(group *g)
{
    for (int i = 0; i < g->n; i++)
        assert_int_equal(
            g->devices[i]->ops->program_create(g->devices[i], g->ops[i], g->n_ops[i], &g->programs[i]),
            TSR_OK);
}

void group_launch(group *g, uint64_t ranks)
{
    for (int i = 0; i < g->n; i++)
        if (ranks >> i & 1)
            assert_int_equal(g->devices[i]->ops->launch(g->devices[i], g->programs[i]), TSR_OK);
}

void group_synchronize(group *g)
{
    for (int i = 0; i < g->n; i++)
        assert_int_equal(g->devices[i]->ops->synchronize(g->devices[i], 0), TSR_OK);
}

void group_run(group *g)
{
    group_launch(g, UINT64_MAX);
    group_synchronize(g);
}

void group_close(group *g)
{
    for (int i = 0; i < g->n; i++)
        g->devices[i]->ops->program_destroy(g->devices[i], g->programs[i]);
    for (int i = 0; i < g->n_collectives; i++)
        g->comm->ops->collective_destroy(g->comm, g->collectives[i]);
    tsr_comm_destroy(g->comm);
    for (int i = 0; i < g->n; i++)
        tsr_device_destroy(g->devices[i]);
    free(g);
}

uint64_t all_of(int n)
{
    return n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}
