/* Sessions: a decode that fails leaves every sequence as it was, and the session goes on afterwards with the
 * bits it would have had anyway. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/random.h"
#include "support/session_check.h"
#include "support/synth_model.h"

#define DEVICES "host:2,threads=1"

/* -- full -- */

static void a_full_context_is_a_status_and_generation_goes_on_after_a_trim(void **state)
{
    (void)state;
    enum { N_CTX = 40, PROMPT = 33 };
    uint64_t seed = 21;
    int32_t tokens[N_CTX + 1];
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(N_CTX, 1, 6, 0);
    runner r;
    session_random_tokens(&seed, tokens, N_CTX + 1);
    float *plain = session_plain_logits(NULL, tokens, N_CTX + 1);
    runner_open(&r, session_model_path, DEVICES, NULL, &config);
    runner_ok(session_append(r.session, 0, tokens, PROMPT, logits), "prompt");
    /* The first of two chunks would still fit. */
    assert_int_equal(session_append(r.session, 0, tokens, N_CTX - PROMPT + 1, logits), TSR_ERR_FULL);
    assert_non_null(strstr(tsr_last_error(), "n_ctx"));
    assert_int_equal(tsr_session_length(r.session, 0), PROMPT);
    for (int i = PROMPT; i < N_CTX; i++) {
        runner_ok(session_append(r.session, 0, tokens + i, 1, logits), "to the last place");
        session_assert_row(logits, plain, i);
    }
    assert_int_equal(session_append(r.session, 0, tokens, 1, logits), TSR_ERR_FULL);
    assert_int_equal(tsr_session_length(r.session, 0), N_CTX);
    runner_ok(tsr_session_trim(r.session, 0, 10), "trim");
    for (int i = 10; i < N_CTX; i++) {
        runner_ok(session_append(r.session, 0, tokens + i, 1, logits), "again");
        session_assert_row(logits, plain, i);
    }
    runner_close(&r);
    free(plain);
}

/* The pages run out for the second sequence of a batch: the first one does not grow either. */
static void sequences_share_the_context(void **state)
{
    (void)state;
    enum { N_CTX = 64, LENGTH = 40 };
    uint64_t seed = 22;
    int32_t tokens[LENGTH + 20], ids[40], seqs[40];
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(N_CTX, 2, 16, 0);
    tsr_session_stats stats;
    runner r;
    session_random_tokens(&seed, tokens, LENGTH + 20);
    float *plain = session_plain_logits(NULL, tokens, LENGTH + 20);
    runner_open(&r, session_model_path, DEVICES, NULL, &config);
    runner_ok(session_append(r.session, 0, tokens, LENGTH, logits), "first");
    runner_ok(session_append(r.session, 1, tokens, 20, logits), "second");
    tsr_session_get_stats(r.session, &stats);
    int64_t used = stats.kv_pages_used;
    for (int i = 0; i < 40; i++) {
        seqs[i] = i >= 4;
        ids[i] = tokens[i < 4 ? LENGTH + i : 20 + i - 4];
    }
    tsr_batch batch = {.n_tokens = 40, .tokens = ids, .seqs = seqs};
    assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_FULL);
    assert_int_equal(tsr_session_length(r.session, 0), LENGTH);
    assert_int_equal(tsr_session_length(r.session, 1), 20);
    tsr_session_get_stats(r.session, &stats);
    assert_int_equal(stats.kv_pages_used, used);
    for (int i = 0; i < 4; i++) {
        runner_ok(session_append(r.session, 0, tokens + LENGTH + i, 1, logits), "first goes on");
        session_assert_row(logits, plain, LENGTH + i);
    }
    runner_close(&r);
    free(plain);
}

/* -- wrong arguments -- */

