/* Decoding against the machine's read bandwidth, in one run:
 *
 *     build/bench/decode [TYPE ...]          (default F16 Q8_0 Q4_K Q4_0 Q6_K BF16)
 *
 * A random-weight model larger than the last-level cache is decoded token by token on one device with one and
 * with two threads and on two devices with one thread each. The bytes of weights read per token over the
 * time, divided by the measured read bandwidth of as many threads, is the share of bandwidth in use. Machines
 * are shared: every round measures all configurations in turn, and the table gives medians of the rounds,
 * with the smallest and largest ratio. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tsr/session.h>

#include "support/read_bandwidth.h"
#include "support/synth_model.h"

enum { N_ROUNDS = 7, N_TOKENS = 8, N_WAYS = 3, N_FACTS = N_WAYS + 2 };

static const struct way {
    const char *devices, *label;
    int n_threads;
} ways[N_WAYS] = {{"host:1,threads=1", "1 device x 1 thread", 1},
                  {"host:1,threads=2", "1 device x 2 threads", 2},
                  {"host:2,threads=1", "2 devices x 1 thread", 2}};

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
    fprintf(stderr, "decode: %s: %s\n", tsr_status_name(status), tsr_last_error());
    exit(1);
}

static void open_way(opened *o, const char *path, const char *devices)
{
    tsr_runtime_config runtime_config = TSR_RUNTIME_CONFIG_INIT;
    tsr_model_config config = TSR_MODEL_CONFIG_INIT;
    tsr_model_info info;
    runtime_config.devices = devices;
    config.n_ctx = 256;
    check(tsr_runtime_open(&runtime_config, &o->rt));
    check(tsr_model_open(o->rt, path, &config, &o->model));
    check(tsr_session_create(o->model, &o->session));
    tsr_model_describe(o->model, &info);
    o->logits = malloc((size_t)info.n_vocab * sizeof(float));
}

static void close_way(opened *o)
{
    free(o->logits);
    tsr_session_destroy(o->session);
    tsr_model_close(o->model);
    tsr_runtime_close(o->rt);
}

/* Seconds per token. */
static double decode(opened *o, int n)
{
    double begin = bench_now();
    for (int i = 0; i < n; i++) {
        int32_t token = 7 + i;
        tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        check(tsr_session_decode(o->session, &batch, o->logits));
    }
    double seconds = (bench_now() - begin) / n;
    check(tsr_session_trim(o->session, 0, 0));
    return seconds;
}

/* Weights read per token: all but the embedding, of which one row is read. */
static double bytes_per_token(const tsr_model *model)
{
    tsr_model_info info;
    tsr_model_describe(model, &info);
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(tsr_model_gguf(model), "token_embd.weight");
    return (double)(info.weight_bytes - embedding->bytes);
}

static void spread(double *values, int n, double *low, double *median, double *high)
{
    *median = bench_median(values, n);
    *low = values[0];
    *high = values[n - 1];
}

static void report(const char *type, double bytes, double facts[N_FACTS][N_ROUNDS])
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
        printf("%-6s %-22s %8.2f %9.2f %10.2f %8.2f  [%.2f, %.2f]\n", type, ways[w].label, tokens_per_s,
               bytes * tokens_per_s / 1e9, bench_median(bandwidth, N_ROUNDS) / 1e9, median, low, high);
    }
    for (int r = 0; r < N_ROUNDS; r++)
        ratio[r] = facts[1][r] / facts[2][r];
    spread(ratio, N_ROUNDS, &low, &median, &high);
    printf("%-6s two one-thread devices over one two-thread device: %.3f  [%.3f, %.3f]\n", type, median, low,
           high);
    fflush(stdout);
}

static void bench_type(const char *name, const void *scratch, size_t scratch_bytes)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    char path[] = "/tmp/tsr_bench_decode_XXXXXX";
    opened o[N_WAYS] = {{0}};
    double facts[N_FACTS][N_ROUNDS], bytes = 0;
    check(tsr_type_parse(name, &config.weight_type));
    config.n_layers = 4;
    config.n_embd = 2048;
    config.n_heads = 32;
    config.n_kv_heads = 4;
    config.head_dim = 64;
    config.n_ff = 5632;
    config.n_vocab = 32000;
    close(mkstemp(path));
    synth_model_write(&config, path);
    for (int w = 0; w < N_WAYS; w++) {
        open_way(&o[w], path, ways[w].devices);
        decode(&o[w], 2);
        bytes = bytes_per_token(o[w].model);
    }
    for (int r = 0; r < N_ROUNDS; r++) {
        for (int w = 0; w < N_WAYS; w++)
            facts[w][r] = decode(&o[w], N_TOKENS);
        for (int t = 1; t <= 2; t++)
            facts[N_WAYS + t - 1][r] = bench_read_bandwidth(scratch, scratch_bytes, t, 3);
    }
    report(name, bytes, facts);
    for (int w = 0; w < N_WAYS; w++)
        close_way(&o[w]);
    unlink(path);
}

int main(int argc, char **argv)
{
    static const char *const defaults[] = {"F16", "Q8_0", "Q4_K", "Q4_0", "Q6_K", "BF16"};
    size_t bytes = (size_t)512 << 20;
    void *scratch =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (scratch == MAP_FAILED)
        return 1;
    memset(scratch, 1, bytes);
    printf("%-6s %-22s %8s %9s %10s %8s  %s\n", "type", "on", "token/s", "GB/s", "read GB/s", "share",
           "[min, max]");
    if (argc > 1)
        for (int i = 1; i < argc; i++)
            bench_type(argv[i], scratch, bytes);
    else
        for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
            bench_type(defaults[i], scratch, bytes);
    return 0;
}
