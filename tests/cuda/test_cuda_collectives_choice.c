/* Which collectives a runtime of simulated GPUs chooses, what it says where one cannot serve, and that
 * opening it fails cleanly whatever fails below. */
#include "comm/select.h"
#include "core/mem.h"
#include "cuda/peer_run.h"
#include "support/failing_alloc.h"
#include "support/sanitized.h"

#include <tsr/runtime.h>

static last_lines heard;

static int open_runtime(const char *devices, const char *collectives, tsr_collectives_row *rows)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = devices;
    config.collectives = collectives;
    config.logger = logger_to(&heard);
    heard = (last_lines){0};
    ok(tsr_runtime_open(&config, &rt));
    int n = tsr_runtime_collectives(rt, rows);
    tsr_runtime_close(rt);
    nothing_is_left();
    return n;
}

static void assert_refused(const char *devices, const char *collectives, tsr_status expected,
                           const char *reason)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    config.devices = devices;
    config.collectives = collectives;
    assert_int_equal(tsr_runtime_open(&config, &rt), expected);
    assert_null(rt);
    if (!strstr(tsr_last_error(), reason))
        fail_msg("'%s' lacks '%s'", tsr_last_error(), reason);
    nothing_is_left();
}

static void the_fastest_is_chosen_and_shown(void **state)
{
    (void)state;
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    int n = 0;
    machine_of(3, 2);
    /* On a busy machine the first sums may exceed their deadline. */
    for (int tries = 0; tries < 5 && (tries == 0 || *heard.warning); tries++)
        n = open_runtime("cuda", NULL, rows);
    assert_in_range(n, 1, TSR_COLLECTIVES_MAX_ROWS);
    assert_true(rows[0].latency_ns > 0); /* others may follow it without a measurement */
    for (int r = 0; r < n; r++) {
        assert_true(r == 0 || rows[r].bytes > rows[r - 1].bytes);
        assert_non_null(strstr(heard.info, rows[r].implementation));
    }
    assert_string_equal(heard.warning, "");
    assert_non_null(strstr(heard.info, "collectives between 3 devices: "));

    n = open_runtime("cuda", "peer", rows);
    for (int r = 0; r < n; r++)
        assert_int_equal(strncmp(rows[r].implementation, "peer", 4), 0);
    assert_int_equal(open_runtime("cuda", "staged", rows), 1);
    assert_string_equal(rows[0].implementation, "staged");
    assert_int_equal(rows[0].latency_ns, 0);
    assert_int_equal(open_runtime("cuda:0,cuda:0,cuda:1", "peer", rows) > 0, 1);
    assert_int_equal(open_runtime("cuda:0", "peer", rows), 0);
    assert_int_equal(open_runtime("cuda:0,host:1,threads=1", NULL, rows), 1);
    assert_string_equal(rows[0].implementation, "staged");
}

static void what_cannot_serve_is_refused_with_the_reason(void **state)
{
    (void)state;
    machine_of(3, 2);
    assert_refused("cuda", "gossip", TSR_ERR_INVALID, "gossip");
    assert_refused("cuda:0,host:1,threads=1", "peer", TSR_ERR_UNSUPPORTED, "host0");
    assert_refused("host:2,threads=1", "peer", TSR_ERR_UNSUPPORTED, "host devices");
    cudasim_forbid_peer(1, 2);
    assert_refused("cuda", "peer", TSR_ERR_UNSUPPORTED, "cuda1 and cuda2");
}

