/* Changing the split of a loaded model: generation goes on with the same bits, memory is what was planned,
 * and a change that fails changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/device_list.h>
#include <tsr/memory.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/split.h>

#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"

#define PLAIN "host:1,threads=1"

/* -- bits -- */

/* What a plan made without the model says of its split, device by device. */
static void check_plan(const walk *w, const char *split)
{
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_plan *plan;
    tsr_model_config config = w->config;
    float proportions[TSR_MAX_DEVICES];
    runner_ok(tsr_split_parse(split, proportions, TSR_MAX_DEVICES, &config.split.n_tensor_split), split);
    config.split.tensor_split = proportions;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, w->devices, NULL, &devices), w->devices);
    runner_ok(tsr_plan_create(tsr_model_gguf(w->model), devices, &config, &plan), "plan");
    for (int d = 0; d < tsr_runtime_n_devices(w->rt); d++) {
        tsr_plan_device planned, carried_out;
        runner_ok(tsr_plan_get_device(plan, d, &planned), "device");
        runner_ok(tsr_plan_get_device(tsr_model_plan(w->model), d, &carried_out), "device");
        assert_memory_equal(planned.bytes, carried_out.bytes, sizeof planned.bytes);
        assert_memory_equal(planned.granules, carried_out.granules, sizeof planned.granules);
    }
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
}

/* Walk over splits with sequences in flight. */
static void check_walk(walk *w, int n_devices, int n_changes)
{
    char split[128];
    walk_random_split(&w->seed, n_devices, split, sizeof split);
    walk_open(w, split);
    walk_check_accounting(w);
    for (int i = 0; i < n_changes; i++) {
        walk_step(w, 5);
        bool planned = random_below(&w->seed, 6) == 0;
        walk_random_split(&w->seed, n_devices, split, sizeof split);
        runner_ok(walk_resplit(w, planned ? NULL : split), planned ? "the planner's split" : split);
        walk_check_accounting(w);
        walk_go_on(w);
        if (!planned && i > n_changes - 4)
            check_plan(w, split);
    }
    walk_close(w);
}

static void sequences_go_on_with_the_same_bits(void **state)
{
    (void)state;
    static const tsr_type types[][2] = {{TSR_TYPE_F16, TSR_TYPE_F16},
                                        {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0},
                                        {TSR_TYPE_F32, TSR_TYPE_BF16},
                                        {TSR_TYPE_Q4_0, TSR_TYPE_F32}};
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER, TSR_SPLIT_MODE_TENSOR,
                                           TSR_SPLIT_MODE_AUTO};
    uint64_t seed = 1;
    for (int k = 0; k < 4; k++) {
        walk w = {.devices = "host:4,threads=1",
                  .seed = seed + (uint64_t)k,
                  .config = walk_config(),
                  .length = WALK_LENGTH};
        w.config.session.type_k = types[k][0];
        w.config.session.type_v = types[k][1];
        float *plain = walk_make_plain(&w, PLAIN);
        for (int copies = 0; copies < 2; copies++) {
            walk again = w;
            again.config.load.copy_weights = copies;
            again.config.split.mode = modes[(k + copies) % 4];
            check_walk(&again, 4, 12);
        }
        free(plain);
    }
}

