/* Offload: blocks that the user sent to one device really are and run there, with the same bits, the planned
 * bytes, and errors that say what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/runtime.h"
#include "plan/plan.h"
#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/message.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_LAYERS = 4, N_TOKENS = 11, N_VOCAB = 300, N_DEVICES = 3, N_KV_TYPES = 2 };

/* Two "fast" devices, and one to offload to. */
#define DEVICES "host:2,threads=1,host:1,threads=1,mem=64MiB"

static const tsr_type kv_types[N_KV_TYPES] = {TSR_TYPE_F16, TSR_TYPE_Q8_0};

typedef float logits_of_text[N_TOKENS * N_VOCAB];

typedef struct fixture {
    char path[DIRECTORY_PATH], moe_path[DIRECTORY_PATH]; /* a dense model, and a mixture of experts */
    int32_t tokens[N_TOKENS];
    logits_of_text plain[N_KV_TYPES], moe_plain[N_KV_TYPES];
} fixture;

static tsr_model_config small_config(int kv)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = 4;
    config.session.n_outputs_max = 4;
    config.session.type_k = config.session.type_v = kv_types[kv];
    return config;
}

/* `path` has room for DIRECTORY_PATH bytes. */
static void write_and_run(const fixture *f, const struct synth_model_config *model, char *path,
                          logits_of_text *plain)
{
    close(directory_new(path));
    synth_model_write(model, path);
    for (int kv = 0; kv < N_KV_TYPES; kv++) {
        tsr_model_config config = small_config(kv);
        runner r;
        runner_open(&r, path, "host:1,threads=1", NULL, &config);
        runner_decode(&r, f->tokens, N_TOKENS, 1, true, plain[kv]);
        runner_close(&r);
    }
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    uint64_t seed = 5;
    assert_non_null(f);
    model.n_layers = N_LAYERS;
    model.weight_type = TSR_TYPE_Q8_0;
    model.n_vocab = N_VOCAB;
    for (int i = 0; i < N_TOKENS; i++)
        f->tokens[i] = (int32_t)random_below(&seed, N_VOCAB);
    write_and_run(f, &model, f->path, f->plain);
    model.n_experts = 5;
    write_and_run(f, &model, f->moe_path, f->moe_plain);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    unlink(f->path);
    unlink(f->moe_path);
    free(f);
    return 0;
}

static tsr_status try_plan(const fixture *f, const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_gguf *gguf;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, DEVICES, NULL, &devices), DEVICES);
    runner_ok(tsr_gguf_open(f->path, NULL, &gguf), f->path);
    tsr_status status = tsr_plan_create(gguf, devices, config, plan_out);
    tsr_gguf_close(gguf);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
    return status;
}

/* -- bits and bytes -- */

typedef struct offload_case {
    const char *name;
    int n_gpu_layers;
    tsr_offload_rule offload_rules[3];
    int n_offload_rules;
    tsr_split_mode mode;
    const char *split; /* "0": the planner's */
    const char *offload_device;
    const char *layers; /* how many layers each device works on; '?' any number */
    int n_cpu_moe;
} offload_case;

#define LAYERS  "blk\\.[0-9]+\\."
#define TENSOR  TSR_SPLIT_MODE_TENSOR
#define LAYER   TSR_SPLIT_MODE_LAYER
#define NO_PART {{NULL, NULL}}, 0

static const offload_case cases[] = {
    {"all stay", -1, NO_PART, TENSOR, "1,1,1", NULL, "444", 0},
    {"all stay, counted", N_LAYERS + 1, NO_PART, TENSOR, "1,1,1", NULL, "444", 0},
    {"none stay", 0, NO_PART, TENSOR, "0", NULL, "004", 0},
    {"one stays", 1, NO_PART, TENSOR, "0", NULL, "??3", 0},
    {"the output goes", N_LAYERS, NO_PART, TENSOR, "1,1", NULL, "440", 0},
    {"some stay, by hand", 2, NO_PART, TENSOR, "3,1", NULL, "222", 0},
    {"a share for the offload device", 3, NO_PART, TENSOR, "1,1,1", NULL, "334", 0},
    {"to another device", 1, NO_PART, TENSOR, "0,1,1", "host0", "311"},
    {"whole layers", 2, NO_PART, LAYER, "0", NULL, "112", 0},
    {"whole layers, none stay", 0, NO_PART, LAYER, "0", NULL, "004", 0},
    {"one device and one apart", 3, NO_PART, TSR_SPLIT_MODE_NONE, "0", NULL, "301", 0},
    {"FFN by the planner", -1, {{"ffn_(gate|up|down)", "CPU"}}, 1, TENSOR, "0", NULL, "??4", 0},
    {"output by the planner", -1, {{"^output", "CPU"}}, 1, TENSOR, "0", NULL, "??0", 0},
    {"FFN by pattern", -1, {{LAYERS "ffn_(gate|up|down)", "CPU"}}, 1, TENSOR, "1,1", NULL, "444", 0},
    {"attention by name", -1, {{"attn_[qkvo]", "host1"}}, 1, TENSOR, "1,0,1", NULL, "444", 0},
    {"the first pattern decides",
     -1,
     {{"blk\\.0\\.", "host0"}, {"blk\\.[01]\\.", "2"}, {"^output", "host1"}},
     3,
     TENSOR,
     "1,1",
     NULL,
     "321",
     0},
    {"patterns come before counts", 0, {{"blk\\.3\\.ffn", "host0"}}, 1, TENSOR, "0", NULL, "104", 0},
    {"whole layers and a pattern", -1, {{"blk\\.1\\.attn", "CPU"}}, 1, LAYER, "1,1", NULL, "311", 0},
    {"the embedding alone", -1, {{"token_embd", "CPU"}}, 1, TENSOR, "1,1", NULL, "440", 0},
    {"layers and embedding", -1, {{"blk\\.0|token_embd", "CPU"}}, 1, LAYER, "1,1", NULL, "211", 0},
};

