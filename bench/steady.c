/* What decoding keeps of its speed when circumstances change, as ratios taken in one run:
 *
 *     build/bench/steady [TYPE [busy|devices|depth ...]]          (default Q8_0, all three)
 *
 *     busy      two threads while another process spins on one of their cores, over one thread alone
 *     devices   two devices of one thread over one device of two: decoding, and a prompt of 512 tokens
 *     depth     decoding with 4096 tokens in the cache over decoding with none, on two threads
 *
 * The model has the layers of a 1.1B one (2048 wide, 32 heads of 64, 4 of keys and values, F16 cache), 4 of
 * 22, and a vocabulary smaller by as much. What is compared is measured in turn in every round; the table
 * gives medians of the rounds' ratios with the smallest and largest. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/session.h>

#include "support/read_bandwidth.h"
#include "support/synth_model.h"

enum { N_ROUNDS = 9, N_TOKENS = 16, PROMPT = 512, DEPTH = 4096 };

typedef struct opened {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    float *logits;
} opened;

static void check(tsr_status status)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "steady: %s: %s\n", tsr_status_name(status), tsr_last_error());
    exit(1);
}

static opened open_on(const char *path, const char *devices, int64_t n_ctx)
{
    opened o = {0};
    tsr_runtime_config runtime_config = TSR_RUNTIME_CONFIG_INIT;
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    tsr_model_info info;
    runtime_config.devices = devices;
    config.n_ctx = n_ctx;
    check(tsr_runtime_open(&runtime_config, &o.rt));
    check(tsr_model_open(o.rt, path, &config, &o.model));
    check(tsr_session_create(o.model, &o.session));
    tsr_model_describe(o.model, &info);
    o.logits = malloc((size_t)info.n_vocab * sizeof(float));
    if (!o.logits)
        exit(1);
    return o;
}

static void close_all(opened *o)
{
    free(o->logits);
    tsr_session_destroy(o->session);
    tsr_model_close(o->model);
    tsr_runtime_close(o->rt);
}

/* Tokens per second of a prompt of n tokens behind what the session holds. */
static double prompt_rate(opened *o, int n)
{
    static int32_t tokens[DEPTH];
    for (int i = 0; i < n; i++)
        tokens[i] = 7 + i % 500;
    tsr_batch batch = {.n_tokens = n, .tokens = tokens};
    double begin = bench_now();
    check(tsr_session_decode(o->session, &batch, o->logits));
    return n / (bench_now() - begin);
}

/* Tokens per second, one by one, behind `depth` tokens that the session holds; afterwards it holds those. */
static double decode_rate(opened *o, int64_t depth)
{
    double begin = bench_now();
    for (int i = 0; i < N_TOKENS; i++) {
        int32_t token = 7 + i;
        tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        check(tsr_session_decode(o->session, &batch, o->logits));
    }
    double rate = N_TOKENS / (bench_now() - begin);
    check(tsr_session_trim(o->session, 0, depth));
    return rate;
}

/* Two rates of every round; what[0] over what[1] is the figure. */
static void report(const char *what, double rates[2][N_ROUNDS])
{
    double ratio[N_ROUNDS];
    for (int r = 0; r < N_ROUNDS; r++)
        ratio[r] = rates[0][r] / rates[1][r];
    double middle = bench_median(ratio, N_ROUNDS), first = bench_median(rates[0], N_ROUNDS);
    printf("| %-44s | %9.2f | %9.2f | %5.2f [%.2f, %.2f] |\n", what, first, bench_median(rates[1], N_ROUNDS),
           middle, ratio[0], ratio[N_ROUNDS - 1]);
    fflush(stdout);
}

static void measure_depth(const char *path)
{
    double rates[2][N_ROUNDS];
    opened shallow = open_on(path, "host:1,threads=2", 512);
    opened deep = open_on(path, "host:1,threads=2", DEPTH + 512);
    double rate = prompt_rate(&deep, DEPTH);
    decode_rate(&shallow, 0);
    for (int r = 0; r < N_ROUNDS; r++) {
        rates[1][r] = decode_rate(&shallow, 0);
        rates[0][r] = decode_rate(&deep, DEPTH);
    }
    report("decode, depth 4096 over depth 0", rates);
    printf("| %-44s | %9.2f |\n", "a prompt of 4096", rate);
    close_all(&shallow);
    close_all(&deep);
}

