/* Plans are what loading takes: for random models and configurations the planned bytes of every device and
 * owner are the bytes allocated, and everything that a plan says adds up (support/plan_check.h). */
#ifndef TSR_TESTS_PLANNED_H
#define TSR_TESTS_PLANNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/runtime.h>

#include "support/directory.h"

enum { PLANNED_MODELS = 14 };

/* `n` configurations, less or more where TSR_TEST_ROUNDS (300 by default) says so; at least 8. */
int planned_rounds(int n);

typedef struct planned_models {
    char paths[PLANNED_MODELS][DIRECTORY_PATH];
} planned_models;

/* Random models, the same every time. */
void planned_models_write(planned_models *models);
void planned_models_remove(const planned_models *models);

/* A test's own look at the devices: once everything is loaded, and after two steps. */
typedef void planned_look(const tsr_runtime *rt);

/* What is different with GPUs. */
typedef struct planned_gpus {
    size_t granularity;      /* of their memory */
    const char *collectives; /* as in tsr_runtime_config */
    bool run;                /* run the steps, which takes long on simulated GPUs */
} planned_gpus;

/* Plan one of the models with a random configuration for `spec` on `topo`, load it there, run two steps and
 * close it, comparing the accounting with the plan at each point. `look` may be NULL.
 * `gpus` is NULL for host devices. False where planning was refused (a cap is too low, or blocks cannot be
 * offloaded like that); then loading was, too, for the same reason. */
bool planned_check(const planned_models *models, uint64_t *seed, const tsr_topology *topo, const char *spec,
                   int n_devices, const planned_gpus *gpus, planned_look *look);

#endif
