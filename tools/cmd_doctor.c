/* tsr doctor: what a report of a problem needs, by the commands that show each part. */
#include "tsr.h"

#include <string.h>
#include <sys/utsname.h>

#include <tsr/version.h>

#include "bench/build_id.h"
#include "options.h"

extern char **environ;

static void print_build(void)
{
    char id[64] = "";
    bench_build_id(id, sizeof id);
    printf("tsr %s, build %s\n%s", tsr_version(), *id ? id : "without an ID", tsr_build_facts());
}

/* Name and version of the distribution: PRETTY_NAME="..." in os-release(5). */
static void print_distribution(void)
{
    char line[256];
    FILE *file = fopen("/etc/os-release", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "PRETTY_NAME=", 12) == 0) {
            size_t n = strcspn(line + 12, "\n");
            tsr_clean_text(line + 12, n, "");
            printf("%.*s\n", (int)n, line + 12);
        }
    if (file)
        fclose(file);
}

static void print_system(void)
{
    struct utsname about;
    if (uname(&about) == 0)
        printf("%s %s %s\n", about.sysname, about.release, about.machine);
    print_distribution();
}

/* The variables that change what the library and the CUDA and MPI libraries do (docs/environment.md). */
static void print_environment(void)
{
    static const char *const prefixes[] = {"TSR_",  "CUDA_", "NVIDIA_", "NCCL_",
                                           "OMPI_", "UCX_",  "HWLOC_",  "LD_LIBRARY_PATH="};
    char text[512];
    int n = 0;
    for (char **variable = environ; *variable; variable++)
        for (int i = 0; i < TOOL_COUNT(prefixes); i++)
            if (strncmp(*variable, prefixes[i], strlen(prefixes[i])) == 0) {
                snprintf(text, sizeof text, "%s", *variable);
                tsr_clean_text(text, strlen(text), "");
                printf("%s\n", text);
                n++;
            }
    if (n == 0)
        printf("no variable of tsr, CUDA, NCCL, MPI or hwloc is set\n");
}

/* One part: a heading and a command, whose messages on standard error belong to the report. Returns the exit
 * code. */
static int print_part(const char *title, int (*run)(int argc, char **argv), int argc, char **argv)
{
    printf("\n## %s\n\n", title);
    fflush(stdout);
    int code = run(argc, argv);
    fflush(stdout);
    if (code != TOOL_EXIT_OK)
        printf("failed: exit status %d\n", code);
    return code;
}

/* `rest` is "--devices", SPEC, or nothing. Returns the first exit code that is not 0. */
static int print_tests(int n_rest, char **rest, bool no_bench)
{
    char *links[4] = {"links"};
    char *bench[16] = {"bench",    "--synthetic", "tinyllama-1.1b:q4_0",
                       "--ratios", "sweep:2",     "--budget",
                       "15",       "-p",          "64",
                       "-n",       "8",           "--quiet"};
    int n_links = 1, n_bench = 12, first = TOOL_EXIT_OK;
    for (int i = 0; i < n_rest; i++)
        links[n_links++] = bench[n_bench++] = rest[i];
    first = print_part("Collectives and links", tsr_cmd_bench_links, n_links, links);
    if (!no_bench) {
        int code = print_part("A small model", tsr_cmd_bench, n_bench, bench);
        first = first ? first : code;
    }
    return first;
}

int tsr_cmd_doctor(int argc, char **argv)
{
    const char *devices = NULL;
    bool no_bench = false;
    const tool_option options[] = {
        {"-dev", "--devices", TOOL_STRING, &devices, "SPEC",
         "of the tests (default: all GPUs, otherwise host)", 0, 0},
        {NULL, "--no-bench", TOOL_FLAG, &no_bench, NULL, "leave out what takes longer than seconds", 0, 0},
    };
    const tool_command command = {
        .name = "doctor",
        .summary = TOOL_DOCTOR_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description =
            "Prints the build, the system, the machine and the environment, tests the collectives of "
            "the devices with known sums, measures their links, and measures a small model of random "
            "weights (0.6 GiB). A part that fails is named, and the others follow. The exit status "
            "is that of the first part that failed.",
        .examples = "tsr doctor >report.txt 2>&1\ntsr doctor --devices cuda:0,cuda:1",
        .pages = "devices benchmarking"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;

    char *topo[] = {"topo", NULL}, *rest[] = {"--devices", (char *)devices, NULL};
    printf("## Build\n\n");
    print_build();
    printf("\n## System\n\n");
    print_system();
    printf("\n## Environment\n\n");
    print_environment();
    int machine = print_part("Machine", tsr_cmd_topo, 1, topo);
    int tests = print_tests(devices ? 2 : 0, rest, no_bench);
    return machine ? machine : tests;
}
