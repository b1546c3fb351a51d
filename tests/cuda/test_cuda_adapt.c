/* tsr_model_adapt() on simulated GPUs, one of which becomes slower in the middle: granules move to the other
 * one, by whatever collectives the GPUs meet, and the text keeps its bits. Nothing else moves any. Real GPUs
 * are only asked for times. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/tsr.h>

#include "core/runtime.h"
#include "cuda/context/context.h"
#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/log_lines.h"
#include "support/runner.h"
#include "support/synth_model.h"
#include "support/thread_transport.h"

static const int32_t tokens[] = {5, 291, 127, 3, 44, 60};
enum { N_TOKENS = sizeof tokens / sizeof *tokens };

/* Times of simulated GPUs, times this, make a window of few steps. */
enum { SLOWNESS = 100 };

/* One step in eight is timed, and a window has four of those. */
enum { TWO_WINDOWS = 2 * 4 * 8 };

static char path[DIRECTORY_PATH];

static int write_model(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = 1;
    model.n_embd = 64;
    model.n_heads = 4;
    model.n_kv_heads = 2;
    model.n_ff = 128 * 6;
    model.n_vocab = 320;
    model.weight_type = TSR_TYPE_Q8_0;
    close(directory_new(path));
    synth_model_write(&model, path);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    return unlink(path);
}

typedef struct adapting {
    runner r;
    float *logits;
    int64_t n_steps;
    int n_changes;
} adapting;

/* NCCL wants distinct GPUs. */
static void configure(const char *collectives)
{
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    machine.n_devices = 2;
    machine.may_share = !collectives || strcmp(collectives, "nccl") != 0;
    if (CUDASIM_SIMULATED)
        machine.n_sms = 128; /* so that the blocks of a product follow its rows */
    cudasim_configure(&machine);
}

static adapting begin(const char *devices, const char *collectives)
{
    adapting a = {0};
    tsr_model_config config = tsr_model_config_default();
    configure(collectives);
    config.session.n_ctx = 64;
    runner_open_with(&a.r, path, devices, collectives, NULL, &config);
    a.logits = malloc((size_t)a.r.n_vocab * sizeof *a.logits);
    assert_non_null(a.logits);
    for (int device = 0; device < 2 && CUDASIM_SIMULATED; device++)
        cudasim_slow_device(device, SLOWNESS);
    return a;
}

static void slow_down(int device)
{
    cudasim_slow_device(device, 2 * SLOWNESS);
}

static void end(adapting *a)
{
    runner_close(&a->r);
    nothing_is_left();
    free(a->logits);
}

/* The logits of the text, [N_TOKENS][n_vocab]; the caller frees them. */
static float *text(adapting *a)
{
    float *logits = malloc((size_t)(N_TOKENS * a->r.n_vocab) * sizeof *logits);
    assert_non_null(logits);
    runner_ok(tsr_session_trim(a->r.session, 0, 0), "trimming");
    runner_decode(&a->r, tokens, N_TOKENS, 1, true, logits);
    return logits;
}

static bool is_timed(const adapting *a)
{
    return a->r.rt->devices[0]->clock.timed;
}

static void decode(adapting *a, int64_t at)
{
    runner_ok(tsr_session_trim(a->r.session, 0, at), "trimming");
    runner_decode(&a->r, &tokens[at], 1, 1, false, a->logits);
}

/* A step that is not timed adds nothing (see below), and is left out to save time. */
static tsr_status step(adapting *a)
{
    bool changed = false;
    if (is_timed(a))
        decode(a, a->n_steps++ % N_TOKENS);
    const tsr_status status = tsr_model_adapt(a->r.model, &changed);
    a->n_changes += changed;
    return status;
}

static void steps(adapting *a, int n)
{
    for (int i = 0; i < n; i++)
        runner_ok(step(a), "adapting");
}

/* -- the split -- */

static double share_of(const tsr_model *model, int device)
{
    tsr_plan_device d;
    assert_int_equal(tsr_plan_get_device(tsr_model_plan(model), device, &d), TSR_OK);
    return d.achieved[TSR_CLASS_FFN];
}

