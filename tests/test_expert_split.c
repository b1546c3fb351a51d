/* How experts are divided: what chance costs whole experts, what the planner makes of it, that it says so,
 * and that the bits stay the same. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/machine.h>

#include "plan/cost/experts.h"
#include "plan/expert_split.h"
#include "support/directory.h"
#include "support/header_plan.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

/* -- the slowest device -- */

/* The mean over all sets of `n_touched` of the experts, by looking at each. */
static double by_enumeration(const tsr_cost_class *c, int n_devices, const int64_t *counts, int n_touched)
{
    int owner[16], n = 0;
    double sum = 0, n_sets = 0;
    for (int d = 0; d < n_devices; d++)
        for (int64_t e = 0; e < counts[d]; e++)
            owner[n++] = d;
    for (unsigned set = 0; set < 1u << n; set++) {
        int touched[TSR_MAX_DEVICES] = {0};
        double slowest = 0;
        if (__builtin_popcount(set) != n_touched)
            continue;
        for (int e = 0; e < n; e++)
            touched[owner[e]] += set >> e & 1;
        for (int d = 0; d < n_devices; d++)
            if (counts[d] > 0)
                slowest =
                    fmax(slowest, c->fixed_ns[d] + touched[d] * c->granule_ns[d] * (double)n / n_touched);
        sum += slowest;
        n_sets++;
    }
    return sum / n_sets;
}

static void expected_times_are_those_of_all_choices(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 200; round++) {
        tsr_cost_class c = {.name = "ffn"};
        int64_t counts[TSR_MAX_DEVICES] = {0}, n_experts = 0;
        int n_devices = 1 + (int)random_below(&seed, 4);
        double slowest_mean = 0;
        for (int d = 0; d < n_devices; d++) {
            counts[d] = (int64_t)random_below(&seed, 4) + (d == 0);
            n_experts += counts[d];
            c.granule_ns[d] = (double)(1 + random_below(&seed, 5));
            c.fixed_ns[d] = (double)random_below(&seed, 3);
            slowest_mean = fmax(slowest_mean, tsr_cost_of(&c, d, counts[d]));
        }
        int n_touched = 1 + (int)random_below(&seed, (uint64_t)n_experts);
        double ns = tsr_experts_walk_ns(&c, n_devices, counts, n_touched);
        double exact = by_enumeration(&c, n_devices, counts, n_touched);
        assert_true(fabs(ns - exact) <= 1e-9 * exact);
        assert_true(ns >= slowest_mean * (1 - 1e-9));
    }
}

/* As many experts as mixtures have, without overflow; with many tokens no device waits. */
static void more_tokens_even_out_the_experts_of_large_mixtures(void **state)
{
    (void)state;
    tsr_cost_class c = {.name = "ffn"};
    int64_t counts[8];
    for (int d = 0; d < 8; d++) {
        counts[d] = 64;
        c.granule_ns[d] = 2;
    }
    double mean = 64 * 2, before = INFINITY;
    for (int64_t n = 1; n <= 512; n += 7) {
        double ns = tsr_experts_walk_ns(&c, 8, counts, n);
        assert_true(ns >= mean && ns <= before * (1 + 1e-12));
        before = ns;
    }
    assert_true(fabs(tsr_experts_walk_ns(&c, 8, counts, 1) - 8 * mean) < 1e-6 * mean); /* one device has it */
    assert_true(tsr_experts_walk_ns(&c, 8, counts, 512) == mean);
}

/* -- the planner's choice -- */

typedef struct fixture {
    char path[DIRECTORY_PATH];
} fixture;

enum { N_VOCAB = 300, N_TOKENS = 9 };

/* Experts of three granules of columns. */
static int setup(void **state)
{
    static fixture f;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_ff = 384;
    config.n_experts = 12;
    config.n_experts_used = 3;
    config.n_vocab = N_VOCAB;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    return unlink(((fixture *)*state)->path);
}

static tsr_plan *plan_of(const fixture *f, const char *machine, const tsr_model_config *config)
{
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_gguf *gguf;
    tsr_plan *plan;
    runner_ok(tsr_topology_parse(machine, NULL, &topo), machine);
    runner_ok(tsr_device_list_create(topo, "cuda", NULL, &devices), machine);
    runner_ok(tsr_gguf_open(f->path, NULL, &gguf), f->path);
    runner_ok(tsr_plan_create(gguf, devices, config, &plan), machine);
    tsr_gguf_close(gguf);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
    return plan;
}

