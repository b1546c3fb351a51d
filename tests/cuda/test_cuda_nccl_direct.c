/* Large messages of NCCL, which old versions write straight into the peers' buffers: every GPU has access to
 * the others' memory before NCCL is made, whichever collectives are asked for, and where the driver refuses
 * access NCCL is told to do without. */
#include <stdlib.h>

#include <tsr/runtime.h>

#include "comm/probe.h"
#include "core/runtime.h"
#include "nccl_run.h"

enum { LARGE = (2 << 20) / sizeof(int64_t) };

static void old_nccl(int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.memory = 96 << 20;
    config.nccl_version = NCCL_VERSION(2, 21, 5);
    unsetenv("NCCL_P2P_DIRECT_DISABLE");
    cudasim_configure(&config);
}

static tsr_runtime *open_runtime(const char *collectives)
{
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "cuda";
    config.collectives = collectives;
    ok(tsr_runtime_open(&config, &rt));
    return rt;
}

static void run_large(tsr_runtime *rt, tsr_op_kind kind)
{
    tsr_probe *probe = NULL;
    char problem[512];
    const tsr_probe_config config = {.devices = rt->devices,
                                     .n_devices = rt->n_devices,
                                     .participants = kind == TSR_OP_SEND ? 3 : 0,
                                     .kind = kind,
                                     .n = LARGE};
    ok(tsr_probe_create(&config, &probe));
    if (kind == TSR_OP_ALL_REDUCE) {
        ok(tsr_probe_check(probe, rt->comm, 0, problem, sizeof problem));
        assert_string_equal(problem, "");
    } else {
        uint64_t ns;
        ok(tsr_probe_measure(probe, rt->comm, 2, UINT64_MAX, &ns));
    }
    tsr_probe_destroy(probe);
}

static void close_runtime(tsr_runtime *rt)
{
    tsr_runtime_close(rt);
    nothing_is_left();
    unsetenv("NCCL_P2P_DIRECT_DISABLE");
}

static void large_messages_are_written_into_open_memory(void **state)
{
    (void)state;
    static const char *const collectives[] = {"nccl", "auto"};
    for (int i = 0; i < 2; i++) {
        old_nccl(3);
        tsr_runtime *rt = open_runtime(collectives[i]);
        run_large(rt, TSR_OP_ALL_REDUCE);
        run_large(rt, TSR_OP_SEND);
        assert_null(getenv("NCCL_P2P_DIRECT_DISABLE"));
        close_runtime(rt);
    }
}

/* As where a GPU has as many peers as it can: NCCL, which trusts the driver's offer, writes nevertheless. */
static void where_access_is_refused_nccl_uses_its_own_buffers(void **state)
{
    (void)state;
    static const char *const collectives[] = {"nccl", "auto"};
    for (int i = 0; i < 2; i++) {
        old_nccl(3);
        cudasim_fail_named("cudaDeviceEnablePeerAccess", 2, cudaErrorTooManyPeers);
        tsr_runtime *rt = open_runtime(collectives[i]);
        run_large(rt, TSR_OP_ALL_REDUCE);
        assert_string_equal(getenv("NCCL_P2P_DIRECT_DISABLE"), "1");
        close_runtime(rt);
    }
}

/* NCCL does not write where the driver offers no access, so that is no reason. */
static void a_pair_without_access_leaves_the_others_their_own(void **state)
{
    (void)state;
    old_nccl(3);
    cudasim_forbid_peer(0, 2);
    tsr_runtime *rt = open_runtime("nccl");
    run_large(rt, TSR_OP_ALL_REDUCE);
    assert_null(getenv("NCCL_P2P_DIRECT_DISABLE"));
    close_runtime(rt);
}

/* Unless the user says otherwise, NCCL made over closed memory keeps out of it. The first sums find out what
 * would otherwise end the first prompt. */
static void closed_memory_is_found_when_nccl_is_made(void **state)
{
    (void)state;
    old_nccl(2);
    group g = group_of(2, false);
    ok(group_connect(&g));
    assert_string_equal(getenv("NCCL_P2P_DIRECT_DISABLE"), "1");
    group_close(&g);
    nothing_is_left();

    old_nccl(2);
    setenv("NCCL_P2P_DIRECT_DISABLE", "0", 1);
    g = group_of(2, false);
    assert_int_equal(group_connect(&g), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(cudasim_violation(), "was not opened"));
    assert_string_equal(getenv("NCCL_P2P_DIRECT_DISABLE"), "0");
    group_close(&g);
    unsetenv("NCCL_P2P_DIRECT_DISABLE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_messages_are_written_into_open_memory),
        cmocka_unit_test(where_access_is_refused_nccl_uses_its_own_buffers),
        cmocka_unit_test(a_pair_without_access_leaves_the_others_their_own),
        cmocka_unit_test(closed_memory_is_found_when_nccl_is_made),
    };
    return cmocka_run_group_tests_name("large messages of NCCL", tests, NULL, NULL);
}
