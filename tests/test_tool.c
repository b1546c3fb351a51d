/* The tsr command: its options parser and tables as functions, then the program itself, as a user meets
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>
#include <tsr/version.h>

#include "../tools/format.h"
#include "../tools/options.h"
#include "support/program.h"

/* -- options -- */

static struct {
    const char *model;
    int n_ctx;
    uint64_t seed, cap;
    float temp;
    bool json;
} got;

static const tool_option options[] = {
    {"-m", "--model", TOOL_STRING, &got.model, "FILE", "model to open", 0, 0},
    {"-c", "--ctx-size", TOOL_INT, &got.n_ctx, "N", "tokens of context", 1, 1000},
    {"-s", "--seed", TOOL_U64, &got.seed, "N", "seed", 0, 0},
    {NULL, "--temp", TOOL_FLOAT, &got.temp, "T", "temperature", 0, 10},
    {"-ts", NULL, TOOL_BYTES, &got.cap, "BYTES", "memory", 0, 0},
    {NULL, "--json", TOOL_FLAG, &got.json, NULL, "print JSON", 0, 0},
};
static const tool_command command = {.name = "try",
                                     .summary = "try the parser",
                                     .options = options,
                                     .n_options = TOOL_COUNT(options),
                                     .description = "It has `code` in it.\n\nAnd a second paragraph.",
                                     .examples = "tsr try -m 'a b'",
                                     .pages = "devices json"};

