/* The arithmetic of collectives through host memory, without synchronisation: adding the ranks' partials,
 * and gathering their parts.
 *
 * `parts` are n_parts arrays of the reduce type's elements (int64 for EXACT, float for F32, bfloat16 for
 * BF16), added in that order. Both functions handle elements [begin, end), so threads and ranks can divide
 * the work anywhere without changing a bit. */
#ifndef TSR_COMM_REDUCE_H
#define TSR_COMM_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm.h"
#include "core/op.h"

enum { TSR_MAX_RANKS = 64 };

typedef struct tsr_reducer {
    /* y[i] = f32(sum of parts[j][i]) + residual[i]; residual NULL: nothing added. y may be residual. */
    void (*finish)(const void *const *parts, int n_parts, const float *residual, float *y, int64_t begin,
                   int64_t end);

    /* sum[i] = sum of parts[j][i], in the parts' own type (BF16: added in f32, rounded once; as finish()
     * does). sum may be one of the parts. */
    void (*add)(const void *const *parts, int n_parts, void *sum, int64_t begin, int64_t end);
} tsr_reducer;

/* Copy elements [at, end) of the whole [n_rows][n] result of an ALL_GATHER that belong to the parts of
 * `devices` into whole[n_rows * n]; other elements are unchanged. */
void tsr_gather_parts(const tsr_collective_desc *desc, tsr_device_set devices, int64_t at, int64_t end,
                      float *whole);

/* The functions for one instruction set ("generic", "avx2", "avx512"; NULL: the best available); false if
 * the name is unknown or this processor lacks it. All give the same bits. */
bool tsr_reducer_select(const char *isa, tsr_reduce_type type, tsr_reducer *reducer_out);

#endif
