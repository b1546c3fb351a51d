/* Files that are replaced as a whole: written as a draft next to the file, which then takes its name. A write
 * that fails leaves an earlier file as it was. Pipes and devices, such as /dev/stdout, are written in place;
 * a symbolic link stays, and the file that it names is replaced. */
#ifndef TSR_TOOLS_REPLACE_FILE_H
#define TSR_TOOLS_REPLACE_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* Write the contents; false, with errno, on failure. Errors of the stream need no check. */
typedef bool tool_file_fn(FILE *file, const void *user);

/* Whether the file can be created or replaced; creates and removes a draft. False with errno. */
bool tool_file_can_replace(const char *path);

/* False, with errno, on failure. */
bool tool_file_replace(const char *path, tool_file_fn *write, const void *user);

#endif
