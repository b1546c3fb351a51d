/* Decoding against the machine's read bandwidth, in one run:
 *
 *     build/bench/decode [TYPE|FILE.gguf ...]          (default F16 Q8_0 Q4_K Q4_0 Q6_K BF16)
 *
 * A model of one's own, or one of random weights that is larger than the last-level cache, is decoded token
 * by token on one device with one and with two threads and on two devices with one thread each, whose weights
 * are views of the file, where the columns of one device are rows with gaps, or copies without gaps. The
 * bytes of weights read per token over the time, divided by the measured read bandwidth of as many threads,
 * is the share of bandwidth in use. Machines are shared: every round measures all configurations in turn, and
 * the table gives medians of the rounds, with the smallest and largest ratio. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tsr/gguf.h>

#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 7, N_TOKENS = 8, N_WAYS = 4, N_FACTS = N_WAYS + 2, SCRATCH_BYTES = 512 << 20 };

static const struct way {
    const char *devices, *label;
    int n_threads;
    bool copies;
} ways[N_WAYS] = {{"host:1,threads=1", "1 device x 1 thread", 1, false},
                  {"host:1,threads=2", "1 device x 2 threads", 2, false},
                  {"host:2,threads=1", "2 devices x 1 thread", 2, false},
                  {"host:2,threads=1", "the same, copies", 2, true}};

/* Weights read per token: all but the embedding, of which one row is read. */
static double bytes_per_token(const tsr_model *model)
{
    tsr_model_info info;
    tsr_model_get_info(model, &info);
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(tsr_model_gguf(model), "token_embd.weight");
    return (double)(info.weight_bytes - embedding->bytes);
}

static void spread(double *values, int n, double *low, double *median, double *high)
{
    *median = bench_median(values, n);
    *low = values[0];
    *high = values[n - 1];
}

static void report(const char *label, double bytes, double facts[N_FACTS][N_ROUNDS])
{
    double ratio[N_ROUNDS], low, median, high;
    for (int w = 0; w < N_WAYS; w++) {
        double bandwidth[N_ROUNDS], rate[N_ROUNDS];
        for (int r = 0; r < N_ROUNDS; r++) {
            bandwidth[r] = facts[N_WAYS + ways[w].n_threads - 1][r];
            rate[r] = 1 / facts[w][r];
            ratio[r] = bytes / facts[w][r] / bandwidth[r];
        }
        spread(ratio, N_ROUNDS, &low, &median, &high);
        double tokens_per_s = bench_median(rate, N_ROUNDS);
        printf("%-6s %-22s %8.2f %9.2f %10.2f %8.2f  [%.2f, %.2f]\n", label, ways[w].label, tokens_per_s,
               bytes * tokens_per_s / 1e9, bench_median(bandwidth, N_ROUNDS) / 1e9, median, low, high);
    }
    for (int w = 2; w < N_WAYS; w++) {
        for (int r = 0; r < N_ROUNDS; r++)
            ratio[r] = facts[1][r] / facts[w][r];
        spread(ratio, N_ROUNDS, &low, &median, &high);
        printf("%-6s two one-thread devices%s over one two-thread device: %.3f  [%.3f, %.3f]\n", label,
               ways[w].copies ? " with copies" : "", median, low, high);
    }
    fflush(stdout);
}

static void bench_model(const char *label, const char *path, const void *scratch)
{
    bench_opened o[N_WAYS];
    double facts[N_FACTS][N_ROUNDS], bytes = 0;
    for (int w = 0; w < N_WAYS; w++) {
        o[w] = (ways[w].copies ? bench_open_copies : bench_open)(path, ways[w].devices, 256);
        bench_decode(&o[w], 2, 0);
        bytes = bytes_per_token(o[w].model);
    }
    for (int r = 0; r < N_ROUNDS; r++) {
        for (int w = 0; w < N_WAYS; w++)
            facts[w][r] = bench_decode(&o[w], N_TOKENS, 0);
        for (int t = 1; t <= 2; t++)
            facts[N_WAYS + t - 1][r] = bench_read_bandwidth(scratch, SCRATCH_BYTES, t, 3);
    }
    report(label, bytes, facts);
    for (int w = 0; w < N_WAYS; w++)
        bench_close(&o[w]);
}

/* A name with a dot is of a file, any other of a type. */
static void bench_named(const char *name, const void *scratch)
{
    if (strchr(name, '.')) {
        const char *slash = strrchr(name, '/');
        bench_model(slash ? slash + 1 : name, name, scratch);
        return;
    }
    struct synth_model_config config = BENCH_TINYLLAMA_LAYERS;
    bench_check(tsr_type_parse(name, &config.weight_type));
    const bench_file file = bench_make(&config);
    bench_model(name, file.path, scratch);
    bench_unmake(&file);
}

int main(int argc, char **argv)
{
    static const char *const defaults[] = {"F16", "Q8_0", "Q4_K", "Q4_0", "Q6_K", "BF16"};
    void *scratch =
        mmap(NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (scratch == MAP_FAILED)
        return 1;
    memset(scratch, 1, SCRATCH_BYTES);
    printf("%-6s %-22s %8s %9s %10s %8s  %s\n", "type", "on", "token/s", "GB/s", "read GB/s", "share",
           "[min, max]");
    if (argc > 1)
        for (int i = 1; i < argc; i++)
            bench_named(argv[i], scratch);
    else
        for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
            bench_named(defaults[i], scratch);
    return 0;
}
