/* A directory of a test program's own, below $TMPDIR or /tmp, for the files that it writes. It is made
 * when it is first used and removed with all that is in it when the program ends, also by a failed test or
 * by SIGINT, SIGTERM or SIGHUP. */
#ifndef TSR_TESTS_DIRECTORY_H
#define TSR_TESTS_DIRECTORY_H

#include <stddef.h>

/* Room for the path of directory_new(). */
enum { DIRECTORY_PATH = 288 };

/* Its path, and of a file below it; the latter is good until the next call. */
const char *directory_path(void);
const char *directory_file(const char *name);

/* The file, and the directories on its way. Returns its path, as directory_file() does. */
const char *directory_write(const char *name, const void *bytes, size_t n);

/* A new empty file with a name of its own. Returns its descriptor. */
int directory_new(char path[DIRECTORY_PATH]);

#endif
