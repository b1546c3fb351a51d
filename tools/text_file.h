/* Reading a text from a file or standard input. */
#ifndef TSR_TOOLS_TEXT_FILE_H
#define TSR_TOOLS_TEXT_FILE_H

#include <stddef.h>

/* The bytes of the file at `path`, "-" for standard input; the caller frees them. `what` is "the prompt".
 * Returns TOOL_GO_ON or an exit code, after an error message that names `command`. */
int tool_text_read(const char *command, const char *what, const char *path, char **text_out,
                   size_t *bytes_out);

#endif
