/* What a plan leaves to the driver on a card of 8 GiB: enough for the context, whether the process has it
 * already or not, so that a plan that fits to the last byte is opened and loaded, and no more than that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>
#include <cudasim_nvml.h>

#include <tsr/device_list.h>
#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/topology.h>

#include "core/gpu.h"
#include "support/directory.h"
#include "support/log_lines.h"
#include "support/runner.h"
#include "support/synth_model.h"

/* As an RTX 3070: its context takes more than a 64th of the memory. */
enum { N_SMS = 46, COMPUTE_CAPABILITY = 86, CONTEXT_MIB = N_SMS * 3 + 8, N_VOCAB = 512 };

static const size_t mib = (size_t)1 << 20, card_bytes = (size_t)8 << 30;
static char model_path[DIRECTORY_PATH];
static log_lines warnings;

static int set_up(void **state)
{
    (void)state;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    close(directory_new(model_path));
    synth_model_write(&config, model_path);
    return 0;
}

/* A card of which other processes use `taken` bytes. */
static void card(size_t taken, bool has_context)
{
    const cudasim_nvml_config nvml = CUDASIM_NVML_CONFIG_INIT;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_sms = N_SMS;
    config.compute_capability = COMPUTE_CAPABILITY;
    config.memory = card_bytes - CONTEXT_MIB * mib;
    config.taken = taken;
    cudasim_configure(&config);
    cudasim_nvml_configure(&nvml);
    if (has_context)
        assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudasim_context(0), has_context ? CONTEXT_MIB * mib : 0);
}

/* Plan for the card as it is now: the bytes that it could hold, and those of the plan, 0 if there is none. */
static tsr_status plan_for(const tsr_topology *topo, size_t *usable_out, size_t *planned_out)
{
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_plan *plan = NULL;
    tsr_plan_device device = {0};
    runner_ok(tsr_gguf_open(model_path, NULL, &gguf), model_path);
    runner_ok(tsr_device_list_create(topo, "cuda:0", NULL, &list), "cuda:0");
    tsr_status status = tsr_plan_create(gguf, list, NULL, &plan);
    if (status == TSR_OK)
        runner_ok(tsr_plan_get_device(plan, 0, &device), "device");
    *usable_out = list->devices[0].memory_usable_bytes;
    *planned_out = device.total_bytes;
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
    return status;
}

static tsr_runtime *open_on(const tsr_topology *topo)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    config.topology = topo;
    config.devices = "cuda:0";
    config.logger = (tsr_logger){log_lines_note, &warnings, TSR_LOG_WARN};
    warnings = (log_lines){0};
    runner_ok(tsr_runtime_open(&config, &rt), "cuda:0");
    return rt;
}

static void load_and_decode(tsr_runtime *rt, float *logits)
{
    runner r = {.rt = rt, .n_vocab = N_VOCAB};
    int32_t tokens[3] = {1, 2, 3};
    runner_ok(tsr_model_open(rt, model_path, NULL, &r.model), "load");
    runner_ok(tsr_session_create(r.model, &r.session), "session");
    runner_decode(&r, tokens, 3, 0, false, logits);
    tsr_session_destroy(r.session);
    tsr_model_close(r.model);
}

static tsr_topology *discover(void)
{
    tsr_topology *topo;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    return topo;
}

