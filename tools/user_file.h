/* Places of the user's own files, by the XDG Base Directory Specification. */
#ifndef TSR_TOOLS_USER_FILE_H
#define TSR_TOOLS_USER_FILE_H

#include <stdbool.h>

enum { TOOL_PATH = 4096 };

/* The path of `file` in the folder tsr of $`variable` ("XDG_CACHE_HOME"), or of `folder` (".cache") in the
 * home directory. False if no variable says where. */
bool tool_user_path(const char *variable, const char *folder, const char *file, char path[TOOL_PATH]);

/* Create every folder of `path`, which is unchanged afterwards; false, with errno, on failure. */
bool tool_make_folders(char *path);

#endif
