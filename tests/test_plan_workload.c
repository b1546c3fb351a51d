/* Plans for a workload: on described machines no split takes less time than the planner's, compared with
 * every split, and the workload is what the config says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/links.h>
#include <tsr/machine.h>

#include "arch/sharding.h"
#include "core/device_set.h"
#include "core/mem.h"
#include "model/model.h"
#include "plan/cost/goal.h"
#include "plan/planner_init.h"
#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_gguf *gguf;
} fixture;

/* Few granules, each large enough to be worth a device. */
static int set_up(void **state)
{
    static fixture f;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    tsr_gguf_config header = tsr_gguf_config_default();
    config.n_layers = 8;
    config.n_embd = 8192;
    config.n_heads = 64;
    config.n_kv_heads = 8;
    config.head_dim = 128;
    config.n_ff = 128 * 28;
    config.n_vocab = 64;
    config.n_ctx = 8192;
    config.tokenizer = false;
    config.header_only = true;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    header.header_only = true;
    runner_ok(tsr_gguf_open(f.path, &header, &f.gguf), f.path);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_gguf_close(f->gguf);
    return unlink(f->path);
}

/* -- every split -- */

typedef struct machine {
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_links *links;
} machine;

static machine machine_of(const char *text)
{
    machine m;
    runner_ok(tsr_topology_parse(text, NULL, &m.topo), text);
    runner_ok(tsr_device_list_create(m.topo, "cuda", NULL, &m.devices), text);
    runner_ok(tsr_links_create(m.topo, m.devices, &m.links), text);
    return m;
}

static void machine_free(machine *m)
{
    tsr_links_destroy(m->links);
    tsr_device_list_destroy(m->devices);
    tsr_topology_destroy(m->topo);
}

static double slowest(const tsr_cost_class *c, int n_devices, const int64_t *counts)
{
    double ns = 0;
    for (int d = 0; d < n_devices; d++)
        if (counts[d])
            ns = fmax(ns, c->fixed_ns[d] + (double)counts[d] * c->granule_ns[d]);
    return ns;
}

/* The least time of a class over all counts on the devices of a set, those before `d` decided. */
static double least_of_class(const tsr_goal *goal, int c, tsr_device_set set, int d, int64_t left,
                             int64_t *counts)
{
    const int n_devices = goal->cost.problem.n_devices;
    const tsr_cost_class *decode = &goal->decode.classes[c], *prompt = &goal->prompt.classes[c];
    double least = INFINITY;
    if (d == n_devices)
        return left ? INFINITY
                    : decode->repeats * (goal->n_decodes * slowest(decode, n_devices, counts) +
                                         goal->n_prompts * slowest(prompt, n_devices, counts));
    for (counts[d] = 0; counts[d] <= (tsr_device_set_has(set, d) ? left : 0); counts[d]++)
        least = fmin(least, least_of_class(goal, c, set, d + 1, left - counts[d], counts));
    return least;
}

/* The least time over all splits on a set of devices; memory is ample. */
static double least_on(const tsr_goal *goal, tsr_device_set set)
{
    double ns = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        int64_t counts[TSR_MAX_DEVICES] = {0};
        ns += least_of_class(goal, c, set, 0, goal->cost.classes[c].n_granules, counts);
        ns += goal->cost.classes[c].repeats *
              (goal->n_decodes * goal->decode.problem.sync_ns(goal->decode.problem.user, set, c) +
               goal->n_prompts * goal->prompt.problem.sync_ns(goal->prompt.problem.user, set, c));
    }
    return ns;
}

static double least_of_all(const fixture *f, const machine *m, const tsr_model_config *config,
                           double *first_alone_out)
{
    tsr_planner planner;
    static tsr_goal goal;
    double least = INFINITY;
    runner_ok(tsr_planner_init_for_list(f->gguf, m->devices, config, &planner), "planner");
    memset(&goal, 0, sizeof goal);
    runner_ok(tsr_goal_init(&planner, &goal), "goal");
    for (tsr_device_set set = 1; set < tsr_device_set_one(planner.n_devices); set++)
        least = fmin(least, least_on(&goal, set));
    *first_alone_out = least_on(&goal, 1);
    tsr_planner_free(&planner);
    return least;
}

/* -- machines -- */

