/* The entry of the packer: chooses the strategy for a problem. */
#include "alloc/pack/pack.h"

#include "alloc/pack/work.h"

tsr_status tsr_pack_solve(const tsr_pack_problem *problem, const tsr_pack_limits *limits,
                          tsr_pack_solution *solution_out)
{
    tsr_pack_budget budget = tsr_pack_budget_of(problem->n_items, limits);
    size_t capacity = limits ? limits->capacity : 0;
    for (int i = 0; problem->items && i < problem->n_items; i++)
        if (problem->items[i].share != TSR_PACK_APART)
            return tsr_pack_shared(problem, capacity, &budget, solution_out);
    return tsr_pack_apart(problem, capacity, &budget, solution_out);
}
