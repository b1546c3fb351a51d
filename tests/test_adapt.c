/* A split that follows the speeds of devices. The rule is tested on devices that are numbers: it finds the
 * best split after a change of speed, stays where it is without one, and never moves to and fro.
 * tsr_model_adapt() is tested on host devices with a duty that changes while they decode: the text keeps its
 * bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "core/event.h"
#include "core/runtime.h"
#include "host/host.h"
#include "split/search/rebalance.h"
#include "support/log_lines.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/thread_transport.h"

/* -- the rule, on devices that are numbers -- */

#define WINDOW_NS 0.25e9

typedef struct bench {
    int n;
    double speed[8]; /* granules per ns */
    double fixed_ns; /* of a step on every device */
    double noise;    /* largest relative error of a window */
    double change_ns;
    int64_t n_granules;
    double share[8];
    uint64_t seed;
    int n_changes;
    tsr_rebalance rule;
} bench;

static double step_ns(const bench *b, const double *share, int d)
{
    return b->fixed_ns + round(share[d] * (double)b->n_granules) / b->speed[d];
}

static double longest_ns(const bench *b, const double *share)
{
    double longest = 0;
    for (int d = 0; d < b->n; d++)
        longest = fmax(longest, step_ns(b, share, d));
    return longest;
}

/* Of shares in proportion to the speeds. */
static double best_ns(const bench *b)
{
    double share[8], sum = 0;
    for (int d = 0; d < b->n; d++)
        sum += b->speed[d];
    for (int d = 0; d < b->n; d++)
        share[d] = b->speed[d] / sum;
    return longest_ns(b, share);
}

static void run_window(bench *b)
{
    tsr_rebalance_window w = {.n_devices = b->n, .total_ns = WINDOW_NS, .change_ns = b->change_ns};
    const double n_steps = WINDOW_NS / longest_ns(b, b->share);
    double share[8];
    for (int d = 0; d < b->n; d++) {
        w.share[d] = b->share[d];
        w.work_ns[d] = n_steps * step_ns(b, b->share, d) * (1 + b->noise * random_uniform(&b->seed));
    }
    if (!tsr_rebalance_propose(&b->rule, &w, share) ||
        !tsr_rebalance_pays(&b->rule, &w, tsr_rebalance_gain(&w, share)))
        return;
    for (int d = 0; d < b->n; d++)
        b->share[d] = share[d];
    tsr_rebalance_changed(&b->rule);
    b->n_changes++;
}

static void run_seconds(bench *b, double s)
{
    for (double t = 0; t < s * 1e9; t += WINDOW_NS)
        run_window(b);
}

static bench two_devices(void)
{
    return (bench){.n = 2,
                   .speed = {1e-5, 1e-5},
                   .fixed_ns = 1e6,
                   .noise = 0.02,
                   .n_granules = 1000,
                   .share = {0.5, 0.5},
                   .seed = 7};
}

static void nothing_moves_where_nothing_changes(void **state)
{
    (void)state;
    bench b = two_devices();
    run_seconds(&b, 1000);
    assert_int_equal(b.n_changes, 0);
}

static void a_slow_device_gives_granules_and_gets_them_back(void **state)
{
    (void)state;
    bench b = two_devices();
    run_seconds(&b, 10);
    b.speed[1] /= 2;
    run_seconds(&b, 5);
    assert_true(best_ns(&b) >= 0.9 * longest_ns(&b, b.share));
    assert_true(b.n_changes <= 2);
    b.speed[1] *= 2;
    run_seconds(&b, 5);
    assert_true(best_ns(&b) >= 0.9 * longest_ns(&b, b.share));
    assert_true(b.n_changes <= 4);
}

static void one_slow_window_moves_nothing(void **state)
{
    (void)state;
    bench b = two_devices();
    for (int i = 0; i < 40; i++) {
        b.speed[i % 2] /= 3;
        run_window(&b);
        b.speed[i % 2] *= 3;
        run_window(&b);
    }
    assert_int_equal(b.n_changes, 0);
}

/* A device that is slow every other second: each change is followed by a higher bar. */
static void a_device_that_comes_and_goes_moves_less_and_less(void **state)
{
    (void)state;
    bench b = two_devices();
    for (int i = 0; i < 100; i++) {
        b.speed[1] = i % 2 ? 1e-5 : 0.7e-5;
        run_seconds(&b, 1);
    }
    assert_in_range(b.n_changes, 1, 24);
}

static void a_change_that_takes_longer_than_it_saves_is_not_made(void **state)
{
    (void)state;
    bench b = two_devices();
    b.speed[1] /= 2;
    b.change_ns = 5e9;
    run_seconds(&b, 100);
    assert_int_equal(b.n_changes, 0);
    b.change_ns = 1e9;
    run_seconds(&b, 1);
    assert_int_equal(b.n_changes, 1);
}