#define EXPERTS LAYERS "ffn_(gate|up|down)_exps"

static const offload_case moe_cases[] = {
    {"no experts go", -1, NO_PART, TENSOR, "1,1,1", NULL, "444", 0},
    {"the experts of two layers", -1, NO_PART, TENSOR, "1,1", NULL, "442", 2},
    {"all experts", -1, NO_PART, TENSOR, "3,1", NULL, "444", N_LAYERS},
    {"all experts, by the planner", -1, NO_PART, TENSOR, "0", NULL, "??4", 99},
    {"experts by pattern", -1, {{EXPERTS, "CPU"}}, 1, TENSOR, "1,1", NULL, "444", 0},
    {"experts by their ending", -1, {{"exps", "CPU"}}, 1, TENSOR, "1,1", NULL, "444", 0},
    {"experts of a layer, to a fast device",
     -1,
     {{"blk\\.1\\..*exps", "host0"}},
     1,
     TENSOR,
     "1,2",
     NULL,
     "440",
     0},
    {"a pattern before a count", -1, {{"blk\\.0\\..*exps", "host1"}}, 1, TENSOR, "1,1", NULL, "441", 2},
    {"experts and layers", 3, NO_PART, TENSOR, "1,1", NULL, "332", 2},
    {"experts have a share, too", -1, NO_PART, TENSOR, "1,1,1", NULL, "444", 1},
    {"experts beside whole layers", -1, NO_PART, LAYER, "1,1", NULL, "314", N_LAYERS},
};

static tsr_model_config config_of(const offload_case *c, int kv)
{
    tsr_model_config config = small_config(kv);
    config.offload.n_gpu_layers = c->n_gpu_layers;
    config.offload.rules = c->offload_rules;
    config.offload.n_rules = c->n_offload_rules;
    config.split.mode = c->mode;
    config.offload.device = c->offload_device;
    config.offload.n_cpu_moe = c->n_cpu_moe;
    return config;
}

static void check_accounting(const offload_case *c, const runner *r)
{
    tsr_plan_times times;
    tsr_plan_predict(tsr_model_plan(r->model), &times);
    assert_true(times.decode.total_ns > 0 && times.prompt.total_ns > 0);
    for (int d = 0; d < N_DEVICES; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(tsr_model_plan(r->model), d, &device), "device");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            if (r->rt->devices[d]->used[o] != device.bytes[o])
                fail_msg("%s: %s: %zu bytes of %s, planned %zu", c->name, device.name,
                         r->rt->devices[d]->used[o], tsr_memory_owner_name((tsr_memory_owner)o),
                         device.bytes[o]);
        if (c->layers[d] != '?' && device.n_layers != c->layers[d] - '0')
            fail_msg("%s: %s works on %lld layers, not %c", c->name, device.name, (long long)device.n_layers,
                     c->layers[d]);
    }
}

static void check_case(const fixture *f, const offload_case *c, const char *path, tsr_model_config config,
                       const float *plain)
{
    static logits_of_text logits;
    runner r;
    runner_open(&r, path, DEVICES, c->split, &config);
    check_accounting(c, &r);
    memset(logits, 0xff, sizeof logits);
    runner_decode(&r, f->tokens, N_TOKENS, 3, true, logits);
    if (memcmp(logits, plain, sizeof logits) != 0)
        fail_msg("%s: other bits", c->name);
    check_accounting(c, &r);
    runner_close(&r);
}

