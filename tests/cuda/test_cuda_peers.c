/* Which simulated GPUs reach each other's memory: pairs whose access is refused, missing or damaged are left
 * out, and collectives are served between the others. */
#include "cuda/peer_run.h"

/* As where a GPU has as many peers as it can. */
static void access_that_is_refused_is_no_failure(void **state)
{
    (void)state;
    group g;
    last_lines log = {0};
    uint64_t reach[3];
    const tsr_logger logger = logger_to(&log);
    for (int first = 0; first < 2; first++) { /* which of a pair's two calls */
        log.n_warnings = 0;
        machine_of(3, 1);
        g = (group){.n = 3};
        for (int d = 0; d < 3; d++) {
            const tsr_cuda_device_config config = {
                .name = "cuda", .index = d, .ordinal = d, .memory_cap = 16 * MB};
            ok(tsr_cuda_device_create(&config, &g.devices[d]));
        }
        cudasim_fail_named("cudaDeviceEnablePeerAccess", (uint64_t)first + 1, cudaErrorTooManyPeers);
        ok(tsr_cuda_peers_test(g.devices, 3, &logger, reach));
        assert_int_equal(log.n_warnings, 1);
        assert_non_null(strstr(log.warning, "refuses"));
        assert_int_equal(reach[0], 0x5);
        assert_int_equal(reach[1], 0x6);
        assert_int_equal(reach[2], 0x7);
        memcpy(g.reach, reach, sizeof reach);
        ok(tsr_comm_peer_create(g.devices, g.n, g.reach, TSR_PEER_ONE_SHOT, &g.comm));
        close_group(&g);
        nothing_is_left();
    }
}

static void only_pairs_that_work_are_used(void **state)
{
    (void)state;
    group g;
    last_lines log = {0};
    uint64_t reach[4];
    const tsr_logger logger = logger_to(&log);
    machine_of(4, 1);
    open_devices(&g, 4, 4);
    for (int d = 0; d < 4; d++)
        assert_int_equal(g.reach[d], 0xf);
    close_group(&g);

    machine_of(4, 1);
    cudasim_forbid_peer(0, 2);
    cudasim_corrupt_peer_copies(1, 3); /* one way only, and no kernel's */
    g = (group){0};
    open_devices(&g, 4, 4);
    assert_int_equal(g.reach[1], 0x7);
    assert_int_equal(g.reach[3], 0xd);
    close_group(&g);

    machine_of(4, 1);
    cudasim_forbid_peer(0, 2);
    cudasim_corrupt_peer(3, 1); /* one way only */
    g = (group){0};
    open_devices(&g, 4, 4);
    ok(tsr_cuda_peers_test(g.devices, 4, &logger, reach));
    assert_int_equal(log.n_warnings, 1);
    assert_non_null(strstr(log.warning, "cuda3"));
    assert_non_null(strstr(log.warning, "cuda1"));
    assert_int_equal(reach[0], 0xb);
    assert_int_equal(reach[1], 0x7);
    assert_int_equal(reach[2], 0xe);
    assert_int_equal(reach[3], 0xd);
    /* Collectives between those that reach each other are served, others refused. */
    ok(tsr_comm_peer_create(g.devices, g.n, g.reach, TSR_PEER_ONE_SHOT, &g.comm));
    void *partial[4] = {take(g.devices[0], 64), take(g.devices[1], 64), take(g.devices[2], 64),
                        take(g.devices[3], 64)};
    for (uint64_t participants = 1; participants < 16; participants++) {
        const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                          .participants = participants,
                                          .contributors = participants,
                                          .n = 8,
                                          .partial = partial,
                                          .name = "sum"};
        bool split = (participants & 5) == 5 || (participants & 10) == 10;
        tsr_collective *made = NULL;
        assert_int_equal(g.comm->ops->serves(g.comm, &desc), !split);
        assert_int_equal(g.comm->ops->collective_create(g.comm, &desc, &made),
                         split ? TSR_ERR_UNSUPPORTED : TSR_OK);
        if (made)
            g.comm->ops->collective_destroy(g.comm, made);
    }
    for (int d = 0; d < 4; d++)
        g.devices[d]->ops->free(g.devices[d], partial[d], 64);
    close_group(&g);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(access_that_is_refused_is_no_failure),
        cmocka_unit_test(only_pairs_that_work_are_used),
    };
    return cmocka_run_group_tests_name("access to peers' memory", tests, NULL, NULL);
}
