/* The budget of a search for a packing. */
#ifndef TSR_ALLOC_PACK_BUDGET_H
#define TSR_ALLOC_PACK_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/pack/problem.h"

typedef struct tsr_pack_budget {
    int64_t nodes;       /* placements left to try */
    int64_t deadline_ns; /* of the thread's CPU clock; 0: none, so that all machines find the same packing */
} tsr_pack_budget;

/* The limits (NULL: the default) as a budget for a problem of n_items. The default takes about the same time
 * for few items as for many. */
tsr_pack_budget tsr_pack_budget_of(int n_items, const tsr_pack_limits *limits);

/* tsr_pack_budget_half(): half of a budget, for a part of the work. tsr_pack_spend(): subtract the part's
 * placements. */
tsr_pack_budget tsr_pack_budget_half(const tsr_pack_budget *budget);
static inline void tsr_pack_spend(tsr_pack_budget *budget, int64_t nodes)
{
    budget->nodes -= nodes < budget->nodes ? nodes : budget->nodes;
}

/* Whether the budget is spent. */
bool tsr_pack_budget_is_over(const tsr_pack_budget *budget);

#endif
