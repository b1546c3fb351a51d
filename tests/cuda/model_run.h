/* Recorded models (../shared/ref/hf) on simulated machines: the logits are those of a host device within
 * rounding, and the same bits for every split, number of GPUs and number of tokens at a time. */
#ifndef TSR_TESTS_MODEL_RUN_H
#define TSR_TESTS_MODEL_RUN_H

#include <stdlib.h>
#include <unistd.h>

#include "cuda/simulated.h"
#include "support/reference.h"
#include "support/runner.h"

enum { MODEL_TOKENS = 48 };

typedef struct model_way {
    int n_gpus;
    const char *split;
    int64_t chunk; /* tokens at a time; 0: all */
} model_way;

/* The logits of all tokens; the caller frees them. */
static inline float *model_logits(const char *path, const char *devices, const char *split, int64_t chunk,
                                  int64_t *n_out)
{
    int32_t tokens[MODEL_TOKENS];
    runner r;
    tsr_model_config config = tsr_model_config_default();
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    config.session.n_ctx = 64;
    config.session.n_batch = config.session.n_outputs_max = MODEL_TOKENS;
    runner_open(&r, path, devices, split, &config);
    for (int i = 0; i < MODEL_TOKENS; i++)
        tokens[i] = (int32_t)((i * 97 + 11) % (r.n_vocab - 1));
    *n_out = MODEL_TOKENS * r.n_vocab;
    float *logits = malloc((size_t)*n_out * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, MODEL_TOKENS, chunk, true, logits);
    runner_close(&r);
    return logits;
}

/* Run the model of that name in each way, every other one with peer access, and compare with a host device's
 * logits: the relative error is at most `bound`. */
static inline void model_check_ways(const char *name, const model_way *ways, size_t n_ways, double bound)
{
    char path[128];
    int64_t n;
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", name);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is missing\n", path);
        skip();
    }
    float *first = NULL, *host = model_logits(path, "host:1,threads=1", NULL, 0, &n);
    for (size_t i = 0; i < n_ways; i++) {
        cudasim_config config = CUDASIM_CONFIG_INIT;
        config.n_devices = ways[i].n_gpus;
        config.may_share = true;
        config.peer_access = i % 2 == 0;
        config.seed = i + 1;
        if (!cudasim_have(&config))
            continue;
        float *logits = model_logits(path, "cuda", ways[i].split, ways[i].chunk, &n);
        const double error = reference_relative_error(logits, host, n);
        if (!(error <= bound))
            fail_msg("%s, %d GPUs, split %s, chunks of %d: %g from the host's logits", name, ways[i].n_gpus,
                     ways[i].split ? ways[i].split : "-", (int)ways[i].chunk, error);
        if (first && memcmp(logits, first, (size_t)n * sizeof *logits) != 0)
            fail_msg("%s: split %s, chunks of %d: other bits", name, ways[i].split ? ways[i].split : "-",
                     (int)ways[i].chunk);
        nothing_is_left();
        if (first)
            free(logits);
        else
            first = logits;
    }
    free(first);
    free(host);
}

#endif
