/* Rotary embedding tables, computed on the caller's side once per step, in double precision, for all layers
 * and devices. No device needs its own sine. */
#ifndef TSR_ARCH_ROPE_H
#define TSR_ARCH_ROPE_H

#include "arch/hparams.h"

typedef struct tsr_rope_tables {
    int64_t n_rot, n_fixed;    /* see tsr_rope_params */
    double *inverse_frequency; /* [n_rot / 2] radians per position */
    double magnitude;          /* factor on cos and sin of the pairs that turn */
    double temperature, temperature_length, temperature_offset; /* see tsr_rope_params */
    int64_t group;
    bool inverse;
} tsr_rope_tables;

/* `factors` (of each pair that is not fixed; NULL = ones) divide the frequencies (the tensors
 * rope_freqs.weight of Llama 3, rope_factors_long.weight and rope_factors_short.weight of LongRoPE). */
tsr_status tsr_rope_tables_create(const tsr_rope_params *params, const float *factors,
                                  tsr_rope_tables *tables_out);
void tsr_rope_tables_free(tsr_rope_tables *tables);

/* row[n_rot] = (cos, sin) pairs of one position. */
void tsr_rope_row(const tsr_rope_tables *tables, int64_t position, float *row);

#endif
