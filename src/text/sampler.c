/* The sampler: see tsr/sampler.h for its steps and their order.
 *
 * Candidates are taken from a heap in the order (largest logit, lowest id) only as long as the filters
 * want more of them, so usual settings sort a few dozen tokens; without a filter nothing is sorted.
 * Everything is computed in double with the four basic operations in a fixed order, so results are the
 * same on all IEEE 754 machines (the build turns contraction off). */
#include <tsr/sampler.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/config.h"
#include "core/mem.h"
#include "core/status.h"

typedef tsr_candidate candidate;

struct tsr_sampler {
    tsr_sampler_config config;
    int64_t n_vocab;
    uint64_t random[4];
    candidate *candidates; /* [n_vocab] */
    double *weights;       /* [n_vocab] */
    int32_t *recent;       /* [config.repeat_last_n] ring buffer */
    int64_t n_accepted;
};

/* exp(x) for x <= 0 with basic operations only. x = k ln 2 + r with |r| <= ln 2 / 2, where the Taylor series
 * to degree 13 leaves a relative error below 2^-56; ln 2 is split so that k times its high part is exact
 * (Cody & Waite 1980, "Software Manual for the Elementary Functions", chapter 6; the split is that of
 * fdlibm's e_exp.c). */
static double exp_same_everywhere(double x)
{
    static const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    static const double inverse_ln2 = 1.44269504088896338700e+00;
    static const double inverse_factorials[] = {1.0 / 6227020800.0,
                                                1.0 / 479001600.0,
                                                1.0 / 39916800.0,
                                                1.0 / 3628800.0,
                                                1.0 / 362880.0,
                                                1.0 / 40320.0,
                                                1.0 / 5040.0,
                                                1.0 / 720.0,
                                                1.0 / 120.0,
                                                1.0 / 24.0,
                                                1.0 / 6.0,
                                                0.5,
                                                1.0,
                                                1.0};

    if (x < -700.0)
        return 0.0; /* e^-700 is 1e-304: negligible in a sum of weights that contains 1 */
    int k = (int)(x * inverse_ln2 - 0.5);
    double r = (x - k * ln2_high) - k * ln2_low;
    double sum = inverse_factorials[0];
    for (size_t i = 1; i < sizeof inverse_factorials / sizeof *inverse_factorials; i++)
        sum = sum * r + inverse_factorials[i];
    uint64_t bits = (uint64_t)(1023 + k) << 52; /* 2^k; k >= -1010, so it is a normal number */
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* SplitMix64 and xoshiro256** (Blackman & Vigna, prng.di.unimi.it, public domain algorithms). */
static uint64_t splitmix64_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t rotate_left(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

static uint64_t xoshiro256ss_next(uint64_t state[4])
{
    uint64_t result = rotate_left(state[1] * 5, 7) * 9;
    uint64_t shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotate_left(state[3], 45);
    return result;
}

/* Uniform in [0, 1), a multiple of 2^-53. */
static double random_unit(tsr_sampler *sampler)
{
    return (double)(xoshiro256ss_next(sampler->random) >> 11) * 0x1p-53;
}

static tsr_status check_config(const tsr_sampler_config *c, int64_t n_vocab)
{
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "n_vocab is %lld; 1 to %d are supported", (long long)n_vocab,
                        INT32_MAX);
    if (!(c->temperature >= 0.0f) || isinf(c->temperature))
        return tsr_fail(TSR_ERR_INVALID, "temperature is %g; it must be 0 (greedy) or a positive number",
                        (double)c->temperature);
    if (!(c->top_p >= 0.0f && c->top_p <= 1.0f))
        return tsr_fail(TSR_ERR_INVALID, "top_p is %g; it must be between 0 and 1 (off)", (double)c->top_p);
    if (!(c->min_p >= 0.0f && c->min_p <= 1.0f))
        return tsr_fail(TSR_ERR_INVALID, "min_p is %g; it must be between 0 (off) and 1", (double)c->min_p);
    if (!(c->repeat_penalty > 0.0f) || isinf(c->repeat_penalty))
        return tsr_fail(TSR_ERR_INVALID, "repeat_penalty is %g; it must be a positive number (1: off)",
                        (double)c->repeat_penalty);
    if (c->repeat_last_n < 0)
        return tsr_fail(TSR_ERR_INVALID, "repeat_last_n is %d; it must be 0 (off) or more", c->repeat_last_n);
    return TSR_OK;
}

size_t tsr_sampler_config_init(tsr_sampler_config *config_out, size_t size)
{
    const tsr_sampler_config defaults = {.temperature = 0.8f,
                                         .top_k = 40,
                                         .top_p = 0.95f,
                                         .min_p = 0.05f,
                                         .repeat_penalty = 1.0f,
                                         .repeat_last_n = 64};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

tsr_status tsr_sampler_create(const tsr_sampler_config *config, int64_t n_vocab, tsr_sampler **sampler_out)
{
    tsr_sampler_config own = tsr_sampler_config_default();
    tsr_status status = TSR_OK;
    tsr_sampler *sampler = NULL;

    if (!sampler_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_sampler_create: sampler_out must not be NULL");
    TSR_TRY(tsr_config_read("tsr_sampler_config", config, sizeof own, &own, sizeof own));
    TSR_TRY(check_config(&own, n_vocab));
    TSR_TRY(TSR_NEW(&sampler, "the sampler"));
    sampler->config = own;
    sampler->n_vocab = n_vocab;
    TSR_TRY(tsr_mem_array((size_t)n_vocab, sizeof *sampler->candidates, "the sampler", &sampler->candidates));
    TSR_TRY(tsr_mem_array((size_t)n_vocab, sizeof *sampler->weights, "the sampler", &sampler->weights));
    TSR_TRY(
        tsr_mem_array((size_t)own.repeat_last_n, sizeof *sampler->recent, "the sampler", &sampler->recent));
    tsr_sampler_reset(sampler);
    *sampler_out = sampler;
    sampler = NULL;
out:
    tsr_sampler_destroy(sampler);
    return status;
}

void tsr_sampler_destroy(tsr_sampler *sampler)
{
    if (!sampler)
        return;
    tsr_mem_free(sampler->recent);
    tsr_mem_free(sampler->weights);
    tsr_mem_free(sampler->candidates);
    tsr_mem_free(sampler);
}

void tsr_sampler_reset(tsr_sampler *sampler)
{
    uint64_t state = sampler->config.seed;
    for (int i = 0; i < 4; i++)
        sampler->random[i] = splitmix64_next(&state);
    sampler->n_accepted = 0;
}

void tsr_sampler_accept(tsr_sampler *sampler, int32_t token)
{
    if (sampler->config.repeat_last_n == 0)
        return;
    sampler->recent[sampler->n_accepted % sampler->config.repeat_last_n] = token;
    sampler->n_accepted++;
}

/* A token among candidates[n]: at its id if all tokens are there. NULL: none. */
static candidate *find(tsr_sampler *sampler, int64_t n, bool all, int32_t token)
{
    candidate *list = sampler->candidates;
    if (all)
        return token >= 0 && token < n ? &list[token] : NULL;
    for (int64_t i = 0; i < n; i++)
        if (list[i].id == token)
            return &list[i];
    return NULL;
}

/* Step 1, over candidates[n]. Each token is penalised once, however often it occurred. */
static void penalize_repeats(tsr_sampler *sampler, int64_t n, bool all)
{
    float penalty = sampler->config.repeat_penalty;
    int64_t n_recent = TSR_MIN(sampler->n_accepted, (int64_t)sampler->config.repeat_last_n);

    if (penalty == 1.0f)
        return;
    for (int64_t i = 0; i < n_recent; i++) {
        candidate *found = find(sampler, n, all, sampler->recent[i]);
        bool again = !found;
        for (int64_t j = 0; j < i && !again; j++)
            again = sampler->recent[j] == sampler->recent[i];
        if (again)
            continue;
        float *logit = &found->logit;
        if (*logit == -INFINITY)
            continue;
        float penalized = *logit > 0.0f ? *logit / penalty : *logit * penalty;
        *logit = fminf(fmaxf(penalized, -FLT_MAX), FLT_MAX); /* an infinity would change the meaning */
    }
}

/* Whether a comes before b. */
static bool is_before(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *heap, int64_t n, int64_t at)
{
    candidate moving = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(heap[child + 1], heap[child]))
            child++;
        if (!is_before(heap[child], moving))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

static void heapify(candidate *heap, int64_t n)
{
    for (int64_t at = n / 2 - 1; at >= 0; at--)
        sift_down(heap, n, at);
}

/* Move the first of heap[n] to heap[n - 1]. */
static void pop_to_end(candidate *heap, int64_t n)
{
    candidate first = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    sift_down(heap, n - 1, 0);
}

/* Steps 3 to 5: moves the remaining candidates to the end of candidates[n], the likeliest last, and
 * returns their number. */
static int64_t filter(tsr_sampler *sampler, int64_t n, bool all, double max)
{
    const tsr_sampler_config *c = &sampler->config;
    candidate *heap = sampler->candidates;
    const bool some = !all || (c->top_k > 0 && c->top_k < n);
    int64_t n_top_k = some ? TSR_MIN((int64_t)c->top_k, n) : n;
    double total = 0.0, kept = 0.0;
    int64_t n_popped = 0, n_kept = 0;

    heapify(heap, n);
    /* The total for top-p: over the top k in their order, or over all in the heap's order. */
    if (some)
        while (n_popped < n_top_k)
            pop_to_end(heap, n - n_popped++);
    if (c->top_p < 1.0f)
        for (int64_t i = 0; i < n_top_k; i++)
            total += exp_same_everywhere(heap[n_popped ? n - 1 - i : i].logit - max);

    while (n_kept < n_top_k) {
        if (n_popped <= n_kept)
            pop_to_end(heap, n - n_popped++);
        double weight = exp_same_everywhere(heap[n - 1 - n_kept].logit - max);
        bool enough = n_kept > 0 &&
                      ((c->top_p < 1.0f && kept >= (double)c->top_p * total) || weight < (double)c->min_p);
        if (enough)
            break;
        kept += weight;
        n_kept++;
    }
    return n_kept;
}

/* Step 6: draw from first[n]. */
static int32_t draw(tsr_sampler *sampler, const candidate *first, int64_t n, double max)
{
    double temperature = (double)sampler->config.temperature, total = 0.0, below = 0.0;

    for (int64_t i = 0; i < n; i++)
        total += sampler->weights[i] = exp_same_everywhere((first[i].logit - max) / temperature);
    /* target < total, even rounded, and `below` ends at total, so the loop stops at a weight above zero. */
    double target = random_unit(sampler) * total;
    int64_t i = 0;
    while (i < n - 1 && target >= (below += sampler->weights[i]))
        i++;
    return first[i].id;
}

/* Check candidates[n]; the sampler's state is unchanged. Of logits that are no numbers the lowest id comes
 * first in a list of candidates, too. */
static tsr_status check_logits(const candidate *list, int64_t n)
{
    bool any = false;

    for (int64_t i = 0; i < n; i++) {
        if (!(list[i].logit < INFINITY))
            return tsr_fail(TSR_ERR_RANGE,
                            "the logit of token %lld is %g; the model's weights or its computation are wrong",
                            (long long)list[i].id, (double)list[i].logit);
        any = any || list[i].logit > -INFINITY;
    }
    if (!any)
        return tsr_fail(TSR_ERR_RANGE, "every logit is -infinity: no token is allowed");
    return TSR_OK;
}

/* Choose from candidates[n]; `all`: they are all tokens, by id. */
static tsr_status choose(tsr_sampler *sampler, int64_t n, bool all, int32_t *token_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_logits(sampler->candidates, n));
    penalize_repeats(sampler, n, all);

    const tsr_sampler_config *c = &sampler->config;
    candidate best = sampler->candidates[0];
    for (int64_t i = 1; i < n; i++)
        if (is_before(sampler->candidates[i], best))
            best = sampler->candidates[i];

    int32_t token = best.id;
    if (c->temperature > 0.0f) {
        bool filtered = (c->top_k > 0 && (c->top_k < n || !all)) || c->top_p < 1.0f || c->min_p > 0.0f;
        int64_t n_left = filtered ? filter(sampler, n, all, best.logit) : n;
        token = draw(sampler, sampler->candidates + n - n_left, n_left, best.logit);
    }
    tsr_sampler_accept(sampler, token);
    *token_out = token;
out:
    return status;
}

tsr_status tsr_sampler_sample(tsr_sampler *sampler, const float *logits, int64_t n_vocab, int32_t *token_out)
{
    if (!sampler || !logits || !token_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_sampler_sample: sampler, logits and token_out must not be NULL");
    if (n_vocab < 1 || n_vocab > sampler->n_vocab)
        return tsr_fail(TSR_ERR_INVALID, "n_vocab is %lld; this sampler was created for up to %lld",
                        (long long)n_vocab, (long long)sampler->n_vocab);
    for (int64_t i = 0; i < n_vocab; i++)
        sampler->candidates[i] = (candidate){logits[i], (int32_t)i};
    return choose(sampler, n_vocab, true, token_out);
}

int tsr_sampler_n_candidates(const tsr_sampler *sampler, int64_t n_vocab, int n_forbidden)
{
    const tsr_sampler_config *c = &sampler->config;
    const int64_t n_wanted = c->temperature > 0.0f ? c->top_k : 1;
    const bool penalises = c->repeat_penalty != 1.0f && c->repeat_last_n > 0;
    const int64_t n = n_wanted + n_forbidden + (penalises ? c->repeat_last_n : 0);
    if (n_wanted < 1 || (penalises && c->repeat_penalty < 1.0f) || n_forbidden < 0)
        return 0;
    return n <= TSR_MAX_CANDIDATES && n < n_vocab ? (int)n : 0;
}

tsr_status tsr_sampler_choose(tsr_sampler *sampler, const tsr_candidate *candidates, int n,
                              int32_t *token_out)
{
    if (!sampler || !candidates || !token_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_sampler_choose: sampler, candidates and token_out must not be NULL");
    const int least = tsr_sampler_n_candidates(sampler, sampler->n_vocab, 0);
    if (n < 1 || n > sampler->n_vocab || least == 0 || n < least)
        return tsr_fail(TSR_ERR_INVALID, "tsr_sampler_choose: %d candidates; the sampler needs %d of them%s",
                        n, least, least == 0 ? ", which means all logits (tsr_sampler_sample)" : " or more");
    memcpy(sampler->candidates, candidates, (size_t)n * sizeof *candidates);
    return choose(sampler, n, false, token_out);
}
