/* A model that was planned and then loaded. */
#ifndef TSR_ENGINE_OPEN_H
#define TSR_ENGINE_OPEN_H

#include "model/model.h"

/* Give `plan` to the model, in place of its current plan; the limit of its steps' time grows with it. */
void tsr_model_set_plan(tsr_model *model, tsr_plan *plan);
#endif
