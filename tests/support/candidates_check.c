/* See candidates_check.h. */
#include "support/candidates_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/sampler.h>

#include "support/runner.h"
#include "support/top_k_reference.h"

enum { N_NEW = 8, FORBIDDEN = 3 };

static const tsr_sampler_config settings[] = {
    {.temperature = 0, .top_k = 40, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0, .top_k = 0, .top_p = 1, .repeat_penalty = 1.5f, .repeat_last_n = 16},
    {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
    {.temperature = 1.5f, .top_k = 40, .top_p = 0.9f, .repeat_penalty = 1.3f, .repeat_last_n = 64},
    {.temperature = 2, .top_k = 1, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 3, .top_k = 200, .top_p = 1, .min_p = 0.2f, .repeat_penalty = 1, .seed = 7},
};

/* The likeliest tokens, and the last of the candidates, are forbidden in both. */
static void forbid(const tsr_candidate *list, float *logits, tsr_candidate *candidates, int n)
{
    for (int i = 0; i < FORBIDDEN; i++) {
        const int32_t token = list[i < FORBIDDEN - 1 ? i : n - 1].id;
        logits[token] = -INFINITY;
        for (int c = 0; c < n; c++)
            if (candidates[c].id == token)
                candidates[c].logit = -INFINITY;
    }
}

static void check_setting(const runner *with, const runner *without, tsr_sampler_config config, bool forbids)
{
    int32_t tokens[] = {5, 3, 250, 17, 5}, chosen[2];
    tsr_batch batch = {.n_tokens = 5, .tokens = tokens};
    tsr_candidate candidates[TSR_MAX_CANDIDATES], expected[TSR_MAX_CANDIDATES];
    tsr_sampler *samplers[2];
    float *logits = malloc((size_t)with->n_vocab * sizeof *logits);
    config.size = sizeof config;
    for (int i = 0; i < 2; i++)
        runner_ok(tsr_sampler_create(&config, with->n_vocab, &samplers[i]), "sampler");
    const int n = tsr_sampler_n_candidates(samplers[0], with->n_vocab, forbids ? FORBIDDEN : 0);
    assert_in_range(n, 1, TSR_MAX_CANDIDATES);
    runner_ok(tsr_session_trim(with->session, 0, 0), "trim");
    runner_ok(tsr_session_trim(without->session, 0, 0), "trim");
    for (int i = 0; i < N_NEW; i++) {
        runner_ok(tsr_session_decode_candidates(with->session, &batch, n, candidates), "candidates");
        runner_ok(tsr_session_decode(without->session, &batch, logits), "logits");
        top_k_reference(logits, with->n_vocab, n, 0, expected);
        assert_memory_equal(candidates, expected, (size_t)n * sizeof *candidates);
        if (forbids)
            forbid(expected, logits, candidates, n);
        runner_ok(tsr_sampler_choose(samplers[0], candidates, n, &chosen[0]), "choose");
        runner_ok(tsr_sampler_sample(samplers[1], logits, with->n_vocab, &chosen[1]), "sample");
        assert_int_equal(chosen[0], chosen[1]);
        tokens[0] = chosen[0];
        batch.n_tokens = 1;
    }
    tsr_sampler_destroy(samplers[0]);
    tsr_sampler_destroy(samplers[1]);
    free(logits);
}

/* Several outputs of a call, of which a step takes two: the candidates of each. */
static void check_outputs(const runner *with, const runner *without)
{
    enum { N = 5, K = 9 };
    const int32_t tokens[N] = {9, 8, 7, 6, 5};
    const bool outputs[N] = {true, false, true, true, true};
    const tsr_batch batch = {.n_tokens = N, .tokens = tokens, .outputs = outputs};
    tsr_candidate candidates[(N - 1) * K], expected[K];
    float *logits = malloc((size_t)((N - 1) * with->n_vocab) * sizeof *logits);
    runner_ok(tsr_session_trim(with->session, 0, 0), "trim");
    runner_ok(tsr_session_trim(without->session, 0, 0), "trim");
    runner_ok(tsr_session_decode_candidates(with->session, &batch, K, candidates), "candidates");
    runner_ok(tsr_session_decode(without->session, &batch, logits), "logits");
    for (int i = 0; i < N - 1; i++) {
        top_k_reference(logits + i * with->n_vocab, with->n_vocab, K, 0, expected);
        assert_memory_equal(candidates + (ptrdiff_t)i * K, expected, sizeof expected);
    }
    free(logits);
}

void candidates_check(const char *path, const char *devices, const char *split)
{
    tsr_model_config config = tsr_model_config_default();
    runner with, without;
    config.session.n_ctx = 64;
    config.session.n_outputs_max = 2;
    runner_open(&with, path, devices, split, &config);
    runner_open(&without, path, devices, split, &config);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (int forbids = 0; forbids < 2; forbids++)
            check_setting(&with, &without, settings[i], forbids);
    check_outputs(&with, &without);
    runner_close(&with);
    runner_close(&without);
}
