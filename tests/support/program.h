/* Running the tsr command the way a shell does, for tests of what a user meets. */
#ifndef TSR_TESTS_PROGRAM_H
#define TSR_TESTS_PROGRAM_H

#include <stddef.h>

/* The command's path: build/bin/tsr beside build/tests/<this test>. Skips the test where it was not built. */
const char *program_path(void);

/* Run `tsr ARGUMENTS` through the shell. Standard output and error together end up in text[bytes], cut and
 * NUL-terminated, unless the arguments redirect them. Returns the exit code; fails the test on a signal. */
int program_run(const char *arguments, char *text, size_t bytes);

/* The same, with files limited to `file_bytes` bytes, as on a full disk. */
int program_run_limited(const char *arguments, size_t file_bytes, char *text, size_t bytes);

/* As program_run(); fails the test unless it exits with `code` and prints `phrase`. */
void program_check(const char *arguments, int code, const char *phrase, char *text, size_t bytes);

typedef struct program_case {
    const char *arguments;
    int code;
    const char *phrase;
} program_case;

/* Check each; one that fails (exit code not 0) must have printed exactly one line, unless its arguments
 * redirect that. A build with CUDA, on a machine without a GPU, may say so in a line before it. */
void program_check_cases(const program_case *cases, size_t n);

#endif
