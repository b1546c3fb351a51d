/* GPUs of forked processes have kernels for their sums (cuda/comm/between): the bits are those of one GPU,
 * and when a process is killed in a step the others return, or go on. The parent makes no call of CUDA.
 *
 * On a machine with GPUs all processes use the first one, whose kernels take turns (TSR_GPU_TESTS). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "core/event.h"
#include "core/status.h"
#include "cuda/simulated.h"
#include "model/session/session.h"
#include "support/child.h"
#include "support/distributed_task.h"
#include "support/random.h"

enum { MOST = 3, LOGIT_BYTES = N_TOKENS * SESSION_VOCAB * sizeof(float) };

static const char *const forms[] = {"peer", "pinned"};

/* What the processes leave, shared with the test. */
static struct {
    float logits[MOST][N_TOKENS * SESSION_VOCAB];
    char between[MOST][16];
    uint64_t ended_ns[MOST]; /* when the last call returned */
    int n_losses[MOST];
} * left;

static float *one_gpu; /* [N_TOKENS][SESSION_VOCAB], the logits of one */

static struct {
    int rank, after_us; /* which process is killed, and when; -1: none */
    bool survive;
} killing;

static uint64_t seed_of_machines;

static void configure_machine(void)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = MOST;
    config.seed = seed_of_machines;
    if (CUDASIM_SIMULATED)
        cudasim_configure(&config);
}

static const char *gpu_of(int rank)
{
    static const char *const names[MOST] = {"cuda:0", "cuda:1", "cuda:2"};
    return names[CUDASIM_SIMULATED ? rank : 0];
}

static tsr_status look_and_decode(process *self, tsr_model *model, tsr_session *session)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    const int n = tsr_runtime_collectives(model->rt, rows);
    if (n > 0)
        snprintf(left->between[self->rank], sizeof left->between[0], "%s", rows[n - 1].implementation);
    if (self->rank == killing.rank) {
        const struct itimerval when = {.it_value = {.tv_usec = killing.after_us}};
        signal(SIGALRM, SIG_DFL); /* which ends the process, wherever it is */
        setitimer(ITIMER_REAL, &when, NULL);
    }
    const tsr_status status =
        task_decode_on(self, model, session, killing.survive ? &left->n_losses[self->rank] : NULL);
    left->ended_ns[self->rank] = tsr_clock_ns();
    while (self->rank == killing.rank) /* it was faster */
        pause();
    return status;
}

static void body(process *self)
{
    configure_machine();
    task_with_session(self, look_and_decode);
    if (killing.rank < 0 && self->status == TSR_OK &&
        (cudasim_leaks(stderr) != 0 || *cudasim_violation() != '\0')) {
        self->status = TSR_ERR_DEVICE;
        snprintf(self->text, sizeof self->text, "leaks, or %s", cudasim_violation());
    }
}

static void run(task *t, int n, process *processes, int *endings)
{
    memset(left, 0, sizeof *left);
    for (int r = 0; r < n; r++) {
        t->devices[r] = gpu_of(r);
        t->logits[r] = left->logits[r];
    }
    processes_fork(n, body, t, processes, endings);
}

static int set_up(void **state)
{
    process processes[PROCESSES_MAX];
    int endings[PROCESSES_MAX];
    task t = {.split = {1}, .n_split = 1, .mode = TSR_SPLIT_MODE_TENSOR};
    if (task_set_up_model(state))
        return -1;
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    one_gpu = malloc(LOGIT_BYTES);
    if (left == MAP_FAILED || !one_gpu)
        return -1;
    killing.rank = -1;
    run(&t, 1, processes, endings);
    memcpy(one_gpu, left->logits[0], LOGIT_BYTES);
    if (processes[0].status != TSR_OK || endings[0] != 0)
        print_error("one process alone (ended with %d): %s\n", endings[0], processes[0].text);
    return processes[0].status == TSR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    free(one_gpu);
    munmap(left, sizeof *left);
    return task_tear_down(state);
}

static void splits_have_the_bits_of_one_gpu(void **state)
{
    (void)state;
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 31;
    process processes[PROCESSES_MAX];
    int endings[PROCESSES_MAX];
    for (int i = 0, n_rounds = rounds ? atoi(rounds) : 2; i < n_rounds; i++) {
        const int n = 2 + (int)random_below(&seed, MOST - 1);
        task t = {.chunk = 5 + (int)random_below(&seed, 16), .n_split = n, .collectives = forms[i % 2]};
        t.mode = random_below(&seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
        for (int d = 0; d < n; d++)
            t.split[d] = (float)random_below(&seed, 4);
        t.split[random_below(&seed, (uint64_t)n)] += 1;
        seed_of_machines = seed;
        killing.rank = -1;
        run(&t, n, processes, endings);
        for (int r = 0; r < n; r++) {
            if (processes[r].status != TSR_OK || endings[r] != 0)
                fail_msg("process %d (%s): %s", r, t.collectives, processes[r].text);
            assert_int_equal(strncmp(left->between[r], t.collectives, 4), 0);
            assert_memory_equal(left->logits[r], one_gpu, LOGIT_BYTES);
        }
    }
}

/* Of three processes one is killed while all decode. */
static void a_killed_process_is_named_or_done_without(void **state)
{
    (void)state;
    enum { LIMIT_MS = 2000, SLACK_MS = 20000 };
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    uint64_t seed = 37;
    process processes[PROCESSES_MAX];
    int endings[PROCESSES_MAX];
    for (int i = 0, n_rounds = rounds ? atoi(rounds) : 2; i < n_rounds; i++) {
        char name[32], device[32]; /* as the heartbeat names it, or a waiting device */
        task t = {.split = {1, 2, 1},
                  .n_split = MOST,
                  .mode = TSR_SPLIT_MODE_TENSOR,
                  .collectives = forms[i % 2],
                  .timeout_ns = LIMIT_MS * UINT64_C(1000000)};
        killing.rank = (int)random_below(&seed, MOST);
        killing.after_us = 1 + (int)random_below(&seed, 60000);
        killing.survive = random_below(&seed, 2);
        seed_of_machines = seed;
        snprintf(name, sizeof name, "process %d on", killing.rank);
        snprintf(device, sizeof device, "device %d did not", killing.rank);
        const uint64_t begin = tsr_clock_ns();
        run(&t, MOST, processes, endings);
        assert_true(WIFSIGNALED(endings[killing.rank]));
        for (int r = 0; r < MOST; r++) {
            if (r == killing.rank)
                continue;
            const bool done = processes[r].status == TSR_OK;
            if (endings[r] != 0 || (done && memcmp(left->logits[r], one_gpu, LOGIT_BYTES) != 0) ||
                (!done && (killing.survive ||
                           (!strstr(processes[r].text, name) && !strstr(processes[r].text, device)))))
                fail_msg("process %d without %d: %s", r, killing.rank, processes[r].text);
            assert_in_range(left->ended_ns[r] - begin, 0, (LIMIT_MS + SLACK_MS) * UINT64_C(1000000));
        }
    }
}

static void look_for_gpu(void *unused)
{
    int n = 0;
    (void)unused;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
        _exit(1);
}

int main(void)
{
    enum { SKIPPED = 77 };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_have_the_bits_of_one_gpu),
        cmocka_unit_test(a_killed_process_is_named_or_done_without),
    };
    if (!CUDASIM_SIMULATED &&
        !child_succeeds(look_for_gpu, NULL, 60)) /* in a process of its own, before fork() */
        return SKIPPED;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
