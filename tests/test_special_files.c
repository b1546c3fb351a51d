/* Files that are no regular files: each kind of file that is read refuses a FIFO without waiting for its
 * writer, and says what to do. A prompt may come from one. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/gguf.h>
#include <tsr/topology.h>

#include "support/directory.h"
#include "support/program.h"
#include "support/session_check.h"

#define PHRASE "it is not a regular file; copy its content to one, and name that"
#define MODEL  "examples/models/glossary-7m-Q8_0.gguf"

enum { ALARM_SECONDS = 600 }; /* a call that waits ends the program, on a slow machine, too */

static char fifo[256];

static void assert_refused(tsr_status status)
{
    assert_int_equal(status, TSR_ERR_IO);
    assert_non_null(strstr(tsr_last_error(), fifo));
    assert_non_null(strstr(tsr_last_error(), PHRASE));
}

static void models_are_regular_files(void **state)
{
    (void)state;
    tsr_gguf *gguf = NULL;
    assert_refused(tsr_gguf_open(fifo, NULL, &gguf));
    assert_null(gguf);
}

static void machines_are_regular_files(void **state)
{
    (void)state;
    tsr_topology *topo = NULL;
    assert_refused(tsr_topology_load(fifo, NULL, &topo));
    assert_null(topo);
}

static void saved_sequences_are_regular_files(void **state)
{
    (void)state;
    runner r;
    int seq = 0;
    tsr_model_config config = session_config(64, 1, 64, 1);
    runner_open(&r, session_model_path, "host:1,threads=1", NULL, &config);
    assert_refused(tsr_session_load(r.session, &seq, 1, fifo));
    runner_close(&r);
}

static void reports_of_the_tool_are_regular_files(void **state)
{
    (void)state;
    static const char *const options[] = {"--show", "-m " MODEL " --compare"};
    char arguments[600], text[4096];
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        snprintf(arguments, sizeof arguments, "bench %s %s", options[i], fifo);
        program_check(arguments, 1, PHRASE, text, sizeof text);
    }
}

/* Measured rates are not read from a FIFO, nor are they lost in one. */
static void the_cache_is_a_regular_file(void **state)
{
    (void)state;
    char text[1 << 14];
    directory_write("tsr/x", "", 0);
    assert_int_equal(mkfifo(directory_file("tsr/rates.json"), 0600), 0);
    setenv("XDG_CACHE_HOME", directory_path(), 1);
    program_check("bench --keep-rates --devices host:1,threads=1", 0, "cannot store the rates", text,
                  sizeof text);
    unsetenv("XDG_CACHE_HOME");
}

static void a_prompt_may_come_from_a_fifo(void **state)
{
    (void)state;
    char arguments[600], text[4096];
    pid_t writer = fork();
    if (writer == 0) {
        FILE *file = fopen(fifo, "w");
        _exit(!file || fputs("hello", file) < 0 || fclose(file) != 0);
    }
    snprintf(arguments, sizeof arguments, "run -m " MODEL " --devices host:1,threads=1 -n 1 -f %s", fifo);
    program_check(arguments, 0, "hello", text, sizeof text);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
}

static int set_up(void **state)
{
    if (session_model_write(state))
        return -1;
    snprintf(fifo, sizeof fifo, "%s", directory_file("fifo"));
    alarm(ALARM_SECONDS);
    return mkfifo(fifo, 0600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_regular_files),
        cmocka_unit_test(machines_are_regular_files),
        cmocka_unit_test(saved_sequences_are_regular_files),
        cmocka_unit_test(reports_of_the_tool_are_regular_files),
        cmocka_unit_test(the_cache_is_a_regular_file),
        cmocka_unit_test(a_prompt_may_come_from_a_fifo),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
