/** @file
 * Sampler: one token from a row of logits.
 *
 *     tsr_sampler_config config = tsr_sampler_config_default();
 *     config.temperature = 0.7f;
 *     config.seed = 42;
 *     TRY(tsr_sampler_create(&config, n_vocab, &sampler));
 *     for (;;) {
 *         ...                                                     decode gives logits[n_vocab]
 *         TRY(tsr_sampler_sample(sampler, logits, n_vocab, &token));
 *     }
 *     tsr_sampler_destroy(sampler);
 *
 * A sample runs through these steps, in llama.cpp's order (penalty, top-k, top-p, min-p, temperature), so
 * that settings tuned there mean the same here:
 *
 *   1. repeat penalty: the logit of each of the last repeat_last_n tokens is divided by repeat_penalty if
 *      it is positive and multiplied by it if it is negative (Keskar et al. 2019, "CTRL", section 4.1)
 *   2. temperature 0: the largest logit wins, the lowest id of equal logits; the steps below are left out
 *   3. top-k: the k largest logits stay, of equal logits those with lower ids (Fan et al. 2018)
 *   4. top-p: with p = softmax(logits) of the logits left, the smallest set of the likeliest tokens with
 *      sum(p) >= top_p stays (Holtzman et al. 2020)
 *   5. min-p: tokens with p >= min_p * max(p) stay (Nguyen et al. 2024)
 *   6. a token is drawn from softmax(logits / temperature) over the tokens left
 *
 * Often few tokens decide: tsr_sampler_n_candidates() says how many of the likeliest ones, and
 * tsr_session_decode_candidates() finds them where the logits are, so that the others need not be copied:
 *
 *     n = tsr_sampler_n_candidates(sampler, n_vocab, 0);          0: all logits are needed, as above
 *     TRY(tsr_session_decode_candidates(session, &batch, n, candidates));
 *     TRY(tsr_sampler_choose(sampler, candidates, n, &token));    the token that all logits give
 *
 * The same seed, settings and logits give the same tokens on every machine: the random numbers come from
 * xoshiro256** seeded through SplitMix64 (Blackman & Vigna 2018, prng.di.unimi.it). Each sample with a
 * temperature takes exactly one random number. The exponential function is the library's own, not that of
 * libm.
 *
 * Threads: a sampler belongs to one thread at a time; different samplers are independent.
 */
#ifndef TSR_SAMPLER_H
#define TSR_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/status.h>

TSR_BEGIN_DECLS

/** A token and its logit. */
typedef struct tsr_candidate {
    float logit; /**< -INFINITY: the token is forbidden */
    int32_t id;  /**< of the token; -1: none, in a list that is longer than the vocabulary */
} tsr_candidate;

/** The most candidates of a row of logits that tsr_session_decode_candidates() and tsr_top_k() find. */
enum { TSR_MAX_CANDIDATES = 256 };

/** The state of sampling: random numbers and the last tokens. */
typedef struct tsr_sampler tsr_sampler;

/** How tokens are chosen. */
typedef struct tsr_sampler_config {
    size_t size;           /**< sizeof(tsr_sampler_config) */
    float temperature;     /**< >= 0; 0: greedy */
    int32_t top_k;         /**< 0 or less: off */
    float top_p;           /**< 0..1; 1: off; 0: the likeliest token only */
    float min_p;           /**< 0..1; 0: off */
    float repeat_penalty;  /**< > 0; 1: off */
    int32_t repeat_last_n; /**< >= 0: number of last tokens that the penalty is for; 0: off */
    uint64_t seed;         /**< of the random numbers */
} tsr_sampler_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_sampler_config_init(tsr_sampler_config *config_out, size_t size);

/** llama.cpp's defaults: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no repeat penalty; and seed 0. */
static inline tsr_sampler_config tsr_sampler_config_default(void)
{
    tsr_sampler_config config;
    tsr_sampler_config_init(&config, sizeof config);
    return config;
}

/** A sampler for vocabularies of up to n_vocab tokens; `config` (NULL: the defaults) is copied. All memory is
 * allocated here: 16 bytes per token of the vocabulary and 4 per token of repeat_last_n. TSR_ERR_INVALID: a
 * setting is out of its range (message: which); TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_sampler_create(const tsr_sampler_config *config, int64_t n_vocab,
                                                    tsr_sampler **sampler_out);

/** NULL is fine. */
TSR_API void tsr_sampler_destroy(tsr_sampler *sampler);

/** Choose a token from logits[n_vocab] (read only), write its id to *token_out and remember it for the repeat
 * penalty. A logit of -INFINITY forbids its token. TSR_ERR_RANGE: a logit is NaN or +INFINITY (message:
 * which), or all logits are -INFINITY. TSR_ERR_INVALID: n_vocab is not in 1 .. the sampler's. A failure
 * changes nothing in the sampler, random numbers included. */
TSR_NODISCARD TSR_API tsr_status tsr_sampler_sample(tsr_sampler *sampler, const float *logits,
                                                    int64_t n_vocab, int32_t *token_out);

/** How many of the likeliest tokens decide as all n_vocab do: top_k of them (1 without a temperature), those
 * that a repeat penalty above 1 may move behind others, and `n_forbidden` that the caller may forbid. 0: all
 * logits are needed, because top-k is off, the penalty is below 1, n_forbidden is negative, or there would be
 * more than TSR_MAX_CANDIDATES, or n_vocab or more. */
TSR_API int tsr_sampler_n_candidates(const tsr_sampler *sampler, int64_t n_vocab, int n_forbidden);

/** tsr_sampler_sample() from the likeliest tokens instead of all: candidates[n] (read only) in the order of
 * the largest logit and the lowest id, with at least as many as tsr_sampler_n_candidates() says. The logits
 * of as many as it was told may be set to -INFINITY; of more, the token may be another one, without an error.
 * Same token, same errors, same state afterwards. TSR_ERR_INVALID also: n is less than that number without
 * forbidden tokens, or the settings need all logits. */
TSR_NODISCARD TSR_API tsr_status tsr_sampler_choose(tsr_sampler *sampler, const tsr_candidate *candidates,
                                                    int n, int32_t *token_out);

/** Count a token that was not sampled here, of a prompt for example, for the repeat penalty. */
TSR_API void tsr_sampler_accept(tsr_sampler *sampler, int32_t token);

/** Set the sampler back to its state after creation: no past tokens, random numbers from the seed on. */
TSR_API void tsr_sampler_reset(tsr_sampler *sampler);

TSR_END_DECLS
#endif
