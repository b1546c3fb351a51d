/* A GGUF file as JSON. */
#ifndef TSR_TOOLS_JSON_GGUF_H
#define TSR_TOOLS_JSON_GGUF_H

#include <jansson.h>

#include <tsr/gguf.h>

/* All keys with their values and all tensors; a new reference. Numbers that JSON lacks (infinite, not a
 * number, above 2^63) are null or a float. Strings are made valid UTF-8. */
json_t *tool_json_gguf(const tsr_gguf *gguf);

#endif