static void describe(uint64_t *r, char text[128])
{
    static const char *const cards[] = {"rtx3060", "rtx3090", "rtx4090", "rtx4060ti-16gb", "rtx5090",
                                        "a6000",   "rtx3080", "rtx4070", "rtx2080ti",      "rtx5070ti"};
    static const char *const slots[] = {"", " pcie3x4", " pcie4x8", " pcie4x16", " pcie5x16", " pcie4x4"};
    int n = 2 + (int)random_below(r, 2);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        size_t used = strlen(text);
        snprintf(text + used, 128 - used, "%s1x %s%s", i ? ", " : "",
                 cards[random_below(r, sizeof cards / sizeof *cards)],
                 slots[random_below(r, sizeof slots / sizeof *slots)]);
    }
}

static const struct {
    int n_prompt, n_new, n_seq;
} workloads[] = {{512, 128, 1}, {0, 128, 1}, {4096, 16, 1}, {100, 400, 8}};

enum { N_WORKLOADS = sizeof workloads / sizeof *workloads, N_MACHINES = 56 };

static void no_split_takes_less_time(void **state)
{
    const fixture *f = *state;
    uint64_t r = 7;
    int n_divided = 0, n_two_slowest = 0;
    for (int i = 0; i < N_MACHINES; i++) {
        char text[128];
        describe(&r, text);
        machine m = machine_of(i ? text : "1x rtx4090, 1x rtx3060 pcie3x4");
        for (int w = 0; w < N_WORKLOADS; w++) {
            tsr_model_config config = tsr_model_config_default();
            tsr_plan *plan;
            tsr_plan_info info;
            tsr_plan_times times;
            double first_alone;
            config.session.n_ctx = 8192;
            config.session.n_seq_max = 8;
            config.plan.links = m.links;
            config.workload.n_prompt = workloads[w].n_prompt;
            config.workload.n_new = workloads[w].n_new;
            config.workload.n_seq = workloads[w].n_seq;
            runner_ok(tsr_plan_create(f->gguf, m.devices, &config, &plan), text);
            tsr_plan_predict(plan, &times);
            tsr_plan_get_info(plan, &info);
            double least = least_of_all(f, &m, &config, &first_alone);
            if (times.workload_ns > least * (1 + 1e-9))
                fail_msg("%s, %d:%d: %.0f ns, but %.0f ns is possible", text, workloads[w].n_prompt,
                         workloads[w].n_new, times.workload_ns, least);
            assert_true(times.workload_ns <= first_alone * (1 + 1e-9));
            assert_true(times.automatic);
            assert_true(times.proven || times.prompt.n_tokens >= 2 * TSR_MODEL_HALF_TOKENS);
            assert_int_equal(info.n_seq, workloads[w].n_seq);
            n_divided += info.n_all_reduces > 0 && times.decode.sync_ns[TSR_CLASS_FFN] > 0;
            n_two_slowest += times.decode.slowest[TSR_CLASS_FFN] != times.prompt.slowest[TSR_CLASS_FFN];
            tsr_plan_destroy(plan);
        }
        machine_free(&m);
    }
    print_message("%d of %d plans divide, in %d of them each phase waits for another device\n", n_divided,
                  N_MACHINES * N_WORKLOADS, n_two_slowest);
    assert_true(n_divided > N_MACHINES && n_two_slowest > 10);
}

/* The least time where both devices have granules of every class: of all counts of attention and FFN, with
 * `output` for the rest. */
