/* Chunks of a prompt in flight through simulated GPUs: the bits of one GPU and one chunk at a time, in the
 * memory that was planned, over every kind of collectives; and a GPU that fails in the middle. */
#include <stdlib.h>
#include <unistd.h>

#include "core/device.h"
#include "core/runtime.h"
#include "cuda/simulated.h"
#include "model/session/session.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_TOKENS = 41, N_VOCAB = 300, N_CTX = 96 };

static char path[DIRECTORY_PATH];
static int32_t tokens[N_TOKENS];
static float expected[N_VOCAB];

static int setup(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = 8;
    model.n_embd = 128;
    model.n_heads = model.n_kv_heads = 4;
    model.n_ff = 256;
    model.n_vocab = N_VOCAB;
    model.weight_type = TSR_TYPE_Q8_0;
    close(directory_new(path));
    synth_model_write(&model, path);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 97 + 11) % N_VOCAB;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

/* Layers in equal parts: the fastest split may leave a GPU out. */
static void open_stages(runner *r, const char *devices, const char *collectives, int n_gpus)
{
    static const char *const equal[] = {"1", "1,1", "1,1,1", "1,1,1,1"};

    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    sim.n_devices = n_gpus;
    sim.peer_access = strcmp(collectives, "peer") == 0;
    cudasim_configure(&sim);
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    config.session.n_ctx = N_CTX;
    config.session.n_batch = 8;
    config.session.n_outputs_max = 4;
    runner_open_with(r, path, devices, collectives, equal[n_gpus - 1], &config);
}

static tsr_status prompt(runner *r, float *logits)
{
    tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens};
    return tsr_session_decode(r->session, &batch, logits);
}

static void expect_one_gpu(void)
{
    runner r;
    open_stages(&r, "cuda:0", "auto", 1);
    runner_ok(prompt(&r, expected), "one GPU");
    runner_close(&r);
    nothing_is_left();
}

static void check_planned(const runner *r)
{
    for (int d = 0; d < r->rt->n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(tsr_model_plan(r->model), d, &device), "device");
        for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
            assert_int_equal(r->rt->devices[d]->used[owner], device.bytes[owner]);
    }
}

static void stages_give_the_bits_of_one_gpu(void **state)
{
    (void)state;
    static const char *const collectives[] = {"peer", "staged", "pinned", "nccl"};
    static const char *const devices[] = {"cuda:0,cuda:1", "cuda:0,cuda:1,cuda:2,cuda:3"};
    float logits[N_VOCAB];
    expect_one_gpu();
    for (int c = 0; c < 4; c++)
        for (int n = 0; n < 2; n++) {
            runner r;
            open_stages(&r, devices[n], collectives[c], n ? 4 : 2);
            assert_int_equal(r.session->memory->layout.n_lanes, n ? 4 : 2);
            check_planned(&r);
            for (int i = 0; i < 2; i++) {
                memset(logits, 0xff, sizeof logits);
                runner_ok(prompt(&r, logits), collectives[c]);
                assert_memory_equal(logits, expected, sizeof logits);
                runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
            }
            check_planned(&r);
            runner_close(&r);
            nothing_is_left();
        }
}

/* Any launch of the prompt fails: on a stage that others wait for, with chunks before it and behind it in
 * flight. */
static void a_launch_that_fails_takes_back_all_chunks(void **state)
{
    (void)state;
    static const char *const collectives[] = {"peer", "staged"};
    float logits[N_VOCAB];
    expect_one_gpu();
    for (int c = 0; c < 2; c++) {
        int n_failed = 0;
        runner r;
        open_stages(&r, "cuda:0,cuda:1,cuda:2", collectives[c], 3);
        runner_ok(prompt(&r, logits), "a prompt"); /* programs are captured */
        for (uint64_t nth = 1; nth <= 30; nth += 7) {
            runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
            cudasim_fail_named("cudaGraphLaunch", nth, cudaErrorMemoryAllocation);
            const tsr_status status = prompt(&r, logits);
            cudasim_clear_faults();
            n_failed += status != TSR_OK;
            assert_int_equal(tsr_session_length(r.session, 0), status == TSR_OK ? N_TOKENS : 0);
            runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
            runner_ok(prompt(&r, logits), "after a failure");
            assert_memory_equal(logits, expected, sizeof logits);
        }
        runner_close(&r);
        nothing_is_left();
        assert_true(n_failed >= 2);
    }
}

static void cancel_in_second_chunk(int64_t n_done, int64_t n_tokens, void *session)
{
    (void)n_tokens;
    if (n_done == 16)
        tsr_session_cancel(session);
}

/* Each GPU finishes its chunks. A host device beside one GPU stops, and the GPU no longer waits for it. */
static void a_cancelled_prompt_takes_back_all_chunks(void **state)
{
    (void)state;
    static const struct {
        const char *devices;
        int n;
    } cases[] = {{"host:1,threads=1,cuda:0", 2}, {"cuda:0,cuda:1", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        runner r;
        float logits[N_VOCAB], before[N_VOCAB];
        open_stages(&r, cases[i].devices, "auto", cases[i].n);
        runner_ok(prompt(&r, before), cases[i].devices);
        runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
        tsr_session_set_progress(r.session, cancel_in_second_chunk, r.session);
        assert_int_equal(prompt(&r, logits), TSR_ERR_CANCELLED);
        assert_int_equal(tsr_session_length(r.session, 0), 0);
        tsr_session_set_progress(r.session, NULL, NULL);
        runner_ok(prompt(&r, logits), "after a cancelled prompt");
        assert_memory_equal(logits, before, sizeof logits);
        runner_close(&r);
        nothing_is_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_one_gpu),
        cmocka_unit_test(a_launch_that_fails_takes_back_all_chunks),
        cmocka_unit_test(a_cancelled_prompt_takes_back_all_chunks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
