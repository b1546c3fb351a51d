/* A prompt's chunk in halves on simulated GPUs: the sums of one half run in a stream of their own beside the
 * products of the other, in the memory that was planned, with the bits of whole chunks on one GPU. */
#include <stdlib.h>
#include <unistd.h>

#include "core/runtime.h"
#include "cuda/context/context.h"
#include "cuda/simulated.h"
#include "model/session/session.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_TOKENS = 25, N_BATCH = 18, HALF = 8, N_CTX = 64, N_VOCAB = 260, N_LAYERS = 2 };

static char path[DIRECTORY_PATH];
static int32_t tokens[N_TOKENS];
static float expected[N_VOCAB];

static int setup(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = N_LAYERS;
    model.n_embd = 64;
    model.n_heads = model.n_kv_heads = 2;
    model.n_ff = 64;
    model.n_vocab = N_VOCAB;
    model.n_ctx = 2 * TSR_MODEL_HALF_TOKENS;
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

static void open_gpus(runner *r, const char *devices, const char *collectives, int n_gpus, int64_t n_batch)
{
    cudasim_config sim = CUDASIM_CONFIG_INIT;
    tsr_model_config config = tsr_model_config_default();
    sim.n_devices = n_gpus;
    sim.peer_access = strcmp(collectives, "peer") == 0;
    cudasim_configure(&sim);
    config.session.n_ctx = n_batch > N_CTX ? n_batch : N_CTX;
    config.session.n_batch = n_batch;
    runner_open_with(r, path, devices, collectives, NULL, &config);
}

static void prompt(tsr_session *session, float *logits)
{
    tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens};
    memset(logits, 0xff, N_VOCAB * sizeof *logits);
    runner_ok(tsr_session_decode(session, &batch, logits), "a prompt");
}

/* Sums that run beside products: two per layer and half but of the last layer. Of that only keys and values
 * of the first half are wanted, so nothing is left to run beside the sums of the second. And that of the
 * embedding, of which the second GPU has no part. */
static uint64_t n_beside(int device)
{
    return 2 * (2 * (N_LAYERS - 1) + (device == 0));
}

/* A prompt is a chunk in halves and a short one. Programs that are timed are captured twice. */
static void halves_give_the_bits_of_whole_chunks(void **state)
{
    (void)state;
    static const char *const collectives[] = {"peer", "nccl", "staged"};
    float logits[N_VOCAB];
    runner r;
    open_gpus(&r, "cuda:0", "auto", 1, N_BATCH);
    prompt(r.session, expected);
    runner_close(&r);
    for (int c = 0; c < 3; c++) {
        tsr_session *session;
        open_gpus(&r, "cuda:0,cuda:1", collectives[c], 2, N_BATCH);
        for (int way = 0; way < 4; way++) {
            const uint64_t halves = (c < 2) * (way > 0), captures = way == 2 ? 2 : 1;
            r.model->half_tokens = way > 0 ? HALF : N_CTX;
            for (int d = 0; d < 2; d++) {
                tsr_cuda(r.rt->devices[d])->without.graphs = way == 3; /* the streams' own order */
                r.rt->devices[d]->clock.timed = way == 2;              /* a second graph, with events */
                tsr_cuda(r.rt->devices[d])->sums.n = 0;
            }
            runner_ok(tsr_session_create(r.model, &session), "a session");
            assert_int_equal(tsr_session_first_half(session, N_BATCH), halves ? N_BATCH / 2 : 0);
            assert_int_equal(tsr_session_first_half(session, 2 * HALF - 1), 0);
            prompt(session, logits);
            assert_memory_equal(logits, expected, sizeof logits);
            for (int d = 0; d < 2; d++)
                assert_int_equal(tsr_cuda(r.rt->devices[d])->sums.n, halves * captures * n_beside(d));
            tsr_session_destroy(session);
        }
        runner_close(&r);
        nothing_is_left();
    }
}

/* With a batch of two halves of the usual size. */
static void planned_memory_has_room_for_halves(void **state)
{
    (void)state;
    runner r;
    open_gpus(&r, "cuda:0,cuda:1", "peer", 2, 2 * TSR_MODEL_HALF_TOKENS);
    assert_int_equal(tsr_session_first_half(r.session, 2 * TSR_MODEL_HALF_TOKENS), TSR_MODEL_HALF_TOKENS);
    assert_int_equal(r.session->memory->halves.devices[0].n_slots, 3); /* slots.h */
    for (int d = 0; d < r.rt->n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(tsr_model_plan(r.model), d, &device), "device");
        for (int owner = 0; owner < TSR_MEMORY_COUNT; owner++)
            assert_int_equal(r.rt->devices[d]->used[owner], device.bytes[owner]);
    }
    runner_close(&r);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_give_the_bits_of_whole_chunks),
        cmocka_unit_test(planned_memory_has_room_for_halves),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