/* Any number of devices of any speeds ends within 11 % of the best, and stays there. */
static void random_devices_come_to_rest_near_the_best(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 300; i++) {
        bench b = {.n = 2 + (int)random_below(&seed, 7), .n_granules = 2000, .noise = 0.01, .seed = seed};
        for (int d = 0; d < b.n; d++) {
            b.share[d] = 1.0 / b.n;
            b.speed[d] = 1e-5 * exp2(2 * random_uniform(&seed));
        }
        b.fixed_ns = 1e6 * (double)random_below(&seed, 10);
        run_seconds(&b, 60);
        assert_true(best_ns(&b) >= 0.89 * longest_ns(&b, b.share));
        const int n_changes = b.n_changes;
        run_seconds(&b, 100);
        assert_in_range(b.n_changes, n_changes, n_changes + 1);
    }
}

/* A device may have done nothing in a window, or only waited. */
static void shares_without_work_are_no_division_by_zero(void **state)
{
    (void)state;
    tsr_rebalance rule = {0};
    double share[3];
    tsr_rebalance_window w = {.n_devices = 3, .share = {0.5, 0.5, 0}, .work_ns = {0, 0, 0}};
    assert_false(tsr_rebalance_propose(&rule, &w, share));
    w = (tsr_rebalance_window){
        .n_devices = 3, .share = {0.5, 0.5, 0}, .work_ns = {0, 1e6, 0}, .total_ns = 1e6};
    tsr_rebalance_propose(&rule, &w, share);
    assert_true(fabs(share[0] + share[1] - 1) < 1e-9);
    assert_true(share[2] == 0);
}

/* -- a model -- */

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

enum { MOST_STEPS = 20000, CONTEXT = 64 };
static const int32_t tokens[] = {5, 291, 1027, 3, 44, 600};
enum { N_TOKENS = sizeof tokens / sizeof *tokens };

static double share_of_second(const tsr_model *model)
{
    tsr_plan_device device;
    assert_int_equal(tsr_plan_get_device(tsr_model_plan(model), 1, &device), TSR_OK);
    return device.achieved[TSR_CLASS_FFN];
}

/* Decode the same tokens again and again until the split changes. */
static bool decode_until_changed(runner *r, float *logits)
{
    bool changed = false;
    for (int i = 0; i < MOST_STEPS && !changed; i++) {
        runner_ok(tsr_session_trim(r->session, 0, i % N_TOKENS), "trimming");
        runner_decode(r, &tokens[i % N_TOKENS], 1, 1, false, logits);
        runner_ok(tsr_model_adapt(r->model, &changed), "adapting");
    }
    return changed;
}

static void set_duty(runner *r, int device, int percent)
{
    assert_int_equal(r->rt->devices[device]->ops->synchronize(r->rt->devices[device], 0), TSR_OK);
    tsr_host(r->rt->devices[device])->duty_percent = percent;
}

static void assert_same_text(runner *r, const float *plain)
{
    float *logits = malloc((size_t)r->n_vocab * sizeof *logits);
    assert_non_null(logits);
    runner_ok(tsr_session_trim(r->session, 0, 0), "trimming");
    runner_decode(r, tokens, N_TOKENS, 1, false, logits);
    assert_memory_equal(logits, plain, (size_t)r->n_vocab * sizeof *logits);
    free(logits);
}

static float *plain_logits(void)
{
    runner r;
    runner_open(&r, MODEL, "host:1,threads=1", NULL, NULL);
    float *logits = malloc((size_t)r.n_vocab * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, N_TOKENS, 0, false, logits);
    runner_close(&r);
    return logits;
}

static void a_throttled_device_gives_granules_and_gets_them_back(void **state)
{
    (void)state;
    runner r;
    float *plain = plain_logits(), *logits;
    runner_open(&r, MODEL, "host:2,threads=1", "1,1", NULL);
    logits = malloc((size_t)r.n_vocab * sizeof *logits);
    assert_non_null(logits);
    set_duty(&r, 1, 30);
    assert_true(decode_until_changed(&r, logits));
    const double low = share_of_second(r.model);
    assert_true(low < 0.4 && low > 0);
    assert_same_text(&r, plain);
    set_duty(&r, 1, 100);
    set_duty(&r, 0, 30);
    assert_true(decode_until_changed(&r, logits));
    assert_true(share_of_second(r.model) > low);
    assert_same_text(&r, plain);
    runner_close(&r);
    free(logits);
    free(plain);
}

