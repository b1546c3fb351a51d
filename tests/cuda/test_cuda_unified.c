/* A GPU that has no memory but the host's: what is free there, when the driver counts cached files as used;
 * how weights get there; and how its memory and that of host devices are one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/device_list.h>
#include <tsr/fit.h>
#include <tsr/gguf.h>
#include <tsr/memory.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/topology.h>

#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 6, VOCAB = 512 };

#define MIB     ((size_t)1 << 20)
#define CONTEXT (40 * MIB) /* of a GPU with 8 multiprocessors */

/* The system's own figures, of the machine and its node, in place of those of the machine that runs the test;
 * 0: of that machine. */
static size_t meminfo_total, meminfo_cached, meminfo_others;

FILE *fopen(const char *path, const char *mode)
{
    typedef FILE *open_fn(const char *path, const char *mode);
    static char text[256];
    if (meminfo_total == 0 || !strstr(path, "/meminfo"))
        return ((open_fn *)dlsym(RTLD_NEXT, "fopen"))(path, mode);
    const size_t available = meminfo_total - cudasim_used(0) - cudasim_context(0) - meminfo_others;
    snprintf(text, sizeof text, "MemTotal: %zu kB\nMemFree: %zu kB\nMemAvailable: %zu kB\n",
             meminfo_total >> 10, (available - meminfo_cached) >> 10, available >> 10);
    return fmemopen(text, strlen(text), "r");
}

static char model_path[DIRECTORY_PATH];

static int write_model(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_ctx = 32768;
    close(directory_new(model_path));
    synth_model_write(&config, model_path);
    return 0;
}

static void machine(size_t memory, size_t cached)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.integrated = true;
    config.memory = memory;
    cudasim_configure(&config);
    cudasim_cache_files(cached);
    meminfo_total = memory + CONTEXT;
    meminfo_cached = cached;
    meminfo_others = 0;
}

static tsr_model_config small_session(void)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = 8;
    return config;
}

static tsr_device_memory memory_of(const tsr_runtime *rt, int device)
{
    tsr_device_memory memory;
    runner_ok(tsr_runtime_memory(rt, device, &memory), "memory");
    return memory;
}

/* After a file of 60 MiB was read, 4 of 64 MiB are "free", and a model of 30 with its scratch is opened. */
static void cached_files_are_free_memory(void **state)
{
    (void)state;
    const tsr_model_config config = small_session();
    tsr_topology *topo;
    runner r;
    machine(64 * MIB, 60 * MIB);
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    assert_int_equal(topo->gpus[0].memory_free_bytes, 64 * MIB + CONTEXT);
    tsr_topology_destroy(topo);
    runner_open(&r, model_path, "cuda:0", NULL, &config);
    const tsr_device_memory memory = memory_of(r.rt, 0);
    assert_true(memory.cap > 60 * MIB && memory.cap < 64 * MIB);
    assert_int_equal(memory.device_free, (64 * MIB - cudasim_used(0)) / 1024 * 1024); /* meminfo has KiB */
    assert_true(memory.used_total > 24 * MIB);
    runner_close(&r);
    nothing_is_left();
}

/* The context is cut to what is available and not to the little that the driver calls free. */
static void fits_use_what_the_system_can_give(void **state)
{
    (void)state;
    static const size_t margin = 4 * MIB;
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_fit_info info;
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    machine(64 * MIB, 60 * MIB);
    runtime_config.devices = "cuda:0";
    runner_ok(tsr_runtime_open(&runtime_config, &rt), "runtime");
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    config.plan.fit = &fit_config;
    runner_ok(tsr_model_open(rt, model_path, &config, &model), "open");
    tsr_fit_get_info(tsr_model_fit(model), &info);
    assert_true(info.chosen.n_ctx > TSR_FIT_CTX_MIN && info.chosen.n_ctx < 32768);
    runner_ok(tsr_session_create(model, &session), "session");
    const tsr_device_memory memory = memory_of(rt, 0);
    assert_true(memory.used_total + margin <= 64 * MIB && memory.used_total + 2 * margin > 60 * MIB);
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    nothing_is_left();
}

static void weights_are_copied_unless_views_are_asked_for(void **state)
{
    (void)state;
    const tsr_model_config config = small_session();
    static const char *const devices[] = {"cuda:0", "cuda:0,wrap=1"};
    const int32_t tokens[N] = {3, 1, 4, 1, 5, 9};
    float logits[2][VOCAB];
    for (int views = 0; views < 2; views++) {
        runner r;
        machine(64 * MIB, 0);
        runner_open(&r, model_path, devices[views], NULL, &config);
        const tsr_device_memory memory = memory_of(r.rt, 0);
        assert_true(memory.used[TSR_MEMORY_WEIGHTS] > 2 * MIB);
        assert_int_equal(memory.viewed > 0, views);
        tsr_plan_device planned;
        runner_ok(tsr_plan_get_device(tsr_model_plan(r.model), 0, &planned), "plan");
        assert_int_equal(planned.bytes[TSR_MEMORY_WEIGHTS], memory.used[TSR_MEMORY_WEIGHTS]);
        runner_decode(&r, tokens, N, 0, false, logits[views]);
        runner_close(&r);
        nothing_is_left();
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* -- with a host device -- */

static void one_memory_is_counted_once(void **state)
{
    (void)state;
    tsr_model_config config = small_session();
    runner r;
    machine(64 * MIB, 0);
    meminfo_others = 20 * MIB; /* of other programs */
    config.load.copy_weights = true;
    runner_open(&r, model_path, "cuda:0,host:1,threads=1", "1,1", &config);
    const tsr_device_memory gpu = memory_of(r.rt, 0), host = memory_of(r.rt, 1);
    assert_true(gpu.taken > 0 && host.taken > 0);
    /* Used by others: what neither of the two has. */
    const size_t busy = gpu.device_total - gpu.device_free, ours = gpu.taken + host.taken;
    assert_true(host.taken > MIB && busy > ours);
    assert_int_equal(gpu.elsewhere, busy - ours);
    assert_int_equal(host.device_free, gpu.device_free);
    runner_close(&r);
    nothing_is_left();
}

static void plans_show_what_both_leave_free(void **state)
{
    (void)state;
    tsr_model_config config = small_session();
    const float even[] = {1, 1};
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_gguf *gguf;
    tsr_plan *plan;
    tsr_plan_device device[2];
    machine(64 * MIB, 0);
    config.load.copy_weights = true;
    config.split.tensor_split = even;
    config.split.n_tensor_split = 2;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, "cuda:0,host:1,threads=1", NULL, &devices), "devices");
    runner_ok(tsr_gguf_open(model_path, NULL, &gguf), "gguf");
    runner_ok(tsr_plan_create(gguf, devices, &config, &plan), "plan");
    for (int d = 0; d < 2; d++)
        runner_ok(tsr_plan_get_device(plan, d, &device[d]), "plan");
    /* Of what is available now, the driver will take a part for the GPU's context. */
    for (int d = 0; d < 2; d++)
        assert_true(device[d].free_bytes + device[0].total_bytes + device[1].total_bytes <= 64 * MIB);
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_files_are_free_memory),
        cmocka_unit_test(fits_use_what_the_system_can_give),
        cmocka_unit_test(weights_are_copied_unless_views_are_asked_for),
        cmocka_unit_test(one_memory_is_counted_once),
        cmocka_unit_test(plans_show_what_both_leave_free),
    };
    return cmocka_run_group_tests(tests, write_model, NULL);
}