static double time_of(const fixture *f, const char *machine, tsr_model_config config, tsr_expert_split split,
                      tsr_plan_info *info_out)
{
    tsr_plan_times times;
    config.split.experts = split;
    tsr_plan *plan = plan_of(f, machine, &config);
    tsr_plan_predict(plan, &times);
    tsr_plan_get_info(plan, info_out);
    tsr_plan_destroy(plan);
    return times.workload_ns;
}

/* By shares of its own and by given ones, what is chosen takes least. */
static void the_faster_way_is_chosen(void **state)
{
    static const char *const machines[] = {"2x rtx3090 nvlink", "6x rtx3090", "1x rtx4090, 2x rtx3090"};
    static const float even[] = {1, 1, 1, 1, 1, 1};
    int n_chosen[2] = {0};
    for (int i = 0; i < 12; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan_info info;
        const char *machine = machines[i % 3];
        config.workload.n_prompt = i / 3 % 2 ? 256 : 0;
        config.workload.n_new = i / 3 % 2 ? 0 : 1;
        config.split.tensor_split = i / 6 ? even : NULL;
        config.split.n_tensor_split = i / 6 ? i % 3 == 1 ? 6 : i % 3 + 2 : 0;
        if (i % 3 == 2 && i / 6)
            config.split.n_tensor_split = 3;
        double columns = time_of(*state, machine, config, TSR_EXPERT_SPLIT_COLUMNS, &info);
        assert_int_equal(info.expert_split, TSR_EXPERT_SPLIT_COLUMNS);
        double experts = time_of(*state, machine, config, TSR_EXPERT_SPLIT_EXPERTS, &info);
        assert_int_equal(info.expert_split, TSR_EXPERT_SPLIT_EXPERTS);
        double chosen = time_of(*state, machine, config, TSR_EXPERT_SPLIT_AUTO, &info);
        if (chosen > fmin(columns, experts) * (1 + 1e-9))
            fail_msg("%s, prompt of %d: %.0f ns by columns, %.0f by experts, chosen %s", machine,
                     config.workload.n_prompt, columns, experts, tsr_expert_split_name(info.expert_split));
        n_chosen[info.expert_split]++;
    }
    assert_true(n_chosen[0] > 0 && n_chosen[1] > 0);
}

static void append(const char *text, void *user)
{
    strncat(user, text, 16383 - strlen(user));
}

static void plans_explain_it(void **state)
{
    static char text[16384];
    tsr_model_config config = tsr_model_config_default();
    for (int i = 0; i < 2; i++) {
        config.split.experts = i ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
        tsr_plan *plan = plan_of(*state, "2x rtx3090", &config);
        text[0] = '\0';
        tsr_plan_explain(plan, append, text);
        assert_non_null(strstr(text, i ? "Of the experts every device has some whole"
                                       : "Of the experts every device has columns"));
        assert_non_null(strstr(text, i ? "columns of experts divided" : "whole experts divided"));
        text[0] = '\0';
        tsr_plan_print(plan, append, text);
        assert_non_null(strstr(text, i ? "ffn 1 expert" : "ffn 128 columns"));
        tsr_plan_destroy(plan);
    }
}

/* -- bits -- */

static void the_bits_do_not_depend_on_it(void **state)
{
    const fixture *f = *state;
    static const char *const devices[] = {"host:1,threads=1", "host:2,threads=1", "host:5,threads=1"};
    static float logits[N_TOKENS * N_VOCAB], first[N_TOKENS * N_VOCAB];
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 71 + 5) % N_VOCAB;
    for (int i = 0; i < 9; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan_info info;
        runner r;
        config.session.n_ctx = 64;
        config.split.experts = (tsr_expert_split)(i % 3);
        runner_open(&r, f->path, devices[i / 3], i / 3 == 2 ? "1,1,1,1,1" : i / 3 ? "1,1" : NULL, &config);
        runner_decode(&r, tokens, N_TOKENS, i % 3 ? 1 : N_TOKENS, true, logits);
        tsr_plan_get_info(tsr_model_plan(r.model), &info);
        assert_true(info.has_experts);
        assert_int_not_equal(info.expert_split, TSR_EXPERT_SPLIT_AUTO);
        if (i == 0)
            memcpy(first, logits, sizeof first);
        assert_memory_equal(logits, first, sizeof first);
        runner_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expected_times_are_those_of_all_choices),
        cmocka_unit_test(more_tokens_even_out_the_experts_of_large_mixtures),
        cmocka_unit_test(the_faster_way_is_chosen),
        cmocka_unit_test(plans_explain_it),
        cmocka_unit_test(the_bits_do_not_depend_on_it),
    };
    return cmocka_run_group_tests_name("how experts are divided", tests, setup, teardown);
}
