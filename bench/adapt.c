/* How well a split follows the speeds of devices (tsr_model_adapt()):
 *
 *     build/bench/adapt [MODEL.gguf [SECONDS]]
 *
 * Two host devices of one thread each decode, token by token. One of them gets half of its speed (duty=50%),
 * and its speed back. Each line is a phase of SECONDS (8): tokens/s in its last second with the split as it
 * was in the beginning, with a split that adapts, and with the best of fixed splits for that state; the three
 * take turns, so noise of the machine falls on all of them. */
#include <stdio.h>
#include <stdlib.h>

#include "core/runtime.h"
#include "host/host.h"
#include "support/measured.h"
#include "support/opened.h"

enum { N_TRIED = 7, N_CTX = 512, TOKENS = 16 };

typedef struct phase {
    const char *name;
    int duty;
} phase;

static void set_duty(const bench_opened *o, int percent)
{
    bench_check(o->rt->devices[1]->ops->synchronize(o->rt->devices[1], 0));
    tsr_host(o->rt->devices[1])->duty_percent = percent;
}

static int n_changes;

/* Seconds of TOKENS tokens; those of changes are in it. */
static double decode(bench_opened *o, bool adapts)
{
    const int32_t token = 1;
    const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    const double begin = bench_now();
    for (int i = 0; i < TOKENS; i++) {
        bool changed = false;
        bench_check(tsr_session_trim(o->session, 0, 0));
        bench_check(tsr_session_decode(o->session, &batch, o->logits));
        if (adapts)
            bench_check(tsr_model_adapt(o->model, &changed));
        n_changes += changed;
    }
    return bench_now() - begin;
}

/* The highest median rate of fixed splits, tried one after another; `o` has that split afterwards. */
static double best_fixed(bench_opened *o, int n_rounds, float *share_out)
{
    double best = 0;
    for (int i = 0; i < N_TRIED; i++) {
        const float split[] = {0.5F + 0.05F * (float)i, 0.5F - 0.05F * (float)i};
        double seconds[64];
        bench_check(tsr_model_resplit(o->model, split, 2));
        decode(o, false);
        for (int r = 0; r < n_rounds; r++)
            seconds[r] = decode(o, false);
        const double rate = TOKENS / bench_median(seconds, n_rounds);
        if (rate > best) {
            best = rate;
            *share_out = split[0];
        }
    }
    const float split[] = {*share_out, 1 - *share_out};
    bench_check(tsr_model_resplit(o->model, split, 2));
    return best;
}

/* Rates of the last rounds of a phase. */
static void run_phase(const phase *p, double length_s, bench_opened *fixed, bench_opened *adapting,
                      bench_opened *best)
{
    enum { LAST = 16, SEARCH = 8 };
    double of[3][LAST];
    float share = 0;
    int n = 0;
    const int before = n_changes;
    set_duty(fixed, p->duty);
    set_duty(adapting, p->duty);
    set_duty(best, p->duty);
    best_fixed(best, SEARCH, &share);
    for (double s = 0; s < length_s; n++) {
        of[0][n % LAST] = decode(fixed, false);
        s += of[1][n % LAST] = decode(adapting, true);
        of[2][n % LAST] = decode(best, false);
    }
    const int kept = n < LAST ? n : LAST;
    const double rate[] = {TOKENS / bench_median(of[0], kept), TOKENS / bench_median(of[1], kept),
                           TOKENS / bench_median(of[2], kept)};
    printf("%-14s %10.1f %10.1f %10.1f (%2.0f,%2.0f) %8.2f %8d\n", p->name, rate[0], rate[1], rate[2],
           (double)(100 * share), (double)(100 * (1 - share)), rate[1] / rate[2], n_changes - before);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const struct synth_model_config shape = BENCH_TINYLLAMA_LAYERS;
    const double length_s = argc > 2 ? atof(argv[2]) : 8;
    const phase phases[] = {{"equal", 100}, {"one at half", 50}, {"equal again", 100}};
    const bench_file made = argc > 1 ? (bench_file){0} : bench_make(&shape);
    const char *path = argc > 1 ? argv[1] : made.path;
    bench_opened o[3];
    for (int i = 0; i < 3; i++)
        o[i] = bench_open_evenly(path, "host:2,threads=1", NULL, N_CTX);
    printf("%-14s %10s %10s %18s %8s %8s\n", "tokens/s", "fixed", "adapting", "best fixed", "of best",
           "changes");
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        run_phase(&phases[i], length_s, &o[0], &o[1], &o[2]);
    for (int i = 0; i < 3; i++)
        bench_close(&o[i]);
    if (argc <= 1)
        bench_unmake(&made);
    return 0;
}
