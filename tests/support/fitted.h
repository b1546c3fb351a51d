/* Fits are what loading takes: for random models, caps, margins and configurations the fit keeps every
 * margin, planning with its result gives its plan, one step more of context does not fit, and opening a model
 * with fit set allocates just those bytes. */
#ifndef TSR_TESTS_FITTED_H
#define TSR_TESTS_FITTED_H

#include <stdint.h>

#include <tsr/fit.h>

#include "support/directory.h"

enum { FITTED_DENSE_MODELS = 6, FITTED_MODELS = 8 }; /* the others: mixtures of experts */

typedef struct fitted_models {
    char paths[FITTED_MODELS][DIRECTORY_PATH];
} fitted_models;

/* Random models with long contexts, the same every time. */
void fitted_models_write(fitted_models *models);
void fitted_models_remove(const fitted_models *models);

typedef struct fitted_look {
    int n_cut, n_offloaded, n_short; /* fits that cut something; that offloaded layers; that do not exist */
} fitted_look;

/* Fit one of the models with a random configuration into n_devices devices, each `device` (a --devices item)
 * with a cap of its own, or the last one a host device to offload to, and check it. */
void fitted_check(const fitted_models *models, uint64_t *seed, const tsr_topology *topo, const char *device,
                  int n_devices, fitted_look *look);

/* tsr_fit_create() over the devices of a --devices text. */
tsr_status fitted_over(const tsr_topology *topo, const tsr_gguf *gguf, const char *devices,
                       const tsr_model_config *config, tsr_fit **fit_out);

/* A fit's description, and a step that it must have. */
tsr_fit_info fitted_info(const tsr_fit *fit);
tsr_fit_step fitted_step(const tsr_fit *fit, int index);

#endif
