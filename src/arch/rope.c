/* Frequencies of the rotary embedding (Su et al., arXiv:2104.09864): theta_i = base^(-2i / n_rot) per
 * position, changed by a factors tensor (Llama 3), linear scaling, or YaRN (Peng et al., arXiv:2309.00071,
 * section 3.2). */
#include "arch/rope.h"

#include <math.h>
#include <stddef.h>

#include <tsr/ops.h>

#include "core/config.h"
#include "core/mem.h"

static const double two_pi = 6.283185307179586476925;

/* Index of the pair that makes `rotations` turns over the original context (YaRN, eq. 17, halved: pairs
 * instead of elements). */
static double pair_of_rotations(const tsr_rope_params *p, double rotations)
{
    const double n_turned = (double)(p->n_rot - p->n_fixed);
    return n_turned * log(p->n_ctx_orig / (rotations * two_pi)) / (2 * log(p->base));
}

/* 1 for pairs with enough turns to stay as trained, 0 for pairs that are interpolated, a ramp between. */
static double yarn_keep(const tsr_rope_params *p, int64_t pair)
{
    double low = pair_of_rotations(p, p->beta_fast), high = pair_of_rotations(p, p->beta_slow);
    low = fmax(0, p->exact_ramp ? low : floor(low));
    high = fmin((double)(p->n_rot - p->n_fixed) - 1, p->exact_ramp ? high : ceil(high));
    double ramp = ((double)pair - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, ramp));
}

/* YaRN, eq. 22. A model trained with its own scale on the scores (DeepSeek's mscale_all_dim, here
 * log_multiplier) has that part of the growth already. */
static double yarn_magnitude(const tsr_rope_params *p)
{
    double growth = 0.1 * log(p->factor);
    if (p->yarn_magnitude > 0)
        return p->yarn_magnitude;
    return p->factor > 1 ? (1 + growth) / (1 + p->log_multiplier * growth) : 1;
}

/* Radians per position of pair i of those that turn; `factor` divides it. */
static double frequency_of(const tsr_rope_params *p, double factor, int64_t i)
{
    const int64_t n_pairs = p->n_rot / 2 - p->n_fixed / 2;
    double trained = pow(p->base, -(double)i / (double)n_pairs) / factor;
    double stretched = trained / p->factor;
    double keep = p->scaling == TSR_ROPE_SCALING_YARN ? yarn_keep(p, i) : 0;
    bool as_trained = p->scaling == TSR_ROPE_SCALING_NONE || p->scaling == TSR_ROPE_SCALING_LONGROPE;
    return as_trained ? trained : stretched * (1 - keep) + trained * keep;
}

tsr_status tsr_rope_tables_create(const tsr_rope_params *p, const float *factors, tsr_rope_tables *tables_out)
{
    tsr_rope_tables tables = {.n_rot = p->n_rot,
                              .n_fixed = p->n_fixed,
                              .magnitude = p->attn_factor,
                              .temperature = p->temperature,
                              .temperature_length =
                                  p->temperature_length > 0 ? p->temperature_length : p->n_ctx_orig,
                              .temperature_offset = p->temperature_offset,
                              .group = p->group,
                              .inverse = p->inverse};
    const int64_t n_fixed = p->n_fixed / 2, n_pairs = p->n_rot / 2 - n_fixed;
    tsr_status status =
        tsr_mem_array((size_t)p->n_rot / 2, sizeof(double), "rotary frequencies", &tables.inverse_frequency);
    if (status != TSR_OK)
        return status;
    for (int64_t i = 0; i < n_pairs; i++)
        tables.inverse_frequency[n_fixed + i] = frequency_of(p, factors ? (double)factors[i] : 1, i);
    if (p->scaling == TSR_ROPE_SCALING_YARN)
        tables.magnitude *= yarn_magnitude(p);
    *tables_out = tables;
    return TSR_OK;
}

void tsr_rope_tables_free(tsr_rope_tables *tables)
{
    tsr_mem_free(tables->inverse_frequency);
    tables->inverse_frequency = NULL;
}

static void turn(double magnitude, double angle, bool inverse, float *pair)
{
    pair[0] = (float)(magnitude * cos(angle));
    pair[1] = (float)(magnitude * sin(inverse ? -angle : angle));
}

