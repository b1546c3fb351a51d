/* The tsr command: finds the subcommand and calls it. */
#include "tsr.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsr/version.h>

#include "completion.h"
#include "help.h"
#include "options.h"
#include "processes.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const char *part; /* a subcommand that its first argument names; NULL: none */
} commands[] = {
    {"topo", tsr_cmd_topo, TOOL_TOPO_SUMMARY, NULL},
    {"show", tsr_cmd_show, TOOL_SHOW_SUMMARY, NULL},
    {"plan", tsr_cmd_plan, TOOL_PLAN_SUMMARY, NULL},
    {"fit", tsr_cmd_fit, TOOL_FIT_SUMMARY, NULL},
    {"run", tsr_cmd_run, TOOL_RUN_SUMMARY, NULL},
    {"embed", tsr_cmd_embed, TOOL_EMBED_SUMMARY, NULL},
    {"perplexity", tsr_cmd_perplexity, TOOL_PERPLEXITY_SUMMARY, NULL},
    {"bench", tsr_cmd_bench, TOOL_BENCH_SUMMARY, "links"},
    {"synth", tsr_cmd_synth, TOOL_SYNTH_SUMMARY, NULL},
    {"doctor", tsr_cmd_doctor, TOOL_DOCTOR_SUMMARY, NULL},
};

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {TOOL_EXIT_OK, "success"},
    {TOOL_EXIT_FAILED, "failure: a file or a device"},
    {TOOL_EXIT_USAGE, "the command line is wrong, or a text in it, such as that of --devices, or TSR_ISA"},
    {TOOL_EXIT_NO_ROOM, "not enough memory: the model does not fit"},
    {TOOL_EXIT_INTERRUPTED, "interrupted with Ctrl-C"},
};

static int find_command(const char *name)
{
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return i;
    return -1;
}

static int complain(const char *name)
{
    const char *names[TOOL_COUNT(commands) + 3] = {"completion", "version", "help"};
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        names[3 + i] = commands[i].name;
    const char *close = tool_closest(name, names, TOOL_COUNT(names));
    if (close)
        fprintf(stderr, "tsr: unknown command '%s'; did you mean '%s'?\n", name, close);
    else
        fprintf(stderr, "tsr: unknown command '%s'; `tsr help` lists them\n", name);
    return TOOL_EXIT_USAGE;
}

/* -- help -- */

/* The tool itself as a command whose options are commands and exit codes. */
static void print_usage(tool_help_form form)
{
    tool_option rows[TOOL_COUNT(commands) + TOOL_COUNT(exit_codes) + 5] = {TOOL_HEADING_ROW("commands")};
    int n = 1;
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        rows[n++] = (tool_option){.long_name = commands[i].name, .help = commands[i].summary};
    const tool_option others[] = {
        {NULL, "completion", TOOL_FLAG, NULL, "SHELL", TOOL_COMPLETION_SUMMARY, 0, 0},
        {NULL, "version", TOOL_FLAG, NULL, NULL, TOOL_VERSION_SUMMARY, 0, 0},
        {NULL, "help", TOOL_FLAG, NULL, "[COMMAND]", TOOL_HELP_SUMMARY, 0, 0},
        TOOL_HEADING_ROW("exit status"),
    };
    for (int i = 0; i < TOOL_COUNT(others); i++)
        rows[n++] = others[i];
    char numbers[TOOL_COUNT(exit_codes)][12];
    for (int i = 0; i < TOOL_COUNT(exit_codes); i++) {
        snprintf(numbers[i], sizeof numbers[i], "%d", exit_codes[i].code);
        rows[n++] = (tool_option){.long_name = numbers[i], .help = exit_codes[i].meaning};
    }
    const tool_command tool = {
        .name = "",
        .summary = "run one transformer split over several unequal devices",
        .options = rows,
        .n_options = n,
        .description =
            "Options are given as `--name value` or `--name=value`; a later option overrides an earlier one. "
            "`tsr COMMAND --help` lists the options of a command. Names are those of llama.cpp where it has "
            "the option; other options of llama.cpp are answered with what to type instead.\n\n"
            "Tables and JSON go to standard output; messages and progress go to standard error. `tsr run` "
            "writes "
            "only the generated text to standard output.\n\n"
            "`tsr help --man COMMAND` prints a manual page, `tsr help --markdown` the whole reference.\n\n"
            "Installed packages have completions for bash and zsh; `source <(tsr completion bash)` sets them "
            "in a shell without.",
        .pages =
            "devices splitting offload fitting machines generation processes precision benchmarking json"};
    tool_help_print(&tool, form, stdout);
}

/* `words` name a command, or a part of one. */
static int print_command(const char *const *words, int n, const char *form)
{
    char option[32];
    int index = find_command(words[0]);
    if (index < 0)
        return complain(words[0]);
    snprintf(option, sizeof option, "--help=%s", form);
    bool has_part = n > 1 && commands[index].part && strcmp(words[1], commands[index].part) == 0;
    char *help[] = {(char *)words[0], has_part ? (char *)words[1] : option, option, NULL};
    return commands[index].run(has_part ? 3 : 2, help);
}

