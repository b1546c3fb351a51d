/* Models over simulated GPUs: the logits are those of host devices within rounding, and the same bits for
 * every split, number of GPUs and chunk size; also with host devices among the GPUs, several devices on one
 * GPU, and GPUs without peer access. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/trace.h>

#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

static const char glossary[] = "examples/models/glossary-7m-Q8_0.gguf";

enum { N_TOKENS = 9 };

static bool machine_for(const char *collectives, int n_devices, bool peer_access)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.peer_access = peer_access;
    config.may_share = !collectives || strcmp(collectives, "nccl") != 0; /* NCCL needs a GPU for each */
    return cudasim_have(&config);
}

static bool machine(int n_devices, bool peer_access)
{
    return machine_for(NULL, n_devices, peer_access);
}

static float *run_with(const char *path, const char *devices, const char *collectives, const char *split,
                       int64_t chunk, int64_t *n_vocab_out)
{
    int32_t tokens[N_TOKENS];
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = N_TOKENS;
    config.session.n_outputs_max = N_TOKENS;
    runner r;
    runner_open_with(&r, path, devices, collectives, split, &config);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((i * 97 + 11) % (r.n_vocab - 1));
    float *logits = malloc((size_t)(N_TOKENS * r.n_vocab) * sizeof *logits);
    runner_decode(&r, tokens, N_TOKENS, chunk, true, logits);
    *n_vocab_out = r.n_vocab;
    runner_close(&r);
    return logits;
}

static float *run(const char *path, const char *devices, const char *split, int64_t chunk,
                  int64_t *n_vocab_out)
{
    return run_with(path, devices, NULL, split, chunk, n_vocab_out);
}

/* The largest difference, relative to the largest logit. */
static void assert_close(const float *a, const float *b, int64_t n, double bound)
{
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs((double)a[i] - b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    if (!(difference <= bound * largest))
        fail_msg("logits differ by %g of %g", difference, largest);
}

typedef struct way {
    int n_gpus;
    bool peer_access;
    const char *devices, *split;
    int64_t chunk;
} way;

/* All ways give the bits of the first, which is close to what host devices give. Host devices round
 * differently, so ways that contain one are only close. */
static void check_ways(const char *path, const way *ways, int n_ways)
{
    int64_t n_vocab;
    float *host = run(path, "host:1,threads=1", NULL, N_TOKENS, &n_vocab), *first = NULL;
    size_t bytes = (size_t)(N_TOKENS * n_vocab) * sizeof(float);
    for (int i = 0; i < n_ways; i++) {
        const way *w = &ways[i];
        if (!machine(w->n_gpus, w->peer_access))
            continue;
        float *logits = run(path, w->devices, w->split, w->chunk, &n_vocab);
        assert_close(logits, host, N_TOKENS * n_vocab, 1e-3);
        bool pure = strstr(w->devices, "host") == NULL;
        if (first && pure && memcmp(logits, first, bytes) != 0)
            fail_msg("%s, split %s, chunks of %lld: other bits", w->devices, w->split ? w->split : "-",
                     (long long)w->chunk);
        nothing_is_left();
        if (first || !pure) {
            free(logits);
        } else {
            first = logits;
        }
    }
    free(first);
    free(host);
}

static void the_shipped_model_has_the_logits_of_the_host(void **state)
{
    (void)state;
    static const way ways[] = {
        {1, true, "cuda", NULL, N_TOKENS},        {1, true, "cuda:0", NULL, 1},
        {2, true, "cuda", "1,1", N_TOKENS},       {3, true, "cuda", "3,1,2", 4},
        {5, true, "cuda", "1,2,0,3,1", N_TOKENS},
    };
    if (access(glossary, R_OK) != 0) {
        print_message("skipped: no %s\n", glossary);
        skip();
    }
    check_ways(glossary, ways, sizeof ways / sizeof *ways);
}

static void check_synthetic(tsr_type type, const way *ways, int n_ways)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    config.weight_type = type;
    config.head_dim = 64;
    config.n_ff = 768;
    config.n_vocab = 384;
    close(directory_new(path));
    synth_model_write(&config, path);
    check_ways(path, ways, n_ways);
    unlink(path);
}

