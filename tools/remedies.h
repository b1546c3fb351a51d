/* What makes a model fit that does not: options that were tried, for `tsr plan`. */
#ifndef TSR_TOOLS_REMEDIES_H
#define TSR_TOOLS_REMEDIES_H

#include <jansson.h>

#include "plan_inputs.h"

typedef struct tool_remedy {
    char options[128]; /* "-c 17152", or "tsr fit"; "": no option does that */
    char text[128];    /* what they do */
} tool_remedy;

enum { TOOL_MAX_REMEDIES = 8 };

/* All zeros for a model that fits; otherwise at least one. */
typedef struct tool_remedies {
    tool_remedy list[TOOL_MAX_REMEDIES];
    int n;
} tool_remedies;

/* Change the inputs, which have no room for the model, in one way at a time, and keep the changes with which
 * the model fits. The last remedy is a smaller quantization, which is not tried. `uncapped` is the plan by
 * tsr_plan_create_uncapped(). */
void tool_remedies_find(const tool_model_options *model, const tool_machine_options *machine,
                        const tool_plan_inputs *in, const tsr_plan *uncapped, tool_remedies *remedies_out);

/* A line for each; nothing if there are none. */
void tool_remedies_print(const tool_remedies *remedies, FILE *out);

/* An array of {"options", "text"}; options is null where no option does that. */
json_t *tool_remedies_json(const tool_remedies *remedies);

#endif
