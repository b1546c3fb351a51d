/* Sessions: what a batch computes does not depend on what else is in it, and what a failed call leaves
 * behind.
 *
 * Every comparison is memcmp over whole rows of logits against the plainest way to compute them: one
 * sequence, one device, one token at a time. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tokenizer.h>

#include "model/session/session.h"
#include "support/random.h"
#include "support/session_check.h"

#define DEVICES "host:2,threads=1"

/* -- many sequences -- */

enum { N_SEQS = 5, SEQ_TOKENS = 60 };

/* One random batch: some of the tokens that are left of every sequence, in random order of sequences. */
static int64_t mixed_batch(uint64_t *seed, int64_t *done, int32_t tokens[N_SEQS][SEQ_TOKENS], int32_t *ids,
                           int32_t *seqs, int64_t *positions)
{
    int64_t n = 0, wanted = 1 + (int64_t)random_below(seed, 40);
    while (n < wanted) {
        int s = (int)random_below(seed, N_SEQS), run = 1 + (int)random_below(seed, 4);
        bool any = false;
        for (; run > 0 && n < wanted && done[s] < SEQ_TOKENS; run--, n++) {
            ids[n] = tokens[s][done[s]];
            seqs[n] = s;
            positions[n] = done[s]++;
        }
        for (int i = 0; i < N_SEQS; i++)
            any |= done[i] < SEQ_TOKENS;
        if (!any)
            break;
    }
    return n;
}

static void mixed_sequences_give_the_bits_of_separate_runs(void **state)
{
    (void)state;
    uint64_t seed = 11;
    int32_t tokens[N_SEQS][SEQ_TOKENS];
    float *plain[N_SEQS], *logits = malloc(64 * SESSION_VOCAB * sizeof *logits);
    assert_non_null(logits);
    for (int s = 0; s < N_SEQS; s++) {
        session_random_tokens(&seed, tokens[s], SEQ_TOKENS);
        plain[s] = session_plain_logits(NULL, tokens[s], SEQ_TOKENS);
    }
    for (int round = 0; round < 4; round++) {
        tsr_model_config config =
            session_config(N_SEQS * SEQ_TOKENS, N_SEQS, 1 + (int)random_below(&seed, 40), round % 3 ? 4 : 0);
        runner r;
        runner_open(&r, session_model_path, DEVICES, round % 2 ? "3,1" : NULL, &config);
        int64_t done[N_SEQS] = {0}, n, positions[64];
        int32_t ids[64], seqs[64];
        while ((n = mixed_batch(&seed, done, tokens, ids, seqs, positions)) > 0) {
            bool outputs[64];
            const float *row = logits;
            for (int64_t i = 0; i < n; i++)
                outputs[i] = random_below(&seed, 3) > 0;
            tsr_batch batch = {.n_tokens = n, .tokens = ids, .seqs = seqs, .outputs = outputs};
            runner_ok(tsr_session_decode(r.session, &batch, logits), "mixed batch");
            for (int64_t i = 0; i < n; i++)
                if (outputs[i]) {
                    session_assert_row(row, plain[seqs[i]], positions[i]);
                    row += SESSION_VOCAB;
                }
            for (int s = 0; s < N_SEQS; s++)
                assert_int_equal(tsr_session_length(r.session, s), done[s]);
        }
        runner_close(&r);
    }
    for (int s = 0; s < N_SEQS; s++)
        free(plain[s]);
    free(logits);
}

/* However the batch mixes sequences, in a step the tokens of each stand together, so that attention reads its
 * keys and values once for many of them. Outputs have the order of the batch. */
