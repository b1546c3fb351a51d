/* Running the tsr command the way a shell does, for tests of what a user meets. */
#ifndef TSR_TESTS_PROGRAM_H
#define TSR_TESTS_PROGRAM_H

#include <stddef.h>

/* The command's path: build/bin/tsr beside build/tests/<this test>. Skips the test where it was not built. */
const char *program_path(void);

/* Run `tsr ARGUMENTS` through the shell. Standard output and error together end up in text[bytes], cut and
 * NUL-terminated, unless the arguments redirect them. Returns the exit code; fails the test on a signal. */
int program_run(const char *arguments, char *text, size_t bytes);

#endif