static void offloaded_blocks_give_the_same_bits(void **state)
{
    const fixture *f = *state;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        int kv = i % N_KV_TYPES;
        check_case(f, &cases[i], f->path, config_of(&cases[i], kv), f->plain[kv]);
    }
}

/* What stays of them is divided by columns, or by whole experts. */
static void offloaded_experts_give_the_same_bits(void **state)
{
    const fixture *f = *state;
    for (int i = 0; i < 2 * (int)(sizeof moe_cases / sizeof *moe_cases); i++) {
        int kv = i % N_KV_TYPES;
        tsr_model_config config = config_of(&moe_cases[i / 2], kv);
        config.split.experts = i % 2 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
        check_case(f, &moe_cases[i / 2], f->moe_path, config, f->moe_plain[kv]);
    }
}

/* -- memory and times -- */

static size_t used_by(const runner *r, int d)
{
    size_t bytes = 0;
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        bytes += r->rt->devices[d]->used[o];
    return bytes;
}

/* A small fast device and a large slow one: what does not fit does so with layers offloaded. */
static void a_small_device_runs_what_it_can_keep(void **state)
{
    const fixture *f = *state;
    static float logits[N_TOKENS * N_VOCAB];
    tsr_model_config config = small_config(0);
    char spec[96];
    runner r;
    config.split.mode = TSR_SPLIT_MODE_NONE;
    config.offload.n_gpu_layers = 2;
    runner_open(&r, f->path, "host:1,threads=1,host:1,threads=1", "0", &config);
    size_t with_two = used_by(&r, 0);
    runner_close(&r);
    snprintf(spec, sizeof spec, "host:1,threads=1,mem=%zu,host:1,threads=1", with_two);
    for (int n = -1; n <= N_LAYERS; n++) {
        tsr_runtime_config runtime_config = tsr_runtime_config_default();
        runtime_config.devices = spec;
        config.offload.n_gpu_layers = n;
        r = (runner){.n_vocab = N_VOCAB};
        runner_ok(tsr_runtime_open(&runtime_config, &r.rt), spec);
        tsr_status status = tsr_model_open(r.rt, f->path, &config, &r.model);
        assert_int_equal(status, n >= 0 && n <= 2 ? TSR_OK : TSR_ERR_MEMORY);
        if (status == TSR_OK) {
            runner_ok(tsr_session_create(r.model, &r.session), "session");
            runner_decode(&r, f->tokens, N_TOKENS, 4, true, logits);
            assert_memory_equal(logits, f->plain[0], sizeof logits);
            assert_true(used_by(&r, 0) <= with_two);
        } else {
            assert_message_has("device host0: needs");
        }
        runner_close(&r);
    }
}

/* The planner divides what is free under the caps of the other devices, beside what is pinned to them. */
static void caps_hold_beside_pinned_blocks(void **state)
{
    const fixture *f = *state;
    static float logits[N_TOKENS * N_VOCAB];
    static const tsr_offload_rule offload_rules[] = {{"blk\\.[01]\\.attn", "host0"},
                                                     {"blk\\.1\\.ffn", "host1"}};
    tsr_model_config config = small_config(0);
    int n_fit = 0;
    config.offload.n_gpu_layers = 3;
    config.offload.rules = offload_rules;
    config.offload.n_rules = 2;
    for (size_t cap = 300000; cap <= 2400000; cap += 300000) {
        tsr_runtime_config runtime_config = tsr_runtime_config_default();
        char spec[96];
        runner r = {.n_vocab = N_VOCAB};
        snprintf(spec, sizeof spec, "host:1,threads=1,mem=%zu,host:2,threads=1", cap);
        runtime_config.devices = spec;
        runner_ok(tsr_runtime_open(&runtime_config, &r.rt), spec);
        tsr_status status = tsr_model_open(r.rt, f->path, &config, &r.model);
        if (status == TSR_OK) {
            runner_ok(tsr_session_create(r.model, &r.session), "session");
            runner_decode(&r, f->tokens, N_TOKENS, 4, true, logits);
            assert_memory_equal(logits, f->plain[0], sizeof logits);
            assert_true(used_by(&r, 0) <= cap);
            n_fit++;
        } else {
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_message_has("host0");
        }
        runner_close(&r);
    }
    assert_in_range(n_fit, 2, 7);
}

