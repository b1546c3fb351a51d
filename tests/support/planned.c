/* See planned.h. */
#include "support/planned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/plan_check.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_MODELS = PLANNED_MODELS, MAX_DEVICES = 8 };

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
    if (index % 2) /* a llama, or any other architecture */
        config.arch = &synth_archs[random_below(seed, n_synth_archs)];
    synth_model_write(&config, path);
}

int planned_rounds(int n)
{
    const char *text = getenv("TSR_TEST_ROUNDS");
    long rounds = text && atol(text) > 0 ? n * atol(text) / 300 : n;
    return rounds < 8 ? 8 : (int)rounds;
}

void planned_models_write(planned_models *models)
{
    uint64_t seed = 31;
    for (int i = 0; i < N_MODELS; i++) {
        close(directory_new(models->paths[i]));
        random_model(&seed, i, models->paths[i]);
    }
}

void planned_models_remove(const planned_models *models)
{
    for (int i = 0; i < N_MODELS; i++)
        unlink(models->paths[i]);
}

/* What a config borrows. */
typedef struct borrowed {
    float split[MAX_DEVICES], prompt[MAX_DEVICES];
    tsr_offload_rule offload_rules[2];
    char names[2][12];
} borrowed;

/* Blocks that one device works on alone: by count, by pattern, or both. */
static void random_offload(uint64_t *seed, int n_devices, borrowed *own, tsr_model_config *config)
{
    static const char *const patterns[] = {"blk\\.0\\.",  "blk\\.[01]\\.ffn", "ffn_(gate|up|down)",
                                           "attn_[qkvo]", "token_embd",       "^(output|token_embd)"};
    if (random_below(seed, 3))
        config->offload.n_gpu_layers = (int)random_below(seed, 6);
    config->offload.n_rules = (int)random_below(seed, 3);
    config->offload.rules = own->offload_rules;
    for (int i = 0; i < config->offload.n_rules; i++) {
        snprintf(own->names[i], sizeof own->names[i], "%d", (int)random_below(seed, (uint64_t)n_devices));
        own->offload_rules[i].pattern = patterns[random_below(seed, sizeof patterns / sizeof *patterns)];
        own->offload_rules[i].device = own->names[i];
    }
}

/* Proportions with zeros; sometimes fewer than devices, sometimes none. */
static void random_split(uint64_t *seed, int n_devices, float *split, tsr_model_config *config)
{
    static const float choices[] = {0, 0, 1, 1, 2, 3, 0.1f, 17, 1000, 1e-6f};
    config->split.n_tensor_split = (int)random_below(seed, (uint64_t)n_devices + 1);
    config->split.tensor_split = config->split.n_tensor_split ? split : NULL;
    for (int d = 0; d < config->split.n_tensor_split; d++)
        split[d] = choices[random_below(seed, sizeof choices / sizeof *choices)];
}

/* Other proportions for long steps, given or the planner's. */
static void random_prompt(uint64_t *seed, int n_devices, borrowed *own, tsr_model_config *config)
{
    static const float choices[] = {0, 0, 1, 1, 2, 3, 17};
    config->prompt.automatic = random_below(seed, 2);
    config->prompt.n_tensor_split = config->prompt.automatic ? 0 : n_devices;
    config->prompt.tensor_split = config->prompt.automatic ? NULL : own->prompt;
    for (int d = 0; d < n_devices; d++)
        own->prompt[d] = choices[random_below(seed, sizeof choices / sizeof *choices)];
}

static tsr_model_config random_config(uint64_t *seed, int n_devices, borrowed *own)
{
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_F32, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    tsr_model_config config = tsr_model_config_default();
    uint64_t mode = random_below(seed, 8);
    random_split(seed, n_devices, own->split, &config);
    config.split.mode = mode == 0   ? TSR_SPLIT_MODE_NONE
                        : mode <= 2 ? TSR_SPLIT_MODE_LAYER
                        : mode == 3 ? TSR_SPLIT_MODE_AUTO
                                    : TSR_SPLIT_MODE_TENSOR;
    config.split.main_device = (int)random_below(seed, (uint64_t)n_devices);
    config.session.n_ctx = random_below(seed, 4) ? 1 + (int64_t)random_below(seed, 700) : 0;
    config.session.n_seq_max = 1 + (int)random_below(seed, 6);
    config.session.n_batch = 1 + (int)random_below(seed, 130);
    config.session.n_outputs_max = (int)random_below(seed, 9);
    config.session.type_k = types[random_below(seed, 5)];
    config.session.type_v = types[random_below(seed, 5)];
    config.compute.reduction =
        random_below(seed, 4) ? TSR_REDUCTION_EXACT : (tsr_reduction)(1 + random_below(seed, 2));
    config.load.copy_weights = random_below(seed, 3) == 0;
    config.session.swa_full = random_below(seed, 3) == 0;
    config.output.embeddings = random_below(seed, 5) == 0;
    if (n_devices > 1 && random_below(seed, 3) == 0)
        random_offload(seed, n_devices, own, &config);
    else if (config.split.mode == TSR_SPLIT_MODE_TENSOR && random_below(seed, 2))
        random_prompt(seed, n_devices, own, &config);
    return config;
}

