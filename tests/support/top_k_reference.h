/* The candidates of a row by their definition (TOP_K in core/op.h), and rows that are difficult. */
#ifndef TSR_TESTS_TOP_K_REFERENCE_H
#define TSR_TESTS_TOP_K_REFERENCE_H

#include <math.h>
#include <stdint.h>

#include "core/op.h"
#include "support/random.h"

/* The k first of a row, one after the other: each is the first of those behind the one before it. */
static inline void top_k_reference(const float *x, int64_t n, int64_t k, int64_t first, tsr_candidate *y)
{
    for (int64_t c = 0; c < k; c++) {
        tsr_candidate best = {-INFINITY, -1};
        for (int64_t i = 0; i < n; i++) {
            const tsr_candidate next = {x[i], (int32_t)(first + i)};
            if ((c == 0 || (y[c - 1].id >= 0 && tsr_candidate_is_before(y[c - 1], next))) &&
                (best.id < 0 || tsr_candidate_is_before(next, best)))
                best = next;
        }
        y[c] = best;
    }
}

enum { TOP_K_KINDS = 4 };

/* 0: all different; 1: many ties, with zeros of both signs; 2: most are forbidden; 3: some are no numbers. */
static inline void top_k_fill(float *x, int64_t n, int kind, uint64_t seed)
{
    uint64_t r = seed;
    for (int64_t i = 0; i < n; i++) {
        const float value = (float)random_uniform(&r) * 4;
        x[i] = kind == 1 ? truncf(value) : kind == 2 && i % 7 ? -INFINITY : value;
        if (kind == 3 && i % 11 == 5)
            x[i] = i % 2 ? NAN : INFINITY;
    }
}

#endif
