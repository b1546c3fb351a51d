/* Changing the split of a loaded model: generation goes on with the same bits, memory is what was planned,
 * and a change that fails changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"

#define PLAIN "host:1,threads=1"

/* ---- bits ------------------------------------------------------------------------------------ */

/* Walk over splits with sequences in flight. */
static void check_walk(walk *w, int n_devices, int n_changes)
{
    char split[128];
    walk_random_split(&w->seed, n_devices, split, sizeof split);
    walk_open(w, split);
    walk_check_books(w);
    for (int i = 0; i < n_changes; i++) {
        walk_step(w, 5);
        bool planned = random_below(&w->seed, 6) == 0;
        walk_random_split(&w->seed, n_devices, split, sizeof split);
        runner_ok(walk_resplit(w, planned ? NULL : split), planned ? "the planner's split" : split);
        walk_check_books(w);
        walk_go_on(w);
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
        w.config.type_k = types[k][0];
        w.config.type_v = types[k][1];
        float *plain = walk_make_plain(&w, PLAIN);
        for (int copies = 0; copies < 2; copies++) {
            walk again = w;
            again.config.copy_weights = copies;
            again.config.split_mode = modes[(k + copies) % 4];
            check_walk(&again, 4, 12);
        }
        free(plain);
    }
}

static void blocks_that_are_pinned_stay_where_they_are(void **state)
{
    (void)state;
    char pattern[] = "blk\\.1\\.ffn", device[] = "0", spare[] = "2";
    walk w = {.devices = "host:3,threads=1", .seed = 9, .config = walk_config(), .length = WALK_LENGTH};
    float *plain = walk_make_plain(&w, PLAIN);
    tsr_override override = {pattern, device};
    w.config.overrides = &override;
    w.config.n_overrides = 1;
    w.config.n_gpu_layers = 2;
    w.config.offload_device = spare;
    walk_open(&w, "1,1");
    memset(pattern, '(', sizeof pattern - 1); /* what the config pointed to need not be there any more */
    memset(spare, 'x', sizeof spare - 1);
    for (int i = 0; i < 3; i++) {
        static const char *const splits[] = {"3,1", "0,1", "1,0"};
        walk_step(&w, 6);
        runner_ok(walk_resplit(&w, splits[i]), splits[i]);
        walk_check_books(&w);
        tsr_plan_device planned;
        runner_ok(tsr_plan_describe_device(tsr_model_plan(w.model), 2, &planned), "the offload device");
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
    w.config.split_mode = TSR_SPLIT_MODE_NONE;
    w.config.main_device = 1;
    walk_open(&w, "1,1");
    walk_step(&w, 10);
    runner_ok(walk_resplit(&w, "1,0"), "1,0");
    walk_check_books(&w);
    walk_go_on(&w);
    walk_close(&w);
    free(plain);
}

/* ---- several models -------------------------------------------------------------------------- */

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
            runner_ok(tsr_plan_describe_device(tsr_model_plan(k ? other : w.model), 1, &device), "plan");
            assert_int_equal(device.used, splits[i][1] > 0);
        }
        walk_go_on(&w);
    }
    tsr_model_close(other);
    walk_check_books(&w);
    walk_close(&w);
    free(plain);
}

/* ---- what is refused ------------------------------------------------------------------------- */

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
    walk_check_books(&w);
    walk_go_on(&w);
    walk_close(&w);
    free(plain);
}

/* Every allocation fails once, with sequences in flight: the old split goes on. */
static void a_failing_allocation_leaves_the_old_split(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        walk w = {.devices = "host:3,threads=1", .seed = 7, .config = walk_config(), .length = WALK_LENGTH};
        float *plain = walk_make_plain(&w, PLAIN);
        w.config.copy_weights = copies;
        walk_open(&w, "1,1");
        walk_step(&w, 20);
        for (int n = 1;; n++) {
            int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
            failing_alloc_set(n);
            tsr_status status = walk_resplit(&w, "1,0,3");
            bool fired = failing_alloc_fired();
            failing_alloc_set(0);
            if (!fired) {
                assert_int_equal(status, TSR_OK);
                print_message("%d allocations\n", n - 1);
                break;
            }
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_int_equal(failing_alloc_live(), blocks);
            assert_int_equal(failing_alloc_live_maps(), maps);
            walk_check_books(&w);
            if (n % 50 == 0)
                walk_step(&w, 1);
        }
        walk_check_books(&w);
        walk_step(&w, 10);
        walk_close(&w);
        free(plain);
    }
}

/* ---- leaks ----------------------------------------------------------------------------------- */

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
        cmocka_unit_test(blocks_that_are_pinned_stay_where_they_are),
        cmocka_unit_test(without_a_tensor_split_all_is_on_one_device),
        cmocka_unit_test(all_models_of_a_runtime_change_together),
        cmocka_unit_test(bad_splits_change_nothing),
        cmocka_unit_test(a_failing_allocation_leaves_the_old_split),
        cmocka_unit_test(changes_there_and_back_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, walk_model_write, walk_model_remove);
}
