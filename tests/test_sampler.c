/* The sampler: greedy choice, each filter, distributions with fixed seeds, and refusals. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/sampler.h>

#include "support/failing_alloc.h"

enum { MAX_VOCAB = 64 };

/* Plain sampling: every filter off, temperature 1. */
static tsr_sampler_config plain(uint64_t seed)
{
    tsr_sampler_config c = tsr_sampler_config_default();
    c.temperature = 1.0f;
    c.top_k = 0;
    c.top_p = 1.0f;
    c.min_p = 0.0f;
    c.seed = seed;
    return c;
}

static tsr_sampler *make(tsr_sampler_config config, int64_t n_vocab)
{
    tsr_sampler *sampler = NULL;
    if (tsr_sampler_create(&config, n_vocab, &sampler) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return sampler;
}

static int32_t sample(tsr_sampler *sampler, const float *logits, int64_t n)
{
    int32_t token = -1;
    if (tsr_sampler_sample(sampler, logits, n, &token) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_in_range(token, 0, n - 1);
    return token;
}

/* How often each token comes in `draws` samples. */
static void count(tsr_sampler_config config, const float *logits, int64_t n, int draws, int *counts)
{
    tsr_sampler *sampler = make(config, n);
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int i = 0; i < draws; i++)
        counts[sample(sampler, logits, n)]++;
    tsr_sampler_destroy(sampler);
}

/* The tokens that come at all are exactly those of the mask. */
static void check_survivors(tsr_sampler_config config, const float *logits, int64_t n, uint64_t expected)
{
    int counts[MAX_VOCAB];
    uint64_t came = 0;
    count(config, logits, n, 4000, counts);
    for (int64_t i = 0; i < n; i++)
        came |= (uint64_t)(counts[i] > 0) << i;
    if (came != expected)
        fail_msg("tokens %llx came, not %llx", (unsigned long long)came, (unsigned long long)expected);
}

/* Counts against probabilities: Pearson's chi-squared below the bound that a right sampler exceeds once in
 * 10^6 (for 7 degrees of freedom 42; the seeds are fixed, so this either always holds or never). */
static void check_distribution(tsr_sampler_config config, const float *logits, const double *p)
{
    enum { N = 8, DRAWS = 200000 };
    int counts[N];
    double chi2 = 0;
    count(config, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++) {
        if (p[i] == 0)
            assert_int_equal(counts[i], 0);
        else
            chi2 += (counts[i] - DRAWS * p[i]) * (counts[i] - DRAWS * p[i]) / (DRAWS * p[i]);
    }
    if (!(chi2 < 42.0))
        fail_msg("chi-squared is %g", chi2);
}

static const float eight[8] = {0.5f, -1.0f, 2.0f, 1.5f, -3.0f, 0.0f, 1.0f, 2.0f};

static void softmax(const float *logits, double temperature, uint64_t survivors, double *p)
{
    double total = 0;
    for (int i = 0; i < 8; i++)
        total += p[i] = survivors >> i & 1 ? exp(logits[i] / temperature) : 0.0;
    for (int i = 0; i < 8; i++)
        p[i] /= total;
}

static void samples_follow_the_softmax(void **state)
{
    (void)state;
    static const float temperatures[] = {0.3f, 1.0f, 2.5f};
    for (int t = 0; t < 3; t++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            double p[8];
            tsr_sampler_config c = plain(seed);
            c.temperature = temperatures[t];
            softmax(eight, (double)c.temperature, 0xFF, p);
            check_distribution(c, eight, p);
        }
}

static void filters_come_before_the_temperature(void **state)
{
    (void)state;
    double p[8];
    tsr_sampler_config c = plain(11);
    c.temperature = 5.0f;
    c.top_k = 5;    /* tokens 2 7 3 6 0 */
    c.top_p = 0.8f; /* of their softmax .31 .31 .19 .11 .07: 2 7 3 reach it */
    softmax(eight, 5.0, 1 << 2 | 1 << 7 | 1 << 3, p);
    check_distribution(c, eight, p);
}

static void temperature_zero_takes_the_largest_and_of_equals_the_lowest(void **state)
{
    (void)state;
    tsr_sampler_config c = tsr_sampler_config_default();
    c.temperature = 0.0f;
    tsr_sampler *s = make(c, 8);
    assert_int_equal(sample(s, eight, 8), 2);
    const float equal[4] = {-1, -1, -1, -1}, minus[3] = {-INFINITY, -5, -INFINITY},
                zeros[3] = {-0.0f, 0.0f, -0.0f};
    assert_int_equal(sample(s, equal, 4), 0);
    assert_int_equal(sample(s, minus, 3), 1);
    assert_int_equal(sample(s, zeros, 3), 0);
    tsr_sampler_destroy(s);
}

static void top_k_keeps_the_k_largest(void **state)
{
    (void)state;
    tsr_sampler_config c = plain(3);
    c.top_k = 1;
    check_survivors(c, eight, 8, 1 << 2); /* 7 is equal, 2 is lower */
    c.top_k = 3;
    check_survivors(c, eight, 8, 1 << 2 | 1 << 7 | 1 << 3);
    c.top_k = 0;
    check_survivors(c, eight, 8, 0xFF);
    c.top_k = -1;
    check_survivors(c, eight, 8, 0xFF);
    c.top_k = 8;
    check_survivors(c, eight, 8, 0xFF);
    c.top_k = 1000;
    check_survivors(c, eight, 8, 0xFF);
}

static void top_p_keeps_the_smallest_set_that_reaches_p(void **state)
{
    (void)state;
    const float logits[4] = {logf(0.1f), logf(0.5f), logf(0.15f), logf(0.25f)};
    tsr_sampler_config c = plain(4);
    c.top_p = 0.0f;
    check_survivors(c, logits, 4, 1 << 1);
    c.top_p = 0.49f;
    check_survivors(c, logits, 4, 1 << 1);
    c.top_p = 0.51f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.top_p = 0.76f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3 | 1 << 2);
    c.top_p = 1.0f;
    check_survivors(c, logits, 4, 0xF);
    c.top_k = 2; /* p is that of the two: 2/3 and 1/3 */
    c.top_p = 0.6f;
    check_survivors(c, logits, 4, 1 << 1);
    c.top_p = 0.7f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
}

