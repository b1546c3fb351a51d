/* See program.h. */
#include "support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

const char *program_path(void)
{
    static char path[4096];
    char self[2048];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
        *strrchr(self, '/') = '\0';
        snprintf(path, sizeof path, "%s/../bin/tsr", self);
    }
    if (access(path, X_OK) != 0) {
        print_message("skipped: no program at %s\n", path);
        skip();
    }
    return path;
}

int program_run(const char *arguments, char *text, size_t bytes)
{
    char line[8192];
    snprintf(line, sizeof line, "'%s' 2>&1 %s", program_path(), arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t used = fread(text, 1, bytes - 1, pipe);
    text[used] = '\0';
    int how = pclose(pipe);
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

void program_check(const char *arguments, int code, const char *phrase, char *text, size_t bytes)
{
    int got = program_run(arguments, text, bytes);
    if (got != code || !strstr(text, phrase))
        fail_msg("tsr %s: exit code %d: %s", arguments, got, text);
}

void program_check_cases(const program_case *cases, size_t n)
{
    static const char no_gpu[] = "tsr: warning: no GPU is usable (";
    static char text[1 << 16];
    for (size_t i = 0; i < n; i++) {
        program_check(cases[i].arguments, cases[i].code, cases[i].phrase, text, sizeof text);
        const char *end = strchr(text, '\n');
        if (end && strncmp(text, no_gpu, strlen(no_gpu)) == 0)
            end = strchr(end + 1, '\n');
        bool silenced = text[0] == '\0'; /* by the case's own redirection */
        if (cases[i].code && !silenced && (!end || end[1]))
            fail_msg("tsr %s: not one line: %s", cases[i].arguments, text);
    }
}
