/* Frequencies of the rotary embedding (Su et al., arXiv:2104.09864): theta_i = base^(-2i / n_rot) per
 * position, changed by a factors tensor (Llama 3), linear scaling, or YaRN (Peng et al., arXiv:2309.00071,
 * section 3.2). */
#include "arch/rope.h"

#include <math.h>

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
    for (int64_t i = 0; i < n_pairs; i++) {
        double trained = pow(p->base, -(double)i / (double)n_pairs) / (factors ? factors[i] : 1);
        double stretched = trained / p->factor;
        double keep = p->scaling == TSR_ROPE_SCALING_YARN ? yarn_keep(p, i) : 0;
        bool as_trained = p->scaling == TSR_ROPE_SCALING_NONE || p->scaling == TSR_ROPE_SCALING_LONGROPE;
        tables.inverse_frequency[n_fixed + i] =
            as_trained ? trained : stretched * (1 - keep) + trained * keep;
    }
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
        row[2 * i] = (float)(magnitude * cos(angle));
        row[2 * i + 1] = (float)(magnitude * sin(tables->inverse ? -angle : angle));
    }
}
