/* Inside the printing of plans: what its files share. */
#ifndef TSR_PLAN_PRINT_TEXT_H
#define TSR_PLAN_PRINT_TEXT_H

#include "core/status.h"
#include "plan/plan.h"

typedef struct tsr_plan_printer {
    const tsr_plan *plan;
    tsr_write_fn write;
    void *user;
} tsr_plan_printer;

/* "Stage 1: layers 0 to 39 on cuda0, cuda1", a line for each. */
void tsr_plan_put_stages(const tsr_plan_printer *p);

/* A piece of a line, at most 511 bytes of it. */
void tsr_plan_put(const tsr_plan_printer *p, const char *format, ...) TSR_PRINTF(2, 3);

/* The table of what devices hold: of a plan, or (`wanted`) of what would be wanted, with what is missing. */
void tsr_plan_put_memory(const tsr_plan_printer *p, const tsr_plan_device *devices, int n_devices,
                         bool wanted);

#endif
