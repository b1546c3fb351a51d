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

#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 9, N_TOKENS = 16, PROMPT = 512, DEPTH = 4096 };

/* Tokens per second of a prompt of n tokens behind what the session holds. */
static double prompt_rate(bench_opened *o, int n)
{
    static int32_t tokens[DEPTH];
    for (int i = 0; i < n; i++)
        tokens[i] = 7 + i % 500;
    tsr_batch batch = {.n_tokens = n, .tokens = tokens};
    double begin = bench_now();
    bench_check(tsr_session_decode(o->session, &batch, o->logits));
    return n / (bench_now() - begin);
}

/* Tokens per second, one by one, behind `depth` tokens that the session holds. */
static double decode_rate(bench_opened *o, int64_t depth)
{
    return 1 / bench_decode(o, N_TOKENS, depth);
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
    bench_opened shallow = bench_open(path, "host:1,threads=2", 512);
    bench_opened deep = bench_open(path, "host:1,threads=2", DEPTH + 512);
    double rate = prompt_rate(&deep, DEPTH);
    decode_rate(&shallow, 0);
    for (int r = 0; r < N_ROUNDS; r++) {
        rates[1][r] = decode_rate(&shallow, 0);
        rates[0][r] = decode_rate(&deep, DEPTH);
    }
    report("decode, depth 4096 over depth 0", rates);
    printf("| %-44s | %9.2f |\n", "a prompt of 4096", rate);
    bench_close(&shallow);
    bench_close(&deep);
}

static void measure_devices(const char *path)
{
    double decode[2][N_ROUNDS], prompt[2][N_ROUNDS];
    bench_opened o[2] = {bench_open(path, "host:2,threads=1", 1024),
                         bench_open(path, "host:1,threads=2", 1024)};
    for (int r = -1; r < N_ROUNDS; r++) /* the first warms up */
        for (int w = 0; w < 2; w++) {
            double rate = decode_rate(&o[w], 0), prompts = prompt_rate(&o[w], PROMPT);
            bench_check(tsr_session_trim(o[w].session, 0, 0));
            decode[w][r < 0 ? 0 : r] = rate;
            prompt[w][r < 0 ? 0 : r] = prompts;
        }
    report("decode, 2 devices x 1 over 1 x 2", decode);
    report("prompt of 512, 2 devices x 1 over 1 x 2", prompt);
    bench_close(&o[0]);
    bench_close(&o[1]);
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
    bench_opened one = bench_open(path, "host:1,threads=1", 512),
                 two = bench_open(path, "host:1,threads=2", 512);
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
    bench_close(&one);
    bench_close(&two);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*measure)(const char *path);
    } parts[] = {{"busy", measure_busy_core}, {"devices", measure_devices}, {"depth", measure_depth}};
    struct synth_model_config config = BENCH_TINYLLAMA_LAYERS;
    bench_check(tsr_type_parse(argc > 1 ? argv[1] : "Q8_0", &config.weight_type));
    config.n_vocab = 32000 * 4 / 22;
    const bench_file file = bench_make(&config);
    printf("| %-44s | %9s | %9s | ratio [min, max]   |\n", tsr_type_name(config.weight_type), "token/s",
           "of");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool wanted = argc <= 2;
        for (int a = 2; a < argc; a++)
            wanted |= strcmp(argv[a], parts[i].name) == 0;
        if (wanted)
            parts[i].measure(file.path);
    }
    bench_unmake(&file);
    return 0;
}