static void every_weight_type_has_the_logits_of_the_host(void **state)
{
    (void)state;
    static const tsr_type types[] = {TSR_TYPE_F32,    TSR_TYPE_F16,  TSR_TYPE_BF16, TSR_TYPE_Q8_0,
                                     TSR_TYPE_Q4_0,   TSR_TYPE_Q4_K, TSR_TYPE_Q5_K, TSR_TYPE_Q6_K,
                                     TSR_TYPE_IQ2_XS, TSR_TYPE_NVFP4};
    static const way ways[] = {
        {1, true, "cuda", NULL, N_TOKENS},
        {3, true, "cuda", "1,0.1,17", 2},
    };
    for (size_t i = (size_t)TSR_TEST_FIRST(2); i < sizeof types / sizeof *types;
         i += (size_t)TSR_TEST_EVERY(2))
        check_synthetic(types[i], ways, sizeof ways / sizeof *ways);
}

static void every_architecture_has_the_logits_of_the_host(void **state)
{
    (void)state;
    static const way ways[] = {{1, true, "cuda", NULL, N_TOKENS}, {3, true, "cuda", "1,0.1,2", 2}};
    for (size_t i = (size_t)TSR_TEST_FIRST(3); i < n_synth_archs; i += (size_t)TSR_TEST_EVERY(3)) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        char path[DIRECTORY_PATH];
        config.arch = &synth_archs[i];
        config.n_layers = strcmp(synth_archs[i].name, "smollm3") == 0 ? 4
                          : synth_archs[i].parts & SYNTH_DENSE_FIRST  ? 3
                                                                      : 2;
        config.n_embd = 96;
        config.n_heads = 6;
        config.n_kv_heads = 3;
        config.n_ff = 256;
        config.n_vocab = 261;
        config.tied_output = i % 2;
        close(directory_new(path));
        synth_model_write(&config, path);
        check_ways(path, ways, sizeof ways / sizeof *ways);
        unlink(path);
    }
}

static void several_devices_on_one_gpu_mixed_and_without_peers(void **state)
{
    (void)state;
    static const way ways[] = {
        {1, true, "cuda", NULL, N_TOKENS},
        {1, true, "cuda:0,mem=40MiB,cuda:0,mem=50MiB,cuda:0,mem=30MiB", "1,1,1", 3},
        {2, true, "cuda:0,cuda:1,cuda:0", "2,1,1", N_TOKENS},
        {3, false, "cuda", "1,1,2", 5},
        {1, true, "cuda:0,host:1,threads=1", "3,1", 4},
        {2, false, "host:2,threads=1,cuda", "1,1,1,1", N_TOKENS},
        {2, true, "cuda:1,host:1,threads=2,cuda:0", "1,2,1", 1},
    };
    check_synthetic(TSR_TYPE_Q8_0, ways, sizeof ways / sizeof *ways);
}

static void write_small_model(char *path)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.weight_type = TSR_TYPE_Q8_0;
    config.head_dim = 64;
    config.n_ff = 768;
    config.n_vocab = 384;
    close(directory_new(path));
    synth_model_write(&config, path);
}

static void collectives_change_no_bit(void **state)
{
    (void)state;
    static const struct {
        int n_gpus;
        const char *collectives, *devices, *split;
    } ways[] = {
        {3, "staged", "cuda", "1,1,1"},        {3, "peer", "cuda", "1,1,1"},
        {3, "peer", "cuda:2,cuda:0", "2,1"},   {1, "peer", "cuda:0,cuda:0,cuda:0", "1,2,1"},
        {2, "auto", "cuda:0,cuda:1", "1,3"},   {3, "staged", "cuda:1,cuda:1,cuda:2", "3,1,2"},
        {3, "nccl", "cuda", "1,0,1"},          {3, "nccl", "cuda:2,cuda:0", "2,1"},
        {1, "staged", "cuda:0,cuda:0", "3,1"}, {1, NULL, "cuda:0", NULL},
    };
    char path[DIRECTORY_PATH];
    float *first = NULL;
    write_small_model(path);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int64_t n_vocab;
        if (!machine_for(ways[i].collectives, ways[i].n_gpus, true))
            continue;
        float *logits =
            run_with(path, ways[i].devices, ways[i].collectives, ways[i].split, i % 2 ? 4 : 9, &n_vocab);
        if (first && memcmp(logits, first, (size_t)(N_TOKENS * n_vocab) * sizeof *first) != 0)
            fail_msg("%s over %s: other bits", ways[i].collectives, ways[i].devices);
        nothing_is_left();
        if (first)
            free(logits);
        else
            first = logits;
    }
    free(first);
    unlink(path);
}

/* Sums through host memory are seen by the GPUs' host threads, and change no bit. A profiler sees the same
 * parts. */