static void tokens_of_a_sequence_stand_together(void **state)
{
    (void)state;
    enum { N = 3, LENGTH = 4 };
    uint64_t seed = 17;
    int32_t tokens[N][LENGTH], ids[N * LENGTH], seqs[N * LENGTH];
    bool outputs[N * LENGTH];
    float *plain[N], *logits = malloc(N * LENGTH * SESSION_VOCAB * sizeof *logits);
    tsr_model_config config = session_config(64, N, 64, N * LENGTH);
    runner r;
    assert_non_null(logits);
    for (int s = 0; s < N; s++) {
        session_random_tokens(&seed, tokens[s], LENGTH);
        plain[s] = session_plain_logits(NULL, tokens[s], LENGTH);
        for (int i = 0; i < LENGTH; i++) {
            ids[i * N + s] = tokens[s][i];
            seqs[i * N + s] = N - 1 - s;
            outputs[i * N + s] = true;
        }
    }
    runner_open(&r, session_model_path, DEVICES, NULL, &config);
    tsr_batch batch = {.n_tokens = N * LENGTH, .tokens = ids, .seqs = seqs, .outputs = outputs};
    runner_ok(tsr_session_decode(r.session, &batch, logits), "mixed");
    for (int i = 0; i < N * LENGTH; i++) {
        assert_int_equal(r.session->seqs[i], N - 1 - i / LENGTH);
        assert_int_equal(r.session->positions[i], i % LENGTH);
        assert_int_equal(r.session->tokens[i], tokens[i / LENGTH][i % LENGTH]);
        session_assert_row(logits + i * SESSION_VOCAB, plain[i % N], i / N);
    }
    runner_close(&r);
    for (int s = 0; s < N; s++)
        free(plain[s]);
    free(logits);
}

/* As many sequences as the session takes, each as long as its share of n_ctx: all at once, then token by
 * token. */
static void all_sequences_at_full_length(void **state)
{
    (void)state;
    enum { N = 16, LENGTH = 20, AT_ONCE = 17 };
    uint64_t seed = 12;
    int32_t tokens[N][LENGTH], ids[N * LENGTH], seqs[N * LENGTH];
    float *plain[N], *logits = malloc(N * SESSION_VOCAB * sizeof *logits);
    tsr_model_config config = session_config(N * LENGTH, N, 64, 0);
    runner r;
    assert_non_null(logits);
    for (int s = 0; s < N; s++) {
        session_random_tokens(&seed, tokens[s], LENGTH);
        plain[s] = session_plain_logits(NULL, tokens[s], LENGTH);
        for (int i = 0; i < AT_ONCE; i++) {
            ids[i * N + s] = tokens[s][i];
            seqs[i * N + s] = s;
        }
    }
    runner_open(&r, session_model_path, DEVICES, NULL, &config);
    bool outputs[N * LENGTH] = {0};
    for (int s = 0; s < N; s++)
        outputs[(AT_ONCE - 1) * N + s] = true;
    tsr_batch batch = {.n_tokens = N * AT_ONCE, .tokens = ids, .seqs = seqs, .outputs = outputs};
    runner_ok(tsr_session_decode(r.session, &batch, logits), "prompts");
    for (int s = 0; s < N; s++)
        session_assert_row(logits + s * SESSION_VOCAB, plain[s], AT_ONCE - 1);
    for (int i = AT_ONCE; i < LENGTH; i++) {
        bool all[N];
        for (int s = 0; s < N; s++) {
            ids[s] = tokens[N - 1 - s][i]; /* any order of sequences */
            seqs[s] = N - 1 - s;
            all[s] = true;
        }
        batch = (tsr_batch){.n_tokens = N, .tokens = ids, .seqs = seqs, .outputs = all};
        runner_ok(tsr_session_decode(r.session, &batch, logits), "step");
        for (int s = 0; s < N; s++)
            session_assert_row(logits + s * SESSION_VOCAB, plain[N - 1 - s], i);
    }
    runner_close(&r);
    for (int s = 0; s < N; s++)
        free(plain[s]);
    free(logits);
}

/* -- fork and trim -- */

