/* Simulated GPUs under mpirun (-n 2 to 4): processes that each have 1 to 3 devices of a machine of their own,
 * GPUs or GPUs mixed with host devices, have the logits of one process, to the bit, for random splits, modes
 * and chunks; and what fails in one process fails in all.
 *
 * Sums between GPUs are NCCL's, those of kernels between processes (cuda/comm/between), or staged. GPUs of
 * the same number count as one GPU, though each process has a machine of its own, so that kernels are named.
 * NCCL is named because kernels come before it. TSR_TEST_ROUNDS makes more and larger rounds than CI has time
 * for. */
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

static bool names_nccl(const plan *p)
{
    return p->t.collectives && strcmp(p->t.collectives, "nccl") == 0;
}

static const char *collectives_name(const plan *p)
{
    return p->t.collectives ? p->t.collectives : "auto";
}

/* What serves GPUs alone is not named where there are host devices. */
static const char *draw_collectives(bool mixed, uint64_t *seed)
{
    static const char *const names[] = {"staged", "nccl", "peer", "pinned"};
    const uint64_t kind = random_below(seed, 4);
    return mixed && kind > 0 ? NULL : names[kind];
}

/* Devices of process r; a GPU may be named twice, and is then shared, but not under NCCL, which wants
 * distinct ones in a process. */
static void draw_devices(plan *p, int r, uint64_t most, uint64_t *seed)
{
    size_t used = 0;
    int gpu = (int)random_below(seed, N_GPUS);
    for (int d = (int)random_below(seed, most); d >= 0; d--, p->t.n_split++) {
        char name[32] = "host:1,threads=1";
        if (!p->mixed || random_below(seed, 2)) {
            gpu = names_nccl(p) ? (gpu + 1) % N_GPUS : (int)random_below(seed, N_GPUS);
            snprintf(name, sizeof name, "cuda:%d", gpu);
        }
        used += (size_t)snprintf(p->devices[r] + used, sizeof p->devices[r] - used, "%s%s", used ? "," : "",
                                 name);
    }
    p->t.devices[r] = p->devices[r];
}

