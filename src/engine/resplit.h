/* Inside a change of split: models made anew beside those that are there,
 * and what that takes of the devices. */
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
    bool copies; /* of weights; else views */
} tsr_holding;

/* One model on its way. */
typedef struct tsr_resplit {
    tsr_model *model;
    tsr_model *next; /* the same under the new split, with a successor for every session */
    tsr_plan *plan;
    tsr_device_set exchanged; /* devices without room for the weights of both splits */
    bool exchanging;          /* their old weights are gone */
} tsr_resplit;

/* Several models that change together or not at all. */
typedef struct tsr_resplits {
    tsr_runtime *rt;
    tsr_split_request request; /* for models of other split modes than "none" */
    tsr_resplit *list;         /* [n] */
    int n;
    size_t caps[TSR_MAX_DEVICES];     /* of the devices; lifted meanwhile, since the accounting counts both */
    size_t deferred[TSR_MAX_DEVICES]; /* bytes charged once all that is prepared so far is done */
    size_t present[TSR_MAX_DEVICES];  /* bytes that are really taken, old and new */
    size_t peak_total[TSR_MAX_DEVICES]; /* of the accounting, before */
} tsr_resplits;

void tsr_holding_of(const tsr_model *model, int device, tsr_holding *holding_out);

/* The plan of one model under the new split, in the room that all others leave then. */
tsr_status tsr_resplit_plan(const tsr_resplits *all, const tsr_model *model, tsr_plan **plan_out);

/* Whether the old and the new can be there at once, if need be without their copied weights on the devices
 * r->exchanged, which it finds: adds to all->present what the new takes besides, or TSR_ERR_MEMORY naming the
 * device and the bytes that are missing. */
tsr_status tsr_resplit_admit(tsr_resplits *all, tsr_resplit *r);

void tsr_resplit_correct_peaks(const tsr_resplits *all);

#endif
