#include "json_file.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "core/input/file.h"

json_t *tool_json_load(const char *path)
{
    json_error_t error;
    int64_t bytes;
    int fd;
    if (tsr_file_open(path, &fd, &bytes) != TSR_OK)
        return NULL;
    json_t *root = json_loadfd(fd, 0, &error);
    close(fd);
    if (!root) {
        tsr_fail_store("'%s' is not JSON: line %d: %s", path, error.line, error.text);
        errno = 0;
    }
    return root;
}
