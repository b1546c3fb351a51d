/* Frequencies of the rotary embedding (Su et al., arXiv:2104.09864): theta_i = base^(-2i / n_rot) per
 * position, changed by a factors tensor (Llama 3), linear scaling, or YaRN (Peng et al., arXiv:2309.00071,
 * section 3.2). */
#include "model/rope.h"

#include <math.h>

#include "core/mem.h"

static const double two_pi = 6.283185307179586476925;

/* Index of the pair that turns `rotations` times over the original context (YaRN, eq. 17, halved: pairs, not
 * elements). */
static double pair_of_rotations(const tsr_hparams *hp, double rotations)
{
    return (double)hp->n_rot * log(hp->rope_n_ctx_orig / (rotations * two_pi)) / (2 * log(hp->rope_base));
}

/* 1 where the pair turns often enough to stay as trained, 0 where it is interpolated, a ramp between. */
static double yarn_keep(const tsr_hparams *hp, int64_t pair)
{
    double low = fmax(0, floor(pair_of_rotations(hp, hp->rope_beta_fast)));
    double high = fmin((double)hp->n_rot - 1, ceil(pair_of_rotations(hp, hp->rope_beta_slow)));
    double ramp = ((double)pair - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, ramp));
}

tsr_status tsr_rope_tables_create(const tsr_hparams *hp, const float *factors, tsr_rope_tables *tables_out)
{
    tsr_rope_tables tables = {.n_rot = hp->n_rot, .magnitude = 1};
    tsr_status status =
        tsr_mem_array((size_t)hp->n_rot / 2, sizeof(double), "rotary frequencies", &tables.inverse_frequency);
    if (status != TSR_OK)
        return status;
    for (int64_t i = 0; i < hp->n_rot / 2; i++) {
        double trained =
            pow(hp->rope_base, -2.0 * (double)i / (double)hp->n_rot) / (factors ? factors[i] : 1);
        double stretched = trained / hp->rope_factor;
        double keep = hp->rope_scaling == TSR_ROPE_SCALING_YARN ? yarn_keep(hp, i) : 0;
        tables.inverse_frequency[i] =
            hp->rope_scaling == TSR_ROPE_SCALING_NONE ? trained : stretched * (1 - keep) + trained * keep;
    }
    if (hp->rope_scaling == TSR_ROPE_SCALING_YARN) /* YaRN eq. 22 */
        tables.magnitude = hp->rope_attn_factor * (1 + 0.1 * log(hp->rope_factor));
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
    for (int64_t i = 0; i < tables->n_rot / 2; i++) {
        double angle = (double)position * tables->inverse_frequency[i];
        row[2 * i] = (float)(tables->magnitude * cos(angle));
        row[2 * i + 1] = (float)(tables->magnitude * sin(angle));
    }
}
