/* Plans and fits as people read them: lines of a terminal's width, equal devices in one row, equally full
 * where that takes no more time, and times that belong to the devices that work. All on shapes of published
 * models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/program.h"

#define CARDS     "--machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8' "
#define LLAMA_70B "plan --synthetic llama-3-70b:q4_k_m "

static char text[1 << 16];

/* Standard output alone: a message on standard error is a sentence of any length. */
static void check_width(const char *command)
{
    char line[512];
    snprintf(line, sizeof line, "%s 2>/dev/null", command);
    int code = program_run(line, text, sizeof text);
    if (code != 0 && code != 3)
        fail_msg("tsr %s: exit code %d", command, code);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
        if (strcspn(at, "\n") > 80)
            fail_msg("tsr %s: %zu columns: %.*s", command, strcspn(at, "\n"), (int)strcspn(at, "\n"), at);
}

static void no_line_is_wider_than_a_terminal(void **state)
{
    (void)state;
    static const char *const machines[] = {
        "2x rtx3090 nvlink", "8x h100 nvswitch, 2x host 64 cores 1024GiB 300GB/s", "16x a100-40gb",
        "2x rtx3090 nvlink, 1x rtx4060ti 16GiB pcie4x8, 1x rtx4090", "4x host 16 cores 64GiB 80GB/s"};
    static const char *const models[] = {"llama-3-70b:q4_k_m", "qwen3-30b-a3b:q8_0", "gemma-3-27b:q4_k_m"};
    static const char *const options[] = {"", "-sm layer", "-sm auto -c 131072", "-dev cuda,host:1 -ngl 30"};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t s = 0; s < sizeof models / sizeof *models; s++)
            for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
                char line[512];
                if (m == 4 && o == 3) /* has no GPU */
                    continue;
                snprintf(line, sizeof line, "plan --why --synthetic %s --machine '%s' %s", models[s],
                         machines[m], options[o]);
                check_width(line);
                snprintf(line, sizeof line, "fit --synthetic %s --machine '%s' %s --fit-ctx 512", models[s],
                         machines[m], options[o]);
                if (o != 2)
                    check_width(line);
            }
}

/* The tables of tsr topo; the tree above them has names of any length. */
static void tables_of_devices_have_a_terminals_width(void **state)
{
    (void)state;
    static const char *const commands[] = {"topo --machine '8x h100 nvswitch'",
                                           "topo --machine '16x a100-40gb'",
                                           "topo --machine '4x host 16 cores 64GiB' --devices host"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        program_check(commands[i], 0, "\ndevice ", text, sizeof text);
        for (const char *at = strstr(text, "\ndevice ") + 1; *at; at += strcspn(at, "\n") + 1)
            if (strcspn(at, "\n") > 80)
                fail_msg("tsr %s: %.*s", commands[i], (int)strcspn(at, "\n"), at);
    }
}

static void equal_devices_share_a_row(void **state)
{
    (void)state;
    program_check(LLAMA_70B "--machine '4x rtx3090, 1x rtx4060ti pcie4x8' --why", 0, "\ncuda0-3   9.9 GiB ",
                  text, sizeof text);
    assert_non_null(strstr(text, "\ncuda4           - "));
    assert_non_null(strstr(text, "\ncuda0-3     25.0 %  25.0 %  2 of 8"));
    assert_non_null(strstr(text, "\nwithout one of cuda0-3 "));
    assert_null(strstr(text, "\ncuda1 "));
    program_check(LLAMA_70B "--machine '1x rtx3090, 1x rtx4090' -ts 1,2 -c 4096", 0, "\ncuda0 ", text,
                  sizeof text);
    assert_non_null(strstr(text, "\ncuda1 "));
}

/* In layer mode any division of the layers over equal cards takes the same time. */
static void equal_devices_are_equally_full(void **state)
{
    (void)state;
    program_check(LLAMA_70B CARDS "-sm layer -c 8192", 0,
                  "\nStage 1: layers 0 to 39 on cuda0\nStage 2: layers 40 to 79 on cuda1\n", text,
                  sizeof text);
    assert_non_null(strstr(text, "Predicted: decode 16.7 and prompt "));
    /* The card with more heads has less of the FFN. */
    program_check(
        "plan --synthetic llama-3-70b:q4_k --machine '2x rtx3090 nvlink, 1x rtx4060ti 16GiB pcie4x8' "
        "-c 8192 --for decode",
        0, "  37.5 %  3 of 8  43.8 %   49 of 112 ", text, sizeof text);
    assert_non_null(strstr(text, "  50.0 %  4 of 8  42.9 %   48 of 112 "));
}