/* Parse blank-separated words; what was printed ends up in `text`. */
static int parse(const char *words, char *text, size_t bytes)
{
    static char copy[512];
    char *argv[32] = {"try"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    memset(&got, 0, sizeof got);
    got.n_ctx = 7;
    memset(text, 0, bytes);
    FILE *out = fmemopen(text, bytes - 1, "w");
    assert_non_null(out);
    int code = tool_options_parse(&command, argc, argv, out, out);
    fclose(out);
    return code;
}

static void options_are_read_into_their_variables(void **state)
{
    (void)state;
    char text[2048];
    assert_int_equal(
        parse("-m a.gguf -c 1000 --seed=18446744073709551615 --temp 0.5 -ts 2KiB --json", text, sizeof text),
        TOOL_GO_ON);
    assert_string_equal(got.model, "a.gguf");
    assert_int_equal(got.n_ctx, 1000);
    assert_true(got.seed == UINT64_MAX);
    assert_true(got.temp == 0.5f);
    assert_int_equal(got.cap, 2048);
    assert_true(got.json);
    assert_string_equal(text, "");

    assert_int_equal(parse("", text, sizeof text), TOOL_GO_ON); /* defaults stay */
    assert_int_equal(got.n_ctx, 7);
    assert_null(got.model);
    assert_int_equal(parse("-c 1 -c 2", text, sizeof text), TOOL_GO_ON); /* the later one counts */
    assert_int_equal(got.n_ctx, 2);
    assert_int_equal(parse("--model -x --temp=0", text, sizeof text), TOOL_GO_ON); /* no option's name */
    assert_string_equal(got.model, "-x");
}

static void wrong_options_get_one_line_and_code_2(void **state)
{
    (void)state;
    static const struct {
        const char *words, *expected;
    } cases[] = {
        {"--modell x", "tsr try: unknown option '--modell'; did you mean '--model'?\n"},
        {"--ctx_size=5", "tsr try: unknown option '--ctx_size=5'; did you mean '--ctx-size'?\n"},
        {"--zzzzzzzzzzzz", "tsr try: unknown option '--zzzzzzzzzzzz'; see `tsr try --help`\n"},
        {"-z", "tsr try: unknown option '-z'; see `tsr try --help`\n"},
        {"--ml", "tsr try: unknown option '--ml'; see `tsr try --help`\n"},
        {"--kept", "tsr try: unknown option '--kept'; see `tsr try --help`\n"},
        {"-temp 0", "tsr try: unknown option '-temp'; did you mean '--temp'?\n"},
        {"--ts=1", "tsr try: unknown option '--ts=1'; did you mean '-ts'?\n"},
        {"--keep 0", "tsr try: --keep: a full context is not shifted; `-c N` holds more tokens\n"},
        {"--threads=4", "tsr try: --threads: threads belong to a device: `--devices host:1,threads=8`; the "
                        "default is one per core\n"},
        {"file.gguf", "tsr try: 'file.gguf' is not an option; see `tsr try --help`\n"},
        {"-", "tsr try: '-' is not an option; see `tsr try --help`\n"},
        {"-m", "tsr try: -m needs a value: -m FILE\n"},
        {"-m --json", "tsr try: -m needs a value: -m FILE\n"},
        {"--json=1", "tsr try: --json takes no value, remove '=1'\n"},
        {"-c 0", "tsr try: -c takes a whole number from 1 to 1000, not '0'\n"},
        {"-c 1001", "tsr try: -c takes a whole number from 1 to 1000, not '1001'\n"},
        {"-c 5x", "tsr try: -c takes a whole number from 1 to 1000, not '5x'\n"},
        {"--ctx-size=", "tsr try: --ctx-size takes a whole number from 1 to 1000, not ''\n"},
        {"-c 99999999999999999999",
         "tsr try: -c takes a whole number from 1 to 1000, not '99999999999999999999'\n"},
        {"-s -1", "tsr try: -s takes a whole number, not '-1'\n"},
        {"-s 18446744073709551616", "tsr try: -s takes a whole number, not '18446744073709551616'\n"},
        {"--temp nan", "tsr try: --temp takes a number from 0 to 10, not 'nan'\n"},
        {"--temp -0.1", "tsr try: --temp takes a number from 0 to 10, not '-0.1'\n"},
        {"-ts 5X", "tsr try: -ts takes a byte count such as 200MiB, not '5X'\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048];
        assert_int_equal(parse(cases[i].words, text, sizeof text), TOOL_EXIT_USAGE);
        assert_string_equal(text, cases[i].expected);
    }
}

static void help_lists_every_option(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(parse("-m x --help", text, sizeof text), TOOL_EXIT_OK);
    assert_string_equal(text, "usage: tsr try [options]\n\ntry the parser\n\noptions:\n"
                              "  -m, --model FILE                model to open\n"
                              "  -c, --ctx-size N                tokens of context\n"
                              "  -s, --seed N                    seed\n"
                              "  --temp T                        temperature\n"
                              "  -ts BYTES                       memory\n"
                              "  --json                          print JSON\n"
                              "  -h, --help                      print this text\n\n"
                              "It has `code` in it.\n\nAnd a second paragraph.\n\n"
                              "example:\n  tsr try -m 'a b'\n");
}

static void help_fits_80_columns(void **state)
{
    (void)state;
    static const char *const commands[] = {"",    "topo",  "show",        "plan",  "fit",
                                           "run", "bench", "bench links", "synth", "doctor"};
    static char text[1 << 15];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[32];
        snprintf(arguments, sizeof arguments, "help %s", commands[i]);
        assert_int_equal(program_run(arguments, text, sizeof text), 0);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 80)
                fail_msg("%s: longer than 80 columns: %.*s", arguments, (int)strcspn(line, "\n"), line);
    }
}

static void help_has_other_forms(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(parse("--help=markdown", text, sizeof text), TOOL_EXIT_OK);
    assert_non_null(
        strstr(text, "## tsr try\n\nTry the parser.\n\n    tsr try [options]\n\nIt has `code` in it.\n"));
    assert_non_null(strstr(text, "| Options | |\n| --- | --- |\n| `-m`, `--model FILE` | model to open |\n"));
    assert_non_null(strstr(text, "| `-ts BYTES` | memory |\n"));
    assert_non_null(
        strstr(text, "Example:\n\n    tsr try -m 'a b'\n\nMore: [devices](devices.md), [json](json.md)\n"));
    assert_int_equal(parse("--help=man", text, sizeof text), TOOL_EXIT_OK);
    assert_non_null(strstr(text, ".SH NAME\ntsr\\-try \\- try the parser\n"));
    assert_non_null(strstr(text, ".TP\n\\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIFILE\\fR\n\\&model to open\n"));
    assert_non_null(strstr(text, "\\&tsr try \\-m \\(aqa b\\(aq\n"));
    assert_int_equal(parse("--help=html", text, sizeof text), TOOL_EXIT_USAGE);
}