static void a_pair_without_peer_access_leaves_the_rest_its_own(void **state)
{
    (void)state;
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    machine_of(3, 2);
    cudasim_forbid_peer(1, 2);
    int n_rows = open_runtime("cuda", NULL, rows);
    assert_true(n_rows > 0);
    for (int r = 0; r < n_rows; r++) /* it does not serve all three */
        assert_null(strstr(rows[r].implementation, "peer"));

    group g;
    tsr_comm *comms[4], *choice = NULL;
    tsr_device_set waiting[3];
    open_devices(&g, 3, 3);
    ok(tsr_comm_peer_create(g.devices, 3, g.reach, TSR_PEER_ONE_SHOT, &comms[0]));
    ok(tsr_comm_peer_create(g.devices, 3, g.reach, TSR_PEER_TWO_SHOT, &comms[1]));
    tsr_cuda_peers_waiting(g.devices, 3, waiting);
    ok(tsr_comm_peer_create(g.devices, 3, waiting, TSR_PEER_PINNED, &comms[2]));
    ok(tsr_comm_local_create(3, &comms[3]));
    ok(tsr_comm_select_create(g.devices, 3, tsr_device_set_all(3), comms, 4, (tsr_comm_budget){.all_ns = 0},
                              NULL, &choice));
    void *partial[3] = {take(g.devices[0], 64), take(g.devices[1], 64), take(g.devices[2], 64)};
    for (uint64_t participants = 3; participants < 8; participants++) {
        const tsr_collective_desc desc = {.kind = TSR_OP_ALL_REDUCE,
                                          .participants = participants,
                                          .contributors = participants,
                                          .n = 8,
                                          .partial = partial,
                                          .name = "sum"};
        tsr_collective *made = NULL;
        ok(choice->ops->collective_create(choice, &desc, &made));
        const bool is_peer = strcmp(made->comm->ops->kind, "peer") == 0;
        assert_int_equal(is_peer, (participants & 6) != 6); /* otherwise the faster one */
        assert_ptr_equal(tsr_comm_whole(made->comm), choice);
        choice->ops->collective_destroy(choice, made);
    }
    for (int d = 0; d < 3; d++)
        g.devices[d]->ops->free(g.devices[d], partial[d], 64);
    g.comm = choice;
    close_group(&g);
    nothing_is_left();
}

static void opening_fails_cleanly_at_every_call(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "cuda";
    config.collectives = "peer";
    config.logger = logger_to(&heard);
    enum { MAX_CALLS = 8192 };
    static const char *names[MAX_CALLS];
    uint64_t n_calls = 1, failed = 0, singly = 150, step;
    for (uint64_t call = 0; call < n_calls; call += step) {
        step = call == 0 ? 1 + TSR_TEST_FIRST(4) : (call < singly ? 1 : 29) * TSR_TEST_EVERY(4);
        /* Of the calls that load one kernel after the other, the first. */
        while (call > 1 && call < n_calls && strcmp(names[call - 1], "cudaFuncGetAttributes") == 0 &&
               strcmp(names[call - 2], names[call - 1]) == 0) {
            call++;
            singly++;
        }
        machine_of(2, 2);
        int64_t blocks = failing_alloc_live();
        if (call > 0)
            cudasim_fail_call(call - 1, 0);
        tsr_runtime *rt = NULL;
        tsr_status status = tsr_runtime_open(&config, &rt);
        if (call == 0) {
            ok(status);
            n_calls = TSR_MIN(cudasim_calls() / 2, MAX_CALLS);
            for (uint64_t i = 0; i < n_calls; i++)
                names[i] = cudasim_call_name(i);
        }
        failed += status != TSR_OK;
        assert_true(status != TSR_OK || rt);
        tsr_runtime_close(rt);
        if (cudasim_leaks(stderr) != 0)
            fail_msg("call %llu, %s, leaves something behind", (unsigned long long)call,
                     cudasim_call_name(call - 1));
        assert_int_equal(failing_alloc_live(), blocks);
    }
    assert_true((int)failed > 50 / TSR_TEST_EVERY(4));
}

/* Where the simulation itself runs out of memory its peers do not work, which is not an error. */
static void opening_fails_cleanly_without_memory(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "cuda";
    config.logger = logger_to(&heard);
    for (int n = 1 + TSR_TEST_FIRST(4);; n += (n < 60 ? 1 : 9) * TSR_TEST_EVERY(4)) {
        machine_of(2, 2);
        tsr_runtime *rt = NULL;
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_runtime_open(&config, &rt);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (status != TSR_OK && status != TSR_ERR_MEMORY)
            fail_msg("allocation %d: %s: %s (%s)", n, tsr_status_name(status), tsr_last_error(),
                     heard.warning);
        tsr_runtime_close(rt);
        assert_int_equal(cudasim_leaks(stderr), 0);
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_is_chosen_and_shown),
        cmocka_unit_test(what_cannot_serve_is_refused_with_the_reason),
        cmocka_unit_test(a_pair_without_peer_access_leaves_the_rest_its_own),
        cmocka_unit_test(opening_fails_cleanly_at_every_call),
        cmocka_unit_test(opening_fails_cleanly_without_memory),
    };
    return cmocka_run_group_tests_name("the choice of collectives", tests, NULL, NULL);
}
