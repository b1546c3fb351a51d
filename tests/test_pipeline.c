/* Chunks of a batch in flight through stages: the bits of every row of logits are those of one device and one
 * token at a time, and a call that fails with chunks in flight leaves sequences that go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/session/session.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/session_check.h"
#include "support/synth_model.h"

enum { N_SEQS = 3, N_TOKENS = 150, N_BEGUN = 5 };

typedef struct text {
    int32_t tokens[N_TOKENS];
    float *plain;
} text;

static text make_text(uint64_t *seed)
{
    text t;
    session_random_tokens(seed, t.tokens, N_TOKENS);
    t.plain = session_plain_logits(NULL, t.tokens, N_TOKENS);
    return t;
}

/* In layer mode over n devices, which all have layers. */
static void open_stages(runner *r, int n, int n_batch, int n_outputs_max)
{
    char devices[32];
    tsr_model_config config = session_config(N_SEQS * N_TOKENS, N_SEQS, n_batch, n_outputs_max);
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    snprintf(devices, sizeof devices, "host:%d,threads=1", n);
    runner_open(r, session_model_path, devices, NULL, &config);
    assert_int_equal(tsr_model_split_n_stages(&r->model->split), n);
    assert_int_equal(r->session->memory->layout.n_lanes, n);
}

/* -- bits -- */

/* The next tokens of random sequences in random runs. */
static int64_t draw_batch(uint64_t *seed, const text *texts, int64_t *done, int32_t *ids, int32_t *seqs,
                          int64_t *positions)
{
    const int64_t wanted = 1 + (int64_t)random_below(seed, N_TOKENS);
    int64_t n = 0;
    for (int tries = 0; n < wanted && tries < 100; tries++) {
        const int s = (int)random_below(seed, N_SEQS);
        for (int64_t run = 1 + (int64_t)random_below(seed, 90); run > 0 && n < wanted && done[s] < N_TOKENS;
             run--, n++) {
            ids[n] = texts[s].tokens[done[s]];
            seqs[n] = s;
            positions[n] = done[s]++;
        }
    }
    return n;
}

static void check_batch(uint64_t *seed, runner *r, const text *texts, int64_t *done, float *logits)
{
    int32_t ids[N_TOKENS], seqs[N_TOKENS];
    int64_t positions[N_TOKENS];
    bool outputs[N_TOKENS];
    const float *row = logits;
    const int64_t n = draw_batch(seed, texts, done, ids, seqs, positions);
    const uint64_t rarity = 1 + random_below(seed, 60);
    for (int64_t i = 0; i < n; i++)
        outputs[i] = random_below(seed, rarity) == 0;
    tsr_batch batch = {.n_tokens = n, .tokens = ids, .seqs = seqs, .outputs = outputs};
    runner_ok(tsr_session_decode(r->session, &batch, logits), "a batch");
    for (int64_t i = 0; i < n; i++)
        if (outputs[i]) {
            session_assert_row(row, texts[seqs[i]].plain, positions[i]);
            row += SESSION_VOCAB;
        }
    for (int s = 0; s < N_SEQS; s++)
        assert_int_equal(tsr_session_length(r->session, s), done[s]);
}

static void chunks_in_flight_give_the_bits_of_single_tokens(void **state)
{
    (void)state;
    uint64_t seed = 71;
    text texts[N_SEQS];
    float *logits = malloc(N_TOKENS * SESSION_VOCAB * sizeof *logits);
    assert_non_null(logits);
    for (int s = 0; s < N_SEQS; s++)
        texts[s] = make_text(&seed);
    for (int round = 0; round < 12; round++) {
        runner r;
        int64_t done[N_SEQS] = {0};
        open_stages(&r, 1 + round % 4, 1 + (int)random_below(&seed, 40), round % 3 ? 0 : 2);
        for (int i = 0; i < 8; i++)
            check_batch(&seed, &r, texts, done, logits);
        runner_close(&r);
    }
    for (int s = 0; s < N_SEQS; s++)
        free(texts[s].plain);
    free(logits);
}

/* A batch of one chunk without stages is many with them. */
static void a_prompt_is_cut_for_the_stages(void **state)
{
    (void)state;
    uint64_t seed = 72;
    const text t = make_text(&seed);
    float logits[SESSION_VOCAB];
    for (int n = 1; n <= 2; n++) {
        tsr_session_stats stats;
        runner r;
        open_stages(&r, n, 512, 0);
        runner_ok(session_append(r.session, 0, t.tokens, N_TOKENS, logits), "a prompt");
        session_assert_row(logits, t.plain, N_TOKENS - 1);
        tsr_session_get_stats(r.session, &stats);
        assert_int_equal(stats.n_steps, n == 1 ? 1 : (N_TOKENS + 31) / 32);
        assert_int_equal(stats.n_tokens, N_TOKENS);
        runner_close(&r);
    }
    free(t.plain);
}

