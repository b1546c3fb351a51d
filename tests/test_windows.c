/* Sliding windows on host devices: only the window's pages are kept, and every bit is as if all were
 * (support/window_walk.h); what is planned is what is taken; what cannot be undone any more is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"
#include "support/window_walk.h"

static int prepare(uint64_t *seed, way *w)
{
    int n_devices = 1 + (int)random_below(seed, 4);
    snprintf(w->devices, sizeof w->devices, "host:%d,threads=%d", n_devices, 1 + (int)random_below(seed, 2));
    return n_devices;
}

static const way_family host = {.plain = "host:1,threads=1", .prepare = prepare};

static void no_bit_depends_on_what_is_kept(void **state)
{
    (void)state;
    static const int windows[] = {1, 5, 32, 33, 70};
    int n = 0;
    for (size_t i = 0; i < n_synth_archs; i++)
        for (const struct synth_key *key = synth_archs[i].keys; key->suffix; key++) {
            if (strcmp(key->suffix, "attention.sliding_window") != 0)
                continue;
            for (size_t w = 0; w < sizeof windows / sizeof *windows; w++, n++) {
                window_walk walk = {.arch = &synth_archs[i],
                                    .window = windows[w],
                                    .rounds = 2,
                                    .n_steps = 40,
                                    .length = WINDOW_WALK_CTX / WINDOW_WALK_SEQS,
                                    .seed = (uint64_t)n};
                window_walk_check(&host, &walk);
            }
        }
    assert_true(n >= 20); /* gemma2, gemma3 twice, phi3, olmo2 */
}

/* -- failures -- */

enum { N_BATCH = 32, BEFORE = 2 * N_BATCH, CHUNKS = 5 * N_BATCH, REST = 7, N_CTX = 256 };

/* phi3: all layers have a window, of 9 positions here. */
static void open_phi3(runner *r, const char *path, bool swa_full)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = N_CTX;
    config.session.n_batch = N_BATCH;
    config.session.swa_full = swa_full;
    runner_open(r, path, "host:1,threads=1", "1", &config);
}

static tsr_status append(runner *r, const int32_t *tokens, int64_t n, float *logits)
{
    return tsr_session_decode(r->session, &(tsr_batch){.n_tokens = n, .tokens = tokens}, logits);
}

/* The step of a last, short chunk cannot be compiled. All are compiled before the first chunk is computed, so
 * windows have not moved either, and the call can be made again. */
static void check_failed_call(const char *path, const int32_t *tokens, bool swa_full, const float *expected)
{
    runner r;
    float logits[512];
    open_phi3(&r, path, swa_full);
    runner_ok(append(&r, tokens, BEFORE, logits), "decode");
    failing_alloc_set(1);
    tsr_status status = append(&r, tokens + BEFORE, CHUNKS + REST, logits);
    failing_alloc_set(0);
    assert_int_equal(status, TSR_ERR_MEMORY);
    int64_t length = tsr_session_length(r.session, 0);
    assert_int_equal(length, BEFORE);
    runner_ok(append(&r, tokens + length, BEFORE + CHUNKS + REST - length, logits), "go on");
    assert_memory_equal(logits, expected, (size_t)r.n_vocab * sizeof *logits);
    runner_close(&r);
}

static void a_failed_call_leaves_what_can_be_continued(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    int32_t tokens[N_CTX + 1];
    float expected[512];
    uint64_t seed = 5;
    runner r;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    for (size_t i = 0; i < n_synth_archs; i++)
        if (strcmp(synth_archs[i].title, "phi3") == 0)
            config.arch = &synth_archs[i];
    close(directory_new(path));
    synth_model_write(&config, path);
    for (int i = 0; i <= N_CTX; i++)
        tokens[i] = (int32_t)random_below(&seed, (uint64_t)config.n_vocab);
    open_phi3(&r, path, true);
    runner_ok(append(&r, tokens, BEFORE + CHUNKS + REST, expected), "decode");
    runner_close(&r);
    check_failed_call(path, tokens, true, expected);
    check_failed_call(path, tokens, false, expected);

    open_phi3(&r, path, false); /* what cannot fit at all is refused before it begins */
    runner_ok(append(&r, tokens, BEFORE, expected), "decode");
    assert_int_equal(append(&r, tokens, N_CTX + 1 - BEFORE, expected), TSR_ERR_FULL);
    assert_int_equal(tsr_session_length(r.session, 0), BEFORE);
    runner_close(&r);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_call_leaves_what_can_be_continued),
        cmocka_unit_test(no_bit_depends_on_what_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
