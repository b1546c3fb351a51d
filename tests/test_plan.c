/* Planned bytes are allocated bytes (support/planned.h), on host devices; requested and achieved shares. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/plan.h>

#include "support/directory.h"
#include "support/planned.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_CONFIGS = 200, MAX_TEST_DEVICES = 7 };

/* Some with a cap that keeps the planner's shares off the last device, or the model off the machine. */
static void random_spec(uint64_t *seed, int n_devices, char *spec, size_t capacity)
{
    if (n_devices > 1 && random_below(seed, 4) == 0)
        snprintf(spec, capacity, "host:%d,threads=1,host:1,threads=1,mem=%dKiB", n_devices - 1,
                 64 << random_below(seed, 8));
    else
        snprintf(spec, capacity, "host:%d,threads=1", n_devices);
}

static void planned_bytes_are_allocated_bytes(void **state)
{
    (void)state;
    uint64_t seed = 32;
    planned_models models;
    tsr_topology *topo;
    int n = planned_rounds(N_CONFIGS), n_planned = 0, n_refused = 0;
    planned_models_write(&models);
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    while (n_planned < n) {
        char spec[96];
        int n_devices = 1 + (int)random_below(&seed, MAX_TEST_DEVICES);
        random_spec(&seed, n_devices, spec, sizeof spec);
        *(planned_check(&models, &seed, topo, spec, n_devices, NULL, NULL) ? &n_planned : &n_refused) += 1;
    }
    print_message("%d configurations were loaded as planned, %d could not be planned\n", n_planned,
                  n_refused);
    assert_true(n_refused < n_planned);
    tsr_topology_destroy(topo);
    planned_models_remove(&models);
}

/* KV heads are whole: what a plan says of attention is the nearest that they allow. */
static void a_plan_reports_what_rounding_made_of_the_request(void **state)
{
    (void)state;
    static const struct {
        int n_devices, n_kv_heads;
        float split[3];
        int64_t granules[3];
    } cases[] = {
        {2, 8, {49, 51}, {4, 4}},        {2, 8, {51, 49}, {4, 4}},
        {3, 4, {24, 24, 16}, {2, 1, 1}}, /* 1.5, 1.5 and 1: half a granule off is the best there is */
        {3, 8, {24, 24, 16}, {3, 3, 2}}, {2, 4, {1, 0}, {4, 0}},
    };
    tsr_topology *topo;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
        tsr_model_config config = tsr_model_config_default();
        char path[DIRECTORY_PATH], spec[32];
        double sum = 0;
        tsr_device_list *list;
        tsr_gguf *gguf;
        tsr_plan *plan;
        close(directory_new(path));
        model.n_kv_heads = cases[i].n_kv_heads;
        synth_model_write(&model, path);
        snprintf(spec, sizeof spec, "host:%d,threads=1", cases[i].n_devices);
        config.split.tensor_split = cases[i].split;
        config.split.n_tensor_split = cases[i].n_devices;
        runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
        runner_ok(tsr_device_list_create(topo, spec, NULL, &list), spec);
        runner_ok(tsr_plan_create(gguf, list, &config, &plan), spec);
        for (int d = 0; d < cases[i].n_devices; d++)
            sum += (double)cases[i].split[d];
        for (int d = 0; d < cases[i].n_devices; d++) {
            tsr_plan_device device;
            double share = (double)cases[i].split[d] / sum;
            runner_ok(tsr_plan_get_device(plan, d, &device), "device");
            assert_int_equal(device.granules[TSR_CLASS_ATTENTION], cases[i].granules[d]);
            assert_float_equal(device.achieved[TSR_CLASS_ATTENTION],
                               (double)cases[i].granules[d] / cases[i].n_kv_heads, 1e-12);
            assert_float_equal(device.requested, share, 1e-6);
            assert_true(fabs(device.achieved[TSR_CLASS_ATTENTION] - share) * cases[i].n_kv_heads <=
                        0.5 + 1e-6);
        }
        tsr_plan_destroy(plan);
        tsr_device_list_destroy(list);
        tsr_gguf_close(gguf);
        unlink(path);
    }
    tsr_topology_destroy(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_reports_what_rounding_made_of_the_request),
        cmocka_unit_test(planned_bytes_are_allocated_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
