/* A plan as JSON. */
#ifndef TSR_TOOLS_JSON_PLAN_H
#define TSR_TOOLS_JSON_PLAN_H

#include <jansson.h>

#include <tsr/plan.h>

/* New reference; NULL when out of memory. All sizes are bytes, shares are fractions of 1. */
json_t *tool_json_plan(const tsr_plan *plan, const char *model);

/* Bytes by the name of their owner; a new reference. */
json_t *tool_json_bytes(const size_t bytes[TSR_MEMORY_COUNT]);

#endif
