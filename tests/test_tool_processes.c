/* tsr run --mpi as a user meets it: what does not go with it, and, where MPI is installed, text that depends
 * neither on the split nor on the number of processes, written once; standard input, fitting, traces and
 * Ctrl-C. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/program.h"
#include "support/program_json.h"

#define RUN "run --mpi -m examples/models/glossary-7m-Q8_0.gguf "

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"bench --mpi --show r.json", 2, "--show measures nothing: leave out --mpi"},
        {"run -m x -p hi --network 'ib 400Gb/s'", 2, "--network joins processes; add --mpi"},
        {"bench -m x --network 'ib 400Gb/s'", 2, "--network joins processes; add --mpi"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

#ifdef TSR_TEST_MPIEXEC

enum { MOST_REDUCES = 1000 };

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

static int occurrences(const char *text, const char *phrase)
{
    int n = 0;
    for (; (text = strstr(text, phrase)); text += strlen(phrase))
        n++;
    return n;
}

/* In both processes, or in the second one: it has another command line, or cannot discover its machine. */
static void a_failure_before_processes_join_ends_all_with_one_message(void **state)
{
    (void)state;
    static const struct {
        const char *before, *phrase;
        int code;
    } cases[] = {
        {"set -- \"$@\" --hyphen", "tsr run: unknown option '--hyphen'", 2},
        {"case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 1) set -- \"$@\" --hyphen;; esac",
         "process 1: tsr run: unknown option '--hyphen'", 2},
        {"case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 1) export HWLOC_COMPONENTS=stop;; esac",
         "process 1: tsr run: hwloc cannot describe this machine", 1},
    };
    static char line[8192], text[8192];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line,
                 "%s 2 sh -c '%s; exec \"$0\" \"$@\"' '%s' " RUN "-p hi -n 1 --devices host:1,threads=1 2>&1",
                 TSR_TEST_MPIEXEC, cases[i].before, program_path());
        FILE *pipe = popen(line, "r");
        assert_non_null(pipe);
        text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
        const int how = pclose(pipe);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != cases[i].code || !strstr(text, cases[i].phrase) ||
            occurrences(text, "tsr run: ") != 1)
            fail_msg("%s: %d: %s", line, how, text);
    }
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
                {3, "--devices host:1,threads=1 -ts 1,1,1 -sm layer --survive --process-timeout 90"}};
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

/* Output of `arguments` in two processes with a device each, and of one process with both. */
static void assert_same_output(const char *arguments, const char *device, const char *input)
{
    static char line[8192], alone[8192], together[8192];
    snprintf(line, sizeof line, "%s | '%s' run%s%s --devices host:2,%s 2>/dev/null", input, program_path(),
             &RUN[strlen("run --mpi")], arguments, device);
    output_of(line, alone, sizeof alone);
    assert_true(strlen(alone) > 20);
    snprintf(line, sizeof line, "%s | %s 2 '%s' " RUN "%s --devices host:1,%s 2>/dev/null", input,
             TSR_TEST_MPIEXEC, program_path(), arguments, device);
    output_of(line, together, sizeof together);
    assert_string_equal(together, alone);
}

static void the_first_process_reads_for_all(void **state)
{
    (void)state;
    const char *device = "threads=1 -ts 1,2 --temp 0 -n 12";
    assert_same_output("-p -", device, "echo 'lighthouse (n.):'");
    assert_same_output("-i --chat chatml -p harbor", device,
                       "printf '%s' 'lighthouse\n\n/clear\nlight\\\\\nhouse\nlast'");
}

/* KV types and the context are cut; both are reported on stderr, with devices that have other names. */
static void processes_fit_alike(void **state)
{
    (void)state;
    assert_same_output("--fit --fit-margin 0 --fit-ctx 64 --fit-kv q8_0 -b 64 -p hi -n 1 -q",
                       "threads=1,mem=4300KiB -ts 1,1 2>&1 >/dev/null | grep -v warning | sed 's/ *(.*)//' | "
                       "tr -s ' \\n' ' '",
                       "true");
}

/* Reports are written by the first process. The rates that it stores are used in all, for the same devices
 * in the same processes only. */
