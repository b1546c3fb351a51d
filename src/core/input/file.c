#include "core/input/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tsr_status tsr_file_open(const char *path, int *fd_out, int64_t *bytes_out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int why = fd < 0 || fstat(fd, &info) != 0 ? errno : S_ISREG(info.st_mode) ? 0 : EINVAL;
    if (why == 0) {
        *fd_out = fd;
        *bytes_out = info.st_size;
        return TSR_OK;
    }
    tsr_status status = tsr_fail(
        TSR_ERR_IO, "cannot open '%s': %s", path,
        why == EINVAL ? "it is not a regular file; copy its content to one, and name that" : strerror(why));
    if (fd >= 0)
        close(fd);
    errno = why;
    return status;
}