/* The second device has no room for what both splits need at a time. */
static void without_room_the_split_stays(void **state)
{
    (void)state;
    runner r;
    tsr_plan_device device;
    char devices[96];
    log_lines log = {0};
    runner_open(&r, MODEL, "host:2,threads=1", "1,1", NULL);
    assert_int_equal(tsr_plan_get_device(tsr_model_plan(r.model), 1, &device), TSR_OK);
    runner_close(&r);
    snprintf(devices, sizeof devices, "host:1,threads=1,host:1,threads=1,mem=%zu", device.total_bytes);
    runner_open(&r, MODEL, devices, "1,1", NULL);
    r.rt->logger = (tsr_logger){.fn = log_lines_note, .user = &log};
    float *logits = malloc((size_t)r.n_vocab * sizeof *logits);
    assert_non_null(logits);
    set_duty(&r, 1, 30);
    for (int i = 0; i < MOST_STEPS && !log.n; i++) {
        bool changed;
        runner_ok(tsr_session_trim(r.session, 0, i % N_TOKENS), "trimming");
        runner_decode(&r, &tokens[i % N_TOKENS], 1, 1, false, logits);
        runner_ok(tsr_model_adapt(r.model, &changed), "adapting");
        assert_false(changed);
    }
    assert_non_null(strstr(log.text, "the split stays, though another one is faster: device host1"));
    assert_true(fabs(share_of_second(r.model) - 0.5) < 0.1);
    runner_close(&r);
    free(logits);
}

static void models_that_cannot_adapt_are_refused(void **state)
{
    (void)state;
    runner r;
    tsr_model_config config = tsr_model_config_default();
    assert_int_equal(tsr_model_adapt(NULL, NULL), TSR_ERR_INVALID);
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    runner_open(&r, MODEL, "host:2,threads=1", "1,1", &config);
    assert_int_equal(tsr_model_adapt(r.model, NULL), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "split mode tensor"));
    runner_close(&r);
    runner_open(&r, MODEL, "host:1,threads=1", NULL, NULL);
    runner_ok(tsr_model_adapt(r.model, NULL), "one device");
    runner_close(&r);
}

/* -- processes -- */

/* The sentence is the split at the end. */
static void adapt_in_processes(process *self)
{
    const float even[] = {1, 1};
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    bool changed = false;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_model_config mc = tsr_model_config_default();
    float *logits = malloc(100000 * sizeof *logits);
    config.devices = self->rank ? "host:1,threads=1,duty=30" : "host:1,threads=1";
    config.transport = &self->transport;
    mc.session.n_ctx = CONTEXT;
    mc.split.mode = TSR_SPLIT_MODE_TENSOR;
    mc.split.tensor_split = even;
    mc.split.n_tensor_split = 2;
    tsr_status status = logits ? tsr_runtime_open(&config, &rt) : TSR_ERR_MEMORY;
    if (status == TSR_OK)
        status = tsr_model_open(rt, MODEL, &mc, &model);
    if (status == TSR_OK)
        status = tsr_session_create(model, &session);
    for (int i = 0; i < MOST_STEPS && status == TSR_OK && !changed; i++) {
        const tsr_batch batch = {.n_tokens = 1, .tokens = &tokens[i % N_TOKENS]};
        status = tsr_session_trim(session, 0, i % N_TOKENS);
        if (status == TSR_OK)
            status = tsr_session_decode(session, &batch, logits);
        if (status == TSR_OK)
            status = tsr_model_adapt(model, &changed);
    }
    process_note(self, status);
    if (status == TSR_OK)
        snprintf(self->text, sizeof self->text, "%d %.3f", changed, share_of_second(model));
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    free(logits);
}

static void processes_make_the_same_changes(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    processes_run(2, adapt_in_processes, NULL, NULL, processes);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(processes[p].status, TSR_OK);
        assert_memory_equal(processes[p].text, "1 0.", 4);
        assert_true(atof(processes[p].text + 2) < 0.4);
        assert_string_equal(processes[p].text, processes[0].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_moves_where_nothing_changes),
        cmocka_unit_test(a_slow_device_gives_granules_and_gets_them_back),
        cmocka_unit_test(one_slow_window_moves_nothing),
        cmocka_unit_test(a_device_that_comes_and_goes_moves_less_and_less),
        cmocka_unit_test(a_change_that_takes_longer_than_it_saves_is_not_made),
        cmocka_unit_test(random_devices_come_to_rest_near_the_best),
        cmocka_unit_test(shares_without_work_are_no_division_by_zero),
        cmocka_unit_test(a_throttled_device_gives_granules_and_gets_them_back),
        cmocka_unit_test(without_room_the_split_stays),
        cmocka_unit_test(models_that_cannot_adapt_are_refused),
        cmocka_unit_test(processes_make_the_same_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