static void headings_divide_help_and_are_no_options(void **state)
{
    (void)state;
    char text[4096] = "", word[] = "first", *argv[] = {"try", word, NULL}, *help[] = {"try", "-h", NULL};
    static const tool_option rows[] = {TOOL_HEADING_ROW("first"),
                                       {NULL, "--json", TOOL_FLAG, &got.json, NULL, "print JSON", 0, 0}};
    const tool_command divided = {.name = "try", .summary = "try", .options = rows, .n_options = 2};
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    assert_int_equal(tool_options_parse(&divided, 2, help, out, out), TOOL_EXIT_OK);
    assert_int_equal(tool_options_parse(&divided, 2, argv, out, out), TOOL_EXIT_USAGE);
    fclose(out);
    assert_non_null(strstr(text, "\n\nfirst:\n  --json "));
    assert_non_null(strstr(text, "'first' is not an option"));
}

static void a_slip_finds_the_word_and_another_word_does_not(void **state)
{
    (void)state;
    static const char *const words[] = {"topo", NULL, "plan", "version"};
    assert_string_equal(tool_closest("topl", words, 4), "topo");
    assert_string_equal(tool_closest("verson", words, 4), "version");
    assert_string_equal(tool_closest("tpoo", words, 4), "topo");
    assert_string_equal(tool_closest("--plan", words, 4), "plan");
    assert_null(tool_closest("benchmark", words, 4));
    assert_null(tool_closest("pn", words, 4));
    assert_null(tool_closest("plow", words, 4)); /* two of four letters are others */
}

/* -- tables -- */

static void tables_align_text_left_and_numbers_right(void **state)
{
    (void)state;
    char text[512] = "";
    tool_table table = {0};
    tool_table_header(&table, 3, (const char *[]){"device", "weights", "note"});
    tool_table_cell(&table, "%s", "host0");
    tool_table_cell(&table, "%d MiB", 1234);
    tool_table_cell(&table, "%s", "caché"); /* two bytes for the last letter, one column */
    tool_table_cell(&table, "%s", "a longer one");
    tool_table_cell(&table, "%s", "-");
    tool_table_cell(&table, "%s", "x");
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    tool_table_print(&table, out);
    fclose(out);
    tool_table_free(&table);
    assert_string_equal(text, "device         weights  note\n"
                              "host0         1234 MiB  caché\n"
                              "a longer one         -  x\n");
}

static void bytes_are_shown_with_a_unit_that_fits(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1 KiB"},
                 {1536, "1.5 KiB"},
                 {UINT64_C(200) << 20, "200 MiB"},
                 {UINT64_C(33600000000), "31.3 GiB"},
                 {UINT64_MAX, "16 EiB"}};
    char text[TSR_BYTES_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(tsr_bytes_text(cases[i].bytes, text), cases[i].text);
}

/* -- the program -- */