/* Devices with the embedding or the output only have nothing to do while others work at chunks. */
static void only_layers_make_stages(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *devices, *split;
        int n_stages;
    } cases[] = {{"token_embd", "host:2,threads=1", "0,1", 1},
                 {"^output", "host:2,threads=1", "0,1", 1},
                 {"token_embd", "host:3,threads=1", "0,1,1", 2},
                 {"^output", "host:3,threads=1", "0,1,1", 2},
                 {"token_embd|blk\\.0\\.", "host:2,threads=1", "0,1", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_offload_rule rule = {cases[i].pattern, "host0"};
        tsr_model_config config = session_config(N_TOKENS, 1, 8, 0);
        runner r;
        config.split.mode = TSR_SPLIT_MODE_LAYER;
        config.offload.rules = &rule;
        config.offload.n_rules = 1;
        runner_open(&r, session_model_path, cases[i].devices, cases[i].split, &config);
        assert_int_equal(tsr_model_split_n_stages(&r.model->split), cases[i].n_stages);
        assert_int_equal(r.session->memory->layout.n_lanes, cases[i].n_stages);
        runner_close(&r);
    }
}

/* A shape is a program in every lane. */
static void as_many_shapes_are_kept_as_without_stages(void **state)
{
    (void)state;
    enum { N_STAGES = 4, N_BATCH = 15, N = N_STAGES * N_BATCH };
    uint64_t seed = 76;
    int32_t tokens[N];
    bool outputs[N];
    float *logits = malloc(N * SESSION_VOCAB * sizeof *logits);
    runner r;
    assert_non_null(logits);
    session_random_tokens(&seed, tokens, N);
    open_stages(&r, N_STAGES, N_BATCH, N_BATCH);
    for (int round = 0; round < 2; round++)
        for (int n_outputs = 0; n_outputs <= N_BATCH; n_outputs++) {
            tsr_session_stats stats;
            tsr_batch batch = {.n_tokens = N, .tokens = tokens, .outputs = outputs};
            for (int i = 0; i < N; i++)
                outputs[i] = i % N_BATCH < n_outputs;
            runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
            runner_ok(tsr_session_decode(r.session, &batch, logits), "shape");
            tsr_session_get_stats(r.session, &stats);
            assert_int_equal(stats.n_programs, N_STAGES * (round ? TSR_SESSION_MAX_SHAPES : n_outputs + 1));
        }
    runner_close(&r);
    free(logits);
}

/* -- failures -- */

/* The poison is in any chunk: those behind it may be in flight, those before it have succeeded. */
static void a_failure_takes_back_all_chunks(void **state)
{
    (void)state;
    uint64_t seed = 73;
    const text t = make_text(&seed);
    float logits[SESSION_VOCAB];
    for (int n = 2; n <= 4; n++) {
        runner r;
        open_stages(&r, n, 8, 0);
        runner_ok(session_append(r.session, 0, t.tokens, 5, logits), "the beginning");
        for (int at = 5; at < N_TOKENS - 1; at += 13) {
            int32_t tokens[N_TOKENS];
            memcpy(tokens, t.tokens, sizeof tokens);
            tokens[at] = SESSION_POISON;
            assert_int_equal(session_append(r.session, 0, tokens + 5, N_TOKENS - 6, logits), TSR_ERR_RANGE);
            assert_int_equal(tsr_session_length(r.session, 0), 5);
        }
        runner_ok(session_append(r.session, 0, t.tokens + 5, N_TOKENS - 5, logits), "the rest");
        session_assert_row(logits, t.plain, N_TOKENS - 1);
        runner_close(&r);
    }
    free(t.plain);
}

/* Programs of every lane are compiled by the first prompt. */
static void an_allocation_that_fails_changes_nothing(void **state)
{
    (void)state;
    uint64_t seed = 74;
    const text t = make_text(&seed);
    float logits[SESSION_VOCAB];
    for (int n = 1, fired = 1; fired; n += n < 40 ? 1 : 17) {
        runner r;
        open_stages(&r, 2, 40, 0);
        failing_alloc_set(n);
        const tsr_status status = session_append(r.session, 0, t.tokens, N_TOKENS, logits);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(tsr_session_length(r.session, 0), fired ? 0 : N_TOKENS);
        if (fired)
            runner_ok(session_append(r.session, 0, t.tokens, N_TOKENS, logits), "again");
        session_assert_row(logits, t.plain, N_TOKENS - 1);
        runner_close(&r);
    }
    free(t.plain);
}

