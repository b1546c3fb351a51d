/* The tsr command: finds the subcommand and hands over. */
#include "tsr.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsr/version.h>

#include "options.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"topo", tsr_cmd_topo, "show a machine and the devices made from it"},
    {"plan", tsr_cmd_plan, "show what a model takes on every device, without loading it"},
    {"fit", tsr_cmd_fit, "show what has to give way so that a model fits"},
    {"run", tsr_cmd_run, "generate text"},
    {"bench", tsr_cmd_bench, "measure the devices, and a model at different splits"},
    {"synth", tsr_cmd_synth, "write a model of random weights, to compare machines with"},
};

static int print_usage(FILE *out)
{
    fprintf(out, "usage: tsr COMMAND [options]\n\ncommands:\n");
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    fprintf(out, "  %-10s%s\n  %-10s%s\n", "version", "print the version", "help",
            "print this text, or a command's options");
    fprintf(out, "\n`tsr COMMAND --help` lists a command's options.\n");
    return TOOL_EXIT_OK;
}

static int find_command(const char *name)
{
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return i;
    return -1;
}

static int complain(const char *name)
{
    const char *names[TOOL_COUNT(commands) + 2];
    for (int i = 0; i < TOOL_COUNT(commands); i++)
        names[i] = commands[i].name;
    names[TOOL_COUNT(commands)] = "version";
    names[TOOL_COUNT(commands) + 1] = "help";
    const char *close = tool_closest(name, names, TOOL_COUNT(names));
    if (close)
        fprintf(stderr, "tsr: unknown command '%s'; did you mean '%s'?\n", name, close);
    else
        fprintf(stderr, "tsr: unknown command '%s'; `tsr help` lists them\n", name);
    return TOOL_EXIT_USAGE;
}

static int print_help(int argc, char **argv)
{
    if (argc < 3)
        return print_usage(stdout);
    int index = find_command(argv[2]);
    if (index < 0)
        return complain(argv[2]);
    char *help[] = {argv[2], "--help", NULL};
    return commands[index].run(2, help);
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

static int run(int argc, char **argv)
{
    if (is_one_of(argv[1], "help", "--help", "-h"))
        return print_help(argc, argv);
    if (is_one_of(argv[1], "version", "--version", "-V")) {
        printf("tsr %s\n", TSR_VERSION_STRING);
        return TOOL_EXIT_OK;
    }
    int index = find_command(argv[1]);
    return index < 0 ? complain(argv[1]) : commands[index].run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "tsr: no command given; `tsr help` lists them\n");
        return TOOL_EXIT_USAGE;
    }
    int code = run(argc, argv);
    /* A full disk or a closed pipe must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == TOOL_EXIT_OK) {
        fprintf(stderr, "tsr %s: cannot write to standard output\n", argv[1]);
        code = TOOL_EXIT_FAILED;
    }
    return code;
}

int tool_fail(const char *command, tsr_status status)
{
    fflush(stdout);
    fprintf(stderr, "tsr %s: %s\n", command, tsr_last_error());
    return status == TSR_ERR_INVALID ? TOOL_EXIT_USAGE : TOOL_EXIT_FAILED;
}

static void print_log(tsr_log_level level, const char *text, void *user)
{
    fprintf(user ? user : stderr, "tsr: %s%s\n", level == TSR_LOG_WARN ? "warning: " : "", text);
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
