/* The likeliest tokens in place of all logits, and embeddings: on GPUs, alone and beside a host device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include "support/candidates_check.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

static void configure(void)
{
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    machine.n_devices = 3;
    machine.may_share = true;
    cudasim_configure(&machine);
}

static void candidates_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"cuda:0", NULL},
                                           {"cuda:0,cuda:1", "3,1"},
                                           {"cuda:0,cuda:1,cuda:2", "1,4,2"},
                                           {"cuda:0,host", "2,1"}};
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    configure();
    model.n_layers = 1;
    close(directory_new(path));
    synth_model_write(&model, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        candidates_check(path, cases[i][0], cases[i][1]);
}

/* Of all tokens in one chunk, and in chunks of three. */
static void embed(const char *path, const char *devices, const char *split, int n_batch, float *embeddings)
{
    const int32_t tokens[] = {5, 3, 250, 17, 5, 9, 60};
    const bool outputs[] = {true, true, true, true, true, true, true};
    const tsr_batch batch = {.n_tokens = 7, .tokens = tokens, .outputs = outputs};
    tsr_model_config config = tsr_model_config_default();
    config.output.embeddings = true;
    config.session.n_batch = n_batch;
    runner r;
    runner_open(&r, path, devices, split, &config);
    runner_ok(tsr_session_decode_embeddings(r.session, &batch, embeddings), devices);
    runner_close(&r);
}

static void embeddings_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *split;
        int n_batch;
    } ways[] = {{"cuda:0,cuda:1", "3,1", 512}, {"cuda:0,cuda:1,cuda:2", "1,0,2", 3}};
    enum { N = 7, N_EMBD = 256 }; /* of the model of tests */
    static float host[N * N_EMBD], first[N * N_EMBD], other[N * N_EMBD];
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    configure();
    model.n_layers = 1;
    close(directory_new(path));
    synth_model_write(&model, path);
    assert_int_equal(model.n_embd, N_EMBD);
    embed(path, "host:1,threads=1", NULL, 512, host);
    embed(path, "cuda:0", NULL, 512, first);
    for (int i = 0; i < N * N_EMBD; i++)
        assert_float_equal(first[i], host[i], 2e-3);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        embed(path, ways[i].devices, ways[i].split, ways[i].n_batch, other);
        assert_memory_equal(other, first, sizeof first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(candidates_do_not_depend_on_the_split),
                                       cmocka_unit_test(embeddings_do_not_depend_on_the_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
