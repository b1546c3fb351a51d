/* Inside the printing of plans: what its files share. */
#ifndef TSR_PLAN_PRINT_TEXT_H
#define TSR_PLAN_PRINT_TEXT_H

#include "core/status.h"
#include "plan/plan.h"

enum { TSR_PLAN_CELL_BYTES = 64 };

typedef struct tsr_plan_printer {
    const tsr_plan *plan;
    tsr_write_fn write;
    void *user;
} tsr_plan_printer;

/* A piece of a line, at most 511 bytes of it. */
void tsr_plan_put(const tsr_plan_printer *p, const char *format, ...) TSR_PRINTF(2, 3);

/* tsr_put_paragraph() of at most 1023 bytes. */
void tsr_plan_put_wrapped(const tsr_plan_printer *p, const char *format, ...) TSR_PRINTF(2, 3);

/* "Stage 1: layers 0 to 39 on cuda0, cuda1", a line for each. */
void tsr_plan_put_stages(const tsr_plan_printer *p);

/* -- tables (table.c) -- */

/* Write a cell of at most TSR_PLAN_CELL_BYTES. `arg` says which of several like columns it is. */
typedef void tsr_plan_cell_fn(const tsr_plan *plan, const tsr_plan_device *device, int arg, char *text);

typedef struct tsr_plan_column {
    const char *heading;
    tsr_plan_cell_fn *cell;
    int arg;
} tsr_plan_column;

/* A table with a row per device, after an empty line. The first column has names under `title`. Devices with
 * consecutive names and equal cells share a row. `sum`, unless NULL, is the last row. Columns that do not fit
 * beside the others into TSR_PRINT_COLUMNS make another table below. */
void tsr_plan_put_table(const tsr_plan_printer *p, const char *title, const tsr_plan_column *columns,
                        int n_columns, const tsr_plan_device *devices, int n_devices,
                        const tsr_plan_device *sum);

/* The table of what devices hold: of a plan, or (`wanted`) of what would be wanted, with what is missing. */
void tsr_plan_put_memory(const tsr_plan_printer *p, const tsr_plan_device *devices, int n_devices,
                         bool wanted);

#endif
