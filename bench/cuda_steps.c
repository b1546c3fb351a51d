/* What each mechanism of a decode step gains on a GPU:
 *
 *     bench/cuda_steps [--small] DEVICES [COLLECTIVES ...]        cuda:0; cuda:0,cuda:1 peer nccl
 *
 * A model of the shape of Llama 3 8B in Q4_K, whose weights are zeros, is decoded token by token, each token
 * sampled with top-k 40. Every row of the table leaves out one mechanism: the median time of a token without
 * it, with all mechanisms, and the ratio. All rows are sessions of one model, measured in turn in every
 * round; rows below 1 are mechanisms that cost more than they save. With several GPUs there is a table for
 * each of the collectives. --small: a small model and one round. */
#include <stdio.h>

#ifdef TSR_WITH_CUDA

#include <stdlib.h>
#include <string.h>

#include <tsr/runtime.h>
#include <tsr/sampler.h>

#include "core/comm.h"
#include "core/event.h"
#include "core/runtime.h"
#include "cuda/context/context.h"
#include "model/session/session.h"
#include "support/measured.h"
#include "support/opened.h"

enum { MAX_ROUNDS = 5, N_WARM = 4, N_TOKENS = 64 };

typedef enum mechanism {
    ALL,
    GRAPHS,
    EARLY,
    FUSIONS,
    EIGHT_BITS,
    PINNED_INPUTS,
    CANDIDATES,
    POLLS,
    N_MECHANISMS
} mechanism;

static const char *const names[N_MECHANISMS] = {"all",
                                                "graphs",
                                                "early starts",
                                                "fused ops",
                                                "activations of 8 bits",
                                                "inputs in one pinned block",
                                                "candidates on the GPU",
                                                "polls before sleeping"};

typedef struct row {
    tsr_session *session;
    tsr_sampler *sampler;
    double seconds[MAX_ROUNDS];
} row;

/* What the devices have when all mechanisms are on. */
typedef struct usual {
    struct tsr_device_ops ops; /* without pinned inputs */
    const struct tsr_device_ops *all_ops;
    bool early;
    int polls;
} usual;

static void leave_out(const bench_opened *o, usual *u, mechanism m)
{
    o->model->config.compute.activation_bits = m == EIGHT_BITS ? 16 : 8;
    if (o->rt->comm) /* otherwise it would find that there are no graphs, and be made anew */
        tsr_comm_whole(o->rt->comm)->no_graphs = m == GRAPHS;
    for (int d = 0; d < o->rt->n_devices; d++) {
        tsr_cuda_device *cuda = tsr_cuda(o->rt->devices[d]);
        cuda->without.graphs = m == GRAPHS;
        cuda->without.fusions = m == FUSIONS;
        cuda->props.early = u->early && m != EARLY;
        cuda->base.ops = m == PINNED_INPUTS ? &u->ops : u->all_ops;
        cuda->base.polls = m == POLLS ? 0 : u->polls;
        tsr_cuda_worker_set_polls(cuda->worker, cuda->base.polls);
    }
}

static usual read_usual(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (rt->devices[d]->ops->kind != TSR_DEVICE_CUDA) {
            fprintf(stderr, "cuda_steps: device %s is no GPU; name GPUs only\n", rt->devices[d]->name);
            exit(2);
        }
    tsr_cuda_device *cuda = tsr_cuda(rt->devices[0]);
    usual u = {*cuda->base.ops, cuda->base.ops, cuda->props.early, cuda->base.polls};
    u.ops.pin = NULL;
    u.ops.unpin = NULL;
    return u;
}

/* Append a token and choose the next one. */
static int32_t step(const bench_opened *o, const row *r, mechanism m, int32_t token)
{
    const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    const int64_t n_vocab = o->model->shape.hparams.n_vocab;
    const int n = m == CANDIDATES ? 0 : tsr_sampler_n_candidates(r->sampler, n_vocab, 0);
    tsr_candidate candidates[TSR_MAX_CANDIDATES];
    if (n > 0) {
        bench_check(tsr_session_decode_candidates(r->session, &batch, n, candidates));
        bench_check(tsr_sampler_choose(r->sampler, candidates, n, &token));
    } else {
        bench_check(tsr_session_decode(r->session, &batch, o->logits));
        bench_check(tsr_sampler_sample(r->sampler, o->logits, n_vocab, &token));
    }
    return token;
}

