/* Inside a plan. */
#ifndef TSR_MODEL_PLAN_H
#define TSR_MODEL_PLAN_H

#include "plan/offload.h"
#include "runtime/measuring.h"

struct tsr_model_cost;

enum { TSR_PLAN_MAX_NOTES = TSR_MAX_DEVICES + 8 };

struct tsr_plan {
    tsr_plan_info info;
    tsr_plan_device *devices; /* [info.n_devices] */
    tsr_model_split split;
    tsr_plan_times times;
    tsr_plan_alternative *alternatives; /* [n_alternatives] */
    int n_alternatives;
    double with_ns[TSR_MAX_DEVICES]; /* decoding if a device that is left out took part; 0: not known */
    char *notes[TSR_PLAN_MAX_NOTES];
    int n_notes;
};

/* What a split takes on every device, found by loading it on stand-ins. */
typedef struct tsr_measurement {
    size_t (*used)[TSR_MEMORY_COUNT]; /* [n_devices] */
    size_t *kv_windowed;              /* [n_devices] of TSR_MEMORY_KV, of layers with a window */
    size_t *arena_bound;              /* [n_devices] */
    size_t *arena_unordered;          /* [n_devices] */
    tsr_program_info program;
} tsr_measurement;

tsr_status tsr_measurement_create(const tsr_device_traits *traits, int n_devices,
                                  const tsr_model_shape *shape, const tsr_model_config *resolved,
                                  const tsr_model_split *split, tsr_measurement *measurement_out);
void tsr_measurement_free(tsr_measurement *measurement);

/* Arrays of zeros; tsr_measurement_free() takes what a failure leaves. */
tsr_status tsr_measurement_init(tsr_measurement *measurement, int n_devices);

typedef struct tsr_decision {
    tsr_pins pins;
    tsr_model_split split;
    tsr_measurement measurement;
    bool automatic, proven; /* as in tsr_plan_times */
} tsr_decision;

/* What deciding found out about memory on its way, whether or not it came to a decision. */
typedef struct tsr_outlook {
    /* [n_devices], the caller's: what the devices would hold if memory were no object. */
    size_t (*wanted)[TSR_MEMORY_COUNT];
    bool no_room; /* TSR_ERR_MEMORY is about the devices' memory, not the host's own */
} tsr_outlook;

/* Choose granule counts (or layers) for the devices so that everything fits, and measure the result. Without
 * a tensor_split the counts are those that take the least time by resolved->rates. On failure the message
 * names the device and the bytes that are missing. `outlook` may be NULL. */
tsr_status tsr_plan_decide(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                           const tsr_weights *weights, const tsr_model_config *resolved, tsr_outlook *outlook,
                           tsr_decision *decision_out);
void tsr_decision_free(tsr_decision *decision);

/* What a plan is made of. */
typedef struct tsr_planning {
    tsr_model_shape shape;
    tsr_device_traits *traits; /* [n_devices] */
    tsr_device_rates *rates;   /* [n_devices] guessed, for a config without any */
    int n_devices;
} tsr_planning;

tsr_status tsr_planning_of_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                tsr_planning *planning_out);
void tsr_planning_free(tsr_planning *planning);

/* Each host device of a NUMA node may have all of its memory, so that unequal shares fit. What they take
 * together is nobody's cap; the plan gets a note where it is more than the memory. */
tsr_status tsr_plan_note_shared_memory(const tsr_device_list *devices, tsr_plan *plan);

/* The plan of a decision, whose split it takes over. */
tsr_status tsr_plan_of_decision(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                                const tsr_weights *weights, const tsr_model_config *resolved,
                                tsr_decision *decision, tsr_plan **plan_out);

/* Plan for devices of these traits; resolved->rates must be there. */
tsr_status tsr_plan_for_devices(const tsr_device_traits *traits, int n_devices, const tsr_model_shape *shape,
                                const tsr_model_config *resolved, tsr_plan **plan_out);

/* Fill plan->times and the alternatives from plan->split and the rates. */
tsr_status tsr_plan_predict_times(tsr_plan *plan, const tsr_model_shape *shape, const tsr_weights *weights,
                                  const tsr_model_config *resolved);

enum { TSR_PLAN_MODE_ALTERNATIVES = 4 };

/* Add the best of every mode to the alternatives, which have room for so many, but of `wanted` where the plan
 * is that. The costs are of its two phases; those of decoding are changed. */
tsr_status tsr_plan_add_modes(tsr_plan *plan, const tsr_model_shape *shape, const tsr_weights *weights,
                              struct tsr_model_cost *decode, struct tsr_model_cost *prompt,
                              tsr_split_mode wanted);

#endif