static double least_in_halves(const tsr_goal *goal, const int64_t *output)
{
    int64_t counts[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    int64_t *a = counts[TSR_CLASS_ATTENTION], *f = counts[TSR_CLASS_FFN];
    double least = INFINITY;
    tsr_cost_result result;
    memcpy(counts[TSR_CLASS_OUTPUT], output, sizeof counts[0]);
    for (a[0] = 1; a[0] < goal->cost.classes[TSR_CLASS_ATTENTION].n_granules; a[0]++)
        for (f[0] = 1; f[0] < goal->cost.classes[TSR_CLASS_FFN].n_granules; f[0]++) {
            const int64_t(*of)[TSR_MAX_DEVICES] = (const int64_t(*)[TSR_MAX_DEVICES])counts;
            a[1] = goal->cost.classes[TSR_CLASS_ATTENTION].n_granules - a[0];
            f[1] = goal->cost.classes[TSR_CLASS_FFN].n_granules - f[0];
            tsr_cost_evaluate(&goal->cost.problem, of, &result);
            least = fmin(least, result.total_ns - goal->n_prompts * tsr_goal_hidden_ns(goal, of));
        }
    return least;
}

/* With all-reduces beside work the search is not exact: how near its splits of two GPUs are to the best. */
static void splits_for_halves_are_near_the_best(void **state)
{
    const fixture *f = *state;
    uint64_t r = 11;
    int n_divided = 0, n_halved = 0;
    double worst = 1;
    static tsr_goal goal;
    for (int i = 0; i < N_MACHINES; i++) {
        char text[128];
        describe(&r, text);
        machine m = machine_of(text);
        tsr_model_config config = tsr_model_config_default();
        tsr_planner planner;
        tsr_cost_result best, alone;
        config.plan.links = m.links;
        config.workload.n_prompt = 4096;
        config.workload.n_new = i % 2 ? 0 : 128;
        runner_ok(tsr_planner_init_for_list(f->gguf, m.devices, &config, &planner), text);
        memset(&goal, 0, sizeof goal);
        runner_ok(tsr_goal_init(&planner, &goal), text);
        goal.cost.problem.allowed = tsr_device_set_all(2);
        runner_ok(tsr_goal_optimize(&goal, &goal.cost, &best), text);
        runner_ok(tsr_split_optimize(&goal.cost.problem, &alone), text);
        const double least = fmin(least_in_halves(&goal, best.counts[TSR_CLASS_OUTPUT]), best.total_ns);
        worst = fmax(worst, best.total_ns / least);
        n_divided += tsr_device_set_count(best.devices) == 2;
        n_halved += tsr_device_set_count(best.devices) == 2 && tsr_device_set_count(alone.devices) == 1;
        tsr_planner_free(&planner);
        machine_free(&m);
    }
    print_message(
        "%d of %d divide, %d of them because all-reduces are hidden; at most %.2f %% over the best\n",
        n_divided, N_MACHINES, n_halved, 100 * (worst - 1));
    assert_true(n_divided > 10 && n_halved > 0 && worst < 1.05);
}

/* -- a split of prompts -- */

/* The least time of attention with the same counts in both phases, or of the other classes in one of them. */
static double least_attention(const tsr_goal *goal, tsr_device_set set)
{
    int64_t counts[TSR_MAX_DEVICES] = {0};
    return least_of_class(goal, TSR_CLASS_ATTENTION, set, 0,
                          goal->cost.classes[TSR_CLASS_ATTENTION].n_granules, counts);
}

static double least_of_phase(const tsr_goal *goal, const tsr_model_cost *phase, double n_steps,
                             tsr_device_set set)
{
    static tsr_goal alone;
    double ns = 0;
    alone = *goal;
    alone.n_decodes = phase == &goal->decode ? n_steps : 0;
    alone.n_prompts = phase == &goal->prompt ? n_steps : 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        int64_t counts[TSR_MAX_DEVICES] = {0};
        if (c != TSR_CLASS_ATTENTION)
            ns += least_of_class(&alone, c, set, 0, phase->classes[c].n_granules, counts);
        ns += n_steps * phase->classes[c].repeats * phase->problem.sync_ns(phase->problem.user, set, c);
    }
    return ns;
}

/* The least time over all pairs of splits with one attention. */
static double least_pair(const fixture *f, const machine *m, const tsr_model_config *config)
{
    tsr_planner planner;
    static tsr_goal goal;
    double least = INFINITY, decode[8], prompt[8];
    runner_ok(tsr_planner_init_for_list(f->gguf, m->devices, config, &planner), "planner");
    memset(&goal, 0, sizeof goal);
    runner_ok(tsr_goal_init(&planner, &goal), "goal");
    const tsr_device_set end = tsr_device_set_one(planner.n_devices);
    for (tsr_device_set set = 1; set < end; set++) {
        decode[set] = least_of_phase(&goal, &goal.decode, goal.n_decodes, set);
        prompt[set] = least_of_phase(&goal, &goal.prompt, goal.n_prompts, set);
    }
    for (tsr_device_set a = 1; a < end; a++)
        for (tsr_device_set b = 1; b < end; b++)
            if (a & b)
                least = fmin(least, least_attention(&goal, a & b) + decode[a] + prompt[b]);
    tsr_planner_free(&planner);
    return least;
}

static tsr_plan *plan_of(const fixture *f, const machine *m, const tsr_model_config *config,
                         tsr_plan_times *times_out, tsr_plan_info *info_out)
{
    tsr_plan *plan;
    runner_ok(tsr_plan_create(f->gguf, m->devices, config, &plan), "plan");
    tsr_plan_predict(plan, times_out);
    tsr_plan_get_info(plan, info_out);
    return plan;
}

