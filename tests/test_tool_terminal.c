/* tsr on a terminal: lines of a conversation are edited, and recalled in later calls; a long prompt has a
 * progress bar. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "../tools/interrupt.h"
#include "support/directory.h"
#include "support/program.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

/* A process with a terminal as standard input and standard error. */
typedef struct session {
    pid_t process;
    int terminal;         /* the user's end */
    int output;           /* standard output, a file */
    char screen[1 << 16]; /* what it wrote to the terminal after the last expected text */
    size_t bytes;
} session;

static void start(session *s, char *const arguments[])
{
    char path[DIRECTORY_PATH];
    const char *program = program_path();
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    *s = (session){.terminal = posix_openpt(O_RDWR | O_NOCTTY), .output = directory_new(path)};
    assert_true(s->terminal >= 0 && s->output >= 0);
    unlink(path);
    assert_true(grantpt(s->terminal) == 0 && unlockpt(s->terminal) == 0);
    assert_int_equal(ioctl(s->terminal, TIOCSWINSZ, &size), 0);
    s->process = fork();
    assert_true(s->process >= 0);
    if (s->process == 0) {
        setsid(); /* Ctrl-C comes from the controlling terminal, the first that is opened */
        int end = open(ptsname(s->terminal), O_RDWR);
        dup2(end, STDIN_FILENO);
        dup2(s->output, STDOUT_FILENO);
        dup2(end, STDERR_FILENO);
        close(end);
        close(s->terminal);
        execv(program, arguments);
        _exit(127);
    }
}

/* Read what appears on the screen until `text` does. */
static void expect(session *s, const char *text)
{
    struct pollfd wait = {.fd = s->terminal, .events = POLLIN};
    while (!strstr(s->screen, text)) {
        ssize_t n = poll(&wait, 1, 300000) > 0
                        ? read(s->terminal, s->screen + s->bytes, sizeof s->screen - 1 - s->bytes)
                        : 0;
        if (n <= 0)
            fail_msg("no '%s' on the screen: %s", text, s->screen);
        s->bytes += (size_t)n;
        s->screen[s->bytes] = '\0';
    }
    const char *rest = strstr(s->screen, text) + strlen(text);
    s->bytes -= (size_t)(rest - s->screen);
    memmove(s->screen, rest, s->bytes + 1);
}

/* libedit shows the prompt before it takes the terminal out of canonical mode, in which ^R has a meaning. */
static void expect_prompt(session *s)
{
    struct termios mode;
    expect(s, "> ");
    for (int wait_ms = 0; wait_ms < 300000; wait_ms++) {
        assert_int_equal(tcgetattr(s->terminal, &mode), 0);
        if (!(mode.c_lflag & ICANON))
            return;
        usleep(1000);
    }
    fail_msg("the terminal stays in canonical mode");
}

static void type(session *s, const char *keys)
{
    assert_int_equal(write(s->terminal, keys, strlen(keys)), strlen(keys));
}

/* Wait for the end with an exit code; the text of standard output. */
static void finish_with(session *s, int code, char *text, size_t bytes)
{
    int how;
    ssize_t more; /* EIO: the process has ended */
    while ((more = read(s->terminal, s->screen + s->bytes, sizeof s->screen - 1 - s->bytes)) > 0)
        s->bytes += (size_t)more;
    s->screen[s->bytes] = '\0';
    assert_int_equal(waitpid(s->process, &how, 0), s->process);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), code);
    ssize_t n = pread(s->output, text, bytes - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(s->terminal);
    close(s->output);
}

static void finish(session *s, char *text, size_t bytes)
{
    finish_with(s, 0, text, bytes);
}

#define ENTER  "\r"
#define UP     "\033[A"
#define LEFT   "\033[D"
#define CTRL_A "\001"
#define CTRL_C "\003"
#define CTRL_D "\004"
#define CTRL_R "\022"

static char *const chat[] = {"tsr", "run", "-m",  MODEL, "--chat",    "chatml", "--temp", "0", "-n",
                             "6",   "-c",  "256", "-i",  "--devices", "host:1", NULL,     NULL};

