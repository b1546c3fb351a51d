/* Files in memory, see memory_file.h. */
#include "support/memory_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

struct memory_file memory_file_create(const void *data, size_t bytes)
{
    struct memory_file file = {.fd = memfd_create("tsr_test", MFD_CLOEXEC)};
    assert_true(file.fd >= 0);
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(file.fd, (const char *)data + done, bytes - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
    return file;
}

void memory_file_resize(struct memory_file *file, uint64_t bytes)
{
    assert_int_equal(ftruncate(file->fd, (off_t)bytes), 0);
}

void memory_file_destroy(struct memory_file *file)
{
    close(file->fd);
    file->fd = -1;
}
