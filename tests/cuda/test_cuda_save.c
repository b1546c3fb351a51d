/* Saved sequences on simulated GPUs: saved from two, loaded into three and into a GPU beside a host device,
 * and the file is the same when others write it again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/session_check.h"

enum { N = 45, MORE = 4, MAX_BYTES = 1 << 20 };

static void open_on(runner *r, const char *devices, const char *split)
{
    tsr_model_config config = session_config(64, 2, 16, 1);
    runner_open_with(r, session_model_path, devices, "staged", split, &config);
}

static void append(runner *r, int seq, const int32_t *tokens, int64_t n, float *logits)
{
    runner_ok(session_append(r->session, seq, tokens, n, logits), "append");
}

static size_t save_and_read(runner *r, int seq, unsigned char *bytes)
{
    const char *path = directory_file("one");
    runner_ok(tsr_session_save(r->session, &seq, 1, path), "save");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, MAX_BYTES, file);
    fclose(file);
    return n;
}

static void sequences_move_between_machines(void **state)
{
    (void)state;
    static unsigned char first[MAX_BYTES], again[MAX_BYTES];
    static const char *const others[][2] = {{"cuda:0,cuda:1,cuda:2", "1,1,1"}, {"cuda:0,host:1", "1,3"}};
    int32_t tokens[N + MORE];
    float expected[SESSION_VOCAB], logits[SESSION_VOCAB];
    uint64_t seed = 3;
    const int where = 1;
    runner r;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 3;
    config.may_share = true;
    cudasim_configure(&config);
    session_random_tokens(&seed, tokens, N + MORE);
    open_on(&r, "cuda:0,cuda:1", "3,1");
    append(&r, 0, tokens, N, logits);
    size_t n = save_and_read(&r, 0, first);
    append(&r, 0, tokens + N, MORE, expected);
    runner_close(&r);
    for (int i = 0; i < 2; i++) {
        open_on(&r, others[i][0], others[i][1]);
        runner_ok(tsr_session_load(r.session, &where, 1, directory_file("one")), "load");
        assert_int_equal(save_and_read(&r, where, again), n);
        /* All but the number that it has in the session. */
        assert_memory_equal(first + 256, again + 256, n - 256);
        append(&r, where, tokens + N, MORE, logits);
        if (i == 0) /* a host device computes in another order */
            assert_memory_equal(logits, expected, sizeof expected);
        runner_close(&r);
    }
    nothing_is_left();
}

/* Pages move on every GPU, and what is behind them is unmapped and mapped again. */
static void memory_is_given_back_and_taken_again(void **state)
{
    (void)state;
    enum { LONG = 100 };
    int32_t tokens[LONG];
    float expected[SESSION_VOCAB], logits[SESSION_VOCAB];
    tsr_session_stats before, after;
    uint64_t seed = 4;
    runner r;
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = 2;
    config.may_share = true;
    config.vmm_granularity = 4096;
    cudasim_configure(&config);
    tsr_model_config model_config = session_config(256, 2, 64, 1);
    session_random_tokens(&seed, tokens, LONG);
    runner_open_with(&r, session_model_path, "cuda:0,cuda:1", "staged", "3,1", &model_config);
    append(&r, 0, tokens, LONG, expected);
    append(&r, 1, tokens, N, logits);
    tsr_session_get_stats(r.session, &before);
    runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
    runner_ok(tsr_session_compact(r.session), "compact");
    tsr_session_get_stats(r.session, &after);
    assert_true(after.kv_committed_bytes * 2 < before.kv_committed_bytes);
    append(&r, 1, tokens + N, LONG - N, logits);
    assert_memory_equal(logits, expected, sizeof expected);
    append(&r, 0, tokens, LONG, logits);
    assert_memory_equal(logits, expected, sizeof expected);
    runner_close(&r);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_move_between_machines),
        cmocka_unit_test(memory_is_given_back_and_taken_again),
    };
    return cmocka_run_group_tests_name("saved sequences on GPUs", tests, session_model_write, NULL);
}