static void times_belong_to_the_devices_that_work(void **state)
{
    (void)state;
    program_check(LLAMA_70B CARDS "-sm layer -c 8192 --why", 0,
                  "\n  attention   40 x (179.9 us on each of cuda0-1)\n"
                  "  ffn         40 x (555.7 us on each of cuda0-1)\n"
                  "  output       1 x (1.08 ms on cuda1)\n",
                  text, sizeof text);
    assert_non_null(strstr(text, "\ntensor: even shares *"));
    assert_non_null(strstr(text, "\ncuda0 alone *"));
    assert_non_null(strstr(text, "\n* too large for the memory of a device\n"));
    assert_non_null(strstr(text, "\nNote: cuda2 is left out: mode layer is faster without it\n"));
    program_check("plan --synthetic qwen3-30b-a3b:q8_0 --machine '1x rtx3090, host 64GiB' --cpu-moe --why", 0,
                  " us on cuda0)\n  ffn         48 x (", text, sizeof text);
    assert_non_null(strstr(text, " on host0)\n"));
    program_check("plan --synthetic llama-3-8b:q4_k_m --machine '2x rtx3090' --why", 0,
                  "\nlayout, memory aside ", text, sizeof text);
    assert_null(strstr(text, " *\n"));
    assert_null(strstr(text, "too large"));
}

/* What the split is chosen for, and where prompts would gain much by another. */
static void a_plan_says_what_its_split_is_the_fastest_for(void **state)
{
    (void)state;
    static const char *const unequal = "plan --synthetic llama-3-8b:q4_k_m --machine '1x rtx4090, 1x rtx3060 "
                                       "pcie3x4' -c 8192";
    char line[256];
    program_check(LLAMA_70B "--machine '2x rtx3090 nvlink'", 0,
                  "\nSplit: the fastest for 512 tokens in and 128 out, ", text, sizeof text);
    assert_null(strstr(text, "--for"));
    /* alone, the 4090 is faster at prompts, and slower at decoding */
    program_check(
        unequal, 0,
        "\nSplit: the fastest for 512 tokens in and 128 out, 1.17 s; --for decode: decode\n  123 and "
        "prompt 2787 tokens/s\n",
        text, sizeof text);
    assert_non_null(strstr(text, "\nNote: cuda1 is left out: with it 512 tokens in and 128 out are predicted "
                                 "to take\n  1.23 s, without it 1.17 s; "));
    snprintf(line, sizeof line, "%s --for decode --why", unequal);
    program_check(line, 0, "\nSplit: the fastest for 128 tokens out, 1.04 s\n", text, sizeof text);
    assert_non_null(
        strstr(text, "\ncuda1       6.87 ms  84 %    108.63 ms  59 %            -5 %          +168 %\n"));
    assert_non_null(strstr(text, "\nfor decode alone: cuda0 74.8 %, cuda1 25.2 %\n"));
    assert_non_null(strstr(text, "\nfor prompts alone: cuda0 "));
    snprintf(line, sizeof line, "%s --for prompt -np 4", unequal);
    program_check(line, 0, "\nSplit: the fastest for 4 sequences of 512 tokens in, ", text, sizeof text);
    /* prompts on the 4090 alone, decoding on both; the bytes are those of the plan with the option */
    static const char *const both = "plan --synthetic llama-3-8b:q4_k_m --machine '1x rtx4090, 1x rtx3090 "
                                    "pcie3x4' --for 2048:64";
    snprintf(line, sizeof line, "%s -c 8192", both);
    program_check(line, 0, "; --prompt-split auto: 754.66 ms, 472 KiB\n  more on cuda0, 1.9 GiB on cuda1\n",
                  text, sizeof text);
    snprintf(line, sizeof line, "%s -c 8192 --prompt-split auto", both);
    program_check(line, 0, "\nSplit: the fastest for 2048 tokens in and 64 out, 754.66 ms", text,
                  sizeof text);
    assert_null(strstr(text, "--prompt-split"));
    /* with room for less, the gain is below 5 % */
    program_check("plan --synthetic llama-3-8b:q4_k_m --machine '1x rtx4090, 1x rtx3090 1GiB pcie3x4' "
                  "--for 2048:64 -c 8192",
                  0, "\nSplit: the fastest for 2048 tokens in and 64 out, 825.29 ms\n", text, sizeof text);
    snprintf(line, sizeof line, "%s -ts 3,1", unequal);
    program_check(line, 0, "Fits: ", text, sizeof text);
    assert_null(strstr(text, "\nSplit: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_line_is_wider_than_a_terminal),
        cmocka_unit_test(tables_of_devices_have_a_terminals_width),
        cmocka_unit_test(equal_devices_share_a_row),
        cmocka_unit_test(equal_devices_are_equally_full),
        cmocka_unit_test(times_belong_to_the_devices_that_work),
        cmocka_unit_test(a_plan_says_what_its_split_is_the_fastest_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
