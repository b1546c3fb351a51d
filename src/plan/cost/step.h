/* The cost of a step of a model on devices of given rates: the problem that src/split/search/optimize.h
 * solves. */
#ifndef TSR_PLAN_COST_STEP_H
#define TSR_PLAN_COST_STEP_H

#include "core/device_set.h"
#include "plan/planner.h"
#include "split/search/optimize.h"

typedef struct tsr_model_cost {
    tsr_cost_problem problem; /* points into this struct; rooms and `allowed` are the caller's to set */
    tsr_cost_class classes[TSR_CLASS_COUNT];
    tsr_split_room rooms[TSR_MAX_DEVICES];
    const tsr_device_rates *rates;   /* [n_devices]; the caller's */
    const tsr_links *links;          /* NULL: all-reduces by the rates */
    int64_t n_tokens, n_outputs;     /* of the step */
    int64_t n_touched;               /* whole experts divided: that a step uses; 0: no such */
    uint64_t row_bytes;              /* of one token in a transfer between layers */
    uint64_t sum_bytes;              /* of an element of a partial sum */
    const tsr_step_profile *profile; /* the planner's */
    bool sums_beside;                /* all-reduces of layers take no time: they run beside other work */
    double set_sync_ns[TSR_CLASS_COUNT][1 << TSR_OPTIMIZE_ALL_SUBSETS]; /* by set of devices; 0: not computed
                                                                         * yet */
    /* Nanoseconds of a transfer of the activations, of all tokens or only of those with outputs, from the
     * devices `from` to the devices of `to` that do not have them. `user` is problem.user. */
    double (*transfer_ns)(void *user, tsr_device_set from, tsr_device_set to, bool outputs);
} tsr_model_cost;

/* Whether planner->config.plan.rates has the rates of all weight types of the model, for all devices. */
bool tsr_model_cost_known(const tsr_planner *planner);

/* Costs of a step of n_tokens, as many of each of n_seq sequences, which have filled half of the context
 * before (one token of each: decoding). The output is computed for at most config.session.n_outputs_max rows.
 * Rooms are unlimited and all devices are allowed. TSR_ERR_INVALID if rates are not known. The cost borrows
 * the rates and links of planner->config. */
tsr_status tsr_model_cost_init(const tsr_planner *planner, int64_t n_tokens, int64_t n_seq,
                               tsr_model_cost *cost_out);

#endif
