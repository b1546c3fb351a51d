/* Going on without a device that is lost (tsr_runtime_drop_device()):
 *
 *     build/bench/survive [--runs N] [--seed N] [MODEL.gguf]
 *     build/tests/cudasim/first-light/survive ...              the same with simulated GPUs
 *
 * In each of N (100) runs three devices with copies of their weights decode a prompt and then token after
 * token, always the likeliest. In one of these calls, drawn by chance like the device, the device is lost:
 * the attention of a host device never ends; the context of a simulated GPU is poisoned at a call of CUDA
 * drawn by chance. The runtime goes on with the other two. Logits of all calls must have the bits of a run
 * in which nothing happens; otherwise the program fails. Each line has the median and the largest of:
 *
 *     error         seconds from the beginning of the call until it returns TSR_ERR_DEVICE_LOST; host devices
 *                   have a stall timeout of 2 s, and then 2 s to come to an end
 *     drop          seconds of tsr_runtime_drop_device()
 *     next token    seconds from the beginning of the call that failed until the same call has its logits
 *     bytes         bytes of weights that are read again from the file
 *     tokens        tokens that are computed again
 *
 * Each run has a process of its own, since threads that hang keep memory. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/tsr.h>

#include "core/checksum.h"
#include "core/runtime.h"
#include "host/host.h"
#include "support/measured.h"
#include "support/opened.h"
#include "support/random.h"
#ifdef TSR_CUDASIM
#include <cuda_runtime.h>
#include <cudasim.h>
#endif

enum {
    N_DEVICES = 3,
    N_PROMPT = 32,
    N_CALLS = 16,
    LAST_CALLS = 4,
    N_CTX = 128,

    N_FIGURES = 5
};

static const char *const figure_names[N_FIGURES] = {"error, s", "drop, s", "next token, s",
                                                    "bytes read again", "tokens computed again"};

/* What a run is to lose, and what came of it; in memory that the runs share with the main process. */
typedef struct run {
    int lost_call, lost_device; /* -1: none */
    uint64_t seed;
    uint64_t n_calls; /* of CUDA, in the last call of the session */
    bool was_lost;
    uint64_t bits; /* hash of the logits of all calls */
    double figures[N_FIGURES];
} run;

/* -- losing a device -- */

#ifdef TSR_CUDASIM

#define DEVICES  "cuda"
#define KIND     "simulated GPUs"
#define STALL_NS 0 /* the default: a simulated GPU is slow */

/* At one of as many calls of CUDA as a token has made in a run before. */
static void lose_soon(tsr_runtime *rt, run *r)
{
    (void)rt;
    const uint64_t calls = cudasim_calls() + random_below(&r->seed, r->n_calls);
    cudasim_poison_at(calls, r->lost_device, cudaErrorIllegalAddress);
}

static uint64_t n_cuda_calls(void)
{
    return cudasim_calls();
}

static void configure(void)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = N_DEVICES;
    cudasim_configure(&config);
}

static void release(void)
{
}

#else

#define DEVICES  "host:3,threads=1"
#define KIND     "host devices"
#define STALL_NS 2000000000

static tsr_kernel_set hooked;
static tsr_kernel_fn attention;
static _Atomic int n_until; /* calls of the hooked attention until it hangs; 0: none is to hang any more */
static _Atomic bool hangs, has_ended;

static void hang_once(const tsr_op *op, const tsr_kernel_env *env)
{
    const bool here = atomic_load(&n_until) > 0 && atomic_fetch_sub(&n_until, 1) == 1;
    while (here && atomic_load(&hangs))
        usleep(1000);
    attention(op, env);
    if (here)
        atomic_store(&has_ended, true);
}

static void lose_soon(tsr_runtime *rt, run *r)
{
    tsr_host_device *host = tsr_host(rt->devices[r->lost_device]);
    hooked = *host->kernels;
    attention = hooked.run[TSR_OP_ATTENTION];
    hooked.run[TSR_OP_ATTENTION] = hang_once;
    atomic_store(&hangs, true);
    atomic_store(&n_until, 1 + (int)random_below(&r->seed, 4));
    host->kernels = &hooked;
}

static void configure(void)
{
}

static uint64_t n_cuda_calls(void)
{
    return 0;
}

/* The thread returns into a program whose call has long failed. */
static void release(void)
{
    atomic_store(&hangs, false);
    while (!atomic_load(&has_ended))
        usleep(1000);
}

#endif

/* -- one run -- */

/* Sums what loading says. */
static void count_bytes(tsr_log_level level, const char *text, void *user)
{
    unsigned long long bytes;
    int end = 0;
    (void)level;
    if (sscanf(text, "%llu bytes of weights are copied from the file%n", &bytes, &end) == 1 && end > 0)
        *(double *)user += (double)bytes;
}

static bench_opened open_devices(const char *path, double *bytes)
{
    bench_opened o = {0};
    tsr_model_info info;
    const float even[N_DEVICES] = {1, 1, 1};
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runtime_config.devices = DEVICES;
    runtime_config.stall_timeout_ns = STALL_NS;
    runtime_config.logger = (tsr_logger){.fn = count_bytes, .user = bytes, .max_level = TSR_LOG_DEBUG};
    config.session.n_ctx = N_CTX;
    config.load.copy_weights = true;
    config.split.tensor_split = even;
    config.split.n_tensor_split = N_DEVICES;
    bench_check(tsr_runtime_open(&runtime_config, &o.rt));
    bench_check(tsr_model_open(o.rt, path, &config, &o.model));
    bench_check(tsr_session_create(o.model, &o.session));
    tsr_model_get_info(o.model, &info);
    o.logits = malloc((size_t)info.n_vocab * sizeof(float));
    if (!o.logits)
        abort();
    return o;
}

