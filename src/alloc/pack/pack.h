/* Static memory packing: buffers with known lifetimes into as few bytes as possible.
 *
 * A problem is a value: a list of items, and the most bytes of one chunk (one device allocation). An item is
 * live in steps [lower, upper) and has a size, an alignment, optionally a fixed place, and optionally a
 * partner whose memory it must or may share (an op's result over an operand whose life ends there). A
 * solution is a value too: a chunk and an offset for every item, such that no two items that are live at the
 * same step overlap, unless they share memory. The packer also decides which items share and the chunk of
 * each item. The quality of a solution is known, because the bytes live at the busiest step are a lower
 * bound for every packing.
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

/* Pack. *solution_out is written only on success and released with tsr_pack_solution_free(). `limits` NULL:
 * the exact search may visit about a million items over all placements (some tenths of a second). Without a
 * time limit the result is deterministic: a problem has the same solution on every machine. Graphs of
 * transformers (500 items) meet the bound without a search, in well under a millisecond; the exact search
 * pays for irregular lifetimes, such as minimalloc's challenging set (README.md). TSR_ERR_INVALID: a
 * malformed item, fixed items that overlap, or items that must share but are fixed at different places (the
 * message names them). TSR_ERR_MEMORY: an item is larger than a chunk, or host memory is short. */
TSR_NODISCARD tsr_status tsr_pack_solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits,
                                        tsr_pack_solution *solution_out);

/* The slow and obvious validator: checks every chunk, every item and every pair of items. TSR_ERR_INVALID
 * names the items; TSR_ERR_MEMORY: host memory is short. Shares no code with the packers. */
TSR_NODISCARD tsr_status tsr_pack_check(const tsr_pack_problem *problem, const tsr_pack_solution *solution);

#endif
