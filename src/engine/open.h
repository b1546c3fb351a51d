/* A model that was planned and then loaded. */
#ifndef TSR_ENGINE_OPEN_H
#define TSR_ENGINE_OPEN_H

#include "model/model.h"

/* Make plan the model's, in place of the one it has. */
void tsr_model_set_plan(tsr_model *model, tsr_plan *plan);
#endif