static void min_p_keeps_what_is_likely_enough(void **state)
{
    (void)state;
    const float logits[4] = {logf(0.1f), logf(0.5f), logf(0.15f), logf(0.25f)};
    tsr_sampler_config c = plain(5);
    c.min_p = 0.21f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 2 | 1 << 3);
    c.min_p = 0.45f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.min_p = 1.0f;
    check_survivors(c, logits, 4, 1 << 1);
    const float equal[3] = {7, 7, 7};
    check_survivors(c, equal, 3, 7);
}

static void forbidden_tokens_never_come(void **state)
{
    (void)state;
    const float logits[4] = {-INFINITY, 0, -INFINITY, 1};
    tsr_sampler_config c = plain(6);
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.top_k = 3;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.top_k = 0;
    c.top_p = 0.999999f;
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
}

static void extreme_logits_and_settings_keep_the_right_tokens(void **state)
{
    (void)state;
    const float logits[4] = {-FLT_MAX, FLT_MAX, 0, FLT_MAX};
    tsr_sampler_config c = plain(7);
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.temperature = FLT_MIN / 16; /* not even a normal number */
    check_survivors(c, logits, 4, 1 << 1 | 1 << 3);
    c.temperature = FLT_MAX;
    c.repeat_penalty = FLT_MAX;
    check_survivors(c, logits, 4, 0xF);
    const float one[1] = {-3};
    check_survivors(plain(8), one, 1, 1);
}