static void assert_used(const tsr_runtime *rt, const tsr_plan *plan, const char *when)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        tsr_plan_device device = {0};
        runner_ok(tsr_runtime_device(rt, d, &info), when);
        if (plan)
            runner_ok(tsr_plan_get_device(plan, d, &device), when);
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (info.used[o] != device.bytes[o])
                fail_msg("%s: %s has %zu bytes of %s, the plan says %zu", when, info.name, info.used[o],
                         tsr_memory_owner_name((tsr_memory_owner)o), device.bytes[o]);
    }
}

/* Two steps of different shapes, which must find all their memory there already. */
static void run_steps(tsr_session *session, const tsr_model_info *info, int64_t n_ctx, bool embeds)
{
    int32_t tokens[3] = {1, 2, 3};
    float *row = malloc((size_t)(embeds ? info->n_embd : info->n_vocab) * sizeof *row);
    assert_non_null(row);
    for (int64_t n = 1; n <= 2 && n_ctx >= 3; n++) {
        tsr_batch batch = {.n_tokens = n, .tokens = tokens};
        runner_ok(embeds ? tsr_session_decode_embeddings(session, &batch, row)
                         : tsr_session_decode(session, &batch, row),
                  "step");
    }
    free(row);
}

static void check_plan(const tsr_plan *plan, const tsr_gguf *gguf, const tsr_model_config *config,
                       const planned_gpus *gpus, bool capped)
{
    if (gpus)
        plan_check_gpus(plan, gguf, config, gpus->granularity);
    else
        plan_check(plan, gguf, config, capped);
}

/* Load what was planned, run, close. */
static void check_loaded(const tsr_plan *plan, tsr_runtime *rt, const char *path,
                         const tsr_model_config *config, bool run, planned_look *look)
{
    tsr_model *model;
    tsr_session *session;
    tsr_model_info info;
    tsr_plan_info plan_info;
    runner_ok(tsr_model_open(rt, path, config, &model), path);
    plan_check_equal(plan, tsr_model_plan(model));
    runner_ok(tsr_session_create(model, &session), path);
    assert_used(rt, plan, "loaded");
    if (look)
        look(rt);
    tsr_model_get_info(model, &info);
    tsr_plan_get_info(plan, &plan_info);
    if (run)
        run_steps(session, &info, plan_info.n_ctx, config->output.embeddings);
    assert_used(rt, plan, "after two steps");
    if (look)
        look(rt);
    tsr_session_destroy(session);
    tsr_model_close(model);
    assert_used(rt, NULL, "closed");
}

/* What cannot be planned cannot be loaded, and nothing is left of the attempt. */
static void check_refused(tsr_runtime *rt, const char *path, const tsr_model_config *config,
                          tsr_status status)
{
    tsr_model *model = NULL;
    if (status != TSR_ERR_MEMORY && status != TSR_ERR_INVALID)
        fail_msg("%s: %s", path, tsr_last_error());
    assert_int_equal(tsr_model_open(rt, path, config, &model), status);
    assert_null(model);
    assert_used(rt, NULL, "refused");
}

bool planned_check(const planned_models *models, uint64_t *seed, const tsr_topology *topo, const char *spec,
                   int n_devices, const planned_gpus *gpus, planned_look *look)
{
    borrowed own;
    const char *path = models->paths[random_below(seed, N_MODELS)];
    assert_true(n_devices <= MAX_DEVICES);
    tsr_model_config config = random_config(seed, n_devices, &own);
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_plan *plan = NULL;
    tsr_runtime *rt;
    runtime_config.devices = spec;
    runtime_config.collectives = gpus ? gpus->collectives : NULL;
    runtime_config.topology = topo;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    runner_ok(tsr_device_list_create(topo, spec, NULL, &list), spec);
    runner_ok(tsr_runtime_open(&runtime_config, &rt), spec);
    tsr_status status = tsr_plan_create(gguf, list, &config, &plan);
    if (status == TSR_OK) {
        check_plan(plan, gguf, &config, gpus, strstr(spec, "mem=") != NULL);
        check_loaded(plan, rt, path, &config, !gpus || gpus->run, look);
    } else {
        check_refused(rt, path, &config, status);
    }
    tsr_runtime_close(rt);
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
    return status == TSR_OK;
}