/* Fork inside a KV page and at its edge; parent and children go on differently. */
static void forks_continue_on_their_own(void **state)
{
    (void)state;
    enum { TAIL = 40 };
    static const int at[] = {1, 31, 32, 33, 64};
    uint64_t seed = 13;
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        int32_t tokens[3][SESSION_MAX_TOKENS];
        float *plain[3], logits[3 * SESSION_VOCAB];
        int shared = at[k];
        tsr_model_config config = session_config(3 * SESSION_MAX_TOKENS, 3, 32, 0);
        runner r;
        for (int s = 0; s < 3; s++) {
            session_random_tokens(&seed, tokens[s], shared + TAIL);
            memcpy(tokens[s], tokens[0], (size_t)shared * sizeof **tokens);
            plain[s] = session_plain_logits(NULL, tokens[s], shared + TAIL);
        }
        runner_open(&r, session_model_path, DEVICES, NULL, &config);
        runner_ok(session_append(r.session, 0, tokens[0], shared, logits), "prompt");
        runner_ok(tsr_session_fork(r.session, 0, 2), "fork");
        runner_ok(tsr_session_fork(r.session, 2, 1), "fork of a fork");
        assert_int_equal(tsr_session_length(r.session, 1), shared);
        for (int i = shared; i < shared + TAIL; i++) {
            int32_t ids[3] = {tokens[0][i], tokens[1][i], tokens[2][i]}, seqs[3] = {0, 1, 2};
            bool outputs[3] = {true, true, true};
            tsr_batch batch = {.n_tokens = 3, .tokens = ids, .seqs = seqs, .outputs = outputs};
            runner_ok(tsr_session_decode(r.session, &batch, logits), "step");
            for (int s = 0; s < 3; s++)
                session_assert_row(logits + s * SESSION_VOCAB, plain[s], i);
        }
        assert_int_equal(tsr_session_fork(r.session, 0, 1), TSR_ERR_INVALID); /* not empty */
        assert_int_equal(tsr_session_fork(r.session, 0, 3), TSR_ERR_INVALID);
        assert_int_equal(tsr_session_fork(r.session, -1, 1), TSR_ERR_INVALID);
        assert_int_equal(tsr_session_length(r.session, 1), shared + TAIL);
        runner_close(&r);
        for (int s = 0; s < 3; s++)
            free(plain[s]);
    }
}