static void the_repeat_penalty_is_for_the_last_n_tokens_once_each(void **state)
{
    (void)state;
    const float logits[4] = {2.0f, 1.9f, -1.0f, 1.5f};
    tsr_sampler_config c = tsr_sampler_config_default();
    c.temperature = 0.0f;
    c.repeat_penalty = 1.5f;
    c.repeat_last_n = 2;
    tsr_sampler *s = make(c, 4);
    assert_int_equal(sample(s, logits, 4), 0);
    assert_int_equal(sample(s, logits, 4), 1); /* 2 / 1.5 = 1.33 */
    assert_int_equal(sample(s, logits, 4), 3); /* 1.9 / 1.5 = 1.27 */
    assert_int_equal(sample(s, logits, 4), 0); /* forgotten */
    tsr_sampler_reset(s);
    assert_int_equal(sample(s, logits, 4), 0);
    tsr_sampler_reset(s);
    tsr_sampler_accept(s, 0);
    tsr_sampler_accept(s, 0); /* twice is not punished twice: 1.33, not 0.89 */
    const float less[4] = {2.0f, 1.2f, -1.0f, 1.0f};
    assert_int_equal(sample(s, less, 4), 0);
    tsr_sampler_accept(s, -7); /* ids that do not exist have no logit */
    tsr_sampler_accept(s, 4);
    assert_int_equal(sample(s, logits, 4), 0);
    tsr_sampler_destroy(s);

    const float negative[2] = {-1.0f, -1.2f};
    s = make(c, 2);
    tsr_sampler_accept(s, 0);
    assert_int_equal(sample(s, negative, 2), 1); /* -1 * 1.5 */
    tsr_sampler_destroy(s);
    c.repeat_last_n = 0;
    s = make(c, 2);
    tsr_sampler_accept(s, 0);
    assert_int_equal(sample(s, negative, 2), 0);
    tsr_sampler_destroy(s);
}

static void a_seed_means_the_same_tokens_always(void **state)
{
    (void)state;
    tsr_sampler_config c = tsr_sampler_config_default();
    c.seed = 42;
    float logits[MAX_VOCAB];
    for (int i = 0; i < MAX_VOCAB; i++)
        logits[i] = (float)((i * 37) % 64) / 16.0f;
    int32_t first[16];
    tsr_sampler *s = make(c, MAX_VOCAB), *other = make(c, MAX_VOCAB);
    for (int i = 0; i < 16; i++)
        first[i] = sample(s, logits, MAX_VOCAB);
    tsr_sampler_reset(s);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(sample(s, logits, MAX_VOCAB), first[i]);
        assert_int_equal(sample(other, logits, MAX_VOCAB), first[i]);
    }
    tsr_sampler_destroy(other);
    tsr_sampler_destroy(s);
    c.seed = 43;
    other = make(c, MAX_VOCAB);
    int equal = 0;
    for (int i = 0; i < 16; i++)
        equal += sample(other, logits, MAX_VOCAB) == first[i];
    assert_true(equal < 16);
    tsr_sampler_destroy(other);
}

/* With 2^20 equal logits, a token's id is the upper 20 bits of the random number. Expected are those of
 * xoshiro256** from the first four outputs of SplitMix64 with seed 1234567, computed in Python from the
 * definitions; these four are also published (rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64). */
static void the_random_numbers_are_the_published_ones(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *logits = calloc(N, sizeof *logits);
    tsr_sampler *s = make(plain(1234567), N);
    static const int32_t expected[] = {199226, 103429, 71102, 962940, 658580, 462387};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_int_equal(sample(s, logits, N), expected[i]);
    tsr_sampler_destroy(s);
    free(logits);
}