/* The answers to lines in a pipe. */
static void answers(const char *lines, char *text, size_t bytes)
{
    char arguments[1024];
    snprintf(arguments, sizeof arguments,
             "run -m " MODEL
             " --chat chatml --temp 0 -n 6 -c 256 -i --devices host:1 <<'END' 2>/dev/null\n%s\nEND",
             lines);
    assert_int_equal(program_run(arguments, text, bytes), 0);
    assert_true(strlen(text) > 1);
}

static int set_terminal(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    setenv("HOME", "/nowhere", 1); /* no .editrc */
    setenv("LC_ALL", "C", 1);      /* lines are UTF-8 all the same */
    return 0;
}

/* A history of the test's own. */
static char state_home[256];

static int set_state_home(void **state)
{
    static int n;
    char name[16];
    (void)state;
    snprintf(name, sizeof name, "%d", n++);
    snprintf(state_home, sizeof state_home, "%s", directory_file(name));
    return setenv("XDG_STATE_HOME", state_home, 1);
}

static void need_libedit(void)
{
#ifndef TSR_TEST_LIBEDIT
    print_message("skipped: built without libedit\n");
    skip();
#endif
}

/* A chat at its first prompt, and the answers that it is to give to these lines. */
static void start_chat(session *s, const char *lines, char *expected, size_t bytes)
{
    need_libedit();
    answers(lines, expected, bytes);
    start(s, chat);
    expect_prompt(s);
}

static void arrow_up_brings_the_previous_line(void **state)
{
    (void)state;
    session s;
    char once[1024], text[4096];
    start_chat(&s, "lens", once, sizeof once);
    type(&s, "lens" ENTER);
    expect_prompt(&s);
    type(&s, "/clear" ENTER);
    expect_prompt(&s);
    type(&s, UP UP);
    expect(&s, "lens");
    type(&s, ENTER);
    expect_prompt(&s);
    type(&s, CTRL_D);
    finish(&s, text, sizeof text);
    size_t bytes = strlen(once);
    assert_int_equal(strlen(text), 2 * bytes);
    assert_memory_equal(text, once, bytes);
    assert_string_equal(text + bytes, once);
}

static void lines_are_utf8_and_can_be_edited(void **state)
{
    (void)state;
    session s;
    char expected[1024], text[4096];
    start_chat(&s, "a für\u2013lens", expected, sizeof expected);
    type(&s, "fr\u2013lens" LEFT LEFT LEFT LEFT LEFT LEFT "ü" CTRL_A "a " ENTER);
    expect(&s, "\n");
    expect_prompt(&s);
    type(&s, CTRL_D);
    finish(&s, text, sizeof text);
    assert_string_equal(text, expected);
}

static void ctrl_c_drops_the_line_and_continues(void **state)
{
    (void)state;
    session s;
    char expected[1024], text[4096];
    start_chat(&s, "lens", expected, sizeof expected);
    type(&s, "something else");
    expect(&s, "else");
    type(&s, CTRL_C);
    expect(&s, "(Ctrl-D ends)");
    expect_prompt(&s);
    type(&s, "lens" ENTER);
    expect_prompt(&s);
    type(&s, CTRL_D);
    finish(&s, text, sizeof text);
    assert_string_equal(text, expected);
}

static void ctrl_c_before_a_wait_for_keys_is_not_lost(void **state)
{
    (void)state;
    struct sigaction before;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    tool_hear_interrupts(false, false, &before);
    raise(SIGINT);
    assert_false(tool_wait_to_read(ends[0]));
    assert_int_equal(errno, EINTR);
    tool_interrupted = 0;
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_true(tool_wait_to_read(ends[0]));
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[1]);
    assert_true(tool_wait_to_read(ends[0])); /* for the end of input */
    close(ends[0]);
    sigaction(SIGINT, &before, NULL);
}

static void converse(char *const arguments[], const char *recall, const char *shown, const char *line)
{
    session s;
    char text[4096];
    start(&s, arguments);
    expect_prompt(&s);
    type(&s, recall);
    if (*shown)
        expect(&s, shown);
    type(&s, line);
    expect_prompt(&s);
    type(&s, CTRL_D);
    finish(&s, text, sizeof text);
    assert_true(strlen(text) > 1);
}

