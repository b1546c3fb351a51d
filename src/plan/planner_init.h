/* Making planners for devices that are listed, and for devices that are open. */
#ifndef TSR_PLAN_PLANNER_INIT_H
#define TSR_PLAN_PLANNER_INIT_H

#include "core/runtime.h"
#include "plan/planner.h"

/* Both resolve `config`, which tsr_model_config_read() gave, read its tensor_split and choose how experts are
 * divided. The planner borrows gguf and what `config` points to, and is freed with tsr_planner_free(). */

/* A planner for the model of a file, of which the header is enough, on devices that need not be open. */
tsr_status tsr_planner_init_for_list(const tsr_gguf *gguf, const tsr_device_list *devices,
                                     const tsr_model_config *config, tsr_planner *planner_out);

/* A planner for a model of this shape on the devices of a runtime. */
tsr_status tsr_planner_init_for_runtime(const tsr_runtime *rt, const tsr_model_shape *shape,
                                        const tsr_model_config *config, tsr_planner *planner_out);

#endif
