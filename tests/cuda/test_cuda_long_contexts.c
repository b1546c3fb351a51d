/* A session with room for many positions divides attention of single tokens among blocks, of which the last
 * one combines what all have left: the bits that the tokens have in one batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { PROMPT = 600, SINGLE = 3, N_CTX = 1024 };

/* The logits of token number PROMPT + SINGLE, the last ones of which come alone if `single`. */
static float *logits_of(const char *path, bool single)
{
    tsr_model_config config = tsr_model_config_default();
    int32_t tokens[PROMPT + SINGLE];
    runner r;
    for (int i = 0; i < PROMPT + SINGLE; i++)
        tokens[i] = 7 * i % 250;
    config.session.n_ctx = N_CTX;
    config.session.n_batch = N_CTX;
    runner_open_with(&r, path, "cuda", "auto", NULL, &config);
    float *logits = malloc((size_t)r.n_vocab * sizeof *logits);
    for (int at = 0, n = single ? PROMPT : PROMPT + SINGLE; at < PROMPT + SINGLE; at += n, n = 1) {
        const tsr_batch batch = {.n_tokens = n, .tokens = tokens + at};
        runner_ok(tsr_session_decode(r.session, &batch, logits), "logits");
    }
    runner_close(&r);
    return logits;
}

static void the_last_block_combines_what_all_have_left(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    model.n_ctx = N_CTX;
    model.n_layers = 1;
    machine.n_devices = 1;
    cudasim_configure(&machine);
    close(directory_new(path));
    synth_model_write(&model, path);
    float *expected = logits_of(path, false), *got = logits_of(path, true);
    assert_memory_equal(got, expected, (size_t)model.n_vocab * sizeof *got);
    assert_int_equal(cudasim_blocks_of("combine_kernel"), 0);
    free(expected);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_block_combines_what_all_have_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
