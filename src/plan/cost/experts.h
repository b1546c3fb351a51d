/* What dividing whole experts over devices costs. */
#ifndef TSR_PLAN_COST_EXPERTS_H
#define TSR_PLAN_COST_EXPERTS_H

#include "split/search/optimize.h"

/* Expected nanoseconds of one walk of the FFN in which devices hold counts[n_devices] whole experts and
 * `n_touched` different ones are used, any of them alike.
 *
 * How many of them a device has, X_d, follows the multivariate hypergeometric distribution, and the walk
 * takes as long as the slowest device, max_d(fixed_d + X_d t_d), with t_d the time of one touched expert.
 * Since P(all X_d <= c_d) is the coefficient of z^n_touched in prod_d sum_{x <= c_d} C(counts_d, x) z^x over
 * C(n_experts, n_touched), and E[M] = integral of P(M > t), the expectation is exact: a sum over the times at
 * which some device is done with one expert more. (Johnson, Kotz, Balakrishnan: Discrete Multivariate
 * Distributions, 1997, chapter 39.) It is no less than the mean of any device, by Jensen's inequality, which
 * is what dividing columns costs. From TSR_EXPERTS_SPREAD touched experts on their spread is small, and left
 * out.
 *
 * granule_ns of `c` is that of one expert weighted with how often it is touched (plan/cost/step.h). */
double tsr_experts_walk_ns(const tsr_cost_class *c, int n_devices, const int64_t *counts, int64_t n_touched);

enum { TSR_EXPERTS_SPREAD = 64 };

#endif
