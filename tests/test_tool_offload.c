/* Offload on the command line: -ngl, -ncmoe, --cpu-moe, -ot and --offload-device of tsr plan and tsr run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/program.h"

/* Six layers. */
#define MODEL "-m examples/models/glossary-7m-Q8_0.gguf "
#define HOSTS "--devices host:1,threads=1,host:1,threads=1 "
#define GPUS  "--machine '2x rtx3090' "

static char text[1 << 16];

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"plan " MODEL "-ngl x", 2, "-ngl takes a whole number from -1"},
        {"plan " MODEL "-ngl -2", 2, "-ngl takes a whole number from -1"},
        {"plan " MODEL "-ot ffn", 2, "-ot takes REGEX=DEVICE"},
        {"plan " MODEL "-ot =CPU", 2, "-ot takes REGEX=DEVICE"},
        {"plan " MODEL "-ot ffn=CPU,attn", 2, "not 'attn'"},
        {"plan " MODEL "-ot 'ffn=host7'", 2, "no device \"host7\""},
        {"plan " MODEL HOSTS "-ot 'ffn_up=CPU'", 2, "leaves blk.0.ffn_gate.weight behind"},
        {"run " MODEL HOSTS "-p x -ot '(=CPU'", 2, "rule '('"},
        {"plan " MODEL HOSTS "--cpu-moe", 2, "the model has no experts"},
        {"plan " MODEL HOSTS "-ngl 3 --offload-device gpu", 2, "no device \"gpu\""},
        {"plan " MODEL GPUS "-dev cuda -ngl 3", 2, "leaves 3 of 6 layers"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

static void plans_say_what_was_offloaded(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"plan " MODEL HOSTS "-ngl 4", 0, "offloaded to host1: 2 of 6 layers, the embedding, the output"},
        {"plan " MODEL HOSTS "--n-gpu-layers=6", 0, "offloaded to host1: the embedding, the output"},
        {"plan " MODEL HOSTS "--gpu-layers 0 --offload-device 0", 0, "offloaded to host0: 6 of 6 layers"},
        {"plan " MODEL HOSTS "-ot '\\.ffn=CPU'", 0, "offloaded to host1: the FFN of 6 of 6 layers"},
        {"plan " MODEL HOSTS "-ot 'blk.[1,2].attn_=host0,blk.[0-9]{1,2}.ffn=1'", 0,
         "offloaded to host0: the attention of 2 of 6 layers"},
        {"plan " MODEL HOSTS "-ot blk.1.=0 -ot blk.[12].=1 --json", 0, "offloaded to host1: 1 of 6 layers"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* A share that is whole in some layers is a number of layers, not of granules. */
static void the_table_of_shares_counts_layers_that_were_offloaded(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"plan " MODEL GPUS "-dev cuda:0,host:1 -ot 'blk.[01].ffn=CPU'", 0, "66.7 %  4 of 6 layers"},
        {"plan " MODEL GPUS "-dev cuda:0,host:1 -ot 'blk.[01].ffn=CPU'", 0, "33.3 %  2 of 6 layers"},
        {"plan " MODEL GPUS "-dev cuda:0,cuda:1,host:1 -ts 1,1,0 -ot 'blk.[01].ffn=CPU'", 0,
         "33.3 %  3 of 6 in 4 layers"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* A host device joins GPUs by itself where something goes to it. */
static void gpus_get_a_host_device_where_it_is_needed(void **state)
{
    (void)state;
    program_check("plan " MODEL GPUS "-ngl 4", 0, "offloaded to host0: 2 of 6 layers", text, sizeof text);
    program_check("plan " MODEL GPUS "-ot token_embd=CPU", 0, "offloaded to host0: the embedding", text,
                  sizeof text);
    program_check("plan " MODEL GPUS "-ngl 99", 0, "cuda1", text, sizeof text);
    assert_null(strstr(text, "host0"));
    program_check("plan " MODEL GPUS "-ot token_embd=cuda1", 0, "offloaded to cuda1", text, sizeof text);
    assert_null(strstr(text, "host0"));
}

static void the_text_stays_the_same(void **state)
{
    (void)state;
    static const char *const ways[] = {"-ngl 0", "-ngl 3", "-ngl 7", "-ot attn_[qkvo]=CPU -sm layer"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "run " MODEL HOSTS "%s -p 'lighthouse (n.):' -n 8 --temp 0",
                 ways[i]);
        program_check(arguments, 0, "lighthouse (n.): a large pitched pin.", text, sizeof text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(plans_say_what_was_offloaded),
        cmocka_unit_test(the_table_of_shares_counts_layers_that_were_offloaded),
        cmocka_unit_test(gpus_get_a_host_device_where_it_is_needed),
        cmocka_unit_test(the_text_stays_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