static void the_program_answers_and_exits_as_documented(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"", 2, "no command given"},
        {"tpoo", 2, "unknown command 'tpoo'; did you mean 'topo'?"},
        {"frobnicate", 2, "unknown command 'frobnicate'; `tsr help` lists them"},
        {"--version", 0, "tsr "},
        {"version", 0, "tsr "},
        {"--help", 0, "usage: tsr COMMAND"},
        {"help topo", 0, "usage: tsr topo"},
        {"help frobnicate", 2, "unknown command"},
        {"help bench links", 0, "usage: tsr bench links"},
        {"help --man bench links", 0, ".TH \"TSR-BENCH-LINKS\" 1 "},
        {"help --man", 0, ".SH \"EXIT STATUS\""},
        {"help --markdown", 0, "# The tsr command"},
        {"help --markdown frobnicate", 2, "unknown command"},
        {"help --bash", 2, "unknown command"},
        {"completion bash", 0, "\ncomplete -F _tsr tsr\n"},
        {"completion zsh", 0, "#compdef tsr\n"},
        {"completion fish", 2, "tsr completion: takes the name of a shell, bash or zsh"},
        {"completion", 2, "tsr completion: takes the name of a shell, bash or zsh"},
        {"topo --help", 0, "--machine-file FILE"},
        {"topo", 0, "this machine"},
        {"topo --jsn", 2, "did you mean '--json'?"},
        {"topo --machine-file /nope.xml", 1, "tsr topo: machine file '/nope.xml': No such file"},
        {"topo --devices host:0", 2, "tsr topo: devices: 'host:0'"},
        {"topo --machine-file synthetic:pu:1 --devices cuda:0", 1, "no GPU is usable"},
        {"doctor --no-bench --devices host:9x >/dev/null", 2, "tsr bench links: devices: 'host:9x'"},
        {"topo > /dev/full", 1, "cannot write to standard output"},
        {"topo --json > /dev/full", 1, "cannot write"},
        {"help > /dev/full", 1, "cannot write"},
        {"--version > /dev/full", 1, "cannot write"},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

static void doctor_shows_all_parts_and_which_one_failed(void **state)
{
    (void)state;
    static const char *const phrases[] = {"## Build\n\ntsr " TSR_VERSION_STRING ", build ",
                                          "\ncompiler  ",
                                          "\nhwloc     ",
                                          "## System\n\nLinux ",
                                          "\nTSR_OF_A_TEST=a?b\n",
                                          "## Machine\n\nthis machine\n",
                                          "## Collectives and links\n\nfailed: exit status 2\n"};
    static char text[1 << 16];
    assert_int_equal(setenv("TSR_OF_A_TEST", "a\033b", 1), 0);
    int code = program_run("doctor --no-bench --devices host:9x 2>/dev/null", text, sizeof text);
    unsetenv("TSR_OF_A_TEST");
    assert_int_equal(code, 2);
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (!strstr(text, phrases[i]))
            fail_msg("no \"%s\" in:\n%s", phrases[i], text);
}

static void topo_shows_devices_of_another_machine(void **state)
{
    (void)state;
    char text[16384];
    assert_int_equal(program_run("topo --machine-file 'synthetic:pack:2 [numa(memory=8GiB)] core:4 pu:2' "
                                 "--devices host:2,mem=200MiB,threads=1",
                                 text, sizeof text),
                     0);
    assert_non_null(strstr(text, "device  kind  NUMA node  cores  n  threads  memory      cap\n"
                                 "host0   host          0    0-3  4        1   8 GiB  200 MiB\n"
                                 "host1   host          1    4-7  4        1   8 GiB  200 MiB\n"));
    assert_int_equal(
        program_run("topo --json --machine-file 'synthetic:core:2 pu:1' --devices host:2", text, sizeof text),
        0);
    assert_non_null(strstr(text, "\"memory_bytes\": 1073741824"));
    assert_non_null(strstr(text, "\"name\": \"host1\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_read_into_their_variables),
        cmocka_unit_test(wrong_options_get_one_line_and_code_2),
        cmocka_unit_test(help_lists_every_option),
        cmocka_unit_test(help_fits_80_columns),
        cmocka_unit_test(help_has_other_forms),
        cmocka_unit_test(headings_divide_help_and_are_no_options),
        cmocka_unit_test(a_slip_finds_the_word_and_another_word_does_not),
        cmocka_unit_test(tables_align_text_left_and_numbers_right),
        cmocka_unit_test(bytes_are_shown_with_a_unit_that_fits),
        cmocka_unit_test(the_program_answers_and_exits_as_documented),
        cmocka_unit_test(doctor_shows_all_parts_and_which_one_failed),
        cmocka_unit_test(topo_shows_devices_of_another_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
