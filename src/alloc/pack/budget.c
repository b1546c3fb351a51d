/* Budgets count placements, and CPU time if the caller limits it. */
#include "alloc/pack/budget.h"

#include <time.h>

#include "core/mem.h"

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

tsr_pack_budget tsr_pack_budget_of(int n_items, const tsr_pack_limits *limits)
{
    enum { DEFAULT_ITEMS = 1000000 }; /* items visited, about 0.1 us each */
    tsr_pack_budget budget = {.nodes = limits ? limits->max_nodes : DEFAULT_ITEMS / TSR_MAX(n_items, 1)};
    if (limits && limits->max_cpu_seconds > 0)
        budget.deadline_ns = cpu_ns() + (int64_t)(TSR_MIN(limits->max_cpu_seconds, 1e9) * 1e9);
    return budget;
}

tsr_pack_budget tsr_pack_budget_half(const tsr_pack_budget *budget)
{
    tsr_pack_budget half = {.nodes = budget->nodes - budget->nodes / 2};
    if (budget->deadline_ns) {
        int64_t now = cpu_ns();
        half.deadline_ns = now + TSR_MAX(budget->deadline_ns - now, 2) / 2;
    }
    return half;
}

bool tsr_pack_budget_is_over(const tsr_pack_budget *budget)
{
    return budget->nodes == 0 || (budget->deadline_ns && cpu_ns() >= budget->deadline_ns);
}
