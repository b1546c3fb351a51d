/* Reading JSON from a file. */
#ifndef TSR_TOOLS_JSON_FILE_H
#define TSR_TOOLS_JSON_FILE_H

#include <jansson.h>

/* The value in the regular file at `path`. NULL, and a sentence in tsr_last_error(), if there is none; errno
 * is then EINVAL for another kind of file, and 0 for a file that is not JSON. */
json_t *tool_json_load(const char *path);

#endif
