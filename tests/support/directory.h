/* A directory of a test program's own, below /tmp, for the files that it writes. */
#ifndef TSR_TESTS_DIRECTORY_H
#define TSR_TESTS_DIRECTORY_H

#include <stddef.h>

/* Set-up and tear-down of a cmocka group. */
int directory_make(void **state);
int directory_remove(void **state);

/* Its path, and of a file below it; the latter is good until the next call. */
const char *directory_path(void);
const char *directory_file(const char *name);

/* The file, and the directories on its way. Returns its path, as directory_file() does. */
const char *directory_write(const char *name, const void *bytes, size_t n);

#endif