/* With ample memory the planner's pair is the fastest there is, and is chosen where it gains enough. */
static void no_pair_takes_less_time(void **state)
{
    const fixture *f = *state;
    uint64_t r = 7;
    int n_pairs = 0;
    for (int i = 0; i < N_MACHINES / 2; i++) {
        char text[128];
        describe(&r, text);
        machine m = machine_of(i ? text : "1x rtx4090 pcie4x16, 1x rtx3090 pcie4x16");
        tsr_model_config config = tsr_model_config_default();
        tsr_plan_times one, two;
        tsr_plan_info info;
        config.session.n_ctx = 8192;
        config.plan.links = m.links;
        config.workload.n_prompt = 2048;
        config.workload.n_new = 64;
        tsr_plan_destroy(plan_of(f, &m, &config, &one, &info));
        assert_int_equal(info.prompt_tokens, 0);
        config.prompt.automatic = true;
        tsr_plan *plan = plan_of(f, &m, &config, &two, &info);
        const double least = least_pair(f, &m, &config);
        const bool gains = least <= (1 - TSR_PROMPT_SPLIT_GAIN) * one.workload_ns;
        if (fabs(least / one.workload_ns - (1 - TSR_PROMPT_SPLIT_GAIN)) > 1e-9 &&
            gains != (info.prompt_tokens > 0))
            fail_msg("%s: %.0f ns, a pair takes %.0f ns", text, one.workload_ns, least);
        if (fabs(two.workload_ns - (gains ? least : one.workload_ns)) > 1e-9 * one.workload_ns)
            fail_msg("%s: %.0f ns, but %.0f ns is possible", text, two.workload_ns, least);
        n_pairs += gains;
        tsr_plan_destroy(plan);
        machine_free(&m);
    }
    print_message("%d of %d machines get a split of prompts\n", n_pairs, N_MACHINES / 2);
    assert_true(n_pairs >= 5 && n_pairs < N_MACHINES / 2);
}

/* -- the config -- */

/* The times of a plan for `machine_name`, and optionally its facts. */
static tsr_plan_times predict_plan(const fixture *f, const char *machine_name, const tsr_model_config *config,
                                   tsr_plan_info *info_out)
{
    machine m = machine_of(machine_name);
    tsr_plan_times times;
    tsr_plan *plan;
    runner_ok(tsr_plan_create(f->gguf, m.devices, config, &plan), machine_name);
    tsr_plan_predict(plan, &times);
    if (info_out)
        tsr_plan_get_info(plan, info_out);
    tsr_plan_destroy(plan);
    machine_free(&m);
    return times;
}

/* Steps of decoding have a token of every sequence, steps of prompts those of several. */
static void a_workload_of_several_sequences_has_their_tokens(void **state)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_info info;
    config.session.n_ctx = 8192;
    config.session.n_seq_max = 8;
    config.workload.n_prompt = 100;
    config.workload.n_seq = 1;
    const tsr_plan_times one = predict_plan(*state, "2x rtx3090", &config, NULL);
    config.workload.n_seq = 0;
    const tsr_plan_times all = predict_plan(*state, "2x rtx3090", &config, &info);
    assert_int_equal(one.decode.n_tokens, 1);
    assert_int_equal(one.prompt.n_tokens, 100);
    assert_int_equal(all.decode.n_tokens, 8);
    assert_int_equal(all.prompt.n_tokens, 512);
    assert_int_equal(info.n_seq, 8);
    assert_true(fabs(one.workload_ns - (128 * one.decode.total_ns + one.prompt.total_ns)) <=
                1e-9 * one.workload_ns);
    assert_true(fabs(all.workload_ns - (128 * all.decode.total_ns + 800.0 / 512 * all.prompt.total_ns)) <=
                1e-9 * all.workload_ns);
}

/* A step has at most n_batch tokens. */
static void more_sequences_than_a_batch_are_decoded_in_two_steps(void **state)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 8192;
    config.session.n_batch = 32;
    config.session.n_seq_max = 64;
    config.workload.n_prompt = 0;
    config.workload.n_new = 10;
    const tsr_plan_times times = predict_plan(*state, "2x rtx3090", &config, NULL);
    assert_int_equal(times.decode.n_tokens, 32);
    assert_true(fabs(times.workload_ns - 20 * times.decode.total_ns) <= 1e-9 * times.workload_ns);
}