/* The driver's part is not more than it was told to be. */
static void check_fits(size_t taken, bool has_context, size_t expected, const float *clean)
{
    size_t usable, planned;
    float logits[N_VOCAB];
    tsr_device_memory m;
    card(taken, has_context);
    tsr_topology *topo = discover();
    assert_int_equal(topo->gpus[0].has_context, has_context);
    runner_ok(plan_for(topo, &usable, &planned), "a plan that fits exactly");
    assert_int_equal(usable, expected);
    assert_int_equal(planned, expected);
    tsr_runtime *rt = open_on(topo);
    runner_ok(tsr_runtime_memory(rt, 0, &m), "memory");
    assert_int_equal(m.cap, expected);
    load_and_decode(rt, logits);
    runner_ok(tsr_runtime_memory(rt, 0, &m), "memory");
    assert_int_equal(m.peak_total, expected);
    assert_string_equal(warnings.text, "");
    assert_memory_equal(logits, clean, sizeof logits);
    tsr_runtime_close(rt);
    tsr_topology_destroy(topo);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

static void check_refused(size_t taken, bool has_context)
{
    size_t usable, planned;
    tsr_model *model = NULL;
    card(taken, has_context);
    tsr_topology *topo = discover();
    assert_int_equal(plan_for(topo, &usable, &planned), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "cuda0"));
    assert_int_equal(cudasim_used(0), 0);
    tsr_runtime *rt = open_on(topo);
    size_t used = cudasim_used(0);
    assert_int_equal(tsr_model_open(rt, model_path, NULL, &model), TSR_ERR_MEMORY);
    assert_int_equal(cudasim_used(0), used);
    tsr_runtime_close(rt);
    tsr_topology_destroy(topo);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

static void a_plan_that_fits_exactly_is_opened_and_one_byte_less_is_refused(void **state)
{
    (void)state;
    size_t usable, planned;
    float clean[N_VOCAB];
    card(0, false);
    tsr_topology *topo = discover();
    assert_int_equal(topo->gpus[0].memory_bytes, card_bytes);
    runner_ok(plan_for(topo, &usable, &planned), "with room");
    tsr_runtime *rt = open_on(topo);
    load_and_decode(rt, clean);
    tsr_runtime_close(rt);
    tsr_topology_destroy(topo);
    for (int has_context = 0; has_context < 2; has_context++) {
        check_fits(usable - planned, has_context, planned, clean);
        check_refused(usable - planned + 1, has_context);
    }
}

/* What processes without memory of their own were seen to take, in MiB. */
static void estimates_are_above_what_was_seen(void **state)
{
    (void)state;
    static const struct {
        int n_sms, compute_capability;
        size_t seen;
    } cards[] = {{132, 90, 534}, {34, 89, 107}, {188, 120, 555}};
    for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
        const tsr_gpu gpu = {.n_sms = cards[c].n_sms, .compute_capability = cards[c].compute_capability};
        assert_in_range(tsr_gpu_context_bytes(&gpu), cards[c].seen * mib, cards[c].seen * mib * 5 / 4);
    }
}

/* A context that exists is not counted twice; with more memory more is left. */
static void the_reserve_depends_on_the_card(void **state)
{
    (void)state;
    static const struct {
        tsr_gpu gpu;
        size_t reserve;
    } cards[] = {{{.n_sms = 46, .compute_capability = 86, .memory_bytes = (size_t)8 << 30}, 146 + 128},
                 {{.n_sms = 128, .compute_capability = 89, .memory_bytes = (size_t)24 << 30}, 392 + 128},
                 {{.n_sms = 82, .compute_capability = 86, .memory_bytes = (size_t)48 << 30}, 768},
                 {{.n_sms = 132, .compute_capability = 90, .memory_bytes = (size_t)80 << 30}, 1024}};
    for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
        tsr_gpu gpu = cards[c].gpu;
        const uint64_t usable = tsr_gpu_usable_bytes(&gpu);
        assert_int_equal(gpu.memory_bytes - usable, cards[c].reserve * mib);
        gpu.memory_free_bytes = gpu.memory_bytes - 1000 * mib;
        assert_int_equal(tsr_gpu_usable_bytes(&gpu), usable - 1000 * mib);
        gpu.has_context = true;
        gpu.memory_free_bytes -= tsr_gpu_context_bytes(&gpu);
        assert_int_equal(tsr_gpu_usable_bytes(&gpu), usable - 1000 * mib);
        gpu.memory_free_bytes = mib;
        assert_int_equal(tsr_gpu_usable_bytes(&gpu), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_fits_exactly_is_opened_and_one_byte_less_is_refused),
        cmocka_unit_test(estimates_are_above_what_was_seen),
        cmocka_unit_test(the_reserve_depends_on_the_card),
    };
    return cmocka_run_group_tests_name("what is left to the driver", tests, set_up, NULL);
}
