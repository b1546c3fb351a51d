/* Inside a change of split: new models next to the existing ones, and the memory for both. */
#ifndef TSR_ENGINE_RESPLIT_H
#define TSR_ENGINE_RESPLIT_H

#include "core/device_set.h"
#include "plan/plan.h"
#include "model/session/session.h"
#include "split/request.h"

/* Bytes of one model and its sessions on one device, by owner. */
typedef struct tsr_holding {
    size_t bytes[TSR_MEMORY_COUNT];
    size_t kv_committed;
    bool copies; /* weights are copies; false: views */
} tsr_holding;

/* One model during the change. */
typedef struct tsr_resplit {
    tsr_model *model;
    tsr_model *next; /* the model under the new split, with a successor for every session */
    tsr_plan *plan;
    tsr_device_set exchanged; /* devices without room for the weights of both splits */
    bool exchanging;          /* devices whose old weights are freed */
} tsr_resplit;

/* Several models that change together or not at all. */
typedef struct tsr_resplits {
    tsr_runtime *rt;
    tsr_split_request request; /* for models of other split modes than "none" */
    tsr_resplit *list;         /* [n] */
    int n;
    tsr_device_set without;             /* devices that get nothing */
    size_t caps[TSR_MAX_DEVICES];       /* caps of the devices, lifted during the change, since the
                                       * accounting counts both splits */
    size_t deferred[TSR_MAX_DEVICES];   /* bytes charged after everything prepared so far */
    size_t present[TSR_MAX_DEVICES];    /* bytes in use by old and new split */
    size_t peak_total[TSR_MAX_DEVICES]; /* peaks of the accounting before the change */
} tsr_resplits;

/* tsr_runtime_resplit(), with arguments that were checked, and no share for the devices `without`. */
tsr_status tsr_resplit_all(tsr_runtime *rt, tsr_device_set without, const float *tensor_split,
                           int n_tensor_split);

/* The plan of tsr_model_resplit() with these arguments, which the caller destroys. Nothing changes. */
tsr_status tsr_resplit_preview(tsr_model *model, const float *tensor_split, int n_tensor_split,
                               tsr_plan **plan_out);

int tsr_resplit_n_sessions(const tsr_model *model);

void tsr_holding_of(const tsr_model *model, int device, tsr_holding *holding_out);

/* Plan one model under the new split, in the memory that all other models leave. */
tsr_status tsr_resplit_plan(const tsr_resplits *all, const tsr_model *model, tsr_plan **plan_out);

/* Check that the old and the new split fit at the same time. Devices where they fit only without the old
 * copied weights are added to r->exchanged. The additional bytes are added to all->present. TSR_ERR_MEMORY
 * names the device and the missing bytes. */
tsr_status tsr_resplit_admit(tsr_resplits *all, tsr_resplit *r);

void tsr_resplit_correct_peaks(const tsr_resplits *all);

#endif
