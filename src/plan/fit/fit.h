/* Inside a fit. */
#ifndef TSR_PLAN_FIT_FIT_H
#define TSR_PLAN_FIT_FIT_H

#include <tsr/fit.h>

#include "core/runtime.h"
#include "plan/decide.h"
#include "plan/plan.h"

enum { TSR_FIT_MAX_STEPS = TSR_FIT_CUT_COUNT };

struct tsr_fit {
    tsr_fit_info info;
    tsr_plan_device *wanted; /* [info.n_devices] */
    tsr_fit_step steps[TSR_FIT_MAX_STEPS];
    tsr_model_config config; /* as given, with what was chosen */
    tsr_plan *plan;
};

/* A config and its plan. */
typedef struct tsr_attempt {
    tsr_model_config config; /* not resolved */
    bool fits;
    tsr_plan_choice choice; /* of a config that does not fit only `wanted` */
} tsr_attempt;

/* The state of the search for a fit. */
typedef struct tsr_fitting {
    const tsr_planner *planner;    /* with margins in its props */
    tsr_device_props *lenient;     /* [n_devices] planner->props without a cap of the offload device */
    const tsr_model_config *given; /* not resolved */
    tsr_fit_config limits;
    int offload_device; /* -1: no device that has no other part */
    tsr_fit *fit;       /* the result: steps are added as they are taken */
    tsr_attempt attempts[3];
    tsr_attempt *now, *next, *spare; /* of attempts: all cuts so far; the next step; for trying cuts */
} tsr_fitting;

/* Something that can be cut by 0 (as wanted) to n_cuts (as far as allowed). Every cut needs less memory than
 * the previous one on all devices but the offload device. */
typedef struct tsr_fit_cut_rule {
    tsr_fit_cut cut;
    bool offloads; /* moves blocks to the offload device */
    int64_t (*n_cuts)(const tsr_fitting *fitting);
    void (*apply)(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config);
} tsr_fit_cut_rule;

/* In the order in which they are used up. */
enum { TSR_FIT_CUT_RULES = 4, TSR_FIT_CONTEXT_RULE = 1 };
extern const tsr_fit_cut_rule tsr_fit_cut_rules[TSR_FIT_CUT_RULES];

/* "context 131072 -> 8192 tokens": fill in step->text. */
void tsr_fit_write_step(const tsr_fitting *fitting, tsr_fit_step *step);

/* Plan `config` into *attempt_out, whose choice is freed first. With `lenient` the offload device has no cap.
 * A lack of room on the devices is no failure: attempt_out->fits is false then. */
tsr_status tsr_fit_attempt(const tsr_fitting *fitting, bool lenient, const tsr_model_config *config,
                           tsr_attempt *attempt_out);

/* Cut fitting->now until it fits or until nothing is left to cut. fitting->now is the result, and each
 * cut is a step of fitting->fit. */
tsr_status tsr_fit_search(tsr_fitting *fitting);

/* The values of a config, which need not be resolved, that a fit may change. */
tsr_fit_choice tsr_fit_choice_of(const tsr_model_shape *shape, const tsr_model_config *config);

/* Fit `given`, the config that the planner was made from. The margins of planner->props
 * are set; the plan of the fit lacks tsr_plan_note_devices(). */
tsr_status tsr_planner_fit(tsr_planner *planner, const tsr_model_config *given, tsr_fit **fit_out);

/* Read and check config->plan.fit, which is set, for n_devices devices. */
tsr_status tsr_fit_limits_read(const tsr_model_config *config, int n_devices, tsr_fit_config *limits_out);

/* Set props[n].margin: that of the fit, otherwise that of the config, otherwise the default. */
void tsr_fit_set_margins(const tsr_fit_config *limits, const tsr_model_config *config,
                         tsr_device_props *props, int n);

/* Limit the caps of a planner for a runtime to the memory that is free now, where weights are copied. */
tsr_status tsr_planner_limit_to_free(tsr_planner *planner, const tsr_runtime *rt);

/* The fit's plan, which the caller now owns. */
tsr_plan *tsr_fit_take_plan(tsr_fit *fit);

#endif
