/* Configs and results of callers that were compiled for another version of the library: the shorter structs
 * of older versions, and longer ones. Behind a short struct are bytes that the library must not read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/config.h"
#include "model/config.h"
#include "support/runner.h"

#include <tsr/tsr.h>

/* tsr_runtime_config without what came after the logger. */
typedef struct old_runtime_config {
    size_t size;
    const char *devices;
    const char *isa;
    const char *collectives;
    const tsr_topology *topology;
    tsr_logger logger;
} old_runtime_config;

/* tsr_topology_config without the cards. */
typedef struct old_topology_config {
    size_t size;
    tsr_logger logger;
} old_topology_config;

/* tsr_model_config without the groups `plan` and `load`. */
typedef struct old_model_config {
    size_t size;
    struct {
        const float *tensor_split;
        int n_tensor_split;
        tsr_split_mode mode;
        tsr_expert_split experts;
        int main_device;
    } split;
    struct {
        int n_gpu_layers, n_cpu_moe;
        const tsr_offload_rule *rules;
        int n_rules;
        const char *device;
    } offload;
    struct {
        int64_t n_ctx;
        int n_seq_max, n_batch, n_outputs_max;
        tsr_type type_k, type_v;
        bool swa_full;
        int n_sessions;
    } session;
    struct {
        tsr_reduction reduction;
        int activation_bits;
        uint64_t timeout_ns;
    } compute;
} old_model_config;

static void an_older_runtime_config_opens_a_runtime(void **state)
{
    (void)state;
    struct {
        old_runtime_config config;
        unsigned char behind[256];
    } caller = {
        .config = {.size = sizeof(old_runtime_config), .devices = "host:1,threads=1", .isa = "generic"}};
    tsr_runtime *rt = NULL;
    memset(caller.behind, 0xff, sizeof caller.behind); /* read as a transport: a crash */
    runner_ok(tsr_runtime_open((const tsr_runtime_config *)&caller, &rt), "older runtime config");
    assert_int_equal(tsr_runtime_n_devices(rt), 1);
    tsr_runtime_close(rt);
}

static void an_older_topology_config_loads_a_machine(void **state)
{
    (void)state;
    struct {
        old_topology_config config;
        unsigned char behind[64];
    } caller = {.config = {.size = sizeof(old_topology_config)}};
    tsr_topology *topo = NULL;
    memset(caller.behind, 0xff, sizeof caller.behind);
    runner_ok(tsr_topology_load("synthetic:core:2 pu:1", (const tsr_topology_config *)&caller, &topo),
              "older topology config");
    assert_int_equal(topo->n_cores, 2);
    tsr_topology_destroy(topo);
}

static void what_an_older_model_config_lacks_is_the_default(void **state)
{
    (void)state;
    struct {
        old_model_config config;
        unsigned char behind[256];
    } caller = {.config = {.size = sizeof(old_model_config)}};
    const tsr_model_config defaults = tsr_model_config_default();
    tsr_model_config read;
    caller.config.session.n_ctx = 1234;
    caller.config.compute.activation_bits = 8;
    memset(caller.behind, 0xff, sizeof caller.behind);
    runner_ok(tsr_model_config_read((const tsr_model_config *)&caller, &read), "older model config");
    assert_int_equal(read.size, sizeof read);
    assert_int_equal(read.session.n_ctx, 1234);
    assert_int_equal(read.compute.activation_bits, 8);
    assert_memory_equal(&read.plan, &defaults.plan, sizeof read.plan);
    assert_memory_equal(&read.load, &defaults.load, sizeof read.load);
}

/* The library writes no more than the caller has, and tells a caller that has more what is its own. */
static void defaults_have_the_size_of_the_callers_struct(void **state)
{
    (void)state;
    struct {
        old_model_config config;
        unsigned char behind[256];
    } older;
    struct {
        tsr_model_config config;
        unsigned char more[16];
    } newer;
    const tsr_model_config defaults = tsr_model_config_default();
    memset(&older, 0xff, sizeof older);
    memset(&newer, 0xff, sizeof newer);

    assert_int_equal(tsr_model_config_init((tsr_model_config *)&older, sizeof older.config), sizeof defaults);
    assert_int_equal(older.config.size, sizeof older.config);
    assert_memory_equal(&older.config.split, &defaults.split,
                        sizeof older.config - offsetof(old_model_config, split));
    for (size_t i = 0; i < sizeof older.behind; i++)
        assert_int_equal(older.behind[i], 0xff);

    assert_int_equal(tsr_model_config_init(&newer.config, sizeof newer), sizeof defaults);
    assert_int_equal(newer.config.size, sizeof newer);
    for (size_t i = 0; i < sizeof newer.more; i++)
        assert_int_equal(newer.more[i], 0);
}

static void assert_says(tsr_status status, const char *phrase)
{
    assert_int_equal(status, TSR_ERR_INVALID);
    if (!strstr(tsr_last_error(), phrase))
        fail_msg("\"%s\" is not in: %s", phrase, tsr_last_error());
}