static void mixtures_of_experts_go_on_with_the_same_bits(void **state)
{
    (void)state;
    walk w = {.path = walk_moe_path,
              .devices = "host:4,threads=1",
              .seed = 21,
              .config = walk_config(),
              .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    for (int i = 0; i < 4; i++) {
        walk again = w;
        again.config.split.experts = i % 2 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
        again.config.load.copy_weights = i / 2;
        check_walk(&again, 4, 6);
    }
    free(plain);
}

/* The split of prompts stays as it was configured, whatever becomes of the other one. */
static void a_split_of_prompts_outlives_changes(void **state)
{
    (void)state;
    static const float prompts[][4] = {{1}, {0, 0, 3, 1}, {1, 5, 0, 1}};
    const char *const paths[] = {walk_model_path, walk_moe_path};
    for (int i = 0; i < 4; i++) {
        float split[4];
        walk w = {.path = paths[i / 2],
                  .devices = "host:4,threads=1",
                  .seed = 31 + (uint64_t)i,
                  .config = walk_config(),
                  .length = WALK_LENGTH};
        float *plain = walk_make_plain(&w, PLAIN);
        memcpy(split, prompts[i % 3], sizeof split);
        w.config.load.copy_weights = i % 2;
        w.config.split.experts = i % 2 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
        w.config.prompt.tensor_split = split;
        w.config.prompt.n_tensor_split = 4;
        w.config.prompt.n_tokens = 2 + 3 * i;
        check_walk(&w, 4, 6);
        free(plain);
    }
}

static void blocks_that_are_pinned_stay_where_they_are(void **state)
{
    (void)state;
    char pattern[] = "blk\\.1\\.ffn", device[] = "0", spare[] = "2";
    walk w = {.devices = "host:3,threads=1", .seed = 9, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    tsr_offload_rule override = {pattern, device};
    w.config.offload.rules = &override;
    w.config.offload.n_rules = 1;
    w.config.offload.n_gpu_layers = 2;
    w.config.offload.device = spare;
    walk_open(&w, "1,1");
    memset(pattern, '(', sizeof pattern - 1); /* what the config pointed to need not be there any more */
    memset(spare, 'x', sizeof spare - 1);
    for (int i = 0; i < 3; i++) {
        static const char *const splits[] = {"3,1", "0,1", "1,0"};
        walk_step(&w, 6);
        runner_ok(walk_resplit(&w, splits[i]), splits[i]);
        walk_check_accounting(&w);
        tsr_plan_device planned;
        runner_ok(tsr_plan_get_device(tsr_model_plan(w.model), 2, &planned), "the offload device");
        assert_int_equal(planned.n_layers, 1);
        walk_go_on(&w);
    }
    walk_close(&w);
    free(plain);
}

static void without_a_tensor_split_all_is_on_one_device(void **state)
{
    (void)state;
    walk w = {.devices = "host:2,threads=1", .seed = 3, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    w.config.split.mode = TSR_SPLIT_MODE_NONE;
    w.config.split.main_device = 1;
    walk_open(&w, "1,1");
    walk_step(&w, 10);
    runner_ok(walk_resplit(&w, "1,0"), "1,0");
    walk_check_accounting(&w);
    walk_go_on(&w);
    walk_close(&w);
    free(plain);
}

/* -- several models -- */

static void all_models_of_a_runtime_change_together(void **state)
{
    (void)state;
    static const float splits[][2] = {{1, 0}, {1, 3}};
    walk w = {.devices = "host:2,threads=1", .seed = 5, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    tsr_model *other;
    tsr_plan_device device;
    walk_open(&w, "1,1");
    runner_ok(tsr_model_open(w.rt, walk_model_path, NULL, &other), "the other model");
    walk_step(&w, 10);
    for (int i = 0; i < 2; i++) {
        runner_ok(tsr_runtime_resplit(w.rt, splits[i], 2), "resplit");
        for (int k = 0; k < 2; k++) {
            runner_ok(tsr_plan_get_device(tsr_model_plan(k ? other : w.model), 1, &device), "plan");
            assert_int_equal(device.used, splits[i][1] > 0);
        }
        walk_go_on(&w);
    }
    tsr_model_close(other);
    walk_check_accounting(&w);
    walk_close(&w);
    free(plain);
}

/* -- what is refused -- */

static void bad_splits_change_nothing(void **state)
{
    (void)state;
    static const float negative[2] = {1, -1}, many[3] = {1, 1, 1};
    walk w = {.devices = "host:2,threads=1", .seed = 6, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    walk_open(&w, "1,1");
    walk_step(&w, 5);
    assert_int_equal(tsr_model_resplit(w.model, negative, 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_resplit(w.model, many, 3), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_resplit(w.model, NULL, 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_resplit(w.model, negative, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_resplit(NULL, many, 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_resplit(NULL, many, 2), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_resplit(w.rt, NULL, 1), TSR_ERR_INVALID);
    walk_check_accounting(&w);
    walk_go_on(&w);
    walk_close(&w);
    free(plain);
}

/* Every allocation fails once (without copies every third), with sequences in flight:
 * the old split goes on. */
static void a_failing_allocation_leaves_the_old_split(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        walk w = {.devices = "host:3,threads=1", .seed = 7, .config = walk_config(), .length = WALK_LENGTH};
        float *plain = walk_make_plain(&w, PLAIN);
        w.config.load.copy_weights = copies;
        walk_open(&w, "1,1");
        walk_step(&w, 20);
        for (int n = 1;; n += copies ? 1 : 3) {
            int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
            failing_alloc_set(n);
            tsr_status status = walk_resplit(&w, "1,0,3");
            bool fired = failing_alloc_fired();
            failing_alloc_set(0);
            if (!fired) {
                assert_int_equal(status, TSR_OK);
                break;
            }
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_int_equal(failing_alloc_live_maps(), maps);
            walk_check_accounting(&w);
            if (n % 50 == 0)
                walk_step(&w, 1);
        }
        walk_check_accounting(&w);
        walk_step(&w, 10);
        walk_close(&w);
        free(plain);
    }
}

/* -- little memory -- */

static size_t planned_bytes(const walk *w, int d, size_t *weights_out)
{
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(tsr_model_plan(w->model), d, &device), "plan");
    *weights_out = device.bytes[TSR_MEMORY_WEIGHTS];
    return device.total_bytes;
}

/* A walk whose first device has a cap, 0: none. */
static void open_capped(walk *w, size_t cap)
{
    static char devices[96];
    snprintf(devices, sizeof devices, cap ? "host:1,threads=1,mem=%zu,host:1,threads=1" : "host:2,threads=1",
             cap);
    w->devices = devices;
    walk_open(w, "1,1");
    walk_step(w, 20);
}

typedef struct sizes {
    size_t before, after; /* of the first device, in all */
    size_t weights[2];    /* of them */
} sizes;

static sizes measure(walk *w, const char *split)
{
    sizes s;
    open_capped(w, 0);
    s.before = planned_bytes(w, 0, &s.weights[0]);
    runner_ok(walk_resplit(w, split), split);
    s.after = planned_bytes(w, 0, &s.weights[1]);
    walk_close(w);
    return s;
}

/* From a cap that has room for both splits down to one that has none for the new one alone: first the weights
 * are there twice, then they are exchanged, then the change is refused. */
static void copies_are_exchanged_where_both_do_not_fit(void **state)
{
    (void)state;
    walk w = {.seed = 10, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    int n_exchanged = 0, n_refused = 0;
    w.config.load.copy_weights = true;
    sizes s = measure(&w, "3,1");
    size_t most = s.before + s.after, least = s.after > s.before ? s.after : s.before;
    for (size_t cap = most; cap + 4096 > least; cap -= (most - least) / 12) {
        open_capped(&w, cap);
        tsr_status status = walk_resplit(&w, "3,1");
        if (status == TSR_OK && cap < s.before + s.weights[1])
            n_exchanged++;
        if (status != TSR_OK) {
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_non_null(strstr(tsr_last_error(), "host0"));
            assert_non_null(strstr(tsr_last_error(), "missing"));
            n_refused++;
        }
        walk_check_accounting(&w);
        walk_step(&w, 5);
        walk_go_on(&w);
        walk_close(&w);
    }
    assert_true(n_exchanged > 0 && n_refused > 0);
    free(plain);
}

/* Two models change together under caps from ample to none: both or neither, and never more than the cap. */
static void models_that_change_together_share_a_cap(void **state)
{
    (void)state;
    static const float split[2] = {3, 1}, halves[2] = {1, 1};
    walk w = {.seed = 12, .config = walk_config(), .length = 40};
    float *plain = walk_make_plain(&w, PLAIN);
    int n_changed = 0, n_refused = 0;
    w.config.load.copy_weights = true;
    sizes s = measure(&w, "3,1");
    size_t most = 2 * (s.before + s.after), least = 2 * s.before;
    for (size_t cap = most; cap >= least; cap -= (most - least) / 9) {
        tsr_model_config config = w.config;
        tsr_model *other;
        tsr_device_info info;
        tsr_plan_device a, b;
        config.split.tensor_split = halves;
        config.split.n_tensor_split = 2;
        config.session.n_sessions = 1;
        open_capped(&w, cap);
        runner_ok(tsr_model_open(w.rt, walk_model_path, &config, &other), "the other model");
        tsr_status status = tsr_runtime_resplit(w.rt, split, 2);
        assert_true(status == TSR_OK || status == TSR_ERR_MEMORY);
        runner_ok(tsr_plan_get_device(tsr_model_plan(w.model), 0, &a), "plan");
        runner_ok(tsr_plan_get_device(tsr_model_plan(other), 0, &b), "plan");
        assert_int_equal(a.granules[TSR_CLASS_FFN], b.granules[TSR_CLASS_FFN]);
        runner_ok(tsr_runtime_device(w.rt, 0, &info), "device");
        assert_true(a.total_bytes + b.bytes[TSR_MEMORY_WEIGHTS] <= cap);
        assert_int_equal(info.used[TSR_MEMORY_WEIGHTS],
                         a.bytes[TSR_MEMORY_WEIGHTS] + b.bytes[TSR_MEMORY_WEIGHTS]);
        n_changed += status == TSR_OK;
        n_refused += status != TSR_OK;
        walk_go_on(&w);
        tsr_model_close(other);
        walk_check_accounting(&w);
        walk_close(&w);
    }
    assert_true(n_changed > 0 && n_refused > 0);
    free(plain);
}

/* A cap with which the change must exchange weights. */
static size_t cap_to_exchange(const sizes *s)
{
    return s->before + s->weights[1] - 1;
}

static void a_failing_exchange_brings_the_old_weights_back(void **state)
{
    (void)state;
    walk w = {.seed = 11, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    w.config.load.copy_weights = true;
    sizes s = measure(&w, "3,1");
    open_capped(&w, cap_to_exchange(&s));
    for (int n = 1;; n += n < 1200 ? 17 : 1) { /* the exchange comes late */
        failing_alloc_set(n);
        tsr_status status = walk_resplit(&w, "3,1");
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            runner_ok(status, "at last");
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        walk_check_accounting(&w);
        if (n % 100 == 0 || n > 1500)
            walk_go_on(&w);
    }
    walk_check_accounting(&w);
    walk_step(&w, 10);
    walk_close(&w);
    free(plain);
}

/* Memory runs out for good once the old weights are gone: the model says that it is lost. Before that the old
 * split goes on. */
static void a_model_that_cannot_go_back_says_so(void **state)
{
    (void)state;
    walk w = {.seed = 11, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    int n_lost = 0;
    w.config.load.copy_weights = true;
    sizes s = measure(&w, "3,1");
    for (int n = 1; n < 100000; n += 97) {
        int32_t token = 1;
        float row[WALK_VOCAB];
        tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        open_capped(&w, cap_to_exchange(&s));
        failing_alloc_set_from(n);
        tsr_status status = walk_resplit(&w, "3,1");
        failing_alloc_set(0);
        if (status != TSR_OK)
            assert_int_equal(status, TSR_ERR_MEMORY);
        runner_ok(tsr_session_trim(w.sessions[0], 0, 0), "trim");
        if (tsr_session_decode(w.sessions[0], &batch, row) == TSR_OK) {
            runner_ok(tsr_session_trim(w.sessions[0], 0, 0), "trim");
            walk_go_on(&w);
        } else {
            assert_non_null(strstr(tsr_last_error(), "lost weights"));
            assert_int_equal(walk_resplit(&w, "1,1"), TSR_ERR_DEVICE);
            n_lost++;
        }
        walk_close(&w);
        if (status == TSR_OK)
            break;
    }
    assert_true(n_lost > 0);
    free(plain);
}

/* -- leaks -- */

static void changes_there_and_back_leave_nothing_behind(void **state)
{
    (void)state;
    walk w = {.devices = "host:2,threads=1", .seed = 8, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    walk_open(&w, "1,1");
    walk_step(&w, 20);
    int64_t blocks = 0, maps = 0;
    for (int i = 0; i < 10; i++) {
        runner_ok(walk_resplit(&w, i % 2 ? "1,1" : "3,1"), "resplit");
        if (i == 1) {
            blocks = failing_alloc_live();
            maps = failing_alloc_live_maps();
        }
    }
    assert_int_equal(failing_alloc_live(), blocks);
    assert_int_equal(failing_alloc_live_maps(), maps);
    walk_close(&w);
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_go_on_with_the_same_bits),
        cmocka_unit_test(mixtures_of_experts_go_on_with_the_same_bits),
        cmocka_unit_test(a_split_of_prompts_outlives_changes),
        cmocka_unit_test(blocks_that_are_pinned_stay_where_they_are),
        cmocka_unit_test(without_a_tensor_split_all_is_on_one_device),
        cmocka_unit_test(all_models_of_a_runtime_change_together),
        cmocka_unit_test(bad_splits_change_nothing),
        cmocka_unit_test(a_failing_allocation_leaves_the_old_split),
        cmocka_unit_test(copies_are_exchanged_where_both_do_not_fit),
        cmocka_unit_test(models_that_change_together_share_a_cap),
        cmocka_unit_test(a_failing_exchange_brings_the_old_weights_back),
        cmocka_unit_test(a_model_that_cannot_go_back_says_so),
        cmocka_unit_test(changes_there_and_back_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, walk_model_write, walk_model_remove);
}