static void draw(plan *p, int most_processes, uint64_t most_devices, uint64_t *seed)
{
    *p = (plan){.n = 2 + (int)random_below(seed, (uint64_t)most_processes - 1),
                .mixed = random_below(seed, 2)};
    p->t.chunk = 5 + (int)random_below(seed, 16);
    p->t.mode = random_below(seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
    p->t.collectives = draw_collectives(p->mixed, seed);
    for (int r = 0; r < p->n; r++) {
        draw_devices(p, r, most_devices, seed);
        snprintf(p->all + strlen(p->all), sizeof p->all - strlen(p->all), r ? ",%s" : "%s", p->devices[r]);
    }
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

/* This process's part in the task. */
static process take_part(const plan *p, task *t, int rank, MPI_Comm comm)
{
    tsr_transport *transport = NULL;
    const char *problem = tsr_mpi_transport_create(&comm, &transport);
    if (problem)
        fail_msg("%s", problem);
    process self = {.rank = rank, .n_ranks = p->n, .transport = *transport, .user = t};
    task_decode_all(&self);
    tsr_mpi_transport_destroy(transport);
    return self;
}

static void compute_together(const plan *p, int rank, MPI_Comm comm, float *logits)
{
    task t = p->t;
    t.logits[rank] = logits;
    const process self = take_part(p, &t, rank, comm);
    if (self.status != TSR_OK)
        fail_msg("process %d (%s, %s): %s", rank, p->all, collectives_name(p), self.text);
}

/* NCCL's sums where it is named, and nowhere else among GPUs. Its first ones, when the runtime is opened, are
 * always made. */
static void check_who_adds(const plan *p, int rank)
{
    const bool is_nccl = cudasim_calls_of("ncclAllReduce") > 0;
    if (!p->mixed && is_nccl != names_nccl(p))
        fail_msg("process %d (%s, %s): NCCL %s used", rank, p->all, collectives_name(p),
                 is_nccl ? "is" : "is not");
}

static void run_round(const plan *p, int rank, MPI_Comm comm)
{
    static float expected[N_TOKENS * SESSION_VOCAB], logits[N_TOKENS * SESSION_VOCAB];
    if (rank == 0)
        compute_alone(p, expected);
    MPI_Bcast(expected, LOGIT_BYTES, MPI_BYTE, 0, comm);
    compute_together(p, rank, comm, logits);
    if (memcmp(logits, expected, LOGIT_BYTES) != 0)
        fail_msg("process %d of %d (%s, %s): other logits than %s", rank, p->n, p->all, collectives_name(p),
                 p->mixed ? "in one process" : "of cuda:0");
    check_who_adds(p, rank);
    nothing_is_left();
}

static void processes_have_the_logits_of_one(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 1313; /* CI's rounds have NCCL and kernels */
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
            print_message("round %d: %d processes, %s, %s, %s\n", i, p.n, p.all,
                          tsr_split_mode_name(p.t.mode), collectives_name(&p));
        MPI_Comm_split(MPI_COMM_WORLD, rank < p.n ? 0 : MPI_UNDEFINED, rank, &comm);
        if (comm == MPI_COMM_NULL)
            continue;
        run_round(&p, rank, comm);
        MPI_Comm_free(&comm);
    }
}

/* -- failures -- */

/* Runs the task in all processes while a call fails in one of them: call `nth` of a function. Returns whether
 * it failed there, and so in all. */
static bool fails_in_all(plan *p, int rank, int failing, const char *name, uint64_t nth)
{
    int results[MOST_PROCESSES];
    if (rank == failing)
        cudasim_fail_named(name, nth, 0);
    const process self = take_part(p, &p->t, rank, MPI_COMM_WORLD);
    const int mine = self.status == TSR_OK;
    MPI_Allgather(&mine, 1, MPI_INT, results, 1, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < p->n; r++)
        if (results[r] != mine)
            fail_msg("process %d, while %s %d fails in process %d: not what process %d has, but %s", rank,
                     rank == failing ? name : "call", (int)nth, failing, r, mine ? "the logits" : self.text);
    assert_string_equal(cudasim_violation(), "");
    return !mine;
}

/* A call of CUDA or NCCL fails, in one process after another; first NCCL's first sum, for which the others
 * wait. Calls that release something fail without consequence. */
static void what_fails_in_one_process_fails_in_all(void **state)
{
    (void)state;
    enum { MAX_NAMES = 128 };
    static float logits[N_TOKENS * SESSION_VOCAB];
    const char *rounds = getenv("TSR_TEST_ROUNDS"), *names[MAX_NAMES];
    uint64_t seed = 31;
    int rank, n_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    plan p = {.n = n_ranks, .t = {.mode = TSR_SPLIT_MODE_TENSOR, .collectives = "nccl", .chunk = 20}};
    for (int r = 0; r < n_ranks; r++)
        p.t.devices[r] = r ? "cuda:0" : "cuda:0,cuda:1";
    p.t.logits[rank] = logits;
    configure(seed);
    assert_int_equal(take_part(&p, &p.t, rank, MPI_COMM_WORLD).status, TSR_OK);
    const int n_names = distinct_calls(0, names, MAX_NAMES);
    p.t.timeout_ns = 1000000000; /* of waiting for a process that does not come to NCCL */
    configure(seed);
    assert_true(fails_in_all(&p, rank, 0, "ncclAllReduce", 1));
    for (int i = 1, n = rounds ? atoi(rounds) : 2; i < n; i++) {
        /* the same draws in all processes, whose functions are not the same */
        const char *name = names[random_below(&seed, (uint64_t)n_names)];
        configure(seed);
        fails_in_all(&p, rank, i % n_ranks, name, 1 + random_below(&seed, 4));
    }
}

int main(void)
{
    int level;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_the_logits_of_one),
        cmocka_unit_test(what_fails_in_one_process_fails_in_all),
    };
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    const int failed = cmocka_run_group_tests(tests, task_set_up, task_tear_down);
    if (failed) /* others wait for this process */
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return failed;
}
