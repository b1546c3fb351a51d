/* Simulated GPUs under mpirun (-n 2 to 4): processes that each have 1 to 3 devices of a machine of their own,
 * GPUs or GPUs mixed with host devices, have the logits of one process, to the bit, for random splits, modes
 * and chunks.
 *
 * NCCL is simulated within one process, so sums between processes are those of kernels (cuda/comm/between)
 * or staged. GPUs of the same number count as one GPU, though each process has a machine of its own, so that
 * kernels are named. TSR_TEST_ROUNDS makes more and larger rounds than CI has time for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/mpi.h>

#include <mpi.h>

#include "cuda/simulated.h"
#include "support/distributed_task.h"
#include "support/random.h"

enum { MOST_PROCESSES = 4, N_GPUS = 3, LOGIT_BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };

/* What a round is, the same in every process. */
typedef struct plan {
    int n;                              /* processes */
    char devices[MOST_PROCESSES][128];  /* of each */
    char all[MOST_PROCESSES * 128 + 1]; /* devices of all, as one text */
    bool mixed;
    task t;
} plan;

static void configure(uint64_t seed)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_GPUS;
    config.seed = seed;
    cudasim_configure(&config);
}

/* Devices of process r; a GPU may be named twice, and is then shared. */
static void draw_devices(plan *p, int r, uint64_t most, uint64_t *seed)
{
    size_t used = 0;
    for (int d = (int)random_below(seed, most); d >= 0; d--, p->t.n_split++) {
        const bool is_host = p->mixed && random_below(seed, 2);
        used += (size_t)snprintf(p->devices[r] + used, sizeof p->devices[r] - used, used ? "," : "");
        used += is_host
                    ? (size_t)snprintf(p->devices[r] + used, sizeof p->devices[r] - used, "host:1,threads=1")
                    : (size_t)snprintf(p->devices[r] + used, sizeof p->devices[r] - used, "cuda:%d",
                                       (int)random_below(seed, N_GPUS));
    }
    p->t.devices[r] = p->devices[r];
}

static void draw(plan *p, int most_processes, uint64_t most_devices, uint64_t *seed)
{
    *p = (plan){.n = 2 + (int)random_below(seed, (uint64_t)most_processes - 1),
                .mixed = random_below(seed, 2)};
    p->t.chunk = 5 + (int)random_below(seed, 16);
    p->t.mode = random_below(seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
    p->t.collectives = random_below(seed, 2) ? "staged" : NULL;
    const char *kernels = random_below(seed, 2) ? "peer" : "pinned";
    for (int r = 0; r < p->n; r++) {
        draw_devices(p, r, most_devices, seed);
        snprintf(p->all + strlen(p->all), sizeof p->all - strlen(p->all), r ? ",%s" : "%s", p->devices[r]);
    }
    if (!p->t.collectives && !p->mixed)
        p->t.collectives = kernels;
    for (int d = 0; d < p->t.n_split; d++)
        p->t.split[d] = (float)random_below(seed, 4);
    p->t.split[random_below(seed, (uint64_t)p->t.n_split)] += 1;
}

/* GPUs and host devices round differently, so a mixed round is compared with the same devices in one
 * process. */
static void compute_alone(const plan *p, float *logits)
{
    process processes[PROCESSES_MAX];
    task t = p->t;
    memset(t.devices, 0, sizeof t.devices);
    t.devices[0] = p->mixed ? p->all : "cuda:0";
    t.n_split = p->mixed ? t.n_split : 0;
    t.collectives = p->mixed ? t.collectives : NULL;
    task_run(&t, task_decode_all, NULL, processes);
    task_assert_status(processes, 1, TSR_OK, "");
    memcpy(logits, t.logits[0], LOGIT_BYTES);
    task_free(&t);
}

static void compute_together(const plan *p, int rank, MPI_Comm comm, float *logits)
{
    tsr_transport *transport = NULL;
    const char *problem = tsr_mpi_transport_create(&comm, &transport);
    if (problem)
        fail_msg("%s", problem);
    task t = p->t;
    t.logits[rank] = logits;
    process self = {.rank = rank, .n_ranks = p->n, .transport = *transport, .user = &t};
    task_decode_all(&self);
    if (self.status != TSR_OK)
        fail_msg("process %d: %s", rank, self.text);
    tsr_mpi_transport_destroy(transport);
}

static void run_round(const plan *p, int rank, MPI_Comm comm)
{
    static float expected[N_TOKENS * SESSION_VOCAB], logits[N_TOKENS * SESSION_VOCAB];
    if (rank == 0)
        compute_alone(p, expected);
    MPI_Bcast(expected, LOGIT_BYTES, MPI_BYTE, 0, comm);
    compute_together(p, rank, comm, logits);
    if (memcmp(logits, expected, LOGIT_BYTES) != 0)
        fail_msg("process %d of %d (%s): other logits than %s", rank, p->n, p->all,
                 p->mixed ? "in one process" : "of cuda:0");
    nothing_is_left();
}

static void processes_have_the_logits_of_one(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 29;
    int rank, n_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    assert_in_range(n_ranks, 2, MOST_PROCESSES);
    for (int i = 0, n = rounds ? atoi(rounds) : 2; i < n; i++) {
        plan p;
        MPI_Comm comm;
        draw(&p, n_ranks, rounds ? 3 : 2, &seed);
        configure(seed);
        if (rounds && rank == 0)
            print_message("round %d: %d processes, %s, %s\n", i, p.n, p.all, tsr_split_mode_name(p.t.mode));
        MPI_Comm_split(MPI_COMM_WORLD, rank < p.n ? 0 : MPI_UNDEFINED, rank, &comm);
        if (comm == MPI_COMM_NULL)
            continue;
        run_round(&p, rank, comm);
        MPI_Comm_free(&comm);
    }
}

int main(void)
{
    int level;
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_have_the_logits_of_one)};
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    const int failed = cmocka_run_group_tests(tests, task_set_up, task_tear_down);
    if (failed) /* others wait for this process */
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return failed;
}
