/* A naive check of plans that shares no code with the planner: what must add up, added up. */
#ifndef TSR_TESTS_PLAN_CHECK_H
#define TSR_TESTS_PLAN_CHECK_H

#include <tsr/plan.h>

/* Fail the test unless everything that `plan` says of `gguf` under `config` adds up. `capped`: a device has a
 * memory cap, so that achieved shares may be far from the requested ones. */
void plan_check(const tsr_plan *plan, const tsr_gguf *gguf, const tsr_model_config *config, bool capped);

/* The same for GPUs whose memory grows by `granularity` bytes: they copy weights in any case. */
void plan_check_gpus(const tsr_plan *plan, const tsr_gguf *gguf, const tsr_model_config *config,
                     size_t granularity);

/* Fail the test unless two plans say the same, notes included. */
void plan_check_equal(const tsr_plan *a, const tsr_plan *b);

#endif
