/* See directory.h. */
#include "support/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[256];
static pid_t owner; /* children have the path, but do not remove the directory */

/* rm of a process of its own: all that is done here may be done by a signal handler. */
static void remove_directory(void)
{
    if (getpid() != owner)
        return;
    owner = 0;
    const pid_t child = fork();
    if (child == 0) {
        execl("/bin/rm", "rm", "-rf", directory, (char *)NULL);
        _exit(1);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
}

static void end_by_signal(int signal_number)
{
    remove_directory();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

const char *directory_path(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const char *parent = getenv("TMPDIR");
    if (*directory)
        return directory;
    snprintf(directory, sizeof directory, "%s/tsr-test-XXXXXX", parent && *parent ? parent : "/tmp");
    if (!mkdtemp(directory)) {
        fprintf(stderr, "%s: the directory of the test cannot be made: %s\n", directory, strerror(errno));
        exit(1);
    }
    owner = getpid();
    atexit(remove_directory);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], end_by_signal);
    return directory;
}

const char *directory_file(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory_path(), name);
    return path;
}

const char *directory_write(const char *name, const void *bytes, size_t n)
{
    char parents[512];
    snprintf(parents, sizeof parents, "%s", directory_file(name));
    for (char *at = parents + strlen(directory) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(parents, 0700); /* where it fails, so does opening the file */
        *at = '/';
    }
    FILE *file = fopen(parents, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return directory_file(name);
}

int directory_new(char path[DIRECTORY_PATH])
{
    snprintf(path, DIRECTORY_PATH, "%s/XXXXXX", directory_path());
    const int file = mkostemp(path, O_CLOEXEC);
    if (file < 0)
        fail_msg("%s: %s", path, strerror(errno));
    return file;
}