static void a_slow_gpu_gives_granules_to_the_other(void **state)
{
    (void)state;
    adapting a = begin("cuda:0,cuda:1", "nccl"); /* the fastest to simulate */
    float *plain = text(&a);
    steps(&a, 1 + TWO_WINDOWS);
    assert_int_equal(a.n_changes, 0);
    slow_down(1);
    steps(&a, TWO_WINDOWS);
    assert_int_equal(a.n_changes, 1);
    assert_true(fabs(share_of(a.r.model, 1) - 1.0 / 3) < 0.05);
    steps(&a, 2 * TWO_WINDOWS);
    assert_int_equal(a.n_changes, 1);
    float *same = text(&a);
    assert_memory_equal(same, plain, (size_t)(N_TOKENS * a.r.n_vocab) * sizeof *plain);
    end(&a);
    free(plain);
    free(same);
}

/* The sentence is the split at the end. */
static void adapt_in_process(process *self)
{
    const float even[] = {1, 1};
    adapting a = {.logits = malloc(4096 * sizeof *a.logits)};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_model_config mc = tsr_model_config_default();
    config.devices = self->rank ? "cuda:1" : "cuda:0";
    config.transport = &self->transport;
    mc.session.n_ctx = 64;
    mc.split.mode = TSR_SPLIT_MODE_TENSOR;
    mc.split.tensor_split = even;
    mc.split.n_tensor_split = 2;
    tsr_status status = a.logits ? tsr_runtime_open(&config, &a.r.rt) : TSR_ERR_MEMORY;
    if (status == TSR_OK)
        status = tsr_model_open(a.r.rt, path, &mc, &a.r.model);
    if (status == TSR_OK)
        status = tsr_session_create(a.r.model, &a.r.session);
    for (int i = 0; i <= TWO_WINDOWS && status == TSR_OK; i++) {
        const tsr_batch batch = {.n_tokens = 1, .tokens = tokens};
        bool changed = false;
        if (is_timed(&a))
            status = tsr_session_trim(a.r.session, 0, 0);
        if (status == TSR_OK && is_timed(&a))
            status = tsr_session_decode(a.r.session, &batch, a.logits);
        if (status == TSR_OK)
            status = tsr_model_adapt(a.r.model, &changed);
        a.n_changes += changed;
    }
    process_note(self, status);
    if (status == TSR_OK)
        snprintf(self->text, sizeof self->text, "%d %.3f", a.n_changes, share_of(a.r.model, 1));
    tsr_session_destroy(a.r.session);
    tsr_model_close(a.r.model);
    tsr_runtime_close(a.r.rt);
    free(a.logits);
}

static void processes_measure_their_own_gpus(void **state)
{
    (void)state;
    process processes[PROCESSES_MAX];
    configure(NULL);
    cudasim_slow_device(0, SLOWNESS);
    slow_down(1);
    processes_run(2, adapt_in_process, NULL, NULL, processes);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(processes[p].status, TSR_OK);
        assert_string_equal(processes[p].text, "1 0.333");
    }
    nothing_is_left();
}

/* -- what is measured -- */

typedef struct times {
    double work_ns, waited_ns;
} times;

static times times_of(const adapting *a, int device)
{
    const tsr_device_clock *clock = &a->r.rt->devices[device]->clock;
    return (times){(double)(clock->program_ns - clock->collective_ns), (double)clock->collective_ns};
}

static uint64_t operations_of_a_step(adapting *a)
{
    const uint64_t before = CUDASIM_SIMULATED ? cudasim_operations() : 0;
    decode(a, 0);
    return CUDASIM_SIMULATED ? cudasim_operations() - before : 0;
}

/* The second device works twice as long, and the first waits for it. */
static void check_ratio(const char *collectives, times fast, times slow)
{
    print_message("%s: %.0f us and %.0f us of work, %.0f us of waiting\n", collectives, fast.work_ns / 1e3,
                  slow.work_ns / 1e3, fast.waited_ns / 1e3);
    assert_true(fast.work_ns > 0 && slow.work_ns > 0);
    if (!CUDASIM_SIMULATED)
        return;
    assert_true(fabs(slow.work_ns / fast.work_ns - 2) < 0.05);
    if (strcmp(collectives, "staged") != 0) /* the host's waits are on its own clock */
        assert_true(fast.waited_ns > 0.5 * fast.work_ns);
}

