/* Plans are what loading takes: for random models and configurations the planned bytes of every device and
 * owner are the bytes allocated, and everything that a plan says adds up (support/plan_check.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/plan_check.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_MODELS = 10, N_CONFIGS = 160, MAX_DEVICES = 7 };

typedef struct fixture {
    char paths[N_MODELS][64];
    tsr_topology *topo;
} fixture;

static void random_model(uint64_t *seed, int index, const char *path)
{
    static const tsr_type types[] = {TSR_TYPE_F16,  TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,
                                     TSR_TYPE_BF16, TSR_TYPE_F32,  TSR_TYPE_Q6_K};
    static const int head_dims[] = {32, 64, 96};
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 1 + (int)random_below(seed, 4);
    config.n_embd = 256 * (1 + (int)random_below(seed, 2));
    config.n_kv_heads = 1 << random_below(seed, 4);
    config.n_heads = config.n_kv_heads * (1 + (int)random_below(seed, 3));
    config.head_dim = head_dims[random_below(seed, 3)];
    config.n_ff = 256 * (1 + (int)random_below(seed, 6));
    config.n_vocab = 260 + (int)random_below(seed, 300);
    config.weight_type = types[index % (int)(sizeof types / sizeof *types)];
    config.tied_output = random_below(seed, 2);
    config.rope_factors = random_below(seed, 2);
    synth_model_write(&config, path);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    uint64_t seed = 31;
    assert_non_null(f);
    for (int i = 0; i < N_MODELS; i++) {
        snprintf(f->paths[i], sizeof f->paths[i], "/tmp/tsr_plan_XXXXXX");
        close(mkstemp(f->paths[i]));
        random_model(&seed, i, f->paths[i]);
    }
    runner_ok(tsr_topology_discover(NULL, &f->topo), "topology");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < N_MODELS; i++)
        unlink(f->paths[i]);
    tsr_topology_destroy(f->topo);
    free(f);
    return 0;
}

/* Proportions with zeros; sometimes fewer than devices, sometimes none. */
static void random_split(uint64_t *seed, int n_devices, float *split, tsr_model_config *config)
{
    static const float choices[] = {0, 0, 1, 1, 2, 3, 0.1f, 17, 1000, 1e-6f};
    config->n_tensor_split = (int)random_below(seed, (uint64_t)n_devices + 1);
    config->tensor_split = config->n_tensor_split ? split : NULL;
    for (int d = 0; d < config->n_tensor_split; d++)
        split[d] = choices[random_below(seed, sizeof choices / sizeof *choices)];
}

static tsr_model_config random_config(uint64_t *seed, int n_devices, float *split)
{
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_F32, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    uint64_t mode = random_below(seed, 8);
    random_split(seed, n_devices, split, &config);
    config.split_mode = mode == 0   ? TSR_SPLIT_MODE_NONE
                        : mode <= 2 ? TSR_SPLIT_MODE_LAYER
                                    : TSR_SPLIT_MODE_TENSOR;
    config.main_device = (int)random_below(seed, (uint64_t)n_devices);
    config.n_ctx = random_below(seed, 4) ? 1 + (int64_t)random_below(seed, 700) : 0;
    config.n_seq_max = 1 + (int)random_below(seed, 6);
    config.n_batch = 1 + (int)random_below(seed, 130);
    config.n_outputs_max = (int)random_below(seed, 9);
    config.type_k = types[random_below(seed, 5)];
    config.type_v = types[random_below(seed, 5)];
    config.reduction = random_below(seed, 4) ? TSR_REDUCTION_EXACT : TSR_REDUCTION_F32;
    config.copy_weights = random_below(seed, 3) == 0;
    return config;
}

static void assert_used(const tsr_runtime *rt, const tsr_plan *plan, const char *when)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        tsr_plan_device device = {0};
        runner_ok(tsr_runtime_device(rt, d, &info), when);
        if (plan)
            runner_ok(tsr_plan_describe_device(plan, d, &device), when);
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (info.used[o] != device.bytes[o])
                fail_msg("%s: %s has %zu bytes of %s, the plan says %zu", when, info.name, info.used[o],
                         tsr_memory_owner_name((tsr_memory_owner)o), device.bytes[o]);
    }
}

/* Two steps of different shapes, which must find all their memory there already. */
static void run_steps(tsr_session *session, const tsr_model_config *config, int64_t n_vocab, int64_t n_ctx)
{
    int32_t tokens[3] = {1, 2, 3};
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (int64_t n = 1; n <= 2 && n_ctx >= 3; n++) {
        tsr_batch batch = {.n_tokens = n, .tokens = tokens};
        runner_ok(tsr_session_decode(session, &batch, logits), "step");
    }
    (void)config;
    free(logits);
}

static void check_one(const fixture *f, uint64_t *seed)
{
    char spec[64];
    float split[MAX_DEVICES];
    const char *path = f->paths[random_below(seed, N_MODELS)];
    int n_devices = 1 + (int)random_below(seed, MAX_DEVICES);
    snprintf(spec, sizeof spec, "host:%d,threads=1", n_devices);
    tsr_model_config config = random_config(seed, n_devices, split);
    tsr_runtime_config runtime_config = TSR_RUNTIME_CONFIG_INIT;
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_plan *plan;
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    tsr_model_info info;
    tsr_plan_info plan_info;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    runner_ok(tsr_device_list_create(f->topo, spec, NULL, &list), spec);
    runner_ok(tsr_plan_create(gguf, list, &config, &plan), "plan");
    plan_check(plan, gguf, &config, false);
    runtime_config.devices = spec;
    runtime_config.topology = f->topo;
    runner_ok(tsr_runtime_open(&runtime_config, &rt), spec);
    runner_ok(tsr_model_open(rt, path, &config, &model), path);
    plan_check_equal(plan, tsr_model_plan(model));
    runner_ok(tsr_session_create(model, &session), path);
    assert_used(rt, plan, "loaded");
    tsr_model_describe(model, &info);
    tsr_plan_describe(plan, &plan_info);
    run_steps(session, &config, info.n_vocab, plan_info.n_ctx);
    assert_used(rt, plan, "after two steps");
    tsr_session_destroy(session);
    tsr_model_close(model);
    assert_used(rt, NULL, "closed");
    tsr_runtime_close(rt);
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
}

static void planned_bytes_are_allocated_bytes(void **state)
{
    uint64_t seed = 32;
    for (int i = 0; i < N_CONFIGS; i++)
        check_one(*state, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_allocated_bytes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
