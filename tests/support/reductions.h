/* The reductions that are not exact against the one that is, on whole models. */
#ifndef TSR_TESTS_REDUCTIONS_H
#define TSR_TESTS_REDUCTIONS_H

#include <tsr/types.h>

/* Logits of a model with random weights of this type, a prompt and then some tokens one by one, on `devices`
 * with `split` and `collectives` (as runner_open_with() has them): those of the F32 and the BF16 reduction
 * have to be near the exact reduction's, BF16's farther than F32's.
 *
 * Bound, relative and in the Euclidean norm: a product in half-precision activations is off by 2^-11 (F16)
 * or 2^-8 (BF16) of its size, a BF16 sum by 2^-8 of every device's part and once more of the whole. Those
 * errors are independent, and two layers add up seven sums: 2^-6 for all of that, and 2^-8 where the
 * reduction is F32 and weights are not BF16. */
void reductions_check(tsr_type type, const char *devices, const char *collectives, const char *split);

#endif
