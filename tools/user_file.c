/* Places of the user's own files; see user_file.h. */
#include "user_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool tool_user_path(const char *variable, const char *folder, const char *file, char path[TOOL_PATH])
{
    const char *base = getenv(variable), *home = getenv("HOME");
    int n;
    if (base && *base == '/') /* by the specification, relative paths are ignored */
        n = snprintf(path, TOOL_PATH, "%s/tsr/%s", base, file);
    else if (home && *home)
        n = snprintf(path, TOOL_PATH, "%s/%s/tsr/%s", home, folder, file);
    else
        return false;
    return n < TOOL_PATH;
}

bool tool_make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made)
            return false;
    }
    return true;
}