/* A newer caller may have set a field that this library does not know. */
static void a_newer_config_is_refused(void **state)
{
    (void)state;
    struct {
        tsr_sampler_config config;
        uint64_t newer;
    } caller = {.config = tsr_sampler_config_default()};
    tsr_sampler *sampler = NULL;
    caller.config.size = sizeof caller;
    assert_says(tsr_sampler_create(&caller.config, 10, &sampler), "newer version");
    assert_null(sampler);
}

static void a_config_without_its_size_is_refused(void **state)
{
    (void)state;
    tsr_sampler_config config = {.temperature = 1};
    tsr_model_config model_config = {.session = {.n_ctx = 100}}, read;
    tsr_sampler *sampler = NULL;
    assert_says(tsr_sampler_create(&config, 10, &sampler), "tsr_sampler_config_default()");
    assert_says(tsr_model_config_read(&model_config, &read), "tsr_model_config_default()");
}

static void reading_copies_the_callers_bytes_and_no_others(void **state)
{
    (void)state;
    struct {
        size_t size;
        int a, b, c, d;
    } config = {.a = 1, .b = 2, .c = 3, .d = 4}, own;
    for (size_t size = 0; size <= sizeof config + 1; size++) {
        memset(&own, 9, sizeof own);
        config.size = size;
        tsr_status status = tsr_config_read("thing", &config, sizeof config.size, &own, sizeof own);
        assert_int_equal(status, size < sizeof(size_t) || size > sizeof config ? TSR_ERR_INVALID : TSR_OK);
        if (status != TSR_OK)
            continue;
        assert_int_equal(own.size, sizeof own);
        for (size_t i = sizeof own.size; i < sizeof own; i++)
            assert_int_equal(((unsigned char *)&own)[i], i < size ? ((unsigned char *)&config)[i] : 9);
    }
    memset(&own, 9, sizeof own);
    runner_ok(tsr_config_read("thing", NULL, sizeof own, &own, sizeof own), "no config");
    assert_int_equal(own.d, 0x09090909);
}

/* So that a newer program reads 0 where this library has no such field yet. */
static void reserved_fields_are_zero(void **state)
{
    (void)state;
    static const uint64_t zeros[8];
    tsr_model_config config = tsr_model_config_default();
    tsr_fit_config fit = tsr_fit_config_default();
    tsr_graph *graph;
    tsr_program *program;
    runner r;
    config.session.n_ctx = 64;
    config.plan.fit = &fit;
    runner_open(&r, "examples/models/glossary-7m-Q8_0.gguf", "host:2,threads=1", NULL, &config);
    runner_ok(tsr_graph_create(r.rt, &graph), "graph");
    tsr_graph_output(graph, tsr_scale(graph, tsr_graph_input(graph, TSR_TYPE_F32, 4, 1, "x"), 2));
    runner_ok(tsr_program_compile(graph, NULL, &program), "compile");
#define ARE_ZERO(type, call)                                           \
    do {                                                               \
        type out;                                                      \
        memset(&out, 0xff, sizeof out);                                \
        call;                                                          \
        assert_int_equal(sizeof out.reserved, sizeof zeros);           \
        assert_memory_equal(out.reserved, zeros, sizeof out.reserved); \
    } while (0)
    ARE_ZERO(tsr_model_info, tsr_model_get_info(r.model, &out));
    ARE_ZERO(tsr_plan_info, tsr_plan_get_info(tsr_model_plan(r.model), &out));
    ARE_ZERO(tsr_plan_device, runner_ok(tsr_plan_get_device(tsr_model_plan(r.model), 1, &out), "device"));
    ARE_ZERO(tsr_plan_times, tsr_plan_predict(tsr_model_plan(r.model), &out));
    ARE_ZERO(tsr_fit_info, tsr_fit_get_info(tsr_model_fit(r.model), &out));
    ARE_ZERO(tsr_device_info, runner_ok(tsr_runtime_device(r.rt, 1, &out), "device"));
    ARE_ZERO(tsr_device_memory, runner_ok(tsr_runtime_memory(r.rt, 1, &out), "memory"));
    ARE_ZERO(tsr_session_stats, tsr_session_get_stats(r.session, &out));
    ARE_ZERO(tsr_program_info, tsr_program_get_info(program, &out));
    ARE_ZERO(tsr_program_device_info, runner_ok(tsr_program_get_device(program, 1, &out), "device"));
    tsr_program_destroy(program);
    tsr_graph_destroy(graph);
    runner_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_runtime_config_opens_a_runtime),
        cmocka_unit_test(an_older_topology_config_loads_a_machine),
        cmocka_unit_test(what_an_older_model_config_lacks_is_the_default),
        cmocka_unit_test(defaults_have_the_size_of_the_callers_struct),
        cmocka_unit_test(a_newer_config_is_refused),
        cmocka_unit_test(a_config_without_its_size_is_refused),
        cmocka_unit_test(reading_copies_the_callers_bytes_and_no_others),
        cmocka_unit_test(reserved_fields_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
