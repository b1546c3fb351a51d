/* What launches count that are executed from PTX; for programs that link ptx_compare. */
#ifndef PTX_COUNTS_H
#define PTX_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Warp instructions by class: an instruction counts once however many of the 32 lanes take part. */
typedef struct ptx_counts {
    uint64_t launches;
    uint64_t instructions; /* of all classes */
    uint64_t arithmetic;   /* integers, floats, moves and conversions */
    uint64_t memory;       /* loads, stores and asynchronous copies, of any address space */
    uint64_t lane;         /* shuffles, votes, barriers of a warp */
    uint64_t mma;
    uint64_t flow;
    uint64_t sectors, bytes;    /* of global loads: 32 bytes each, and distinct bytes of the requests */
    uint64_t wavefronts, ideal; /* of shared memory: as they are, and without bank conflicts */
} ptx_counts;

/* The sum over all launches since the last call. The first call begins to count. False where nothing is
 * executed from PTX (TSR_PTX is not set). */
bool ptx_take_counts(ptx_counts *counts_out);

#ifdef __cplusplus
}
#endif

#endif