/* Predicted times are the sum of their parts: the work of every block in its place, and the transfers. */
static void times_have_the_offloaded_work(void **state)
{
    const fixture *f = *state;
    tsr_model_config config = small_config(0);
    static const float split[] = {1, 1};
    double total[2];
    for (int offloads = 0; offloads < 2; offloads++) {
        tsr_plan *plan;
        tsr_plan_times times;
        tsr_plan_info info;
        config.split.tensor_split = split;
        config.split.n_tensor_split = 2;
        config.offload.n_gpu_layers = offloads ? 2 : -1;
        runner_ok(try_plan(f, &config, &plan), "plan");
        tsr_plan_predict(plan, &times);
        tsr_plan_get_info(plan, &info);
        const tsr_plan_phase *p = &times.decode;
        total[offloads] = p->transfer_ns;
        for (int c = 0; c < TSR_CLASS_COUNT; c++)
            total[offloads] += p->repeats[c] * (p->work_ns[c] + p->sync_ns[c]);
        assert_float_equal(total[offloads] / p->total_ns, 1, 1e-9);
        /* Two devices wait for the embedding's device, one for the last layer's. */
        assert_int_equal(info.n_transfers, offloads ? 3 : 0);
        assert_int_equal(p->transfer_ns > 0, offloads);
        assert_int_equal(p->device_ns[TSR_CLASS_FFN][2] > 0, offloads);
        assert_int_equal(p->device_ns[TSR_CLASS_OUTPUT][0] > 0, !offloads);
        tsr_plan_destroy(plan);
    }
}

/* -- errors -- */

static void errors_name_what_is_wrong(void **state)
{
    const fixture *f = *state;
    static const struct {
        tsr_offload_rule override;
        const char *message[2];
    } offload_rules[] = {
        {{"blk\\.2\\.ffn_up", "CPU"}, {"leaves blk.2.ffn_gate.weight behind", "the FFN of layer 2"}},
        {{"attn_norm", "CPU"}, {"blk.0.attn_q.weight behind", "attention of layer 0"}},
        {{"output_norm", "host0"}, {"leaves output.weight behind", "the output stays together"}},
        {{"blk\\.(", "CPU"}, {"blk\\.(", "character 7"}},
        {{"blk\\.9\\.", "CPU"}, {"no tensor", "blk\\.9\\."}},
        {{"ffn", "cuda0"}, {"no device \"cuda0\"", "host0, host1, host2"}},
        {{"ffn", "3"}, {"no device \"3\"", "host2"}},
        {{"ffn", NULL}, {"rule 0", "lacks"}},
    };
    for (size_t i = 0; i < sizeof offload_rules / sizeof *offload_rules; i++) {
        tsr_model_config config = small_config(0);
        tsr_plan *plan = NULL;
        config.offload.rules = &offload_rules[i].override;
        config.offload.n_rules = 1;
        assert_int_equal(try_plan(f, &config, &plan), TSR_ERR_INVALID);
        assert_null(plan);
        assert_message_has(offload_rules[i].message[0]);
        assert_message_has(offload_rules[i].message[1]);
    }
    static const struct {
        int n_gpu_layers, n_cpu_moe;
        const char *offload_device, *message;
    } counts[] = {{-2, 0, NULL, "n_gpu_layers is -2"},
                  {-1, -1, NULL, "n_cpu_moe is -1"},
                  {-1, 2, NULL, "no experts"},
                  {1, 0, "host7", "no device \"host7\""}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_model_config config = small_config(0);
        tsr_plan *plan = NULL;
        config.offload.n_gpu_layers = counts[i].n_gpu_layers;
        config.offload.n_cpu_moe = counts[i].n_cpu_moe;
        config.offload.device = counts[i].offload_device;
        assert_int_equal(try_plan(f, &config, &plan), TSR_ERR_INVALID);
        assert_message_has(counts[i].message);
    }
}

static void every_allocation_may_fail(void **state)
{
    const fixture *f = *state;
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_gguf *gguf;
    tsr_model_config config = config_of(&cases[0], 0);
    static const tsr_offload_rule override = {"blk\\.3\\.ffn", "host0"};
    config.offload.rules = &override;
    config.offload.n_rules = 1;
    config.offload.n_gpu_layers = 3;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, DEVICES, NULL, &devices), DEVICES);
    runner_ok(tsr_gguf_open(f->path, NULL, &gguf), f->path);
    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        tsr_plan *plan = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_plan_create(gguf, devices, &config, &plan);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        tsr_plan_destroy(plan);
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired) {
            runner_ok(status, "plan");
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
    }
    tsr_gguf_close(gguf);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(offloaded_blocks_give_the_same_bits),
                                       cmocka_unit_test(offloaded_experts_give_the_same_bits),
                                       cmocka_unit_test(a_small_device_runs_what_it_can_keep),
                                       cmocka_unit_test(caps_hold_beside_pinned_blocks),
                                       cmocka_unit_test(times_have_the_offloaded_work),
                                       cmocka_unit_test(errors_name_what_is_wrong),
                                       cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
