/* Changing the split of a loaded model, in place:
 *
 *     build/bench/resplit [MODEL.gguf [TOKENS]]
 *
 * Without a file, a 2 GB F16 model with the shape of Llama 3.2 1B is made in a temporary folder, its weights
 * holes (zeros that take no disk). One session, whose step for one token has run, changes between tensor
 * splits again and again. Each line is one change, the median of many: with an empty KV region, where only
 * pointers, strides and programs are made anew, and with TOKENS (4096) tokens in it, which move. For
 * comparison: closing model and session and opening them with the new split, which loses the tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/session/session.h"
#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 15, N_SPLITS = 4, N_CTX = 8192 };

#define DEVICES "host:2,threads=1"

/* {0, 0}: the planner's. */
static const float splits[N_SPLITS][2] = {{1, 0}, {1, 1}, {3, 1}, {0, 0}};
static const char *const names[N_SPLITS] = {"1,0", "1,1", "3,1", "planner"};

typedef struct open_model {
    tsr_model *model;
    tsr_session *session;
} open_model;

static open_model open_with(tsr_runtime *rt, const char *path, const float *split)
{
    open_model m;
    tsr_step *step;
    tsr_model_config config = tsr_model_config_default();
    config.split.tensor_split = split;
    config.split.n_tensor_split = 2;
    config.session.n_ctx = N_CTX;
    bench_check(tsr_model_open(rt, path, &config, &m.model));
    bench_check(tsr_session_create(m.model, &m.session));
    bench_check(tsr_session_step(m.session, (tsr_step_shape){.n_tokens = 1, .n_outputs = 1}, &step));
    return m;
}

static void close_again(open_model *m)
{
    tsr_session_destroy(m->session);
    tsr_model_close(m->model);
}

/* What the pages hold makes no difference, so nothing is computed; but they must be there. */
static void fill_kv(tsr_session *session, int64_t n_tokens)
{
    bench_check(tsr_session_trim(session, 0, 0));
    bench_check(tsr_kv_append(session->kv, 0, n_tokens));
    tsr_kv_span span;
    (void)tsr_kv_pages(session->kv, 0, 0, &span);
    unsigned char *bytes = malloc(tsr_kv_page_bytes(session->kv, 0));
    if (!bytes)
        exit(1);
    memset(bytes, 1, tsr_kv_page_bytes(session->kv, 0));
    for (int i = span.first; i < span.end; i++)
        bench_check(tsr_kv_page_put(session->kv, 0, 0, i, bytes));
    free(bytes);
}

/* Milliseconds of changes from one split to another, sorted. */
static void time_change(open_model *m, int from, int to, double *ms)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        bench_check(tsr_model_resplit(m->model, splits[from], 2));
        double begin = bench_now();
        bench_check(tsr_model_resplit(m->model, splits[to], 2));
        ms[i] = 1e3 * (bench_now() - begin);
    }
    (void)bench_median(ms, N_ROUNDS); /* sorts */
}

static void time_reopening(tsr_runtime *rt, const char *path, int from, int to, double *ms)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        open_model m = open_with(rt, path, splits[from]);
        double begin = bench_now();
        close_again(&m);
        m = open_with(rt, path, splits[to]);
        ms[i] = 1e3 * (bench_now() - begin);
        close_again(&m);
    }
    (void)bench_median(ms, N_ROUNDS); /* sorts */
}

static void time_all(tsr_runtime *rt, const char *path, int64_t n_tokens)
{
    printf("%-20s %22s %22s %22s\n", "milliseconds", "change, no tokens", "change, with tokens", "open anew");
    for (int from = 0; from < N_SPLITS; from++)
        for (int to = 0; to < N_SPLITS; to++) {
            double empty[N_ROUNDS], full[N_ROUNDS], anew[N_ROUNDS];
            char what[32];
            if (from == to)
                continue;
            open_model m = open_with(rt, path, splits[from]);
            time_change(&m, from, to, empty);
            fill_kv(m.session, n_tokens);
            time_change(&m, from, to, full);
            close_again(&m);
            time_reopening(rt, path, from, to, anew);
            snprintf(what, sizeof what, "%s -> %s", names[from], names[to]);
            printf("%-20s %6.2f (%5.2f-%6.2f) %6.2f (%5.2f-%6.2f) %6.2f (%5.2f-%6.2f)\n", what,
                   empty[N_ROUNDS / 2], empty[0], empty[N_ROUNDS - 1], full[N_ROUNDS / 2], full[0],
                   full[N_ROUNDS - 1], anew[N_ROUNDS / 2], anew[0], anew[N_ROUNDS - 1]);
        }
}

int main(int argc, char **argv)
{
    const struct synth_model_config shape = BENCH_LLAMA_1B_HOLES;
    int64_t n_tokens = argc > 2 ? atoll(argv[2]) : 4096;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    if (n_tokens < 0 || n_tokens > N_CTX) {
        fprintf(stderr, "resplit: TOKENS must be 0 to %d\n", N_CTX);
        return 1;
    }
    const bench_file made = argc > 1 ? (bench_file){0} : bench_make(&shape);
    config.devices = DEVICES;
    bench_check(tsr_runtime_open(&config, &rt));
    time_all(rt, argc > 1 ? argv[1] : made.path, n_tokens);
    tsr_runtime_close(rt);
    if (argc <= 1)
        bench_unmake(&made);
    return 0;
}