/* The second device is too late for a chunk while the first one works at the next. */
static void a_deadline_ends_all_chunks(void **state)
{
    (void)state;
    uint64_t seed = 75;
    const text t = make_text(&seed);
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(N_TOKENS, 1, 16, 0);
    runner r;
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    config.compute.timeout_ns = 1;
    runner_open(&r, session_model_path, "host:3,threads=1", NULL, &config);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(session_append(r.session, 0, t.tokens, N_TOKENS, logits), TSR_ERR_TIMEOUT);
        assert_int_equal(tsr_session_length(r.session, 0), 0);
    }
    r.model->config.compute.timeout_ns = 0;
    tsr_session_drop_steps(r.session);
    runner_ok(session_append(r.session, 0, t.tokens, N_TOKENS, logits), "without a deadline");
    session_assert_row(logits, t.plain, N_TOKENS - 1);
    runner_close(&r);
    free(t.plain);
}

/* A device whose n-th launch fails. */
static struct {
    struct tsr_device_ops ops;
    const struct tsr_device_ops *real;
    int n_left;
} failing;

static tsr_status failing_launch(tsr_device *device, tsr_device_program *program)
{
    if (--failing.n_left == 0)
        return tsr_fail(TSR_ERR_DEVICE, "device %s: no launch", device->name);
    return failing.real->launch(device, program);
}

static void break_device(tsr_device *device, int nth)
{
    failing.real = device->ops;
    failing.ops = *device->ops;
    failing.ops.launch = failing_launch;
    failing.n_left = nth;
    device->ops = &failing.ops;
}

static const struct synth_arch *windowed_arch(void)
{
    for (size_t i = 0; i < n_synth_archs; i++)
        for (const struct synth_key *key = synth_archs[i].keys; key->suffix; key++)
            if (strcmp(key->suffix, "attention.sliding_window") == 0)
                return &synth_archs[i];
    fail_msg("no architecture has windows");
    return NULL;
}

/* With windows a call of many chunks cannot be undone as a whole: the sequence ends where the oldest chunk
 * in flight began, and goes on from there. */
static void with_windows_a_failure_takes_back_what_is_in_flight(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    tsr_model_config config = session_config(N_TOKENS, 1, 12, 0);
    int32_t tokens[N_TOKENS];
    float *expected, *logits;
    int n_kept = 0;
    model.n_layers = 6;
    model.arch = windowed_arch();
    close(directory_new(path));
    synth_model_write(&model, path);
    expected = malloc((size_t)model.n_vocab * sizeof *expected);
    logits = malloc((size_t)model.n_vocab * sizeof *logits);
    assert_true(expected && logits);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 41 + 3) % model.n_vocab;
    for (int nth = 0; nth < 72; nth++) { /* 0: none fails */
        /* Chunks of 4 tokens, or of one, where more chunks are in flight than n_batch tokens. */
        config.session.n_batch = nth < 36 ? 12 : 1;
        runner r;
        config.split.mode = TSR_SPLIT_MODE_LAYER;
        runner_open(&r, path, "host:3,threads=1", NULL, &config);
        tsr_batch batch = {.n_tokens = N_BEGUN, .tokens = tokens};
        runner_ok(tsr_session_decode(r.session, &batch, logits), "the beginning");
        if (nth > 0)
            break_device(r.rt->devices[nth % 3], nth);
        batch = (tsr_batch){.n_tokens = N_TOKENS - N_BEGUN, .tokens = tokens + N_BEGUN};
        const tsr_status status = tsr_session_decode(r.session, &batch, nth ? logits : expected);
        if (nth > 0)
            r.rt->devices[nth % 3]->ops = failing.real;
        assert_int_equal(status, nth ? TSR_ERR_DEVICE : TSR_OK);
        const int64_t length = tsr_session_length(r.session, 0);
        n_kept += nth > 0 && length > N_BEGUN;
        assert_true(length >= N_BEGUN && (length < N_TOKENS || nth == 0));
        batch = (tsr_batch){.n_tokens = N_TOKENS - length, .tokens = tokens + length};
        if (nth > 0)
            runner_ok(tsr_session_decode(r.session, &batch, logits), "the rest");
        assert_true(nth == 0 || memcmp(logits, expected, (size_t)model.n_vocab * sizeof *logits) == 0);
        runner_close(&r);
    }
    assert_true(n_kept > 3);
    unlink(path);
    free(expected);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_in_flight_give_the_bits_of_single_tokens),
        cmocka_unit_test(a_prompt_is_cut_for_the_stages),
        cmocka_unit_test(only_layers_make_stages),
        cmocka_unit_test(as_many_shapes_are_kept_as_without_stages),
        cmocka_unit_test(a_failure_takes_back_all_chunks),
        cmocka_unit_test(an_allocation_that_fails_changes_nothing),
        cmocka_unit_test(a_deadline_ends_all_chunks),
        cmocka_unit_test(with_windows_a_failure_takes_back_what_is_in_flight),
    };
    return cmocka_run_group_tests(tests, session_deep_model_write, NULL);
}
