/* Models with latent attention over simulated GPUs (tiny ones, ../shared/ref/hf): the logits are those of
 * host devices within rounding, and the same bits for every split, number of GPUs and chunk size. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/runner.h"

enum { N_TOKENS = 7 };

static float *run(const char *path, const char *devices, const char *split, int64_t chunk, int64_t *n_out)
{
    int32_t tokens[N_TOKENS];
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = 64;
    config.session.n_batch = N_TOKENS;
    config.session.n_outputs_max = N_TOKENS;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    runner r;
    runner_open_with(&r, path, devices, NULL, split, &config);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((i * 97 + 11) % (r.n_vocab - 1));
    *n_out = N_TOKENS * r.n_vocab;
    float *logits = malloc((size_t)*n_out * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, N_TOKENS, chunk, true, logits);
    runner_close(&r);
    return logits;
}

static void check(void **state)
{
    static const struct {
        int n_gpus;
        const char *split;
        int64_t chunk;
    } ways[] = {{1, NULL, N_TOKENS}, {1, NULL, 1}, {2, "1,1", N_TOKENS}, {3, "2,0,1", 3}, {3, "1,1,2", 2}};
    const char *path = *state;
    int64_t n;
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is missing\n", path);
        skip();
    }
    float *host = run(path, "host:1,threads=1", NULL, N_TOKENS, &n), *first = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cudasim_config config = CUDASIM_CONFIG_INIT;
        config.n_devices = ways[i].n_gpus;
        config.peer_access = true;
        if (!cudasim_have(&config))
            continue;
        float *logits = run(path, "cuda", ways[i].split, ways[i].chunk, &n);
        double difference = 0, norm = 0;
        for (int64_t j = 0; j < n; j++) {
            difference += pow((double)logits[j] - host[j], 2);
            norm += pow((double)host[j], 2);
        }
        if (!(sqrt(difference / norm) <= 1e-5))
            fail_msg("%s: %g from the host's logits", path, sqrt(difference / norm));
        if (first && memcmp(logits, first, (size_t)n * sizeof *logits) != 0)
            fail_msg("%s: split %s, chunks of %d: other bits", path, ways[i].split ? ways[i].split : "-",
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

#define MODEL(name) "../shared/ref/hf/" name "/model.gguf"

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"deepseek2-v2lite", check, NULL, NULL, (void *)MODEL("deepseek2-v2lite")},
        {"deepseek2-v3", check, NULL, NULL, (void *)MODEL("deepseek2-v3")},
        {"mistral4-temp", check, NULL, NULL, (void *)MODEL("mistral4-temp")},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
