/* tsr run --mpi as a user meets it: what does not go with it, and, where MPI is installed, text that depends
 * neither on the split nor on the number of processes, written once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/program.h"

#define RUN "run --mpi -m examples/models/glossary-7m-Q8_0.gguf "

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {RUN "-i", 2, "-i cannot be used with --mpi"},
        {RUN "-p - < LICENSE", 2, "give the prompt with -p TEXT or in a file"},
        {RUN "-f - < LICENSE", 2, "give the prompt with -p TEXT or in a file"},
        {RUN "-p hi --fit", 2, "--fit cannot be used with --mpi yet"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

#ifdef TSR_TEST_MPIEXEC

/* Standard output of a command, cut to size. */
static void output_of(const char *line, char *text, size_t bytes)
{
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t used = fread(text, 1, bytes - 1, pipe);
    text[used] = '\0';
    if (pclose(pipe) != 0)
        fail_msg("%s: failed: %s", line, text);
}

/* Each process one device, each two, one process with a device and one with two. */
static void text_does_not_depend_on_processes(void **state)
{
    (void)state;
    static const struct {
        int n;
        const char *arguments;
    } ways[] = {{2, "--devices host:1,threads=1 -ts 3,1"},
                {2, "--devices host:2,threads=1 -ts 1,1,0,2"},
                {3, "--devices host:1,threads=1 -ts 1,1,1 -sm layer"}};
    const char *prompt = RUN "-p 'lighthouse (n.):' -n 24 --temp 0";
    static char line[8192], alone[4096], together[4096];
    snprintf(line, sizeof line, "'%s' run%s 2>/dev/null", program_path(), prompt + strlen("run --mpi"));
    output_of(line, alone, sizeof alone);
    assert_non_null(strstr(alone, "lighthouse (n.):"));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(line, sizeof line, "%s %d '%s' %s %s 2>/dev/null", TSR_TEST_MPIEXEC, ways[i].n,
                 program_path(), prompt, ways[i].arguments);
        output_of(line, together, sizeof together);
        assert_string_equal(together, alone);
    }
}

/* The seed of the first process in all of them: others would choose other tokens. */
static void processes_draw_one_seed(void **state)
{
    (void)state;
    static char line[8192], together[4096], alone[4096];
    static const char way[] = "-p 'lighthouse (n.):' -n 24 --devices host:1,threads=1";
    char path[DIRECTORY_PATH];
    unsigned long long seed;
    int report = directory_new(path);
    assert_true(report >= 0);
    snprintf(line, sizeof line, "%s 2 '%s' " RUN "%s 2>%s", TSR_TEST_MPIEXEC, program_path(), way, path);
    output_of(line, together, sizeof together);
    FILE *file = fdopen(report, "r");
    assert_non_null(file);
    do
        assert_non_null(fgets(line, sizeof line, file));
    while (sscanf(line, "seed: %llu; --seed", &seed) != 1);
    fclose(file);
    unlink(path);
    snprintf(line, sizeof line, "'%s' run%s%s --seed %llu 2>/dev/null", program_path(),
             &RUN[strlen("run --mpi")], way, seed);
    output_of(line, alone, sizeof alone);
    assert_string_equal(together, alone);
}

#else

static void processes_draw_one_seed(void **state)
{
    (void)state;
    skip();
}

static void text_does_not_depend_on_processes(void **state)
{
    (void)state;
    print_message("skipped: built without MPI\n");
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(text_does_not_depend_on_processes),
        cmocka_unit_test(processes_draw_one_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
