/* Offload beside simulated GPUs: blocks that the user sent to a host device run there, in one program with
 * what the GPUs do. GPUs and host devices round differently, so the bits depend on which blocks the host
 * has, and on nothing else: how many GPUs divide the rest, their shares, collectives, chunks. With all blocks
 * on one family they are that family's. */
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
#include "support/message.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_LAYERS = 2, N_TOKENS = 7, N_VOCAB = 300, N_LOGITS = N_TOKENS * N_VOCAB };

#define HOST "host:1,threads=1"

/* A dense model, and a mixture of experts. */
static char path[DIRECTORY_PATH], moe_path[DIRECTORY_PATH];

static int setup(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = N_LAYERS;
    model.weight_type = TSR_TYPE_Q8_0;
    model.n_vocab = N_VOCAB;
    close(directory_new(path));
    synth_model_write(&model, path);
    model.n_experts = 5;
    close(directory_new(moe_path));
    synth_model_write(&model, moe_path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path) | unlink(moe_path);
}

/* What goes to the host. */
typedef struct part {
    const char *name;
    int n_gpu_layers;
    tsr_offload_rule offload_rules[2];
    int n_offload_rules;
    const char *reference; /* devices that give the bits; NULL: one GPU and the host */
    int n_cpu_moe;
} part;

static const part parts[] = {
    {"nothing", N_LAYERS + 1, {{NULL, NULL}}, 0, "cuda:0", 0},
    {"everything", 0, {{NULL, NULL}}, 0, HOST, 0},
    {"a layer, embedding and output", 1, {{NULL, NULL}}, 0, NULL, 0},
    {"embedding and output", N_LAYERS, {{NULL, NULL}}, 0, NULL, 0},
    {"the FFN of all layers", -1, {{"blk\\..*\\.ffn_(gate|up|down)", "CPU"}}, 1, NULL, 0},
    {"one attention, one FFN", -1, {{"blk\\.0\\.attn", "host0"}, {"blk\\.1\\.ffn", "CPU"}}, 2, NULL, 0},
};

static const part moe_parts[] = {
    {"no experts", -1, {{NULL, NULL}}, 0, "cuda:0", 0},
    {"all experts", -1, {{"exps", "CPU"}}, 1, NULL, 0},
    {"the experts of one layer", -1, {{NULL, NULL}}, 0, NULL, 1},
    {"experts, embedding and output", N_LAYERS, {{NULL, NULL}}, 0, NULL, 99},
};

typedef struct machine {
    int n_gpus;
    bool peer_access;
    const char *devices, *collectives, *split;
    int64_t chunk;
} machine;

static const machine machines[] = {
    {1, true, "cuda:0," HOST, NULL, "1", N_TOKENS},
    {3, true, "cuda," HOST, NULL, "1,2,1", 3},
    {3, false, HOST ",cuda", "staged", "0,1,1,1", 1},
    {1, true, "cuda:0,cuda:0," HOST, "staged", "0", 4},
};

/* The whole text in chunks; the accounting is compared with the plan before and after. */
static bool run(const char *model, const machine *m, const char *devices, const part *p, tsr_type type_kv,
                float *logits)
{
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    int32_t tokens[N_TOKENS];
    runner r;
    sim.n_devices = m->n_gpus;
    sim.may_share = true;
    sim.peer_access = m->peer_access;
    if (!cudasim_have(&sim))
        return false;
    config.session.n_ctx = 64;
    config.session.n_batch = 4;
    config.session.n_outputs_max = 4;
    config.session.type_k = config.session.type_v = type_kv;
    if (p) {
        config.offload.n_gpu_layers = p->n_gpu_layers;
        config.offload.rules = p->offload_rules;
        config.offload.n_rules = p->n_offload_rules;
        config.offload.n_cpu_moe = p->n_cpu_moe;
        config.split.experts = m->n_gpus > 1 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
    }
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 97 + 11) % N_VOCAB;
    runner_open_with(&r, model, devices, m->collectives, p ? m->split : "1", &config);
    memset(logits, 0xff, N_LOGITS * sizeof *logits);
    runner_decode(&r, tokens, N_TOKENS, m->chunk, true, logits);
    for (int d = 0; d < r.rt->n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(tsr_model_plan(r.model), d, &device), "device");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            assert_int_equal(r.rt->devices[d]->used[o], device.bytes[o]);
    }
    runner_close(&r);
    nothing_is_left();
    return true;
}

/* On the first machine, and those from `begin` to `end`. */
static void check(const char *model, const part *p, tsr_type type_kv, size_t begin, size_t end)
{
    static float reference[N_LOGITS], logits[N_LOGITS];
    for (size_t i = 0; i < end; i += i == 0 ? begin : 1) {
        const machine *m = &machines[i];
        if (i == 0 && p->reference)
            run(model, m, p->reference, NULL, type_kv, reference);
        if (!run(model, m, m->devices, p, type_kv, i == 0 && !p->reference ? reference : logits))
            continue;
        if ((i > 0 || p->reference) && memcmp(logits, reference, sizeof logits) != 0)
            fail_msg("%s on the host, %s: other bits", p->name, m->devices);
    }
}

static void f16_keys_and_values_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        check(path, &parts[k], TSR_TYPE_F16, 1, 2);
}

static void q8_0_keys_and_values_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        check(path, &parts[k], TSR_TYPE_Q8_0, 2, 4);
}

static void experts_on_the_host_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof moe_parts / sizeof *moe_parts; k++)
        check(moe_path, &moe_parts[k], TSR_TYPE_F16, 1 + k % 2, 2 + k % 2);
}

static void without_a_host_device_there_is_nowhere_to_go(void **state)
{
    (void)state;
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    const tsr_offload_rule to_host = {"ffn", "CPU"};
    runner r = {0};
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    sim.n_devices = 2;
    sim.may_share = true;
    cudasim_configure(&sim);
    runtime_config.devices = "cuda";
    runner_ok(tsr_runtime_open(&runtime_config, &r.rt), "runtime");
    config.offload.n_gpu_layers = 1;
    assert_int_equal(tsr_model_open(r.rt, path, &config, &r.model), TSR_ERR_INVALID);
    assert_message_has("n_gpu_layers 1 leaves 1 of 2 layers");
    assert_message_has("-dev cuda,host:1");
    config.offload.n_gpu_layers = -1;
    config.offload.rules = &to_host;
    config.offload.n_rules = 1;
    assert_int_equal(tsr_model_open(r.rt, path, &config, &r.model), TSR_ERR_INVALID);
    assert_message_has("no host device");
    config.offload.n_gpu_layers = 99; /* all of them: nothing to offload */
    config.offload.n_rules = 0;
    runner_ok(tsr_model_open(r.rt, path, &config, &r.model), path);
    runner_close(&r);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_keys_and_values_give_the_same_bits),
        cmocka_unit_test(q8_0_keys_and_values_give_the_same_bits),
        cmocka_unit_test(experts_on_the_host_give_the_same_bits),
        cmocka_unit_test(without_a_host_device_there_is_nowhere_to_go),
    };
    return cmocka_run_group_tests_name("offload beside GPUs", tests, setup, teardown);
}