static void wrong_batches_change_nothing(void **state)
{
    (void)state;
    enum { N = 20 };
    uint64_t seed = 23;
    int32_t tokens[N + 1], ids[N], seqs[N] = {0};
    float logits[SESSION_VOCAB];
    bool none[N] = {0};
    tsr_model_config config = session_config(64, 2, 8, 0);
    runner r;
    session_random_tokens(&seed, tokens, N + 1);
    float *plain = session_plain_logits(NULL, tokens, N + 1);
    runner_open(&r, session_model_path, DEVICES, NULL, &config);
    runner_ok(session_append(r.session, 0, tokens, N, logits), "prompt");
    static const int32_t bad_tokens[] = {-1, SESSION_VOCAB, INT32_MIN, INT32_MAX};
    static const int32_t bad_seqs[] = {-1, 2, INT32_MIN, INT32_MAX};
    for (size_t k = 0; k < 4; k++)
        for (int at = 0; at < N; at += N - 1) { /* in the first chunk, in the last one */
            memcpy(ids, tokens, sizeof ids);
            ids[at] = bad_tokens[k];
            tsr_batch batch = {.n_tokens = N, .tokens = ids};
            assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_INVALID);
            seqs[at] = bad_seqs[k];
            batch = (tsr_batch){.n_tokens = N, .tokens = tokens, .seqs = seqs};
            assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_INVALID);
            seqs[at] = 0;
        }
    tsr_batch batch = {.n_tokens = N, .tokens = tokens};
    assert_int_equal(tsr_session_decode(r.session, &batch, NULL), TSR_ERR_INVALID); /* no place for logits */
    batch.tokens = NULL;
    assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_INVALID);
    batch.n_tokens = -1;
    assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_decode(r.session, NULL, logits), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_decode(NULL, &batch, logits), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_length(r.session, 0), N);
    assert_int_equal(tsr_session_length(r.session, 1), 0);
    batch = (tsr_batch){.n_tokens = N, .tokens = tokens, .outputs = none};
    runner_ok(tsr_session_decode(r.session, &batch, NULL), "no logits wanted, no place for them");
    runner_ok(tsr_session_trim(r.session, 0, N), "trim");
    runner_ok(session_append(r.session, 0, tokens + N, 1, logits), "next");
    session_assert_row(logits, plain, N);
    runner_close(&r);
    free(plain);
}

/* -- out of range -- */

/* The poisoned token stands in the last chunk of a batch that starts a new sequence, lengthens one and
 * lengthens a fork. */
static void a_failure_in_a_later_chunk_takes_back_the_earlier_ones(void **state)
{
    (void)state;
    enum { PROMPT = 37, N = 24, AFTER = 40 };
    uint64_t seed = 24;
    int32_t tokens[PROMPT + AFTER], ids[N], seqs[N];
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(256, 3, 5, 0);
    runner r;
    session_random_tokens(&seed, tokens, PROMPT + AFTER);
    float *plain = session_plain_logits(NULL, tokens, PROMPT + AFTER);
    runner_open(&r, session_model_path, "host:3,threads=1", NULL, &config);
    runner_ok(session_append(r.session, 0, tokens, PROMPT, logits), "prompt");
    runner_ok(tsr_session_fork(r.session, 0, 1), "fork");
    session_random_tokens(&seed, ids, N);
    for (int i = 0; i < N; i++)
        seqs[i] = i % 3;
    ids[N - 1] = SESSION_POISON;
    tsr_batch batch = {.n_tokens = N, .tokens = ids, .seqs = seqs};
    for (int i = 0; i < 3; i++) { /* again and again */
        assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_RANGE);
        assert_true(strlen(tsr_last_error()) > 0);
        assert_int_equal(tsr_session_length(r.session, 0), PROMPT);
        assert_int_equal(tsr_session_length(r.session, 1), PROMPT);
        assert_int_equal(tsr_session_length(r.session, 2), 0);
    }
    for (int s = 0; s < 2; s++)
        for (int i = PROMPT; i < PROMPT + AFTER; i++) {
            runner_ok(session_append(r.session, s, tokens + i, 1, logits), "next");
            session_assert_row(logits, plain, i);
        }
    runner_ok(session_append(r.session, 2, tokens, PROMPT, logits), "new");
    session_assert_row(logits, plain, PROMPT - 1);
    runner_close(&r);
    free(plain);
}

/* Weights whose products leave the exact reduction's range, all finite. Another model of the same runtime
 * does not notice. */
