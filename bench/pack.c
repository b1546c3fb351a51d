/* Packs one instance and reports what came out.
 *
 *     pack FILE.csv [--capacity BYTES] [--chunk BYTES]
 *
 * FILE has a header naming the columns id, lower, upper and size (in any order), then one buffer per line,
 * live in [lower, upper). Prints one line:
 *
 *     peak=BYTES bound=BYTES ratio=R seconds=S nodes=N
 *
 * Exit status 0 when the packing is valid and no larger than the capacity (if one is given), 1 when it is
 * not, 2 when the arguments or the file are wrong. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/pack.h"

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Which column holds what, from the header line; false when one is missing. */
static bool read_header(char *line, int column[3])
{
    static const char *const names[3] = {"lower", "upper", "size"};
    int index = 0, found = 0;
    for (char *field = strtok(line, ", \r\n"); field; field = strtok(NULL, ", \r\n"), index++)
        for (int i = 0; i < 3; i++)
            if (!strcmp(field, names[i])) {
                column[i] = index;
                found++;
            }
    return found == 3;
}

static bool read_item(const char *line, const int column[3], tsr_pack_item *item)
{
    int64_t values[3] = {-1, -1, -1};
    const char *at = line;
    for (int index = 0; *at; index++) {
        char *end;
        int64_t value = strtoll(at, &end, 10);
        if (end == at)
            return false;
        for (int i = 0; i < 3; i++)
            if (column[i] == index)
                values[i] = value;
        at = end + strspn(end, ", \r\n");
    }
    *item = (tsr_pack_item){values[0], values[1], (size_t)values[2], 1, TSR_PACK_FREE, NULL};
    return values[0] >= 0 && values[1] >= 0 && values[2] >= 0;
}

static bool read_problem(const char *path, tsr_pack_item **items_out, int *n_out)
{
    char line[512];
    int n = 0, capacity = 0, column[3] = {0};
    tsr_pack_item *items = NULL;
    FILE *file = fopen(path, "r");
    bool good = file && fgets(line, sizeof line, file) && read_header(line, column);

    while (good && fgets(line, sizeof line, file)) {
        if (n == capacity) {
            capacity = 2 * capacity + 256;
            tsr_pack_item *grown = realloc(items, (size_t)capacity * sizeof *items);
            if (!grown) {
                good = false;
                break;
            }
            items = grown;
        }
        good = read_item(line, column, &items[n++]);
    }
    if (file)
        fclose(file);
    *items_out = items;
    *n_out = n;
    return good;
}

typedef struct arguments {
    const char *path;
    size_t capacity, max_chunk_bytes;
} arguments;

static bool read_bytes(const char *text, size_t *bytes_out)
{
    char *end;
    *bytes_out = strtoull(text, &end, 10);
    return end != text && !*end;
}

static bool read_arguments(int argc, char **argv, arguments *a)
{
    for (int i = 1; i < argc; i++) {
        bool good;
        if (!strcmp(argv[i], "--capacity"))
            good = ++i < argc && read_bytes(argv[i], &a->capacity);
        else if (!strcmp(argv[i], "--chunk"))
            good = ++i < argc && read_bytes(argv[i], &a->max_chunk_bytes);
        else
            good = argv[i][0] != '-' && !a->path && (a->path = argv[i]);
        if (!good)
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
    arguments args = {0};
    tsr_pack_problem problem = {0};
    tsr_pack_solution solution = {0};
    tsr_pack_item *items = NULL;
    int result = 2;

    if (!read_arguments(argc, argv, &args)) {
        fprintf(stderr, "usage: pack FILE.csv [--capacity BYTES] [--chunk BYTES]\n");
        return 2;
    }
    if (!read_problem(args.path, &items, &problem.n_items)) {
        fprintf(stderr, "pack: %s: cannot read lines of id,lower,upper,size\n", args.path);
        goto out;
    }
    problem.items = items;
    problem.max_chunk_bytes = args.max_chunk_bytes;

    double start = now_seconds();
    tsr_status status = tsr_pack_solve(&problem, &solution);
    double seconds = now_seconds() - start;
    if (status == TSR_OK)
        status = tsr_pack_check(&problem, &solution);
    if (status != TSR_OK) {
        fprintf(stderr, "pack: %s: %s\n", args.path, tsr_last_error());
        goto out;
    }
    print_result(&solution, seconds);
    result = args.capacity && solution.total_bytes > args.capacity;
out:
    tsr_pack_solution_free(&solution);
    free(items);
    return result;
}