static void broken_logits_are_refused_and_change_nothing(void **state)
{
    (void)state;
    tsr_sampler *s = make(plain(9), 8), *same = make(plain(9), 8);
    float logits[8];
    int32_t token = 77;
    for (int bad = 0; bad < 3; bad++) {
        memcpy(logits, eight, sizeof logits);
        logits[5] = bad == 0 ? NAN : bad == 1 ? INFINITY : 0;
        for (int i = 0; bad == 2 && i < 8; i++)
            logits[i] = -INFINITY;
        assert_int_equal(tsr_sampler_sample(s, logits, 8, &token), TSR_ERR_RANGE);
        assert_int_equal(token, 77);
        if (bad < 2)
            assert_non_null(strstr(tsr_last_error(), "token 5"));
    }
    assert_int_equal(tsr_sampler_sample(s, eight, 9, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_sample(s, eight, 0, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_sample(s, NULL, 8, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_sample(NULL, eight, 8, &token), TSR_ERR_INVALID);
    assert_int_equal(tsr_sampler_sample(s, eight, 8, NULL), TSR_ERR_INVALID);
    for (int i = 0; i < 20; i++)
        assert_int_equal(sample(s, eight, 8), sample(same, eight, 8));
    tsr_sampler_destroy(s);
    tsr_sampler_destroy(same);
}

static void check_refused(tsr_sampler_config config, int64_t n_vocab, const char *says)
{
    tsr_sampler *sampler = NULL;
    assert_int_equal(tsr_sampler_create(&config, n_vocab, &sampler), TSR_ERR_INVALID);
    assert_null(sampler);
    if (!strstr(tsr_last_error(), says))
        fail_msg("'%s' does not say '%s'", tsr_last_error(), says);
}

static void settings_out_of_range_are_refused(void **state)
{
    (void)state;
    tsr_sampler_config c = plain(0);
#define REFUSED(field, value)        \
    do {                             \
        c = plain(0);                \
        c.field = (value);           \
        check_refused(c, 8, #field); \
    } while (0)
    REFUSED(size, 3);
    REFUSED(temperature, -0.1f);
    REFUSED(temperature, NAN);
    REFUSED(temperature, INFINITY);
    REFUSED(top_p, -0.1f);
    REFUSED(top_p, 1.1f);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -0.1f);
    REFUSED(min_p, 1.1f);
    REFUSED(min_p, NAN);
    REFUSED(repeat_penalty, 0.0f);
    REFUSED(repeat_penalty, NAN);
    REFUSED(repeat_penalty, INFINITY);
    REFUSED(repeat_last_n, -1);
    check_refused(plain(0), 0, "n_vocab");
    check_refused(plain(0), (int64_t)INT32_MAX + 1, "n_vocab");
    assert_int_equal(tsr_sampler_create(NULL, 8, NULL), TSR_ERR_INVALID);
    tsr_sampler *defaults = NULL;
    assert_int_equal(tsr_sampler_create(NULL, 8, &defaults), TSR_OK);
    tsr_sampler_destroy(defaults);
    tsr_sampler_destroy(NULL);
}

static void only_creation_allocates_and_each_allocation_can_fail(void **state)
{
    (void)state;
    bool fired = true;
    for (int n = 1; fired; n++) {
        int64_t live = failing_alloc_live();
        tsr_sampler *sampler = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_sampler_create(NULL, 8, &sampler);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_true(fired == (sampler == NULL));
        if (sampler) {
            sample(sampler, eight, 8);
            assert_int_equal(failing_alloc_count(), 0);
        }
        tsr_sampler_destroy(sampler);
        assert_int_equal(failing_alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_follow_the_softmax),
        cmocka_unit_test(filters_come_before_the_temperature),
        cmocka_unit_test(temperature_zero_takes_the_largest_and_of_equals_the_lowest),
        cmocka_unit_test(top_k_keeps_the_k_largest),
        cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_p),
        cmocka_unit_test(min_p_keeps_what_is_likely_enough),
        cmocka_unit_test(forbidden_tokens_never_come),
        cmocka_unit_test(extreme_logits_and_settings_keep_the_right_tokens),
        cmocka_unit_test(the_repeat_penalty_is_for_the_last_n_tokens_once_each),
        cmocka_unit_test(a_seed_means_the_same_tokens_always),
        cmocka_unit_test(the_random_numbers_are_the_published_ones),
        cmocka_unit_test(broken_logits_are_refused_and_change_nothing),
        cmocka_unit_test(settings_out_of_range_are_refused),
        cmocka_unit_test(only_creation_allocates_and_each_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
