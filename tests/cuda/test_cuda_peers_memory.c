/* Which memory peers may use, when access to it fails, and when the access is there again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "cuda/comm/collective.h"
#include "cuda/comm/nccl.h"
#include "cuda/context/context.h"
#include "cuda/peer_run.h"

/* Whether the process seems to have loaded NCCL before. */
static bool has_nccl;

void *dlopen(const char *name, int flags)
{
    typedef void *open_fn(const char *name, int flags);
    open_fn *real = (open_fn *)dlsym(RTLD_NEXT, "dlopen");
    if (name && strstr(name, "libnccl") && flags & RTLD_NOLOAD)
        return has_nccl ? real(NULL, RTLD_NOW) : NULL;
    return real(name, flags);
}

/* Two GPUs whose peers map at most 8 MiB of each other's memory. */
static void open_two(group *g)
{
    cudasim_config config = config_of(2, 3);
    config.bar1 = 8 * MB;
    cudasim_configure(&config);
    open_devices(g, 2, 2);
}

static bool reach_each_other(const group *g)
{
    tsr_cuda_device *const devices[] = {tsr_cuda(g->devices[0]), tsr_cuda(g->devices[1])};
    return tsr_cuda_collective_reaches(devices, 3);
}

static void *take_for(tsr_device *device, tsr_memory_owner owner)
{
    void *pointer = NULL;
    ok(device->ops->alloc(device, owner, 12 * MB, &pointer));
    return pointer;
}

static void give(tsr_device *device, void *pointer, size_t bytes)
{
    device->ops->free(device, pointer, bytes);
}

static void what_only_nccl_writes_is_private_without_nccl(void **state)
{
    (void)state;
    group g;
    open_two(&g);
    void *arena = take_for(g.devices[0], TSR_MEMORY_ARENA),
         *scratch = take_for(g.devices[0], TSR_MEMORY_SCRATCH);
    assert_true(reach_each_other(&g));
    give(g.devices[0], arena, 12 * MB);
    give(g.devices[0], scratch, 12 * MB);

    tsr_cuda(g.devices[0])->nccl_writes = true; /* as a communicator does */
    arena = take_for(g.devices[0], TSR_MEMORY_ARENA);
    assert_false(reach_each_other(&g));
    give(g.devices[0], arena, 12 * MB);
    close_group(&g);
    nothing_is_left();
}

static void a_communicator_of_nccl_opens_what_it_writes(void **state)
{
    (void)state;
    group g;
    tsr_comm *comm = NULL;
    machine_of(2, 3);
    open_devices(&g, 2, 2);
    ok(tsr_comm_nccl_create(g.devices, 2, NULL, &comm));
    assert_true(tsr_cuda(g.devices[0])->nccl_writes && tsr_cuda(g.devices[1])->nccl_writes);
    tsr_comm_destroy(comm);
    assert_false(tsr_cuda(g.devices[0])->nccl_writes || tsr_cuda(g.devices[1])->nccl_writes);
    close_group(&g);
    nothing_is_left();
}

static void a_lost_peer_is_a_peer_again_when_closed_memory_is_freed(void **state)
{
    (void)state;
    group g;
    open_two(&g);
    void *large = take_for(g.devices[0], TSR_MEMORY_COMM), *small = take(g.devices[0], MB);
    assert_false(reach_each_other(&g));
    give(g.devices[0], large, 12 * MB);
    assert_false(reach_each_other(&g)); /* the small one is closed as well */
    give(g.devices[0], small, MB);
    assert_true(reach_each_other(&g));
    small = take(g.devices[0], MB);
    assert_true(reach_each_other(&g));
    ok(tsr_cuda_peers_test(g.devices, 2, NULL, g.reach));
    assert_int_equal(g.reach[0], 3);
    give(g.devices[0], small, MB);
    close_group(&g);
    nothing_is_left();
}

/* Memory that is there before the peers are opened cannot be opened to them. */
static void access_is_given_to_all_of_a_gpus_memory_or_to_none(void **state)
{
    (void)state;
    group g = {.n = 2};
    machine_of(2, 3);
    for (int d = 0; d < 2; d++) {
        const tsr_cuda_device_config config = {
            .name = "cuda", .index = d, .ordinal = d, .memory_cap = 40 * MB};
        ok(tsr_cuda_device_create(&config, &g.devices[d]));
    }
    void *before = take(g.devices[0], MB);
    cudasim_fail_named("cuMemSetAccess", 1, 0);
    ok(tsr_cuda_peers_open(g.devices, 2, NULL));
    assert_int_equal(cudasim_faults_hit(), 1);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
    (void)cudaGetLastError();
    give(g.devices[0], before, MB);
    close_group(&g);
    nothing_is_left();
}

/* Of two allocations the second cannot be opened. */
static void access_to_one_of_two_is_taken_back(void **state)
{
    (void)state;
    group g;
    float here;
    machine_of(2, 3);
    cudasim_fail_named("cudaDeviceEnablePeerAccess", 1, 0);
    open_devices(&g, 2, 2);
    void *memory[] = {take(g.devices[0], MB), take(g.devices[0], MB)};
    cudasim_fail_named("cuMemSetAccess", 2, 0);
    ok(tsr_cuda_peers_open(g.devices, 2, NULL));
    assert_int_equal(cudasim_faults_hit(), 2);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cudaMemcpyAsync(&here, memory[i], sizeof here, cudaMemcpyDeviceToHost, NULL),
                         cudaErrorInvalidValue);
        assert_non_null(strstr(cudasim_violation(), "no access (cuMemSetAccess)"));
        cudasim_forget_violations();
        give(g.devices[0], memory[i], MB);
    }
    close_group(&g);
    nothing_is_left();
}

/* GPUs whose driver offers access to each other and then refuses it. */
static void an_nccl_that_is_loaded_already_is_warned_of(void **state)
{
    (void)state;
    for (int loaded = 0; loaded < 2; loaded++) {
        group g = {.n = 2};
        last_lines log = {0};
        const tsr_logger logger = {.fn = last_lines_note, .user = &log, .max_level = TSR_LOG_INFO};
        const tsr_comm_nccl_config config = {.logger = &logger};
        machine_of(2, 3);
        cudasim_fail_named("cudaDeviceEnablePeerAccess", 1, 0);
        open_devices(&g, 2, 2);
        assert_int_equal(unsetenv("NCCL_P2P_DIRECT_DISABLE"), 0);
        has_nccl = loaded;
        ok(tsr_comm_nccl_create(g.devices, 2, &config, &g.comm));
        assert_int_equal(log.n_warnings, loaded);
        assert_int_equal(strstr(log.warning, "NCCL_P2P_DIRECT_DISABLE=1 in the environment") != NULL, loaded);
        assert_string_equal(getenv("NCCL_P2P_DIRECT_DISABLE"), "1");
        close_group(&g);
        nothing_is_left();
    }
    has_nccl = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_only_nccl_writes_is_private_without_nccl),
        cmocka_unit_test(a_communicator_of_nccl_opens_what_it_writes),
        cmocka_unit_test(a_lost_peer_is_a_peer_again_when_closed_memory_is_freed),
        cmocka_unit_test(access_is_given_to_all_of_a_gpus_memory_or_to_none),
        cmocka_unit_test(access_to_one_of_two_is_taken_back),
        cmocka_unit_test(an_nccl_that_is_loaded_already_is_warned_of),
    };
    return cmocka_run_group_tests_name("memory of peers", tests, NULL, NULL);
}