static void lines_are_kept_for_later_calls_and_for_their_owner_only(void **state)
{
    (void)state;
    struct stat about;
    char folder[300], path[320];
    need_libedit();
    snprintf(folder, sizeof folder, "%s/tsr", state_home);
    snprintf(path, sizeof path, "%s/history", folder);
    umask(022);
    converse(chat, "", "", "buoy" ENTER);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(stat(folder, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    converse(chat, UP, "buoy", " castle" ENTER);
    assert_int_equal(chmod(path, 0644), 0);
    converse(chat, CTRL_R "cas", "buoy castle", "\033" ENTER); /* ESC ends the search */
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
}

static void without_history_no_file_is_written(void **state)
{
    (void)state;
    struct stat about;
    char *arguments[sizeof chat / sizeof *chat];
    need_libedit();
    memcpy(arguments, chat, sizeof chat);
    arguments[sizeof chat / sizeof *chat - 2] = "--no-history";
    converse(arguments, "", "", "buoy" ENTER);
    assert_int_equal(stat(state_home, &about), -1);
}

/* The prompt would take minutes. */
static void a_long_prompt_has_a_bar_which_is_erased(void **state)
{
    (void)state;
    session s;
    char path[DIRECTORY_PATH], text[64];
    int file = directory_new(path);
    assert_true(file >= 0);
    FILE *prompt = fdopen(file, "w");
    for (int i = 0; i < 4000; i++)
        fputs("lighthouse ", prompt);
    fclose(prompt);
    char *const arguments[] = {"tsr",
                               "run",
                               "-m",
                               MODEL,
                               "-f",
                               path,
                               "-c",
                               "20000",
                               "-b",
                               "16",
                               "--devices",
                               "host:1,threads=1,duty=1%",
                               "--no-display-prompt",
                               NULL};
    start(&s, arguments);
    expect(&s, "\rprompt [");
    expect(&s, " left\033[K");
    type(&s, CTRL_C);
    finish_with(&s, 130, text, sizeof text);
    unlink(path);
    const char *erased = strstr(s.screen, "\r\033[K"), *report = strstr(s.screen, "ended: interrupted");
    assert_true(erased && report && erased < report);
    assert_null(strstr(erased, "prompt ["));
}

/* Nor are there tables. */
static void quiet_runs_show_nothing(void **state)
{
    (void)state;
    session s;
    char text[4096];
    char *const arguments[] = {"tsr", "run", "-m",        MODEL,    "-p", "lens",
                               "-n",  "4",   "--devices", "host:1", "-q", NULL};
    start(&s, arguments);
    finish(&s, text, sizeof text);
    assert_true(strlen(text) > 5);
    assert_null(strstr(s.screen, "tokens"));
    assert_null(strstr(s.screen, "seed"));
}

static int count_files(const char *path)
{
    int n = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* The file would have 282 GB. */
static void ctrl_c_ends_synth_without_a_file(void **state)
{
    (void)state;
    session s;
    char path[DIRECTORY_PATH], text[64];
    snprintf(path, sizeof path, "%s/%s", state_home, "model.gguf");
    assert_int_equal(mkdir(state_home, 0700), 0);
    char *const arguments[] = {"tsr", "synth", "-s", "llama-3-70b:f32", "-o", path, NULL};
    start(&s, arguments);
    for (int wait_ms = 0; wait_ms < 300000 && count_files(state_home) < 3; wait_ms++)
        usleep(1000); /* . and .. and the draft */
    type(&s, CTRL_C);
    finish_with(&s, 130, text, sizeof text);
    assert_non_null(strstr(s.screen, "tsr synth: interrupted"));
    assert_int_equal(count_files(state_home), 2);
}

int main(void)
{
#define ON_TERMINAL(test) cmocka_unit_test_setup(test, set_state_home)
    const struct CMUnitTest tests[] = {
        ON_TERMINAL(arrow_up_brings_the_previous_line),
        ON_TERMINAL(lines_are_utf8_and_can_be_edited),
        ON_TERMINAL(ctrl_c_drops_the_line_and_continues),
        ON_TERMINAL(ctrl_c_before_a_wait_for_keys_is_not_lost),
        ON_TERMINAL(lines_are_kept_for_later_calls_and_for_their_owner_only),
        ON_TERMINAL(without_history_no_file_is_written),
        ON_TERMINAL(a_long_prompt_has_a_bar_which_is_erased),
        ON_TERMINAL(quiet_runs_show_nothing),
        ON_TERMINAL(ctrl_c_ends_synth_without_a_file),
    };
    return cmocka_run_group_tests(tests, set_terminal, NULL);
}
