/* A sampler that is given the likeliest tokens only chooses as from all logits, whatever its settings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/sampler.h>

#include "support/top_k_reference.h"

enum { MAX_VOCAB = 600, MAX_FORBIDDEN = 5, ROUNDS = 400, N_TOKENS = 6 };

static tsr_sampler_config random_config(uint64_t *seed)
{
    tsr_sampler_config c = tsr_sampler_config_default();
    c.temperature = (float[]){0, 0.3f, 1, 4}[random_below(seed, 4)];
    c.top_k = 1 + (int32_t)random_below(seed, 60);
    c.top_p = (float[]){1, 0.9f, 0.2f, 0}[random_below(seed, 4)];
    c.min_p = (float[]){0, 0.05f, 0.5f}[random_below(seed, 3)];
    c.repeat_penalty = (float[]){1, 1.1f, 30}[random_below(seed, 3)];
    c.repeat_last_n = (int32_t[]){0, 4, 64}[random_below(seed, 3)];
    c.seed = random_u64(seed);
    return c;
}

static tsr_sampler *make(const tsr_sampler_config *config, int64_t n_vocab)
{
    tsr_sampler *sampler = NULL;
    assert_int_equal(tsr_sampler_create(config, n_vocab, &sampler), TSR_OK);
    return sampler;
}

/* Both choose the same, or fail with the same sentence. */
static void check_choice(tsr_sampler *all, tsr_sampler *some, const float *logits, int64_t n_vocab,
                         const tsr_candidate *candidates, int n)
{
    int32_t expected = -1, chosen = -1;
    char sentence[256];
    const tsr_status status = tsr_sampler_sample(all, logits, n_vocab, &expected);
    strncpy(sentence, status == TSR_OK ? "" : tsr_last_error(), sizeof sentence - 1);
    sentence[sizeof sentence - 1] = '\0';
    assert_int_equal(tsr_sampler_choose(some, candidates, n, &chosen), status);
    assert_int_equal(chosen, expected);
    if (status != TSR_OK)
        assert_string_equal(tsr_last_error(), sentence);
}

static void check_settings(uint64_t *seed)
{
    const tsr_sampler_config config = random_config(seed);
    const int64_t n_vocab = 400 + (int64_t)random_below(seed, MAX_VOCAB - 400);
    const int n_forbidden = (int)random_below(seed, MAX_FORBIDDEN + 1);
    tsr_sampler *all = make(&config, n_vocab), *some = make(&config, n_vocab);
    const int n = tsr_sampler_n_candidates(some, n_vocab, n_forbidden);
    float logits[MAX_VOCAB];
    tsr_candidate candidates[TSR_MAX_CANDIDATES];
    assert_in_range(n, 1, TSR_MAX_CANDIDATES);
    for (int t = 0; t < N_TOKENS; t++) {
        top_k_fill(logits, n_vocab, (int)random_below(seed, TOP_K_KINDS), random_u64(seed));
        top_k_reference(logits, n_vocab, n, 0, candidates);
        for (int f = 0; f < n_forbidden; f++) {
            const int at = (int)random_below(seed, (uint64_t)n);
            candidates[at].logit = logits[candidates[at].id] = -INFINITY;
        }
        check_choice(all, some, logits, n_vocab, candidates, n);
    }
    tsr_sampler_destroy(all);
    tsr_sampler_destroy(some);
}

static void candidates_decide_as_all_logits_do(void **state)
{
    (void)state;
    uint64_t seed = 33;
    for (int i = 0; i < ROUNDS; i++)
        check_settings(&seed);
}

static void a_vocabulary_of_forbidden_tokens_is_refused(void **state)
{
    (void)state;
    float logits[MAX_VOCAB];
    tsr_candidate candidates[40];
    tsr_sampler *all = make(NULL, MAX_VOCAB), *some = make(NULL, MAX_VOCAB);
    for (int i = 0; i < MAX_VOCAB; i++)
        logits[i] = -INFINITY;
    top_k_reference(logits, MAX_VOCAB, 40, 0, candidates);
    check_choice(all, some, logits, MAX_VOCAB, candidates, 40);
    tsr_sampler_destroy(all);
    tsr_sampler_destroy(some);
}

static int n_candidates(tsr_sampler_config config, int n_forbidden)
{
    tsr_sampler *sampler = make(&config, MAX_VOCAB);
    const int n = tsr_sampler_n_candidates(sampler, MAX_VOCAB, n_forbidden);
    tsr_sampler_destroy(sampler);
    return n;
}

static void settings_say_how_many_are_needed(void **state)
{
    (void)state;
    tsr_sampler_config c = tsr_sampler_config_default();
    assert_int_equal(n_candidates(c, 0), 40);
    assert_int_equal(n_candidates(c, 3), 43);
    assert_int_equal(n_candidates(c, TSR_MAX_CANDIDATES), 0);
    c.repeat_penalty = 1.1f;
    assert_int_equal(n_candidates(c, 0), 104);
    c.repeat_penalty = 0.9f; /* moves tokens forward from any place */
    assert_int_equal(n_candidates(c, 0), 0);
    c.repeat_penalty = 1;
    c.top_k = 0;
    assert_int_equal(n_candidates(c, 0), 0);
    c.temperature = 0;
    assert_int_equal(n_candidates(c, 0), 1);
}

static void too_few_candidates_are_refused(void **state)
{
    (void)state;
    tsr_sampler_config c = tsr_sampler_config_default();
    tsr_candidate candidates[40] = {{1, 2}, {0.5f, 7}};
    int32_t token;
    tsr_sampler *sampler = make(&c, MAX_VOCAB);
    assert_int_equal(tsr_sampler_choose(sampler, candidates, 39, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_choose(sampler, NULL, 40, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_choose(NULL, candidates, 40, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_choose(sampler, candidates, 40, NULL), TSR_ERR_INVALID);
    tsr_sampler_destroy(sampler);
    c.top_k = 0;
    sampler = make(&c, MAX_VOCAB);
    assert_int_equal(tsr_sampler_choose(sampler, candidates, 40, &token), TSR_ERR_INVALID);
    tsr_sampler_destroy(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_decide_as_all_logits_do),
        cmocka_unit_test(a_vocabulary_of_forbidden_tokens_is_refused),
        cmocka_unit_test(settings_say_how_many_are_needed),
        cmocka_unit_test(too_few_candidates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