static int64_t n_computed(const bench_opened *o)
{
    tsr_session_stats stats;
    tsr_session_get_stats(o->session, &stats);
    return stats.n_tokens;
}

static void drop_lost(bench_opened *o, run *r, double *bytes)
{
    const double begin = bench_now();
    const int64_t n_before = n_computed(o);
    *bytes = 0;
    bench_check(tsr_runtime_drop_device(o->rt, r->lost_device));
    r->was_lost = true;
    r->figures[1] = bench_now() - begin;
    r->figures[3] = *bytes;
    r->figures[4] = (double)(n_computed(o) - n_before);
}

static void decode(bench_opened *o, run *r, const tsr_batch *batch, double *bytes)
{
    const double begin = bench_now();
    tsr_device_info info = {.lost = false};
    const tsr_status status = tsr_session_decode(o->session, batch, o->logits);
    if (r->lost_device >= 0 && status == TSR_ERR_DEVICE_LOST)
        bench_check(tsr_runtime_device(o->rt, r->lost_device, &info));
    if (!info.lost) {
        bench_check(status);
        return;
    }
    r->figures[0] = bench_now() - begin;
    drop_lost(o, r, bytes);
    bench_check(tsr_session_decode(o->session, batch, o->logits));
    r->figures[2] = bench_now() - begin;
}

static int32_t likeliest(const float *logits, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void generate(const char *path, run *r)
{
    double bytes = 0;
    tsr_model_info info;
    int32_t tokens[N_PROMPT];
    configure();
    bench_opened o = open_devices(path, &bytes);
    tsr_model_get_info(o.model, &info);
    for (int i = 0; i < N_PROMPT; i++)
        tokens[i] = 7 + i;
    for (int call = 0; call < N_CALLS; call++) {
        const uint64_t n_calls = n_cuda_calls();
        const tsr_batch batch = {.n_tokens = call ? 1 : N_PROMPT, .tokens = tokens};
        if (call == r->lost_call)
            lose_soon(o.rt, r);
        decode(&o, r, &batch, &bytes);
        if (r->lost_device < 0)
            r->n_calls = n_cuda_calls() - n_calls;
        r->bits = tsr_hash_words(r->bits, o.logits, (size_t)info.n_vocab * sizeof(float));
        tokens[0] = likeliest(o.logits, info.n_vocab);
    }
    if (r->was_lost)
        release();
    bench_close(&o);
}

/* -- all runs -- */

static void run_alone(const char *path, run *r)
{
    int result;
    const run wanted = *r;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        generate(path, r);
        _exit(0);
    }
    if (pid > 0 && waitpid(pid, &result, 0) == pid && WIFEXITED(result) && WEXITSTATUS(result) == 0 &&
        r->was_lost == (wanted.lost_device >= 0))
        return;
    fprintf(stderr, "survive: the run of seed %llu failed: device %d in call %d%s\n",
            (unsigned long long)wanted.seed, wanted.lost_device, wanted.lost_call,
            r->was_lost ? "" : ", which was not lost");
    exit(1);
}

static void print_figures(const run *runs, int n)
{
    double *values = malloc((size_t)n * sizeof *values);
    if (!values)
        abort();
    printf("%-22s %12s %12s\n", "", "median", "largest");
    for (int f = 0; f < N_FIGURES; f++) {
        for (int i = 0; i < n; i++)
            values[i] = runs[i].figures[f];
        const double median = bench_median(values, n);
        printf("%-22s %12.*f %12.*f\n", figure_names[f], f < 3 ? 3 : 0, median, f < 3 ? 3 : 0, values[n - 1]);
    }
    free(values);
}

static int run_all(const char *path, int n, uint64_t seed)
{
    int n_equal = 0;
    run *runs =
        mmap(NULL, (size_t)(n + 1) * sizeof *runs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (runs == MAP_FAILED)
        abort();
    run *plain = &runs[n];
    *plain = (run){.lost_call = -1, .lost_device = -1};
    run_alone(path, plain);
    for (int i = 0; i < n; i++) {
        runs[i].n_calls = plain->n_calls;
        runs[i].lost_call = (int)random_below(&seed, N_CALLS - LAST_CALLS);
        runs[i].lost_device = (int)random_below(&seed, N_DEVICES);
        runs[i].seed = random_u64(&seed);
        run_alone(path, &runs[i]);
        n_equal += runs[i].bits == plain->bits;
    }
    printf("%d of %d runs have the bits of an undisturbed one; %d %s, one is lost\n", n_equal, n, N_DEVICES,
           KIND);
    print_figures(runs, n);
    munmap(runs, (size_t)(n + 1) * sizeof *runs);
    return n_equal == n ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct synth_model_config shape = BENCH_TINYLLAMA_LAYERS;
    int n = 100, at = 1;
    uint64_t seed = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--runs") == 0)
            n = atoi(argv[at + 1]);
        else if (strcmp(argv[at], "--seed") == 0)
            seed = strtoull(argv[at + 1], NULL, 10);
        else
            n = 0;
    }
    if (n < 1 || argc > at + 1) {
        fprintf(stderr, "usage: survive [--runs N] [--seed N] [MODEL.gguf]\n");
        return 2;
    }
    const bench_file made = at < argc ? (bench_file){0} : bench_make(&shape);
    const int result = run_all(at < argc ? argv[at] : made.path, n, seed);
    if (at >= argc)
        bench_unmake(&made);
    return result;
}
