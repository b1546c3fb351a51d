/* The all-gather over peer memory and over pinned memory: parts of different widths become one whole on every
 * device, also when it is run again. */
#include "cuda/nccl_run.h"

enum { RANKS = 3, ROWS = 7 };

static void check_form(tsr_peer_form form)
{
    static const int64_t begin[RANKS + 1] = {0, 5, 6, 40};
    const int64_t n = begin[RANKS];
    float values[40 * ROWS], *y[RANKS];
    void *partial[RANKS];
    tsr_device_set reach[RANKS];
    machine(RANKS, 5);
    group g = group_of(RANKS, false);
    ok(tsr_cuda_peers_test(g.devices, RANKS, NULL, reach));
    ok(tsr_comm_peer_create(g.devices, RANKS, reach, form, &g.comm));
    for (int d = 0; d < RANKS; d++) {
        const int64_t width = begin[d + 1] - begin[d];
        for (int64_t i = 0; i < width * ROWS; i++)
            values[i] = (float)(i / width * n + begin[d] + i % width);
        partial[d] = group_put(&g, d, values, (size_t)(width * ROWS) * sizeof(float));
        y[d] = group_put(&g, d, NULL, sizeof values);
    }
    const tsr_collective_desc desc = {.kind = TSR_OP_ALL_GATHER,
                                      .participants = all_of(RANKS),
                                      .contributors = all_of(RANKS),
                                      .n = n,
                                      .n_rows = ROWS,
                                      .begin = begin,
                                      .partial = partial,
                                      .name = "a whole"};
    tsr_collective *collective = group_collective(&g, &desc);
    for (int d = 0; d < RANKS; d++)
        group_op(&g, d, (tsr_op){.kind = TSR_OP_ALL_GATHER, .all_gather = {collective, y[d], n, ROWS}});
    group_compile(&g);
    ok(group_run(&g));
    ok(group_run(&g));
    for (int d = 0; d < RANKS; d++) {
        ok(tsr_device_download(g.devices[d], values, y[d], sizeof values));
        for (int i = 0; i < 40 * ROWS; i++)
            assert_true(values[i] == (float)i);
    }
    group_close(&g);
    nothing_is_left();
}

static void uneven_parts_become_whole(void **state)
{
    (void)state;
    for (tsr_peer_form form = TSR_PEER_ONE_SHOT; form <= TSR_PEER_PINNED; form++)
        check_form(form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(uneven_parts_become_whole)};
    return cmocka_run_group_tests_name("gathers over peer memory", tests, NULL, NULL);
}