static void a_trace_shows_staged_sums(void **state)
{
    (void)state;
    static const int32_t tokens[] = {5, 291, 100, 3, 44};
    enum { N = sizeof tokens / sizeof *tokens };
    char path[DIRECTORY_PATH];
    runner r;
    write_small_model(path);
    assert_true(machine_for("staged", 2, true));
    runner_open_with(&r, path, "cuda", "staged", "3,1", NULL);
    float *logits = malloc(2 * (size_t)r.n_vocab * sizeof *logits);
    runner_decode(&r, tokens, N, 0, false, logits);
    runner_ok(tsr_session_trim(r.session, 0, 0), "trimming");
    assert_true(!CUDASIM_SIMULATED || cudasim_nvtx_ranges("") == 0); /* without a trace */
    runner_ok(tsr_trace_start(r.rt, 1000), "starting a trace");
    runner_decode(&r, tokens, N, 0, false, logits + r.n_vocab);
    assert_memory_equal(logits, logits + r.n_vocab, (size_t)r.n_vocab * sizeof *logits);
    size_t n_parts = 0;
    for (int d = 0; d < 2; d++) {
        tsr_device_trace trace;
        size_t n[4] = {0};
        uint64_t end = 0;
        runner_ok(tsr_trace_read(r.rt, d, &trace), "reading a trace");
        for (size_t i = 0; i < trace.n_spans; i++) {
            n[trace.spans[i].kind]++;
            if (trace.spans[i].kind == TSR_SPAN_COPY)
                continue;
            assert_true(trace.spans[i].begin_ns >= end && trace.spans[i].end_ns >= trace.spans[i].begin_ns);
            end = trace.spans[i].end_ns;
        }
        assert_true(n[TSR_SPAN_COMPUTE] > 0 && n[TSR_SPAN_COPY] > 0);
        assert_true(n[TSR_SPAN_REDUCE] > 0 && n[TSR_SPAN_WAIT] >= n[TSR_SPAN_REDUCE]);
        n_parts += n[TSR_SPAN_COMPUTE];
    }
    if (CUDASIM_SIMULATED) {
        const size_t n_sums = (size_t)cudasim_nvtx_ranges("all_reduce ");
        assert_true(n_sums > 0 && n_sums % 2 == 0);
        assert_int_equal(cudasim_nvtx_ranges(""), n_parts + n_sums);
        assert_int_equal(cudasim_nvtx_open(), 0);
    }
    free(logits);
    runner_close(&r);
    unlink(path);
}

/* GPUs and host devices round differently, so what each family holds matters; who of a family holds it, with
 * how many threads and in which chunks, does not. */
static void mixed_bits_depend_on_what_each_family_holds(void **state)
{
    (void)state;
    static const way ways[][3] = {
        {{1, true, "cuda:0,host:1,threads=1", "1,1", N_TOKENS},
         {1, true, "cuda:0,host:1,threads=2", "1,1", 2},
         {2, true, "cuda:1,host:1,threads=1", "2,2", 1}},
        {{2, true, "host:1,threads=1,cuda:0,cuda:1", "2,1,1", N_TOKENS},
         {1, false, "host:1,threads=1,cuda:0", "1,1", 3},
         {1, true, "host:2,threads=1,cuda:0", "1,1,2", 4}},
    };
    char path[DIRECTORY_PATH];
    write_small_model(path);
    for (size_t g = 0; g < sizeof ways / sizeof *ways; g++) {
        float *first = NULL;
        for (size_t i = 0; i < sizeof ways[g] / sizeof *ways[g]; i++) {
            const way *w = &ways[g][i];
            int64_t n_vocab;
            if (!machine(w->n_gpus, w->peer_access))
                continue;
            float *logits = run(path, w->devices, w->split, w->chunk, &n_vocab);
            if (first && memcmp(logits, first, (size_t)(N_TOKENS * n_vocab) * sizeof *first) != 0)
                fail_msg("%s, split %s, chunks of %lld: other bits", w->devices, w->split,
                         (long long)w->chunk);
            assert_int_equal(cudasim_leaks(stderr), 0);
            if (first)
                free(logits);
            else
                first = logits;
        }
        free(first);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_model_has_the_logits_of_the_host),
        cmocka_unit_test(every_weight_type_has_the_logits_of_the_host),
        cmocka_unit_test(every_architecture_has_the_logits_of_the_host),
        cmocka_unit_test(several_devices_on_one_gpu_mixed_and_without_peers),
        cmocka_unit_test(collectives_change_no_bit),
        cmocka_unit_test(a_trace_shows_staged_sums),
        cmocka_unit_test(mixed_bits_depend_on_what_each_family_holds),
    };
    return cmocka_run_group_tests_name("models over simulated GPUs", tests, NULL, NULL);
}