static void print_commands(const char *form)
{
    for (int i = 0; i < TOOL_COUNT(commands); i++) {
        const char *words[] = {commands[i].name, commands[i].part};
        print_command(words, 1, form);
        if (commands[i].part)
            print_command(words, 2, form);
    }
}

static void print_reference(void)
{
    printf("# The tsr command\n\n"
           "<!-- Made by scripts/make-reference from the tables of options in tools/. -->\n\n");
    print_usage(TOOL_HELP_MARKDOWN);
    print_commands("markdown");
}

static void print_man_title(const char *const *words, int n)
{
    printf(".TH \"TSR");
    for (int i = 0; i < n; i++) {
        putchar('-');
        for (const char *c = words[i]; *c; c++)
            putchar(toupper((unsigned char)*c));
    }
    printf("\" 1 \"%s\" \"tsr %s\" \"TSR manual\"\n", TSR_TOOL_DATE, TSR_VERSION_STRING);
}

/* tsr help [--man | --markdown] [COMMAND [PART]] */
static int print_help(int argc, char **argv)
{
    tool_help_form form = TOOL_HELP_TEXT;
    const char *name = "text";
    int n = argc - 2;
    const char *const *words = (const char *const *)argv + 2;
    if (n > 0 && strncmp(words[0], "--", 2) == 0 && tool_help_form_parse(words[0] + 2, &form) &&
        form < TOOL_HELP_BASH) {
        name = words[0] + 2;
        words++;
        n--;
    }
    if (n > 0 && find_command(words[0]) < 0)
        return complain(words[0]);
    if (form == TOOL_HELP_MAN)
        print_man_title(words, n);
    if (n > 0)
        return print_command(words, n, name);
    if (form == TOOL_HELP_MARKDOWN)
        print_reference();
    else
        print_usage(form);
    return TOOL_EXIT_OK;
}

/* tsr completion SHELL */
static int print_completion(int argc, char **argv)
{
    tool_help_form shell = TOOL_HELP_TEXT;
    if (argc != 3 || !tool_help_form_parse(argv[2], &shell) || shell < TOOL_HELP_BASH) {
        fprintf(stderr, "tsr completion: takes the name of a shell, bash or zsh\n");
        return TOOL_EXIT_USAGE;
    }
    char names[32 * TOOL_COUNT(commands)];
    size_t used = 0;
    tool_completion_word words[TOOL_COUNT(commands) + 3];
    for (int i = 0; i < TOOL_COUNT(commands); i++) {
        words[i] = (tool_completion_word){commands[i].name, commands[i].summary, commands[i].part, NULL};
        used += (size_t)snprintf(names + used, sizeof names - used, i ? " %s" : "%s", commands[i].name);
    }
    words[TOOL_COUNT(commands)] =
        (tool_completion_word){"completion", TOOL_COMPLETION_SUMMARY, NULL, "bash zsh"};
    words[TOOL_COUNT(commands) + 1] = (tool_completion_word){"version", TOOL_VERSION_SUMMARY, NULL, NULL};
    words[TOOL_COUNT(commands) + 2] = (tool_completion_word){"help", TOOL_HELP_SUMMARY, NULL, names};
    tool_completion_begin(shell, words, TOOL_COUNT(words), stdout);
    print_commands(argv[2]);
    tool_completion_end(shell, stdout);
    return TOOL_EXIT_OK;
}

/* -- the program -- */

static bool is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

static int run(int argc, char **argv)
{
    if (is_one_of(argv[1], "help", "--help", "-h"))
        return print_help(argc, argv);
    if (is_one_of(argv[1], "version", "--version", "-V")) {
        printf("tsr %s\n%s", TSR_VERSION_STRING, tsr_build_facts());
        return TOOL_EXIT_OK;
    }
    if (strcmp(argv[1], "completion") == 0)
        return print_completion(argc, argv);
    int index = find_command(argv[1]);
    return index < 0 ? complain(argv[1]) : commands[index].run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "tsr: no command given; `tsr help` lists them\n");
        return TOOL_EXIT_USAGE;
    }
    tool_processes_begin(argc, argv);
    int code = run(argc, argv);
    /* A full disk or a closed pipe must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == TOOL_EXIT_OK) {
        fprintf(stderr, "tsr %s: cannot write to standard output\n", argv[1]);
        code = TOOL_EXIT_FAILED;
    }
    return tool_processes_end(argv[1], code);
}

int tool_fail(const char *command, tsr_status status)
{
    fflush(stdout);
    if (status == TSR_ERR_DEVICE_LOST)
        tool_processes_speak();
    fprintf(stderr, "tsr %s: %s\n", command, tsr_last_error());
    return status == TSR_ERR_INVALID  ? TOOL_EXIT_USAGE
           : status == TSR_ERR_MEMORY ? TOOL_EXIT_NO_ROOM
                                      : TOOL_EXIT_FAILED;
}

static void print_log(tsr_log_level level, const char *text, void *user)
{
    (void)user;
    fprintf(tool_processes_log(), "tsr: %s%s\n", level == TSR_LOG_WARN ? "warning: " : "", text);
}

tsr_logger tool_logger(bool verbose)
{
    return (tsr_logger){.fn = print_log, .max_level = verbose ? TSR_LOG_DEBUG : TSR_LOG_WARN};
}

double tool_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tool_write(const char *text, void *file)
{
    fputs(text, file);
}
