/* Models with recurrent layers on simulated machines: close to the host's logits, and the same bits for
 * several GPUs, and for a few tokens at a time. The models are those of tests/test_models_recorded.c, which
 * compares the host with recorded logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/reference.h"
#include "support/runner.h"

enum { TOKENS = 30 };

static const struct {
    int n_gpus;
    const char *split;
    int64_t chunk;
} machines[] = {{1, NULL, 0}, {1, NULL, 7}, {2, "1,1", 0}, {2, "3,1", 1}, {3, "1,0,2", 13}};

/* The logits of all tokens. */
static float *decode(const char *path, const char *devices, const char *split, int64_t chunk,
                     size_t *bytes_out)
{
    int32_t tokens[TOKENS];
    runner r;
    tsr_model_config config = tsr_model_config_default();
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (i * 37 + 11) % 300;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    config.session.n_ctx = config.session.n_batch = config.session.n_outputs_max = TOKENS;
    runner_open(&r, path, devices, split, &config);
    *bytes_out = (size_t)(TOKENS * r.n_vocab) * sizeof(float);
    float *logits = malloc(*bytes_out);
    runner_decode(&r, tokens, TOKENS, chunk, true, logits);
    runner_close(&r);
    return logits;
}

static void check_model(void **state)
{
    char path[128];
    size_t bytes;
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", (const char *)*state);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is missing\n", path);
        skip();
    }
    float *first = NULL, *host = decode(path, "host:1,threads=1", NULL, 0, &bytes);
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        cudasim_config config = CUDASIM_CONFIG_INIT;
        config.n_devices = machines[i].n_gpus;
        config.seed = i + 1;
        if (!cudasim_have(&config))
            continue;
        float *logits = decode(path, "cuda", machines[i].split, machines[i].chunk, &bytes);
        assert_true(reference_relative_error(logits, host, (int64_t)(bytes / sizeof(float))) <= 2e-5);
        if (first)
            assert_memory_equal(logits, first, bytes);
        else
            first = logits;
        if (first != logits)
            free(logits);
        nothing_is_left();
    }
    free(first);
    free(host);
}

int main(void)
{
    static char qwen3next[] = "qwen3next", qwen35[] = "qwen35";
    const struct CMUnitTest tests[] = {
        {"value heads of a key head are neighbours", check_model, NULL, NULL, qwen3next},
        {"value heads are in parts", check_model, NULL, NULL, qwen35},
    };
    return cmocka_run_group_tests_name("recurrent models on simulated GPUs", tests, NULL, NULL);
}
