/* Static memory packing: buffers with known lifetimes into as few bytes as possible.
 *
 * A problem is a value: items that are live in [lower, upper) steps, with a size, an alignment, perhaps a
 * fixed place, perhaps a partner whose memory they must or may share (an op's result over an operand that
 * dies with it), and the most bytes that one chunk (one device allocation) may have. A solution is a value
 * too: a chunk and an offset for every item, such that no two items live at the same step share a byte unless
 * they share their memory. Which may do so and into which chunk an item goes is part of the search. A
 * solution's quality is known, because the bytes live at the busiest step are a lower bound for every
 * packing.
 *
 *     tsr_pack_item items[] = {{0, 2, 4096, 256, TSR_PACK_FREE, "norm"},
 *                              {1, 3, 8192, 256, TSR_PACK_FREE, "query"}};
 *     tsr_pack_problem problem = {.items = items, .n_items = 2};
 *     tsr_pack_solution solution;
 *     TSR_TRY(tsr_pack_solve(&problem, NULL, &solution));
 *     ... solution.places[1].offset, solution.total_bytes ...
 *     tsr_pack_solution_free(&solution);
 *
 * No state: any thread may solve anything at any time. */
#ifndef TSR_ALLOC_PACK_PACK_H
#define TSR_ALLOC_PACK_PACK_H

#include <tsr/status.h>

#include "alloc/pack/problem.h"

/* Pack. *solution_out is written only on success and released with tsr_pack_solution_free(). Where `limits`
 * is NULL the exact search may try about a million items over all its placements (some tenths of a second).
 * Without a time limit the result is deterministic: the same problem has the same solution on every machine.
 * 500 items of a transformer meet the bound without a search, in well under a millisecond.
 * TSR_ERR_INVALID: a malformed item, fixed items that overlap, or that must share but lie elsewhere (the
 * message names them). TSR_ERR_MEMORY: an item is larger than a chunk may be, or host memory is short. */
TSR_NODISCARD tsr_status tsr_pack_solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits,
                                        tsr_pack_solution *solution_out);

/* The slow and obvious validator: compares every pair of items and measures every chunk. TSR_ERR_INVALID with
 * a message that names the items. Shares no code with the packers. */
TSR_NODISCARD tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution);

#endif