/* Seconds per token of n tokens. */
static double decode(const bench_opened *o, const row *r, mechanism m, int n)
{
    int32_t token = 1;
    bench_check(tsr_session_trim(r->session, 0, 0));
    for (int i = 0; i < N_WARM; i++)
        token = step(o, r, m, token);
    const uint64_t begin = tsr_clock_ns();
    for (int i = 0; i < n; i++)
        token = step(o, r, m, token);
    return (double)(tsr_clock_ns() - begin) / 1e9 / n;
}

static void measure(bench_opened *o, int n_rounds, int n_tokens)
{
    row rows[N_MECHANISMS] = {0};
    usual u = read_usual(o->rt);
    tsr_model_info info;
    tsr_model_get_info(o->model, &info);
    for (int m = 0; m < N_MECHANISMS; m++) {
        leave_out(o, &u, (mechanism)m);
        bench_check(tsr_session_create(o->model, &rows[m].session));
        bench_check(tsr_sampler_create(NULL, info.n_vocab, &rows[m].sampler));
    }
    for (int r = 0; r < n_rounds; r++)
        for (int m = 0; m < N_MECHANISMS; m++) {
            leave_out(o, &u, (mechanism)m);
            rows[m].seconds[r] = decode(o, &rows[m], (mechanism)m, n_tokens);
        }
    leave_out(o, &u, ALL);
    const double all = bench_median(rows[ALL].seconds, n_rounds);
    printf("%-28s %12s %12s %8s\n", "mechanism", "without, us", "with, us", "ratio");
    for (int m = ALL + 1; m < N_MECHANISMS; m++) {
        const double without = bench_median(rows[m].seconds, n_rounds);
        printf("%-28s %12.1f %12.1f %8.3f\n", names[m], without * 1e6, all * 1e6, without / all);
    }
    fflush(stdout);
    for (int m = 0; m < N_MECHANISMS; m++) {
        tsr_session_destroy(rows[m].session);
        tsr_sampler_destroy(rows[m].sampler);
    }
}

static void bench_collectives(const char *path, const char *devices, const char *collectives, bool is_short)
{
    bench_opened o = bench_open_with(path, devices, collectives, 256);
    printf("%s%s%s\n", devices, collectives ? ", collectives: " : "", collectives ? collectives : "");
    measure(&o, is_short ? 1 : MAX_ROUNDS, is_short ? 2 : N_TOKENS);
    bench_close(&o);
}

int main(int argc, char **argv)
{
    const bool is_short = argc > 1 && strcmp(argv[1], "--small") == 0;
    const int first = is_short ? 2 : 1;
    if (first >= argc) {
        fprintf(stderr, "usage: cuda_steps [--small] DEVICES [COLLECTIVES ...]\n");
        return 2;
    }
    struct synth_model_config config = {.n_layers = 32,
                                        .n_embd = 4096,
                                        .n_heads = 32,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .n_ff = 14336,
                                        .n_vocab = 128256,
                                        .n_ctx = 8192,
                                        .weight_scale = 1,
                                        .weight_type = TSR_TYPE_Q4_K,
                                        .tokenizer = true,
                                        .rope_freq_base = 500000,
                                        .seed = 1,
                                        .n_files = 1,
                                        .holes = true};
    if (is_short)
        config = (struct synth_model_config)SYNTH_MODEL_CONFIG_INIT;
    const bench_file file = bench_make(&config);
    for (int i = first + 1; i < argc; i++)
        bench_collectives(file.path, argv[first], argv[i], is_short);
    if (first + 1 == argc)
        bench_collectives(file.path, argv[first], NULL, is_short);
    bench_unmake(&file);
    return 0;
}

#else

int main(void)
{
    printf("cuda_steps: this build has no CUDA device; configure with a CUDA toolkit (-DTSR_CUDA=ON)\n");
    return 0;
}

#endif
