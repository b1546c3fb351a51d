/* Planned bytes are allocated bytes (support/planned.h), on simulated GPUs; and what the accounting of a
 * GPU's devices say is what the simulated driver has handed out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include "core/runtime.h"
#include "cuda/simulated.h"
#include "support/planned.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/sanitized.h"

enum { N_CONFIGS = TSR_TEST_SANITIZED ? 16 : 72, MAX_GPUS = 7 };

static int n_gpus;
static planned_gpus gpus;

/* The accounting is the driver's, to the byte: what is charged, less what has no memory behind it, and what
 * the runtime needs for itself, rounded as the driver rounds. */
static void compare_with_the_driver(const tsr_runtime *rt)
{
    size_t taken = 0, used = 0;
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_memory m;
        size_t charged = 0;
        if (rt->devices[d]->ops->kind != TSR_DEVICE_CUDA)
            continue;
        runner_ok(tsr_runtime_memory(rt, d, &m), "memory");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            charged += m.used[o];
        assert_int_equal(charged, m.used_total);
        assert_int_equal(m.viewed, 0);
        charged += m.runtime;
        charged -= m.used[TSR_MEMORY_KV] - m.kv_committed;
        /* Arena, workspace, scratch and weights, and the smaller ones of the runtime, are rounded each. */
        assert_in_range(m.taken, charged, charged + 8 * gpus.granularity);
        taken += m.taken;
    }
    for (int g = 0; g < n_gpus; g++)
        used += cudasim_used(g);
    assert_int_equal(taken, used);
}

/* Opening a simulated GPU takes its time: mostly one to three, now and then all that there may be. */
static int random_count(uint64_t *seed)
{
    return 1 + (int)random_below(seed, random_below(seed, 8) ? 3 : MAX_GPUS);
}

/* All GPUs of the machine, or one GPU as several devices; a third of the time with a host device beside them.
 * With a cap, as a plan for a description of the machine does not know how much of a GPU's memory is free. */
static int random_machine(uint64_t *seed, char *spec, size_t capacity)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    int n_devices = random_count(seed);
    bool with_host = random_below(seed, 3) == 0;
    n_gpus = random_below(seed, 3) ? n_devices : 1;
    config.n_devices = n_gpus;
    config.memory = (size_t)1 << 30;
    config.seed = random_u64(seed);
    config.peer_access = random_below(seed, 3) != 0;
    config.vmm_granularity = gpus.granularity = (size_t)4096 << random_below(seed, 10);
    /* Not NCCL, whose memory is its own affair. */
    bool peer = config.peer_access && n_gpus == n_devices && !with_host && random_below(seed, 2);
    gpus.collectives = peer ? "peer" : "staged";
    cudasim_configure(&config);
    size_t used = 0;
    if (n_gpus == n_devices)
        used = (size_t)snprintf(spec, capacity, "cuda,mem=100MiB");
    for (int d = 0; d < n_devices && n_gpus != n_devices; d++)
        used += (size_t)snprintf(spec + used, capacity - used, "%scuda:0,mem=100MiB", d ? "," : "");
    if (with_host)
        snprintf(spec + used, capacity - used, ",host:1,threads=1");
    return n_devices + with_host;
}

static void planned_bytes_are_allocated_bytes(void **state)
{
    (void)state;
    uint64_t seed = 33;
    planned_models models;
    cudasim_required("the simulated machine's counters");
    int n = planned_rounds(N_CONFIGS), n_planned = 0, n_refused = 0;
    planned_models_write(&models);
    while (n_planned < n) {
        char spec[256];
        gpus.run = n_planned % 8 == 0;
        tsr_topology *topo;
        int n_devices = random_machine(&seed, spec, sizeof spec);
        runner_ok(tsr_topology_discover(NULL, &topo), "topology");
        bool planned = planned_check(&models, &seed, topo, spec, n_devices, &gpus, compare_with_the_driver);
        *(planned ? &n_planned : &n_refused) += 1;
        tsr_topology_destroy(topo);
        nothing_is_left();
    }
    print_message("%d configurations were loaded as planned, %d could not be planned\n", n_planned,
                  n_refused);
    assert_true(n_refused < n_planned);
    planned_models_remove(&models);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_allocated_bytes),
    };
    return cmocka_run_group_tests_name("plans for simulated GPUs", tests, NULL, NULL);
}