static void what_processes_measure_is_used_by_them(void **state)
{
    (void)state;
    static char line[8192], text[16384];
    const char *mpi = TSR_TEST_MPIEXEC, *devices = "--devices host:1,threads=1",
               *model = "-m examples/models/glossary-7m-Q8_0.gguf";
    assert_int_equal(setenv("XDG_CACHE_HOME", directory_path(), 1), 0);
    snprintf(line, sizeof line, "%s 2 '%s' bench links --mpi %s --keep-rates 2>/dev/null", mpi,
             program_path(), devices);
    output_of(line, text, sizeof text);
    assert_non_null(strstr(text, "transfer us"));
    assert_null(strstr(text, "pred."));
    assert_non_null(strstr(text, "host0@0  host0@1"));
    assert_non_null(strstr(text, "stored in"));
    snprintf(line, sizeof line, "%s 2 '%s' bench links --mpi %s --json 2>/dev/null", mpi, program_path(),
             devices);
    output_of(line, text, sizeof text);
    assert_int_equal(occurrences(text, "\"devices\": [\n    {"), 1);
    assert_int_equal(occurrences(text, "\"name\": \"host0@"), 2);
    assert_int_equal(occurrences(text, "\"from\": 1"), occurrences(text, "\"from\": 0"));
    assert_int_equal(occurrences(text, "\"predicted_ns\": null"), occurrences(text, "\"measured_ns\""));
    assert_non_null(strstr(text, "\"kind\": \"all-reduce\""));
    assert_non_null(strstr(text, "\"kind\": \"transfer\""));
    assert_non_null(strstr(text, "\"kept_in\": null"));
    snprintf(line, sizeof line,
             "%s 2 '%s' bench --mpi --stored-rates %s %s --ratios 1,1 -r 1 -p 8 -n 2 -o csv 2>/dev/null", mpi,
             program_path(), model, devices);
    output_of(line, text, sizeof text);
    assert_non_null(strstr(text, "pp8"));
    assert_non_null(strstr(text, "tg2"));
    const char *header = strstr(text, "host0@1_compute");
    assert_non_null(header);
    assert_null(strstr(header + 1, "host0@1_compute"));
    snprintf(line, sizeof line,
             "%s 2 '%s' run --mpi %s %s --network '2x ib 100Gb/s' -p hi -n 1 -v 2>&1 >/dev/null", mpi,
             program_path(), model, devices);
    output_of(line, text, sizeof text);
    assert_non_null(strstr(text, "(rates measured"));
    assert_non_null(strstr(text, "network to other machines: 2 x ib 100 Gb/s, 2.7 us (given)"));
    snprintf(line, sizeof line, "'%s' run %s %s -p hi -n 1 -v 2>&1 >/dev/null", program_path(), model,
             devices);
    output_of(line, text, sizeof text);
    assert_non_null(strstr(text, "(rates not measured"));
    unsetenv("XDG_CACHE_HOME");
}

/* The spans of a process's devices are by the clock of the first: they end in the phases, and all-reduces of
 * different processes overlap. Lists by device: the phases, and three devices. */
static void check_trace_of_three(const char *path)
{
    int n_phases = 0, n_overlaps = 0;
    double from[4][MOST_REDUCES], to[4][MOST_REDUCES], phases_end = 0, last = 0;
    size_t i, n[4] = {0};
    json_t *event, *root = program_json_file(path);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const int pid = (int)program_json_integer(event, "pid");
        const char *kind = json_string_value(json_object_get(event, "cat"));
        assert_in_range(pid, 0, 3);
        if (!kind)
            continue;
        const double begin = json_real_value(json_object_get(event, "ts")),
                     end = begin + json_real_value(json_object_get(event, "dur"));
        n_phases += strcmp(kind, "phase") == 0;
        phases_end = pid == 0 && end > phases_end ? end : phases_end;
        last = end > last ? end : last;
        const char *op = json_string_value(json_object_get(json_object_get(event, "args"), "op"));
        if (pid == 0 || strcmp(op, "all_reduce") != 0 || n[pid] == MOST_REDUCES)
            continue;
        from[pid][n[pid]] = begin;
        to[pid][n[pid]++] = end;
    }
    assert_true(n_phases >= 2 && n[1] > 0 && n[2] > 0 && n[3] > 0);
    assert_true(last < phases_end + 1e6);
    for (size_t a = 0; a < n[1]; a++)
        for (size_t b = 0; b < n[3]; b++)
            n_overlaps += from[1][a] < to[3][b] && from[3][b] < to[1][a];
    assert_true(n_overlaps > 0);
    json_t *clocks = json_object_get(json_object_get(root, "otherData"), "clocks");
    assert_int_equal(json_array_size(clocks), 1);
    json_array_foreach(clocks, i, event)
    {
        const json_t *begin = json_object_get(event, "begin"), *after = json_object_get(event, "end");
        assert_int_equal(program_json_integer(event, "process"), i + 1);
        assert_true(program_json_integer(begin, "error_ns") > 0);
        assert_true(program_json_integer(after, "error_ns") > 0);
    }
    json_decref(root);
}

