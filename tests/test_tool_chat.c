/* tsr run as a conversation: over a pipe, with templates by name, and with Ctrl-C. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/directory.h"
#include "support/program.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"
#define CHAT  "run -m " MODEL " --chat chatml --temp 0 -n 6 -c 256 "

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {CHAT "-p hi --chat klingon", 2, "no chat template is called \"klingon\""},
        {"run -m " MODEL " -p hi --system x", 2, "--system needs --chat or -i"},
        {CHAT "-i -p -", 2, "-i reads messages from standard input"},
        {"run -m " MODEL " -i < /dev/null", 1, "has no chat template"},
        {"run -m " MODEL " -p hi --chat auto", 1, "has no chat template"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* The answers of a conversation with these lines as input. */
static void converse(const char *lines, const char *options, char *text, size_t bytes)
{
    char arguments[1024];
    snprintf(arguments, sizeof arguments, CHAT "%s <<'END' 2> /dev/null\n%s\nEND", options, lines);
    assert_int_equal(program_run(arguments, text, bytes), 0);
}

static void a_first_answer_is_that_to_a_prompt(void **state)
{
    (void)state;
    char once[1024], first[1024];
    assert_int_equal(program_run(CHAT "--system 'Be kind.' -p lighthouse 2> /dev/null", once, sizeof once),
                     0);
    assert_true(strlen(once) > 1);
    converse("lighthouse", "-i --system 'Be kind.'", first, sizeof first);
    assert_string_equal(first, once);
    converse("", "-i --system 'Be kind.' -p lighthouse", first,
             sizeof first); /* empty lines are no messages */
    assert_string_equal(first, once);
}

static void a_conversation_does_not_depend_on_the_split(void **state)
{
    (void)state;
    char one[1024], three[1024];
    converse("lighthouse\nand a\\\nlens?\nwhy", "-i --devices host:1", one, sizeof one);
    converse("lighthouse\nand a\\\nlens?\nwhy", "-i --devices host:3 -ts 1,2,1 -b 5", three, sizeof three);
    assert_string_equal(one, three);
}

static void clear_forgets_what_was_said(void **state)
{
    (void)state;
    char twice[1024], once[1024];
    converse("lighthouse", "-i", once, sizeof once);
    converse("lighthouse\n/clear\nlighthouse", "-i", twice, sizeof twice);
    size_t bytes = strlen(once);
    assert_int_equal(strlen(twice), 2 * bytes);
    assert_memory_equal(twice, once, bytes);
    assert_memory_equal(twice + bytes, once, bytes);
}

static void a_full_context_is_told_and_left_with_clear(void **state)
{
    (void)state;
    char text[4096], once[1024];
    converse("lens", "-i", once, sizeof once);
    converse("a long message that does not fit into what is there at all\n/clear\nlens", "-i -c 40", text,
             sizeof text);
    assert_true(strlen(text) >= strlen(once));
    assert_string_equal(text + strlen(text) - strlen(once), once);
    program_check(CHAT "-i -c 60 -n -1 --ignore-eos <<'END' >/dev/null\nlens\nlens\nEND\n", 0,
                  "the context of 60 tokens is full; /clear starts a new conversation", text, sizeof text);
    assert_non_null(strstr(text, "-c 120 makes room"));
    assert_non_null(strstr(text, "the message has "));
    assert_non_null(strstr(text, "and 0 of 60 tokens of context are left; /clear starts"));
    program_check(CHAT "-i -c 40 -p 'a long message that does not fit into what is there at all' < /dev/null",
                  0, "the context holds 40", text, sizeof text);
}

/* Stop an answer that would go on for long, as soon as it has begun; the conversation goes on until the input
 * ends. */
static void ctrl_c_stops_the_answer_only(void **state)
{
    (void)state;
    static const char message[] = "lighthouse\n";
    char path[DIRECTORY_PATH], told[DIRECTORY_PATH], text[8192] = "";
    struct stat info = {0};
    int how, in[2], file = directory_new(path), err = directory_new(told);
    assert_true(file >= 0 && err >= 0 && pipe(in) == 0);
    const char *program = program_path();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(file, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        close(in[1]);
        execl(program, "tsr", "run", "-m", MODEL, "-i", "--chat", "chatml", "-c", "200000", "--ignore-eos",
              "--devices", "host:1", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    assert_int_equal(write(in[1], message, strlen(message)), strlen(message));
    for (int wait_ms = 0; wait_ms < 60000 && info.st_size == 0; wait_ms += 5) {
        usleep(5000);
        fstat(file, &info);
    }
    kill(child, SIGINT);
    assert_int_equal(write(in[1], "/clear\n", 7), 7);
    close(in[1]); /* an answer that still went on would never see that */
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_true(pread(err, text, sizeof text - 1, 0) > 0);
    assert_non_null(strstr(text, "ended: end of the conversation"));
    close(file);
    close(err);
    unlink(path);
    unlink(told);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(a_first_answer_is_that_to_a_prompt),
        cmocka_unit_test(a_conversation_does_not_depend_on_the_split),
        cmocka_unit_test(clear_forgets_what_was_said),
        cmocka_unit_test(a_full_context_is_told_and_left_with_clear),
        cmocka_unit_test(ctrl_c_stops_the_answer_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
