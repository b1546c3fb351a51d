/* A session with room for many positions divides attention among blocks, of which the last one combines what
 * all have left: token after token the bits of a session whose blocks share nothing. */
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

enum { N_TOKENS = 3, SHORT = 64, LONG = 4096 };

/* The logits of N_TOKENS tokens, one per step; the caller frees them. */
static float *logits_of(const char *path, int n_ctx, tsr_type type, size_t *n_out)
{
    tsr_model_config config = tsr_model_config_default();
    runner r;
    config.session.n_ctx = n_ctx;
    config.session.type_k = config.session.type_v = type;
    runner_open_with(&r, path, "cuda", "auto", NULL, &config);
    float *logits = malloc((size_t)(N_TOKENS * r.n_vocab) * sizeof *logits);
    for (int32_t token = 0; token < N_TOKENS; token++) {
        const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        runner_ok(tsr_session_decode(r.session, &batch, logits + token * r.n_vocab), "logits");
    }
    *n_out = (size_t)(N_TOKENS * r.n_vocab);
    runner_close(&r);
    return logits;
}

/* Caches of floats are divided from the first position on. */
static void the_last_block_combines_what_all_have_left(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    size_t n, n_long;
    model.n_ctx = LONG;
    machine.n_devices = 1;
    cudasim_configure(&machine);
    close(directory_new(path));
    synth_model_write(&model, path);
    float *expected = logits_of(path, SHORT, TSR_TYPE_F32, &n);
    float *got = logits_of(path, LONG, TSR_TYPE_F32, &n_long);
    assert_int_equal(n, n_long);
    assert_memory_equal(got, expected, n * sizeof *got);
    assert_int_equal(cudasim_blocks_of("combine_kernel"), 0);
    free(expected);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_block_combines_what_all_have_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
