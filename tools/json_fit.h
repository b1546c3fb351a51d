/* A fit as JSON. */
#ifndef TSR_TOOLS_JSON_FIT_H
#define TSR_TOOLS_JSON_FIT_H

#include <jansson.h>

#include <tsr/fit.h>

/* New reference; NULL when out of memory. All sizes are bytes. */
json_t *tool_json_fit(const tsr_fit *fit, const char *model);

#endif
