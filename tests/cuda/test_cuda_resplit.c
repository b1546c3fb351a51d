/* Changes of split on simulated GPUs: the same bits, the planned bytes, and after a failure of any call to
 * CUDA the old split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/random.h"
#include "support/resplit_walk.h"
#include "support/runner.h"
#include "support/sanitized.h"

static void configure(int n_devices)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.may_share = true;
    config.vmm_granularity = 1 << 16;
    cudasim_configure(&config);
}

static void check_machine(void)
{
    nothing_is_left();
}

static void go_on(const char *path, tsr_expert_split expert_split, int n_changes)
{
    walk w = {
        .path = path, .devices = "cuda:0,cuda:1,cuda:2", .seed = 1, .config = walk_config(), .length = 40};
    char split[128];
    configure(3);
    w.config.session.type_v = TSR_TYPE_Q8_0;
    w.config.split.experts = expert_split;
    float *plain = walk_make_plain(&w, "cuda:0");
    walk_open(&w, "1,1,1");
    for (int i = 0; i < n_changes; i++) {
        walk_step(&w, 3);
        walk_random_split(&w.seed, 3, split, sizeof split);
        runner_ok(walk_resplit(&w, split), split);
        walk_check_accounting(&w);
        walk_go_on(&w);
    }
    walk_close(&w);
    check_machine();
    free(plain);
}

static void sequences_go_on_with_the_same_bits(void **state)
{
    (void)state;
    go_on(walk_model_path, TSR_EXPERT_SPLIT_COLUMNS, TSR_TEST_SANITIZED ? 2 : 5);
}

static void mixtures_of_experts_go_on_with_the_same_bits(void **state)
{
    (void)state;
    go_on(walk_moe_path, TSR_EXPERT_SPLIT_COLUMNS, 2);
    go_on(walk_moe_path, TSR_EXPERT_SPLIT_EXPERTS, 2);
}

/* -- failures -- */

/* A change of split with the nth call of a function failing, with an error that leaves the device usable, and
 * one that goes well. Returns whether the first failed. */
static bool fail_one(walk *w, const char *name, uint64_t nth)
{
    cudasim_fail_named(name, nth, cudaErrorMemoryAllocation); /* the driver's number for it is the same */
    tsr_status status = walk_resplit(w, "3,1");
    cudasim_clear_faults();
    if (status != TSR_OK && !strstr(tsr_last_error(), "cuda"))
        fail_msg("%s, number %llu: '%s' names no device", name, (unsigned long long)nth, tsr_last_error());
    walk_check_accounting(w);
    walk_step(w, 1);
    runner_ok(walk_resplit(w, "1,1"), "after a failure");
    walk_check_accounting(w);
    return status != TSR_OK;
}

static void any_call_may_fail(void **state)
{
    (void)state;
    enum { MAX_NAMES = 64 };
    const uint64_t most = getenv("TSR_TEST_LONG") ? UINT64_MAX : TSR_TEST_SANITIZED ? 1 : 2;
    const char *names[MAX_NAMES];
    uint64_t counts[MAX_NAMES] = {0};
    int n_failed = 0;
    walk w = {.devices = "cuda:0,cuda:1", .seed = 2, .config = walk_config(), .length = 20};
    configure(2);
    float *plain = walk_make_plain(&w, "cuda:0");
    walk_open(&w, "1,1");
    walk_step(&w, 3);
    uint64_t begin = cudasim_calls();
    runner_ok(walk_resplit(&w, "3,1"), "3,1");
    int n_names = distinct_calls(begin, names, MAX_NAMES);
    for (int i = 0; i < n_names; i++)
        for (uint64_t c = begin; c < cudasim_calls(); c++)
            counts[i] += strcmp(cudasim_call_name(c), names[i]) == 0;
    runner_ok(walk_resplit(&w, "1,1"), "1,1");
    for (int i = 0; i < n_names; i++) {
        uint64_t n = counts[i] < most ? counts[i] : most;
        for (uint64_t k = 0; k < n; k++) /* the first, the last, and evenly between */
            n_failed += fail_one(&w, names[i], n == 1 ? 1 : 1 + k * (counts[i] - 1) / (n - 1));
    }
    walk_go_on(&w);
    walk_close(&w);
    check_machine();
    print_message("%d functions, %d failures\n", n_names, n_failed);
    assert_true(n_failed > 10);
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_go_on_with_the_same_bits),
        cmocka_unit_test(mixtures_of_experts_go_on_with_the_same_bits),
        cmocka_unit_test(any_call_may_fail),
    };
    return cmocka_run_group_tests_name("changes of split on GPUs", tests, walk_model_write,
                                       walk_model_remove);
}
