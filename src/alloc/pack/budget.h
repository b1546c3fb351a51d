/* What a search for a packing may spend. */
#ifndef TSR_ALLOC_PACK_BUDGET_H
#define TSR_ALLOC_PACK_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/pack/problem.h"

typedef struct tsr_pack_budget {
    int64_t nodes;       /* placements to try; what was spent is taken off */
    int64_t deadline_ns; /* of the thread's CPU clock; 0: none, so that every machine finds the same */
} tsr_pack_budget;

/* The limits (NULL: the default) as a budget for a problem of n_items. The default costs about the same for
 * few items as for many. */
tsr_pack_budget tsr_pack_budget_of(int n_items, const tsr_pack_limits *limits);

/* Half of a budget, for a part of the work; and taking what the part has spent off the whole. */
tsr_pack_budget tsr_pack_budget_half(const tsr_pack_budget *budget);
static inline void tsr_pack_spend(tsr_pack_budget *budget, int64_t nodes)
{
    budget->nodes -= nodes < budget->nodes ? nodes : budget->nodes;
}

/* Whether nothing is left of it. */
bool tsr_pack_budget_is_over(const tsr_pack_budget *budget);

#endif
