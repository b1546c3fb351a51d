/* What several processes cost: the same devices, one in each process and all in one process, decoding and
 * computing a prompt of 512 tokens in turn in one run.
 *
 *     mpirun -n 2 --bind-to none build/bench/processes [TYPE|FILE.gguf]          (default Q8_0)
 *
 * Process r works on the r-th processor that it may use; for the other measurement the first process has
 * devices on all of these while the others sleep. The model is that of bench/steady.c. */
#include <dirent.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tsr/mpi.h>

#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 9, N_TOKENS = 32, PROMPT = 512 };
enum { TOGETHER, ALONE };

/* Restrict this process, MPI's threads included, which count for what hwloc finds, to the n-th processor of
 * those it has; -1: to the first n_all of them. */
static void work_on(const cpu_set_t *all, int n, int n_all)
{
    cpu_set_t some;
    CPU_ZERO(&some);
    for (int cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, all)) {
            if (n < 0 ? i < n_all : i == n)
                CPU_SET(cpu, &some);
            i++;
        }
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks)) != NULL;)
        if (*task->d_name != '.' && sched_setaffinity(atoi(task->d_name), sizeof some, &some) != 0)
            exit(1);
    if (tasks)
        closedir(tasks);
}

/* Without MPI's polling, which would take a processor from who is measured. */
static void wait_for_all(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (; !done; usleep(500))
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

static double prompt_rate(bench_opened *o)
{
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 7 + i % 500;
    tsr_batch batch = {.n_tokens = PROMPT, .tokens = tokens};
    const double begin = bench_now();
    bench_check(tsr_session_decode(o->session, &batch, o->logits));
    const double rate = PROMPT / (bench_now() - begin);
    bench_check(tsr_session_trim(o->session, 0, 0));
    return rate;
}

static void report(const char *what, double rates[2][N_ROUNDS])
{
    double ratio[N_ROUNDS];
    for (int r = 0; r < N_ROUNDS; r++)
        ratio[r] = rates[TOGETHER][r] / rates[ALONE][r];
    const double middle = bench_median(ratio, N_ROUNDS);
    printf("| %-16s | %9.2f | %9.2f | %5.2f [%.2f, %.2f] |\n", what, bench_median(rates[TOGETHER], N_ROUNDS),
           bench_median(rates[ALONE], N_ROUNDS), middle, ratio[0], ratio[N_ROUNDS - 1]);
}

static void measure(bench_opened o[2], int rank)
{
    double decode[2][N_ROUNDS] = {{0}}, prompt[2][N_ROUNDS] = {{0}};
    for (int r = -1; r < N_ROUNDS; r++) /* the first warms up */
        for (int way = TOGETHER; way <= ALONE; way++) {
            const int at = r < 0 ? 0 : r;
            if (way == TOGETHER || rank == 0) {
                decode[way][at] = 1 / bench_decode(&o[way], N_TOKENS, 0);
                prompt[way][at] = prompt_rate(&o[way]);
            }
            wait_for_all();
        }
    if (rank > 0)
        return;
    report("decode", decode);
    report("prompt of 512", prompt);
}

/* The file that was named, or one that the first process makes; its path in every process. */
static void find_file(const char *argument, int rank, bench_file *file, char *path, size_t size)
{
    struct synth_model_config config = BENCH_TINYLLAMA_LAYERS;
    if (strchr(argument, '.')) {
        snprintf(path, size, "%s", argument);
        return;
    }
    bench_check(tsr_type_parse(argument, &config.weight_type));
    config.n_vocab = 32000 * 4 / 22;
    if (rank == 0) {
        *file = bench_make(&config);
        snprintf(path, size, "%s", file->path);
    }
    MPI_Bcast(path, (int)size, MPI_CHAR, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    bench_opened o[2] = {{0}};
    bench_file file = {{0}};
    char path[512] = "", devices[32];
    tsr_transport *mpi = NULL;
    cpu_set_t all;
    const char *problem = tsr_mpi_transport_create(NULL, &mpi);
    if (problem || sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < mpi->n_ranks) {
        fprintf(stderr, "processes: %s\n", problem ? problem : "a processor for every process is needed");
        return 1;
    }
    find_file(argc > 1 ? argv[1] : "Q8_0", mpi->rank, &file, path, sizeof path);
    work_on(&all, mpi->rank, 0);
    o[TOGETHER] = bench_open_evenly(path, "host:1,threads=1", mpi, PROMPT);
    work_on(&all, -1, mpi->n_ranks);
    snprintf(devices, sizeof devices, "host:%d,threads=1", mpi->n_ranks);
    if (mpi->rank == 0)
        o[ALONE] = bench_open_evenly(path, devices, NULL, PROMPT);
    if (mpi->rank == 0)
        printf("| %-16s | processes | one alone | ratio [min, max]   |\n", argc > 1 ? argv[1] : "Q8_0");
    measure(o, mpi->rank);
    if (mpi->rank == 0)
        bench_close(&o[ALONE]);
    bench_close(&o[TOGETHER]);
    if (*file.folder)
        bench_unmake(&file);
    fflush(stdout);
    tsr_mpi_transport_destroy(mpi);
    return 0;
}
