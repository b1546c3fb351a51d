/* Other machines on the command line: tsr topo and tsr plan with --machine, --machine-file and --card. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/program.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

static char text[1 << 16];

static void assert_prints(const char *arguments, int code, const char *phrase)
{
    program_check(arguments, code, phrase, text, sizeof text);
}

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"topo --machine '2x rtx309'", 2, "column 4: unknown card 'rtx309'; similar: rtx3090"},
        {"topo --machine 'host' --machine-file x.xml", 2, "each name a machine; give only one"},
        {"topo --card 0=t4", 2, "--card needs"},
        {"topo --machine '2x t4' --card 5=l4", 2, "has 2 NVIDIA GPUs"},
        {"topo --machine host --nccl-xml -", 1, "has no GPU"},
        {"topo --machine '2 nodes of t4, ib 100Gb/s' --nccl-xml -", 1, "has 2 machines"},
        {"plan -m " MODEL " --machine '2 nodes of 2x t4'", 2, "a network between the nodes should be"},
        {"topo --machine 't4' --nccl-xml /nowhere/x.xml", 1, "cannot write '/nowhere/x.xml'"},
        {"plan -m " MODEL " --machine '2x t4' --devices cuda:7", 1, "cuda:7"},
        {"plan -m " MODEL " --machine '2x'", 2, "column 3: the end"},
        {"topo --machine-file LICENSE", 1, "is neither XML nor output"},
        {"topo --machine '3x rtx3090 nvlink'", 2, "write '2x rtx3090 nvlink, 1x rtx3090'"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

static void a_machine_in_words_is_shown_with_its_guesses(void **state)
{
    (void)state;
    assert_prints("topo --machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8'", 0,
                  "GPU 0 NVIDIA GeForce RTX 3090, ~24 GiB at ~936 GB/s");
    assert_non_null(strstr(text, "4 NVLinks ~56.2 GB/s to GPU 1"));
    assert_non_null(strstr(text, "PCIe 4 x8 15.8 GB/s")); /* said, not guessed */
    assert_non_null(strstr(text, "~ not described: taken from the table of cards"));
    assert_non_null(strstr(text, "note: guessed of each socket"));
    assert_prints("topo --machine '2x rtx3090 nvlink, host' --links", 0, "cuda0  cuda1  nvlink  ~45.0");
    assert_non_null(strstr(text, "one-shot"));
    assert_prints("topo --machine '2x rtx3090 nvlink, host' --links --json", 0, "\"kind\": \"nvlink\"");
}

/* Devices have the names of a run with a process for each machine. */
static void machines_on_a_network_are_shown_and_planned_for(void **state)
{
    (void)state;
    assert_prints("topo --machine '2 nodes of 2x t4, 2x host, 2x ib 100Gb/s' --links", 0,
                  "Machine 1: 2 x ib 100 Gb/s, ~2.7 us");
    assert_non_null(strstr(text, "GPU1@1     NET    NET    SYS      X"));
    assert_non_null(strstr(text, "NET: between machines"));
    assert_non_null(strstr(text, "usual for the network"));
    assert_non_null(strstr(text, "cuda1@0  cuda0@1  network  ~12.0  ~2.7"));
    assert_prints("topo --machine '2 nodes of t4, roce 100Gb/s 4us' --json", 0,
                  "\"network_latency_ns\": 4000.0");
    assert_non_null(strstr(text, "\"network\": \"roce\""));
    assert_prints("plan -m " MODEL " --machine '2 nodes of 2x t4, ib 100Gb/s' -ts 1,1,1,1", 0, "cuda0-1@1");
}

/* A plan for the host alone would answer another question. */
static void gpus_of_unknown_model_are_shown_but_not_planned_for(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], line[512];
    static const char matrix[] = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tPHB\t0-7\nGPU1\tPHB\tX\t0-7\n";
    int file = directory_new(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, matrix, sizeof matrix - 1), sizeof matrix - 1);
    close(file);
    snprintf(line, sizeof line, "topo --machine-file %s", path);
    assert_prints(line, 1, "GPU 1 of unknown model");
    assert_non_null(strstr(text, "name its card, as in `--card 0=rtx3090`"));
    snprintf(line, sizeof line, "plan -m " MODEL " --machine-file %s", path);
    assert_prints(line, 1, "the model and memory of GPU 0 at ");
    assert_null(strstr(text, "host0"));
    snprintf(line, sizeof line, "plan -m " MODEL " --machine-file %s --devices host", path);
    assert_prints(line, 0, "host0");
    snprintf(line, sizeof line, "plan -m " MODEL " --machine-file %s --card 'all=RTX 4090' -ts 1,1", path);
    assert_prints(line, 0, "cuda0-1");
    unlink(path);
}

static void the_words_of_a_machine_are_in_the_help(void **state)
{
    (void)state;
    static const char *const commands[] = {"topo --help", "plan --help", "fit --help"};
    static const char *const words[] = {"2x host 16 cores 64GiB 80GB/s", "`nvswitch`", "`pcie4x8`",
                                        "--cards"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (size_t j = 0; j < sizeof words / sizeof *words; j++)
            assert_prints(commands[i], 0, words[j]);
}

static void the_list_of_cards_fits_80_columns(void **state)
{
    (void)state;
    int n = 0;
    assert_prints("topo --cards", 0, "4 x 14.1 GB/s, bridge of 2\n");
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        assert_in_range(strcspn(line, "\n"), 1, 80);
        n++;
    }
    assert_true(n > 80);
}

static void plans_are_made_for_described_gpus(void **state)
{
    (void)state;
    assert_prints("plan -m " MODEL " --machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8' -ts 2,1,1", 0,
                  "cuda2");
    assert_prints("plan -m " MODEL " --machine '1x h200, host 64GiB' --devices cuda,host:1", 0, "host0");
}

static void nccl_files_are_written_and_read_again(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], line[512];
    int file = directory_new(path);
    assert_true(file >= 0);
    close(file);
    snprintf(line, sizeof line, "topo --machine '8x h100 nvswitch, 2x host' --nccl-xml %s", path);
    assert_prints(line, 0, "");
    snprintf(line, sizeof line, "topo --machine-file %s", path);
    assert_prints(line, 0, "18 NVLinks ~450 GB/s to");
    snprintf(line, sizeof line, "topo --machine-file %s --card all=h200", path);
    assert_prints(line, 0, "GPU 7 NVIDIA H200");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(a_machine_in_words_is_shown_with_its_guesses),
        cmocka_unit_test(machines_on_a_network_are_shown_and_planned_for),
        cmocka_unit_test(gpus_of_unknown_model_are_shown_but_not_planned_for),
        cmocka_unit_test(the_words_of_a_machine_are_in_the_help),
        cmocka_unit_test(the_list_of_cards_fits_80_columns),
        cmocka_unit_test(plans_are_made_for_described_gpus),
        cmocka_unit_test(nccl_files_are_written_and_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