/* The step after the one that is timed adds nothing, has the same bits, and does what a step did before. */
static void check_times(const char *collectives)
{
    adapting a = begin("cuda:0,cuda:1", collectives);
    float *timed = malloc((size_t)a.r.n_vocab * sizeof *timed);
    assert_non_null(timed);
    if (CUDASIM_SIMULATED)
        slow_down(1);
    decode(&a, 0);
    const uint64_t before = operations_of_a_step(&a);
    runner_ok(tsr_model_adapt(a.r.model, NULL), "adapting");
    assert_true(is_timed(&a));
    decode(&a, 0);
    memcpy(timed, a.logits, (size_t)a.r.n_vocab * sizeof *timed);
    const times fast = times_of(&a, 0), slow = times_of(&a, 1);
    check_ratio(collectives, fast, slow);
    runner_ok(tsr_model_adapt(a.r.model, NULL), "adapting");
    assert_false(is_timed(&a));
    assert_int_equal(operations_of_a_step(&a), before);
    assert_memory_equal(a.logits, timed, (size_t)a.r.n_vocab * sizeof *timed);
    assert_true(times_of(&a, 0).work_ns == fast.work_ns && times_of(&a, 1).work_ns == slow.work_ns);
    end(&a);
    free(timed);
}

static void work_is_told_from_waiting_by_any_collectives(void **state)
{
    (void)state;
    static const char *const collectives[] = {"pinned", "staged", "peer", "nccl"};
    const size_t n =
        CUDASIM_SIMULATED ? sizeof collectives / sizeof *collectives : 2; /* NCCL shares no GPU */
    for (size_t i = 0; i < n; i++)
        check_times(collectives[i]);
}

static void a_gpu_and_a_host_device_are_timed_in_the_same_steps(void **state)
{
    (void)state;
    adapting a = begin("cuda:0,host:1,threads=1", NULL);
    steps(&a, TWO_WINDOWS);
    assert_int_equal(a.n_steps, TWO_WINDOWS / 8);
    assert_true(times_of(&a, 0).work_ns > 0 && times_of(&a, 1).work_ns > 0);
    end(&a);
}

/* Text goes on; only the split cannot follow. */
static void without_times_adapting_is_refused(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaEventCreate", "cudaEventRecordWithFlags"};
    static const char *const collectives[] = {"nccl", "pinned"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        log_lines log = {0};
        tsr_status status = TSR_OK;
        adapting a = begin("cuda:0,cuda:1", collectives[i]);
        for (int d = 0; d < 2; d++)
            tsr_cuda(a.r.rt->devices[d])->logger = (tsr_logger){.fn = log_lines_note, .user = &log};
        runner_ok(tsr_model_adapt(a.r.model, NULL), "adapting");
        cudasim_fail_named(calls[i], i == 0 ? 5 : 1, cudaErrorMemoryAllocation);
        for (int k = 0; k < TWO_WINDOWS && status == TSR_OK; k++)
            status = step(&a);
        assert_int_equal(status, TSR_ERR_UNSUPPORTED);
        assert_non_null(strstr(tsr_last_error(), ": its steps could not be timed"));
        assert_non_null(strstr(log.text, ": a program is not timed, and its split does not adapt: "));
        cudasim_clear_faults();
        end(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_gpu_gives_granules_to_the_other),
        cmocka_unit_test(processes_measure_their_own_gpus),
        cmocka_unit_test(work_is_told_from_waiting_by_any_collectives),
        cmocka_unit_test(a_gpu_and_a_host_device_are_timed_in_the_same_steps),
        cmocka_unit_test(without_times_adapting_is_refused),
    };
    return cmocka_run_group_tests_name("adapting on GPUs", tests, write_model, remove_model);
}