/* The chunks of the goal are those of a session, and take longer than a step of all tokens. */
static void prompts_are_in_the_chunks_of_as_many_stages(void **state)
{
    const fixture *f = *state;
    machine m = machine_of("4x rtx3090");
    tsr_model_config config = tsr_model_config_default();
    tsr_planner planner;
    static tsr_goal goal;
    config.session.n_ctx = 8192;
    config.session.n_batch = 512;
    runner_ok(tsr_planner_init_for_list(f->gguf, m.devices, &config, &planner), "planner");
    runner_ok(tsr_goal_init(&planner, &goal), "goal");
    for (int s = 1; s <= TSR_PIPELINE_LANES; s++) {
        const double tokens = (double)tsr_stage_chunk_tokens(512, s, true, false, 512);
        assert_true(goal.chunks[s].n == 512 / tokens);
        assert_true(goal.chunks[s].slower >= (1 + 128 / tokens) / (1 + 128 / 512.) - 1e-9);
    }
    assert_true(goal.chunks[2].n != goal.chunks[4].n);
    /* layers with a window: the chunks in flight have n_batch tokens */
    planner.shape.hparams.kinds[0].window = 128;
    planner.config.workload.n_prompt = 2048;
    runner_ok(tsr_goal_init(&planner, &goal), "goal");
    for (int s = 2; s <= TSR_PIPELINE_LANES; s++)
        assert_true(goal.chunks[s].n >= 2048 / 512 * s);
    tsr_planner_free(&planner);
    machine_free(&m);
}

static void splits_of_prompts_that_cannot_be_are_refused(void **state)
{
    const fixture *f = *state;
    machine m = machine_of("2x rtx3090");
    static const struct {
        tsr_split_mode mode;
        int n_tokens, n_batch, n_gpu_layers, n_split;
        const char *phrase;
    } bad[] = {{TSR_SPLIT_MODE_LAYER, 0, 64, -1, 2, "is for tensor mode, and the mode is layer"},
               {TSR_SPLIT_MODE_NONE, 0, 64, -1, 2, "is for tensor mode, and the mode is none"},
               {TSR_SPLIT_MODE_TENSOR, 65, 64, -1, 2, "steps of 65 tokens and more"},
               {TSR_SPLIT_MODE_TENSOR, 0, 1, -1, 2, "steps of 2 tokens and more"},
               {TSR_SPLIT_MODE_TENSOR, 1, 64, -1, 2, "prompt.n_tokens is 1"},
               {TSR_SPLIT_MODE_TENSOR, 0, 64, -1, 3, "entry 3 has no device"}};
    static const float split[3] = {3, 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan = NULL;
        config.split.mode = bad[i].mode;
        config.session.n_batch = bad[i].n_batch;
        config.offload.n_gpu_layers = bad[i].n_gpu_layers;
        config.prompt.n_tokens = bad[i].n_tokens;
        config.prompt.tensor_split = split;
        config.prompt.n_tensor_split = bad[i].n_split;
        assert_int_equal(tsr_plan_create(f->gguf, m.devices, &config, &plan), TSR_ERR_INVALID);
        if (!strstr(tsr_last_error(), bad[i].phrase))
            fail_msg("%s", tsr_last_error());
    }
    machine_free(&m);
}

static void workloads_without_tokens_are_refused(void **state)
{
    const fixture *f = *state;
    machine m = machine_of("1x rtx3090");
    static const struct {
        int n_prompt, n_new, n_seq;
        const char *name;
    } bad[] = {{0, 0, 1, "workload.n_new is 0"},
               {-1, 1, 1, "workload.n_prompt is -1"},
               {1, -1, 1, "workload.n_new is -1"},
               {1, 1, 5, "workload.n_seq is 5; it must be in [1, 4]"},
               {1, 1, -1, "workload.n_seq is -1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan = NULL;
        config.session.n_seq_max = 4;
        config.workload.n_prompt = bad[i].n_prompt;
        config.workload.n_new = bad[i].n_new;
        config.workload.n_seq = bad[i].n_seq;
        assert_int_equal(tsr_plan_create(f->gguf, m.devices, &config, &plan), TSR_ERR_INVALID);
        assert_non_null(strstr(tsr_last_error(), bad[i].name));
    }
    machine_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_takes_less_time),
        cmocka_unit_test(a_workload_of_several_sequences_has_their_tokens),
        cmocka_unit_test(more_sequences_than_a_batch_are_decoded_in_two_steps),
        cmocka_unit_test(prompts_are_in_the_chunks_of_as_many_stages),
        cmocka_unit_test(splits_for_halves_are_near_the_best),
        cmocka_unit_test(no_pair_takes_less_time),
        cmocka_unit_test(splits_of_prompts_that_cannot_be_are_refused),
        cmocka_unit_test(workloads_without_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
