/* The progress bar, on a terminal of the test's own and by a clock of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "../tools/progress.h"
#include "../tools/tsr.h"

static double now_s;

double tool_clock(void)
{
    return now_s;
}

static int terminal, own_stderr; /* the user's end */

/* stderr is a terminal of that many columns; 0: a file. */
static void set_stderr(unsigned short columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    fflush(stderr);
    own_stderr = dup(STDERR_FILENO);
    terminal = columns ? posix_openpt(O_RDWR | O_NOCTTY) : open("/dev/null", O_RDWR);
    assert_true(terminal >= 0);
    int end = terminal;
    if (columns) {
        assert_true(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
        end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
        assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
    }
    assert_true(dup2(end, STDERR_FILENO) >= 0);
    close(end == terminal ? -1 : end);
    now_s = 100;
}

static void restore_stderr(void)
{
    fflush(stderr);
    dup2(own_stderr, STDERR_FILENO);
    close(own_stderr);
    close(terminal);
}

/* What was written to the terminal since the last call. */
static const char *screen(void)
{
    static char text[4096];
    struct pollfd wait = {.fd = terminal, .events = POLLIN};
    size_t used = 0;
    fflush(stderr);
    while (poll(&wait, 1, 50) > 0 && wait.revents & POLLIN)
        used += (size_t)read(terminal, text + used, sizeof text - 1 - used);
    text[used] = '\0';
    return text;
}

static void show_at(tool_progress *p, double seconds, double fraction)
{
    now_s = 100 + seconds;
    tool_progress_show(fraction, p);
}

static void a_bar_comes_after_two_seconds_and_goes_at_the_end(void **state)
{
    (void)state;
    tool_progress p = {.what = "loading"};
    set_stderr(80);
    show_at(&p, 0, 0);
    show_at(&p, 1.9, 0.2);
    assert_string_equal(screen(), "");
    show_at(&p, 2, 0.25);
    assert_string_equal(screen(),
                        "\rloading [##########..............................] 25 %, 6 s left\033[K");
    show_at(&p, 2.1, 0.26); /* not that often */
    assert_string_equal(screen(), "");
    show_at(&p, 400, 0.5);
    assert_string_equal(screen(),
                        "\rloading [####################....................] 50 %, 6 min 40 s left\033[K");
    show_at(&p, 401, 1);
    assert_string_equal(screen(), "\r\033[K");
    show_at(&p, 402, 1);
    tool_progress_end(&p);
    assert_string_equal(screen(), "");

    show_at(&p, 500, 0); /* the next work has a time of its own */
    show_at(&p, 501, 0.5);
    assert_string_equal(screen(), "");
    show_at(&p, 7700, 0.5);
    assert_non_null(strstr(screen(), "50 %, 2 h 0 min left"));
    tool_progress_end(&p);
    assert_string_equal(screen(), "\r\033[K");
    restore_stderr();
}

/* A terminal continues a full line in the next, and only the last line would be erased. */
static void the_line_is_shorter_than_the_terminal(void **state)
{
    (void)state;
    for (unsigned short columns = 1; columns < 100; columns++) {
        tool_progress p = {.what = "loading"};
        set_stderr(columns);
        show_at(&p, 0, 0);
        show_at(&p, 10, 0.995);
        const char *line = screen();
        size_t length = strcspn(line, "\033");
        assert_true(length <= columns); /* with the \r */
        assert_int_equal(length > 0, columns > strlen("loading 99 %, 0 s left"));
        tool_progress_end(&p);
        restore_stderr();
    }
}

static void nothing_is_shown_when_quiet_or_without_a_terminal(void **state)
{
    (void)state;
    tool_progress quiet = {.what = "loading", .quiet = true}, normal = {.what = "loading"};
    set_stderr(80);
    assert_false(tool_progress_is_on(&quiet));
    assert_true(tool_progress_is_on(&normal));
    show_at(&quiet, 0, 0);
    show_at(&quiet, 10, 0.5);
    tool_progress_end(&quiet);
    assert_string_equal(screen(), "");
    restore_stderr();
    set_stderr(0);
    assert_false(tool_progress_is_on(&normal));
    show_at(&normal, 0, 0);
    show_at(&normal, 10, 0.5);
    assert_false(normal.drawn);
    restore_stderr();
}

/* The shell's prompt comes in a clean line; the process ends by the signal as without a bar. */
static void ctrl_c_erases_the_bar(void **state)
{
    (void)state;
    int how;
    set_stderr(80);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        tool_progress p = {.what = "loading"};
        signal(SIGINT, SIG_DFL);
        show_at(&p, 0, 0);
        show_at(&p, 10, 0.5);
        raise(SIGINT);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGINT);
    const char *text = screen();
    assert_true(strlen(text) > 4);
    assert_string_equal(text + strlen(text) - 4, "\r\033[K");
    restore_stderr();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bar_comes_after_two_seconds_and_goes_at_the_end),
        cmocka_unit_test(the_line_is_shorter_than_the_terminal),
        cmocka_unit_test(nothing_is_shown_when_quiet_or_without_a_terminal),
        cmocka_unit_test(ctrl_c_erases_the_bar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
