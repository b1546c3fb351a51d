/* See program.h. */
#include "support/program.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/resource.h>
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

int program_run_limited(const char *arguments, size_t file_bytes, char *text, size_t bytes)
{
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){file_bytes, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* writing fails with EFBIG */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int code = program_run(arguments, text, bytes);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    return code;
}

void program_check(const char *arguments, int code, const char *phrase, char *text, size_t bytes)
{
    int got = program_run(arguments, text, bytes);
    if (got != code || !strstr(text, phrase))
        fail_msg("tsr %s: exit code %d: %s", arguments, got, text);
}

/* The text after the warnings that depend on the machine that runs the tests. */
static const char *without_machine(const char *text)
{
    static const char *const of_machine[] = {"tsr: warning: no GPU is usable (",
                                             "tsr: warning: 2 devices on 1 core: "};
    for (size_t i = 0; i < sizeof of_machine / sizeof *of_machine; i++) {
        const char *end = strchr(text, '\n');
        if (end && strncmp(text, of_machine[i], strlen(of_machine[i])) == 0)
            text = end + 1;
    }
    return text;
}

void program_check_cases(const program_case *cases, size_t n)
{
    static char text[1 << 16];
    for (size_t i = 0; i < n; i++) {
        program_check(cases[i].arguments, cases[i].code, cases[i].phrase, text, sizeof text);
        const char *end = strchr(without_machine(text), '\n');
        bool silenced = text[0] == '\0'; /* by the case's own redirection */
        if (cases[i].code && !silenced && (!end || end[1]))
            fail_msg("tsr %s: not one line: %s", cases[i].arguments, text);
    }
}
