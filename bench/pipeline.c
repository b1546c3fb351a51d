/* Prompts over stages: chunks of a prompt in flight together against one after another, in one run:
 *
 *     build/bench/pipeline [DEVICES ...]          (default host:2,threads=1)
 *
 * A prompt of 2048 tokens, n_batch = 512, in layer mode. One after another: a session with one lane. Every
 * round measures all in turn; the table has medians of the rounds, with the smallest and largest ratio, and
 * the time that the process's threads worked over the time that passed. The bits of the logits must be the
 * same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/session/session.h"
#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 7, N_PROMPT = 2048, N_VOCAB = 2000, N_MOST = 8 };

/* Many layers, since the last one has little to do: its FFN is for the wanted tokens. */
static const struct synth_model_config model = {.n_layers = 24,
                                                .n_embd = 512,
                                                .n_heads = 8,
                                                .n_kv_heads = 4,
                                                .head_dim = 64,
                                                .n_ff = 1408,
                                                .n_vocab = N_VOCAB,
                                                .n_ctx = 4096,
                                                .weight_scale = 1,
                                                .weight_type = TSR_TYPE_Q8_0,
                                                .tokenizer = true,
                                                .rope_freq_base = 10000,
                                                .seed = 1,
                                                .n_files = 1};

/* A way to run a prompt, and its figures of each round. */
typedef struct way {
    bench_opened o;
    int n_lanes; /* as created */
    double seconds[N_ROUNDS], busy[N_ROUNDS];
} way;

static way open_way(const char *path, const char *devices, bool together)
{
    way w = {.o = bench_open_layers(path, devices, N_PROMPT, model.n_layers)};
    int *n_lanes = &w.o.session->memory->layout.n_lanes;
    w.n_lanes = *n_lanes;
    *n_lanes = together ? *n_lanes : 1;
    return w;
}

static void close_way(way *w)
{
    tsr_session_drop_steps(w->o.session);
    w->o.session->memory->layout.n_lanes = w->n_lanes;
    bench_close(&w->o);
}

static double worked(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void prompt(way *w, int round, float *logits)
{
    int32_t tokens[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        tokens[i] = i * 7 % N_VOCAB;
    tsr_batch batch = {.n_tokens = N_PROMPT, .tokens = tokens};
    const double work = worked(), begin = bench_now();
    bench_check(tsr_session_decode(w->o.session, &batch, logits));
    w->seconds[round] = bench_now() - begin;
    w->busy[round] = (worked() - work) / w->seconds[round];
    bench_check(tsr_session_trim(w->o.session, 0, 0));
}

static void bench_devices(const char *path, const char *devices)
{
    static float expected[N_VOCAB], logits[N_VOCAB];
    double ratio[N_ROUNDS];
    way apart = open_way(path, devices, false), together = open_way(path, devices, true);
    prompt(&apart, 0, expected);
    prompt(&together, 0, logits);
    for (int r = 0; r < N_ROUNDS; r++) {
        prompt(&apart, r, logits);
        prompt(&together, r, logits);
        ratio[r] = apart.seconds[r] / together.seconds[r];
        if (memcmp(logits, expected, sizeof logits) != 0) {
            fprintf(stderr, "%s: other bits\n", devices);
            exit(1);
        }
    }
    const double median = bench_median(ratio, N_ROUNDS);
    printf("%-20s %9.3f %11.3f %6.2f [%.2f, %.2f] %6.2f %11.2f\n", devices,
           bench_median(apart.seconds, N_ROUNDS), bench_median(together.seconds, N_ROUNDS), median, ratio[0],
           ratio[N_ROUNDS - 1], bench_median(apart.busy, N_ROUNDS), bench_median(together.busy, N_ROUNDS));
    close_way(&apart);
    close_way(&together);
}

int main(int argc, char **argv)
{
    const bench_file file = bench_make(&model);
    printf("%-20s %9s %11s %6s %12s %6s %11s\n", "devices", "apart s", "together s", "ratio", "[min, max]",
           "busy", "together");
    if (argc == 1)
        bench_devices(file.path, "host:2,threads=1");
    for (int i = 1; i < argc; i++)
        bench_devices(file.path, argv[i]);
    bench_unmake(&file);
    return 0;
}
