/* Groups of simulated GPUs one after another, as split mode "auto" plans them where that is fastest: the same
 * bits as one GPU, in the memory that was planned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include <tsr/plan.h>

#include "core/device.h"
#include "core/runtime.h"
#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 4, N_LAYERS = 4, N_TOKENS = 23, N_VOCAB = 300, N_LOGITS = N_TOKENS * N_VOCAB };

static char path[DIRECTORY_PATH];

static int setup(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = N_LAYERS;
    model.n_embd = 256;
    model.n_heads = model.n_kv_heads = 8;
    model.n_ff = 128 * 8;
    model.n_vocab = N_VOCAB;
    model.weight_type = TSR_TYPE_Q8_0;
    close(directory_new(path));
    synth_model_write(&model, path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

/* N equal devices, bound by memory bandwidth, that meet in sync_ns. */
static void set_rates(tsr_device_rates *rates, double sync_ns)
{
    for (int d = 0; d < N; d++) {
        rates[d] =
            (tsr_device_rates){.op_ns = 1, .sync_ns = sync_ns, .sync_bytes_per_s = 1e15, .measured = true};
        for (int i = 0; i < TSR_RATE_TYPES; i++) {
            rates[d].read_bytes_per_s[i] = 1e9;
            rates[d].flops_per_s[i] = 1e15;
        }
    }
}

typedef struct outcome {
    tsr_plan_info info;
    tsr_plan_times times;
    tsr_plan_device first;
    uint64_t stages[N + 1]; /* devices of each; 0 behind the last */
    float logits[N_LOGITS];
} outcome;

static void run(const char *devices, const char *collectives, const char *split, tsr_split_mode mode,
                const tsr_device_rates *rates, int64_t at_a_time, outcome *o)
{
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    int32_t tokens[N_TOKENS];
    tsr_plan_stage stage;
    runner r;
    sim.n_devices = N;
    sim.peer_access = strcmp(collectives, "staged") != 0;
    cudasim_configure(&sim);
    config.plan.rates = rates;
    config.workload.n_prompt = 0; /* prompts are faster through single GPUs */
    config.workload.n_new = 1;
    config.split.mode = mode;
    config.session.n_ctx = 64;
    config.session.n_batch = 4;
    config.session.n_outputs_max = 4;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 97 + 11) % N_VOCAB;
    memset(o, 0xff, sizeof *o);
    runner_open_with(&r, path, devices, collectives, split, &config);
    runner_decode(&r, tokens, N_TOKENS, at_a_time, true, o->logits);
    const tsr_plan *plan = tsr_model_plan(r.model);
    tsr_plan_get_info(plan, &o->info);
    tsr_plan_predict(plan, &o->times);
    runner_ok(tsr_plan_get_device(plan, 0, &o->first), "device");
    memset(o->stages, 0, sizeof o->stages);
    for (int i = 0; i < N && tsr_plan_stage_at(plan, i, &stage); i++)
        o->stages[i] = stage.devices;
    for (int d = 0; d < r.rt->n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
            assert_int_equal(r.rt->devices[d]->used[owner], device.bytes[owner]);
    }
    runner_close(&r);
    nothing_is_left();
}

/* Two GPUs hold four fifths of the model, and a barrier of four takes four tenths of a layer: pairs. */
static void groups_give_the_same_bits_as_one_gpu(void **state)
{
    (void)state;
    static const char *const collectives[] = {"peer", "staged", "peer"};
    static outcome one, groups;
    tsr_device_rates rates[N];
    char devices[160];
    set_rates(rates, 0);
    run("cuda:0", "staged", "1", TSR_SPLIT_MODE_NONE, rates, 3, &one);
    size_t weights = one.first.bytes[TSR_MEMORY_WEIGHTS] + one.first.bytes[TSR_MEMORY_KV];
    size_t cap = one.first.total_bytes - weights + weights * 4 / 10;
    snprintf(devices, sizeof devices, "cuda:0,mem=%zu,cuda:1,mem=%zu,cuda:2,mem=%zu,cuda:3,mem=%zu", cap, cap,
             cap, cap);
    set_rates(rates, 0.4 * one.times.decode.total_ns / N_LAYERS);
    for (int i = 0; i < 3; i++) {
        run(devices, collectives[i], "0,0,0,0", TSR_SPLIT_MODE_AUTO, rates, i == 2 ? 3 : 0, &groups);
        assert_int_equal(groups.info.mode, TSR_SPLIT_MODE_AUTO);
        assert_true(groups.stages[1] != 0);
        bool any_group = false;
        for (int s = 0; s < N; s++)
            any_group |= __builtin_popcountll(groups.stages[s]) > 1;
        assert_true(any_group);
        assert_memory_equal(groups.logits, one.logits, sizeof one.logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_give_the_same_bits_as_one_gpu)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
