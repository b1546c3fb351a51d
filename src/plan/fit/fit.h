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

/* One config, planned. */
typedef struct tsr_attempt {
    tsr_model_config config;                          /* not resolved */
    size_t wanted[TSR_MAX_DEVICES][TSR_MEMORY_COUNT]; /* if memory were no object */
    bool fits;
    tsr_plan_choice choice; /* where it fits */
} tsr_attempt;

/* The work on a fit. */
typedef struct tsr_fitting {
    const tsr_device_props *props; /* [n_devices], with margins */
    tsr_device_props *lenient;     /* [n_devices] the same, but the offload device has no cap */
    int n_devices;
    const tsr_model_shape *shape;
    const tsr_weights *weights;    /* declared */
    const tsr_device_rates *rates; /* where the config has none */
    const tsr_model_config *given; /* not resolved */
    tsr_fit_config limits;
    int offload_device;    /* -1: none that is apart */
    tsr_fit_choice wanted; /* before anything was cut */
    tsr_attempt attempts[3];
    tsr_attempt *now, *next, *spare; /* of them: as far as it has been cut; the next step; to try things in */
    tsr_fit_step steps[TSR_FIT_MAX_STEPS];
    int n_steps;
} tsr_fitting;

/* A rule of the ladder: something that can be cut by 0 (as wanted) to n_cuts (as far as allowed), each cut
 * wanting less than the one before of every device but the offload device. */
typedef struct tsr_fit_cut_rule {
    tsr_fit_cut cut;
    bool offloads; /* what goes from the devices comes to the offload device */
    int64_t (*n_cuts)(const tsr_fitting *fitting);
    void (*apply)(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config);
} tsr_fit_cut_rule;

/* From the first to give way to the last; the first is the context. */
enum { TSR_FIT_CUT_RULES = 4 };
extern const tsr_fit_cut_rule tsr_fit_cut_rules[TSR_FIT_CUT_RULES];

/* "context 131072 -> 8192 tokens": fill in step->text. */
void tsr_fit_write_step(const tsr_fitting *fitting, tsr_fit_step *step);

/* Plan `config` on `props` into *attempt_out, whose decision is freed first. That the devices have no room
 * is no failure but attempt_out->fits. */
tsr_status tsr_fit_attempt(const tsr_fitting *fitting, const tsr_device_props *props,
                           const tsr_model_config *config, tsr_attempt *attempt_out);

/* Cut fitting->now down the ladder until it fits, or to the end of the ladder; each cut becomes a step. */
tsr_status tsr_fit_search(tsr_fitting *fitting);

/* What a config that is not resolved chooses. */
tsr_fit_choice tsr_fit_choice_of(const tsr_model_shape *shape, const tsr_model_config *config);

/* tsr_fit_create() for devices that are open; `config` is not resolved, config->fit not NULL. */
tsr_status tsr_fit_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                               const tsr_model_config *config, tsr_fit **fit_out);

/* The fit's plan, which the caller now owns. */
tsr_plan *tsr_fit_take_plan(tsr_fit *fit);

/* Bytes of what the device would hold and of its margin that it does not have. */
static inline size_t tsr_fit_missing(const tsr_plan_device *wanted)
{
    tsr_device_props props = {.memory_cap = wanted->memory_cap, .margin = wanted->margin_bytes};
    return tsr_device_props_missing(&props, wanted->total_bytes);
}

#endif
