/* Packs one instance and reports what came out.
 *
 *     pack FILE.csv [--capacity BYTES] [--chunk BYTES] [--seconds S] [--nodes N] [--output OUT.csv]
 *
 * FILE has a header naming the columns id, lower, upper and size (in any order), then one buffer per line,
 * live in [lower, upper); support/pack_file.h has the details. Looks for the smallest packing, or one of at
 * most `capacity`, for S seconds (default 4.5) and N nodes (default: no limit). Prints one line:
 *
 *     peak=BYTES bound=BYTES ratio=R seconds=S nodes=N
 *
 * with the packer's CPU time, and writes the lines with an offset each to OUT.csv.
 *
 * Exit status 0 when the packing is valid and no larger than the capacity (if one is given), 1 when it is
 * not, 2 when the arguments or the file are wrong. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/pack_file.h"

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct arguments {
    const char *path, *output;
    size_t max_chunk_bytes;
    tsr_pack_limits limits;
} arguments;

static bool read_bytes(const char *text, size_t *bytes_out)
{
    char *end;
    *bytes_out = strtoull(text, &end, 10);
    return end != text && !*end;
}

static bool read_seconds(const char *text, double *seconds_out)
{
    char *end;
    *seconds_out = strtod(text, &end);
    return end != text && !*end && *seconds_out > 0;
}

static bool read_argument(char **argv, arguments *a)
{
    size_t nodes;
    if (!argv[1])
        return false;
    if (!strcmp(argv[0], "--capacity"))
        return read_bytes(argv[1], &a->limits.capacity);
    if (!strcmp(argv[0], "--chunk"))
        return read_bytes(argv[1], &a->max_chunk_bytes);
    if (!strcmp(argv[0], "--seconds"))
        return read_seconds(argv[1], &a->limits.max_cpu_seconds);
    if (!strcmp(argv[0], "--nodes")) {
        bool good = read_bytes(argv[1], &nodes) && nodes <= INT64_MAX;
        a->limits.max_nodes = good ? (int64_t)nodes : 0;
        return good;
    }
    a->output = argv[1];
    return !strcmp(argv[0], "--output");
}

static bool read_arguments(int argc, char **argv, arguments *a)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' && !a->path)
            a->path = argv[i];
        else if (!read_argument(&argv[i++], a))
            return false;
    }
    return a->path != NULL;
}

static void print_result(const tsr_pack_solution *s, double seconds)
{
    double ratio = s->bound_bytes ? (double)s->total_bytes / (double)s->bound_bytes : 1.0;
    printf("peak=%zu bound=%zu ratio=%.4f seconds=%.4f nodes=%" PRId64 "\n", s->total_bytes, s->bound_bytes,
           ratio, seconds, s->n_nodes);
}

int main(int argc, char **argv)
{
    arguments args = {.limits = {.max_nodes = INT64_MAX, .max_cpu_seconds = 4.5}};
    tsr_pack_solution solution = {0};
    pack_file file = {0};
    char message[PACK_FILE_MESSAGE];
    int result = 2;

    if (!read_arguments(argc, argv, &args)) {
        fprintf(stderr, "usage: pack FILE.csv [--capacity BYTES] [--chunk BYTES] [--seconds S] [--nodes N] "
                        "[--output OUT.csv]\n");
        return 2;
    }
    if (!pack_file_read(args.path, &file, message)) {
        fprintf(stderr, "pack: %s: %s\n", args.path, message);
        return 2;
    }
    tsr_pack_problem problem = {file.items, file.n_items, args.max_chunk_bytes};

    double start = cpu_seconds();
    tsr_status status = tsr_pack_solve(&problem, &args.limits, &solution);
    double seconds = cpu_seconds() - start;
    if (status == TSR_OK)
        status = tsr_pack_check(&problem, &solution);
    if (status != TSR_OK) {
        fprintf(stderr, "pack: %s: %s\n", args.path, tsr_last_error());
        goto out;
    }
    print_result(&solution, seconds);
    result = args.limits.capacity && solution.total_bytes > args.limits.capacity;
    if (args.output && !pack_file_write(args.output, &file, &solution)) {
        fprintf(stderr, "pack: cannot write %s\n", args.output);
        result = 2;
    }
out:
    tsr_pack_solution_free(&solution);
    pack_file_free(&file);
    return result;
}
