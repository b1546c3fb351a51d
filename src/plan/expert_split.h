/* How the FFN of a mixture of experts is divided: columns of every expert, or whole experts. */
#ifndef TSR_MODEL_EXPERT_SPLIT_H
#define TSR_MODEL_EXPERT_SPLIT_H

#include "model/model.h"
#include "runtime/measuring.h"
#include "split/search/optimize.h"

/* Take the FFN's granules from config->expert_split (NULL: the default), before anything is decided. Where
 * that is TSR_EXPERT_SPLIT_AUTO, what takes less time by the rates (config's, else `rates`) on these devices,
 * for steps of config->plan_tokens; columns where it is the same, or not known. Errors as
 * tsr_model_config_resolve() and tsr_pins_find(). */
tsr_status tsr_model_shape_divide(tsr_model_shape *shape, const tsr_device_traits *traits, int n_devices,
                                  const tsr_device_rates *rates, const tsr_model_config *config);

/* The same on the devices of a runtime. */
tsr_status tsr_model_shape_divide_for(tsr_model_shape *shape, const tsr_runtime *rt,
                                      const tsr_model_config *config);

/* What was decided. */
tsr_expert_split tsr_expert_split_of(const tsr_hparams *hparams);

/* The shape with its FFN divided this way; it is one of experts. */
void tsr_expert_split_set(tsr_model_shape *shape, bool by_expert);

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
 * granule_ns of `c` is that of one expert weighted with how often it is touched (plan/cost.h). */
double tsr_experts_walk_ns(const tsr_cost_class *c, int n_devices, const int64_t *counts, int64_t n_touched);

enum { TSR_EXPERTS_SPREAD = 64 };

#endif