/* One file; the second process has two devices. */
static void a_trace_has_the_spans_of_all_processes(void **state)
{
    (void)state;
    static char line[8192], text[16384];
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "%s/trace.json", directory_path());
    snprintf(
        line, sizeof line,
        "%s 2 sh -c 'case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 1) n=2;; *) n=1;; esac; exec \"$0\" \"$@\" "
        "--devices host:$n,threads=1' '%s' " RUN "-p 'a b' -n 3 -ts 1,1,1 --trace %s 2>&1",
        TSR_TEST_MPIEXEC, program_path(), path);
    output_of(line, text, sizeof text);
    assert_int_equal(occurrences(text, "trace: "), 1);
    check_trace_of_three(path);
    snprintf(line, sizeof line,
             "%s 2 '%s' bench --mpi -m examples/models/glossary-7m-Q8_0.gguf --devices host:1,threads=1 "
             "--ratios 1,1 -r 1 -p 8 -n 2 --trace %s 2>&1",
             TSR_TEST_MPIEXEC, program_path(), path);
    output_of(line, text, sizeof text);
    json_t *root = program_json_file(path);
    assert_int_equal(json_array_size(json_object_get(json_object_get(root, "otherData"), "clocks")), 1);
    json_decref(root);
    unlink(path);
    snprintf(line, sizeof line,
             "%s 2 '%s' " RUN "-p hi -n 1 --devices host:1,threads=1 --trace /nope/t 2>&1 | cat",
             TSR_TEST_MPIEXEC, program_path());
    output_of(line, text, sizeof text);
    assert_int_equal(occurrences(text, "/nope/t cannot be written: No such file or directory"), 1);
}

/* Process 0 gets the signal once it has written something, in the middle of a long answer. */
static void ctrl_c_in_the_first_process_ends_an_answer_in_all(void **state)
{
    (void)state;
    enum { MOST = 6000 }; /* bytes of text; all 3000 tokens have more */
    static char line[8192], text[32768], pid[32];
    char path[DIRECTORY_PATH];
    const int file = directory_new(path);
    assert_true(file >= 0);
    snprintf(line, sizeof line,
             "printf 'lighthouse\n/clear\n' | %s 2 sh -c 'case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in "
             "0) echo $$ >%s;; esac; exec \"$0\" \"$@\"' '%s' " RUN
             "-i --chat chatml --ignore-eos -n 3000 -c 4000 --temp 0 --devices host:1,threads=1 2>/dev/null",
             TSR_TEST_MPIEXEC, path, program_path());
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    const size_t begun = fread(text, 1, 64, pipe);
    assert_true(read(file, pid, sizeof pid - 1) > 0);
    assert_int_equal(kill((pid_t)atoi(pid), SIGINT), 0);
    const size_t rest = fread(text, 1, sizeof text, pipe);
    assert_int_equal(pclose(pipe), 0);
    assert_int_equal(begun, 64);
    assert_true(rest < MOST);
    close(file);
    unlink(path);
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

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
#ifdef TSR_TEST_MPIEXEC
        cmocka_unit_test(a_failure_before_processes_join_ends_all_with_one_message),
        cmocka_unit_test(text_does_not_depend_on_processes),
        cmocka_unit_test(processes_draw_one_seed),
        cmocka_unit_test(the_first_process_reads_for_all),
        cmocka_unit_test(processes_fit_alike),
        cmocka_unit_test(what_processes_measure_is_used_by_them),
        cmocka_unit_test(a_trace_has_the_spans_of_all_processes),
        cmocka_unit_test(ctrl_c_in_the_first_process_ends_an_answer_in_all),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