static void measure_devices(const char *path)
{
    double decode[2][N_ROUNDS], prompt[2][N_ROUNDS];
    opened o[2] = {open_on(path, "host:2,threads=1", 1024), open_on(path, "host:1,threads=2", 1024)};
    for (int r = -1; r < N_ROUNDS; r++) /* the first warms up */
        for (int w = 0; w < 2; w++) {
            double rate = decode_rate(&o[w], 0), prompts = prompt_rate(&o[w], PROMPT);
            check(tsr_session_trim(o[w].session, 0, 0));
            decode[w][r < 0 ? 0 : r] = rate;
            prompt[w][r < 0 ? 0 : r] = prompts;
        }
    report("decode, 2 devices x 1 over 1 x 2", decode);
    report("prompt of 512, 2 devices x 1 over 1 x 2", prompt);
    close_all(&o[0]);
    close_all(&o[1]);
}

/* A process that does nothing on the last processor that this one may use; stopped. */
static pid_t start_spinner(void)
{
    cpu_set_t set, last;
    CPU_ZERO(&last);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        exit(1);
    for (int i = 0, n = 0; i < CPU_SETSIZE && n < CPU_COUNT(&set); i++)
        if (CPU_ISSET(i, &set) && ++n == CPU_COUNT(&set))
            CPU_SET(i, &last);
    pid_t pid = fork();
    if (pid == 0) {
        sched_setaffinity(0, sizeof last, &last);
        for (volatile uint64_t i = 0;; i++)
            ;
    }
    kill(pid, SIGSTOP);
    return pid;
}

static void measure_busy_core(const char *path)
{
    double rates[2][N_ROUNDS], quiet[2][N_ROUNDS];
    pid_t spinner = start_spinner();
    opened one = open_on(path, "host:1,threads=1", 512), two = open_on(path, "host:1,threads=2", 512);
    decode_rate(&one, 0);
    decode_rate(&two, 0);
    for (int r = 0; r < N_ROUNDS; r++) {
        quiet[1][r] = rates[1][r] = decode_rate(&one, 0);
        quiet[0][r] = decode_rate(&two, 0);
        kill(spinner, SIGCONT);
        usleep(20000); /* until the scheduler has noticed */
        rates[0][r] = decode_rate(&two, 0);
        kill(spinner, SIGSTOP);
    }
    kill(spinner, SIGKILL);
    waitpid(spinner, NULL, 0);
    report("decode, 2 threads over 1, both alone", quiet);
    report("decode, 2 threads and a spinner over 1 alone", rates);
    close_all(&one);
    close_all(&two);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*measure)(const char *path);
    } parts[] = {{"busy", measure_busy_core}, {"devices", measure_devices}, {"depth", measure_depth}};
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    char path[] = "/tmp/tsr_bench_steady_XXXXXX";
    check(tsr_type_parse(argc > 1 ? argv[1] : "Q8_0", &config.weight_type));
    config.n_layers = 4;
    config.n_embd = 2048;
    config.n_heads = 32;
    config.n_kv_heads = 4;
    config.head_dim = 64;
    config.n_ff = 5632;
    config.n_vocab = 32000 * 4 / 22;
    config.n_ctx = 2 * DEPTH;
    close(mkstemp(path));
    synth_model_write(&config, path);
    printf("| %-44s | %9s | %9s | ratio [min, max]   |\n", tsr_type_name(config.weight_type), "token/s",
           "of");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool wanted = argc <= 2;
        for (int a = 2; a < argc; a++)
            wanted |= strcmp(argv[a], parts[i].name) == 0;
        if (wanted)
            parts[i].measure(path);
    }
    unlink(path);
    return 0;
}