static void weights_beyond_the_range_are_reported(void **state)
{
    (void)state;
    static const char *const devices[] = {"host:1,threads=1", "host:2,threads=2", "host:4,threads=1"};
    char path[DIRECTORY_PATH];
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    uint64_t seed = 25;
    int32_t tokens[8];
    float *logits = malloc(8 * (size_t)synth.n_vocab * sizeof *logits);
    assert_non_null(logits);
    synth.weight_type = TSR_TYPE_F32;
    synth.weight_scale = 1e12f;
    close(directory_new(path));
    synth_model_write(&synth, path);
    session_random_tokens(&seed, tokens, 8);
    float *plain = session_plain_logits(NULL, tokens, 8);
    for (size_t k = 0; k < sizeof devices / sizeof *devices; k++) {
        tsr_model *model;
        tsr_session *session;
        runner r;
        runner_open(&r, session_model_path, devices[k], NULL, NULL);
        runner_ok(tsr_model_open(r.rt, path, NULL, &model), path);
        runner_ok(tsr_session_create(model, &session), path);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(session_append(session, 0, tokens, 1 + i, logits), TSR_ERR_RANGE);
            assert_int_equal(tsr_session_length(session, 0), 0);
            runner_ok(session_append(r.session, 0, tokens + i, 1, logits), "the other model");
            session_assert_row(logits, plain, i);
        }
        tsr_session_destroy(session);
        tsr_model_close(model);
        runner_close(&r);
    }
    free(plain);
    free(logits);
    unlink(path);
}

/* -- deadlines -- */

/* With a deadline that no step keeps every decode times out or, if it was quick, has the right bits; and so
 * has the next one without a deadline on the same runtime. */
static void a_deadline_never_hangs_or_breaks_anything(void **state)
{
    (void)state;
    enum { N = 30 };
    static const uint64_t deadlines[] = {1, 20000, 200000, 60000000000};
    uint64_t seed = 26;
    int32_t tokens[N];
    float logits[SESSION_VOCAB];
    int n_late = 0, n_kept = 0;
    session_random_tokens(&seed, tokens, N);
    float *plain = session_plain_logits(NULL, tokens, N);
    for (size_t k = 0; k < sizeof deadlines / sizeof *deadlines; k++) {
        tsr_model_config config = session_config(64, 1, 16, 0);
        tsr_model *model;
        tsr_session *session;
        runner r;
        runner_open(&r, session_model_path, "host:3,threads=2", NULL, NULL);
        config.compute.timeout_ns = deadlines[k];
        runner_ok(tsr_model_open(r.rt, session_model_path, &config, &model), "with a deadline");
        runner_ok(tsr_session_create(model, &session), "with a deadline");
        for (int i = 0; i < N; i++) {
            int64_t length = tsr_session_length(session, 0);
            tsr_status status = session_append(session, 0, tokens + length, 1, logits);
            if (status == TSR_OK) {
                session_assert_row(logits, plain, length);
                n_kept++;
            } else {
                assert_int_equal(status, TSR_ERR_TIMEOUT);
                n_late++;
            }
            assert_int_equal(tsr_session_length(session, 0), length + (status == TSR_OK));
            runner_ok(session_append(r.session, 0, tokens + i, 1, logits), "without a deadline");
            session_assert_row(logits, plain, i);
        }
        tsr_session_destroy(session);
        tsr_model_close(model);
        runner_close(&r);
    }
    print_message("%d steps were late, %d kept the deadline\n", n_late, n_kept);
    assert_true(n_late > 0 && n_kept >= N);
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_context_is_a_status_and_generation_goes_on_after_a_trim),
        cmocka_unit_test(sequences_share_the_context),
        cmocka_unit_test(wrong_batches_change_nothing),
        cmocka_unit_test(a_failure_in_a_later_chunk_takes_back_the_earlier_ones),
        cmocka_unit_test(weights_beyond_the_range_are_reported),
        cmocka_unit_test(a_deadline_never_hangs_or_breaks_anything),
    };
    return cmocka_run_group_tests(tests, session_model_write, NULL);
}