void tsr_rope_row(const tsr_rope_tables *tables, int64_t position, float *row)
{
    const double at = (double)position + tables->temperature_offset;
    double growth = 1;
    if (tables->group > 0)
        position -= position % tables->group;
    if (tables->temperature != 0)
        growth = 1 + tables->temperature * log(1 + floor(at / tables->temperature_length));
    const double magnitude = tables->magnitude * growth; /* of pairs that turn */
    for (int64_t i = 0; i < tables->n_fixed / 2; i++) {
        row[2 * i] = (float)growth;
        row[2 * i + 1] = 0;
    }
    for (int64_t i = tables->n_fixed / 2; i < tables->n_rot / 2; i++) {
        double angle = (double)position * tables->inverse_frequency[i];
        turn(magnitude, angle, tables->inverse, row + 2 * i);
    }
}

/* -- tsr/ops.h -- */

size_t tsr_rope_config_init(tsr_rope_config *config_out, size_t size)
{
    const tsr_rope_config defaults = {
        .base = 10000, .factor = 1, .magnitude = 1, .yarn_beta_fast = 32, .yarn_beta_slow = 1};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

static bool is_positive(double x)
{
    return x > 0 && x < INFINITY;
}

static tsr_status check_yarn(const tsr_rope_config *config)
{
    if (!is_positive(config->magnitude))
        return tsr_fail(TSR_ERR_INVALID, "tsr_rope_fill: magnitude %g; it must be finite and more than 0",
                        config->magnitude);
    if (config->yarn_n_ctx == 0)
        return TSR_OK;
    if (!is_positive(config->yarn_n_ctx) || !is_positive(config->yarn_beta_fast) ||
        !is_positive(config->yarn_beta_slow) || !(config->base > 1))
        return tsr_fail(
            TSR_ERR_INVALID,
            "tsr_rope_fill: yarn_n_ctx %g, yarn_beta_fast %g, yarn_beta_slow %g, base %g; with YaRN "
            "the first three must be finite and more than 0, and the base more than 1",
            config->yarn_n_ctx, config->yarn_beta_fast, config->yarn_beta_slow, config->base);
    if (config->yarn_growth != 0 && !is_positive(config->yarn_growth))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_rope_fill: yarn_growth %g; it must be finite and more than 0, or 0",
                        config->yarn_growth);
    return TSR_OK;
}

static tsr_status check_config(const tsr_rope_config *config, const int32_t *positions, int64_t n_tokens,
                               const float *rows)
{
    if (config->n_rot < 2 || config->n_rot % 2 != 0)
        return tsr_fail(TSR_ERR_INVALID, "tsr_rope_fill: n_rot is %lld; it must be even and at least 2",
                        (long long)config->n_rot);
    if (!is_positive(config->base) || !is_positive(config->factor))
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_rope_fill: base %g and factor %g; both must be finite and more than 0",
                        config->base, config->factor);
    if (n_tokens < 0 || (n_tokens > 0 && (!positions || !rows)))
        return tsr_fail(TSR_ERR_INVALID, "tsr_rope_fill: %lld tokens, positions at %p, rows at %p",
                        (long long)n_tokens, (const void *)positions, (const void *)rows);
    for (int64_t i = 0; config->factors && i < config->n_rot / 2; i++)
        if (!(config->factors[i] > 0))
            return tsr_fail(TSR_ERR_INVALID, "tsr_rope_fill: factor %lld is %g; it must be more than 0",
                            (long long)i, (double)config->factors[i]);
    return TSR_OK;
}

tsr_status tsr_rope_fill(const tsr_rope_config *given, const int32_t *positions, int64_t n_tokens,
                         float *rows)
{
    tsr_status status = TSR_OK;
    tsr_rope_config config = tsr_rope_config_default();
    TSR_TRY(tsr_config_read("tsr_rope_config", given, offsetof(tsr_rope_config, magnitude), &config,
                            sizeof config));
    TSR_TRY(check_config(&config, positions, n_tokens, rows));
    TSR_TRY(check_yarn(&config));
    const bool yarn = config.yarn_n_ctx > 0;
    const tsr_rope_params params = {.n_rot = config.n_rot,
                                    .base = config.base,
                                    .factor = config.factor,
                                    .scaling = yarn ? TSR_ROPE_SCALING_YARN : TSR_ROPE_SCALING_LINEAR,
                                    .n_ctx_orig = config.yarn_n_ctx,
                                    .yarn_magnitude = config.yarn_growth,
                                    .beta_fast = config.yarn_beta_fast,
                                    .beta_slow = config.yarn_beta_slow};
    const double magnitude = config.magnitude * (yarn ? yarn_magnitude(&params) : 1);
    for (int64_t i = 0; i < config.n_rot / 2; i++) {
        const double factor = config.factors ? (double)config.factors[i] : 1;
        const double frequency = frequency_of(&params, factor, i);
        for (int64_t t = 0; t < n_tokens; t++)
            turn(magnitude, (double)positions[t] * frequency, false, rows + t * config.n_rot + 2 * i);
    }
out:
    return status;
}