static void trimmed_sequences_can_be_redone(void **state)
{
    (void)state;
    uint64_t seed = 14;
    int32_t tokens[SESSION_MAX_TOKENS];
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(SESSION_MAX_TOKENS, 2, 24, 0);
    runner r;
    session_random_tokens(&seed, tokens, SESSION_MAX_TOKENS);
    runner_open(&r, session_model_path, DEVICES, "1,2", &config);
    runner_ok(session_append(r.session, 0, tokens, SESSION_MAX_TOKENS, logits), "prompt");
    for (int round = 0; round < 5; round++) {
        int64_t keep = (int64_t)random_below(&seed, 100), more = 1 + (int64_t)random_below(&seed, 60);
        runner_ok(tsr_session_trim(r.session, 0, keep), "trim");
        assert_int_equal(tsr_session_length(r.session, 0), keep);
        session_random_tokens(&seed, tokens + keep, more); /* another continuation */
        runner_ok(session_append(r.session, 0, tokens + keep, more, logits), "redo");
        float *plain = session_plain_logits(NULL, tokens, keep + more);
        session_assert_row(logits, plain, keep + more - 1);
        free(plain);
        runner_ok(
            session_append(r.session, 0, tokens + keep + more, SESSION_MAX_TOKENS - keep - more, logits),
            "fill");
    }
    assert_int_equal(tsr_session_trim(r.session, 0, SESSION_MAX_TOKENS + 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_trim(r.session, 0, -1), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_trim(r.session, 2, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_trim(r.session, -1, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_length(r.session, 0), SESSION_MAX_TOKENS);
    runner_close(&r);
}

/* -- shapes -- */

/* Batches beyond n_batch and n_outputs_max are cut; outputs at any positions. */
static void long_batches_are_cut_without_a_trace(void **state)
{
    (void)state;
    uint64_t seed = 15;
    int32_t tokens[SESSION_MAX_TOKENS];
    float *logits = malloc(SESSION_MAX_TOKENS * SESSION_VOCAB * sizeof *logits);
    session_random_tokens(&seed, tokens, SESSION_MAX_TOKENS);
    float *plain = session_plain_logits(NULL, tokens, SESSION_MAX_TOKENS);
    assert_non_null(logits);
    for (int round = 0; round < 10; round++) {
        bool outputs[SESSION_MAX_TOKENS];
        tsr_model_config config = session_config(SESSION_MAX_TOKENS, 1, 1 + (int)random_below(&seed, 50),
                                                 (int)random_below(&seed, 12));
        runner r;
        runner_open(&r, session_model_path, DEVICES, NULL, &config);
        uint64_t dense = 1 + random_below(&seed, 6);
        for (int i = 0; i < SESSION_MAX_TOKENS; i++)
            outputs[i] = random_below(&seed, dense) == 0;
        tsr_batch batch = {.n_tokens = SESSION_MAX_TOKENS, .tokens = tokens, .outputs = outputs};
        runner_ok(tsr_session_decode(r.session, &batch, logits), "long batch");
        const float *row = logits;
        for (int i = 0; i < SESSION_MAX_TOKENS; i++)
            if (outputs[i]) {
                session_assert_row(row, plain, i);
                row += SESSION_VOCAB;
            }
        runner_close(&r);
    }
    free(plain);
    free(logits);
}

/* More shapes than the session keeps compiled, each coming back after it was thrown out. */
static void evicted_shapes_are_compiled_again(void **state)
{
    (void)state;
    enum { SHAPES = 24 };
    uint64_t seed = 16;
    int32_t tokens[SESSION_MAX_TOKENS];
    float *logits = malloc(SHAPES * SESSION_VOCAB * sizeof *logits);
    bool all[SHAPES];
    tsr_model_config config = session_config(SESSION_MAX_TOKENS, 1, SHAPES, SHAPES);
    tsr_session_stats stats;
    runner r;
    assert_non_null(logits);
    memset(all, 1, sizeof all);
    session_random_tokens(&seed, tokens, SHAPES);
    float *plain = session_plain_logits(NULL, tokens, SHAPES);
    runner_open(&r, session_model_path, DEVICES, "2,1", &config);
    for (int round = 0; round < 3; round++)
        for (int n = 1; n <= SHAPES; n++) {
            runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
            tsr_batch batch = {.n_tokens = n, .tokens = tokens, .outputs = all};
            runner_ok(tsr_session_decode(r.session, &batch, logits), "shape");
            for (int i = 0; i < n; i++)
                session_assert_row(logits + i * SESSION_VOCAB, plain, i);
        }
    tsr_session_get_stats(r.session, &stats);
    assert_int_equal(stats.n_programs,
                     3 * SHAPES); /* least recently used is the worst choice for this order */
    assert_int_equal(stats.n_steps, 3 * SHAPES);
    assert_int_equal(stats.n_tokens, 3 * SHAPES * (SHAPES + 1) / 2);
    runner_close(&r);
    free(plain);
    free(logits);
}

static void a_batch_of_no_tokens_is_fine(void **state)
{
    (void)state;
    int32_t tokens[3] = {1, 2, 3};
    float logits[SESSION_VOCAB];
    tsr_batch nothing = {0};
    tsr_session_stats stats;
    runner r;
    runner_open(&r, session_model_path, DEVICES, NULL, NULL);
    runner_ok(tsr_session_decode(r.session, &nothing, NULL), "no tokens in a new session");
    runner_ok(session_append(r.session, 0, tokens, 3, logits), "prompt");
    runner_ok(tsr_session_decode(r.session, &nothing, NULL), "no tokens");
    assert_int_equal(tsr_session_length(r.session, 0), 3);
    tsr_session_get_stats(r.session, &stats);
    assert_int_equal(stats.n_steps, 1);
    runner_close(&r);
}

static void a_session_needs_a_model_and_a_place(void **state)
{
    (void)state;
    tsr_session *session = NULL;
    tsr_tokenizer *tokenizer;
    runner r;
    runner_open(&r, session_model_path, DEVICES, NULL, NULL);
    assert_int_equal(tsr_session_create(NULL, &session), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_create(r.model, NULL), TSR_ERR_INVALID);
    assert_null(session);
    runner_ok(tsr_model_tokenizer(r.model, &tokenizer), "tokenizer");
    tsr_tokenizer_destroy(tokenizer);
    runner_close(&r);
}

/* -- types, sessions and runtimes side by side -- */

static void every_pair_of_kv_types_works(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    enum { N = 50, N_TYPES = sizeof types / sizeof *types };
    uint64_t seed = 17;
    int32_t tokens[N];
    float *exact = NULL, logits[SESSION_VOCAB];
    session_random_tokens(&seed, tokens, N);
    for (int pair = 0; pair < N_TYPES * N_TYPES; pair++) {
        tsr_model_config config = session_config(N, 1, 16, 0);
        runner r;
        config.session.type_k = types[pair / N_TYPES];
        config.session.type_v = types[pair % N_TYPES];
        float *plain = session_plain_logits(&config, tokens, N);
        runner_open(&r, session_model_path, DEVICES, "1,3", &config);
        runner_ok(session_append(r.session, 0, tokens, N, logits), "prompt");
        session_assert_row(logits, plain, N - 1);
        runner_close(&r);
        if (pair == 0) /* F32, F32 */
            exact = plain;
        else
            assert_memory_not_equal(plain + (N - 1) * SESSION_VOCAB, exact + (N - 1) * SESSION_VOCAB,
                                    sizeof logits);
        if (pair != 0)
            free(plain);
    }
    free(exact);
}

/* Sessions of one model, and other runtimes, take turns token by token. */
static void sessions_and_runtimes_do_not_meet(void **state)
{
    (void)state;
    enum { N_RUNNERS = 3, N_SESSIONS = 2, N = 36 };
    static const char *const devices[N_RUNNERS] = {DEVICES, "host:1,threads=2", "host:3,threads=1"};
    uint64_t seed = 18;
    int32_t tokens[N_RUNNERS][N_SESSIONS][N];
    float *plain[N_RUNNERS][N_SESSIONS], logits[SESSION_VOCAB];
    tsr_session *sessions[N_RUNNERS][N_SESSIONS];
    tsr_model_config config = session_config(N, 1, 8, 0);
    runner r[N_RUNNERS];
    for (int k = 0; k < N_RUNNERS; k++) {
        runner_open(&r[k], session_model_path, devices[k], NULL, &config);
        for (int s = 0; s < N_SESSIONS; s++) {
            session_random_tokens(&seed, tokens[k][s], N);
            plain[k][s] = session_plain_logits(NULL, tokens[k][s], N);
            runner_ok(tsr_session_create(r[k].model, &sessions[k][s]), "another session");
        }
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N_RUNNERS; k++)
            for (int s = 0; s < N_SESSIONS; s++) {
                tsr_batch batch = {.n_tokens = 1, .tokens = &tokens[k][s][i]};
                runner_ok(tsr_session_decode(sessions[k][s], &batch, logits), "turn");
                session_assert_row(logits, plain[k][s], i);
            }
    for (int k = 0; k < N_RUNNERS; k++) {
        for (int s = 0; s < N_SESSIONS; s++) {
            tsr_session_destroy(sessions[k][s]);
            free(plain[k][s]);
        }
        runner_close(&r[k]);
    }
    tsr_session_destroy(NULL);
}

/* Nothing is shared between runtimes, so each may have a thread of its own. */
typedef struct worker {
    pthread_t thread;
    const char *devices;
    int32_t tokens[48];
    float *plain;
} worker;

static void *work(void *user)
{
    worker *w = user;
    float logits[SESSION_VOCAB];
    bool right = true;
    tsr_model_config config = session_config(48, 1, 16, 0);
    for (int round = 0; round < 3 && right; round++) {
        runner r;
        runner_open(&r, session_model_path, w->devices, NULL, &config);
        right = session_append(r.session, 0, w->tokens, 40, logits) == TSR_OK;
        for (int i = 40; i < 48 && right; i++)
            right = session_append(r.session, 0, w->tokens + i, 1, logits) == TSR_OK &&
                    memcmp(logits, w->plain + i * SESSION_VOCAB, sizeof logits) == 0;
        runner_close(&r);
    }
    return right ? w : NULL;
}

static void runtimes_may_have_threads_of_their_own(void **state)
{
    (void)state;
    enum { N_WORKERS = 3 };
    worker workers[N_WORKERS] = {
        {.devices = DEVICES}, {.devices = "host:1,threads=2"}, {.devices = "host:3,threads=1"}};
    uint64_t seed = 19;
    for (int i = 0; i < N_WORKERS; i++) {
        session_random_tokens(&seed, workers[i].tokens, 48);
        workers[i].plain = session_plain_logits(NULL, workers[i].tokens, 48);
    }
    for (int i = 0; i < N_WORKERS; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < N_WORKERS; i++) {
        void *right;
        assert_int_equal(pthread_join(workers[i].thread, &right), 0);
        assert_non_null(right);
        free(workers[i].plain);
    }
}

/* The sequences that stay are behind those that go. */
static void compacting_gives_memory_back_and_changes_no_bit(void **state)
{
    (void)state;
    enum { N = 3, LENGTH = 150, MORE = 10 };
    uint64_t seed = 31;
    int32_t tokens[N][LENGTH + MORE];
    float *plain[N], logits[SESSION_VOCAB];
    tsr_session_stats before, after;
    tsr_model_config config = session_config(N * (LENGTH + MORE), N, 64, 0);
    runner r;
    runner_open(&r, session_model_path, DEVICES, "3,1", &config);
    for (int s = 0; s < N; s++) {
        session_random_tokens(&seed, tokens[s], LENGTH + MORE);
        plain[s] = session_plain_logits(NULL, tokens[s], LENGTH + MORE);
        runner_ok(session_append(r.session, s, tokens[s], LENGTH, logits), "prompt");
    }
    tsr_session_get_stats(r.session, &before);
    runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
    runner_ok(tsr_session_trim(r.session, 1, 40), "trim");
    runner_ok(tsr_session_compact(r.session), "compact");
    tsr_session_get_stats(r.session, &after);
    assert_true(after.kv_committed_bytes * 2 < before.kv_committed_bytes);
    runner_ok(session_append(r.session, 2, tokens[2] + LENGTH, MORE, logits), "go on");
    session_assert_row(logits, plain[2], LENGTH + MORE - 1);
    runner_ok(session_append(r.session, 1, tokens[1] + 40, LENGTH - 40, logits), "go on");
    session_assert_row(logits, plain[1], LENGTH - 1);
    runner_ok(session_append(r.session, 0, tokens[0], LENGTH, logits), "anew");
    session_assert_row(logits, plain[0], LENGTH - 1);
    runner_close(&r);
    for (int s = 0; s < N; s++)
        free(plain[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_sequences_give_the_bits_of_separate_runs),
        cmocka_unit_test(tokens_of_a_sequence_stand_together),
        cmocka_unit_test(all_sequences_at_full_length),
        cmocka_unit_test(forks_continue_on_their_own),
        cmocka_unit_test(trimmed_sequences_can_be_redone),
        cmocka_unit_test(compacting_gives_memory_back_and_changes_no_bit),
        cmocka_unit_test(long_batches_are_cut_without_a_trace),
        cmocka_unit_test(evicted_shapes_are_compiled_again),
        cmocka_unit_test(a_batch_of_no_tokens_is_fine),
        cmocka_unit_test(a_session_needs_a_model_and_a_place),
        cmocka_unit_test(every_pair_of_kv_types_works),
        cmocka_unit_test(sessions_and_runtimes_do_not_meet),
        cmocka_unit_test(runtimes_may_have_threads_of_their_own),
    };
    return cmocka_run_group_tests(tests, session_model_write, NULL);
}
