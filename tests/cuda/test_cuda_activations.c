/* Whole models with activations of 8 bits on simulated GPUs: the same bits for every split, number of GPUs
 * and number of tokens at a time. Logits are far from those with 16 bits, and close to a host device's with
 * 8 until an activation whose last bits are others rounds to the next integer. */
#include <stdlib.h>
#include <unistd.h>

#include "cuda/simulated.h"
#include "support/directory.h"
#include "support/reference.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_TOKENS = 20 };

/* The logits of all tokens, `chunk` at a time (0: all together); the caller frees them. */
static float *logits_of(const char *path, const char *devices, const char *split, int bits, int64_t chunk,
                        int64_t *n_out)
{
    runner r;
    int32_t tokens[N_TOKENS];
    tsr_model_config config = tsr_model_config_default();
    config.compute.activation_bits = bits;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    config.session.n_ctx = 32;
    config.session.n_outputs_max = N_TOKENS;
    runner_open(&r, path, devices, split, &config);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((i * 97 + 11) % r.n_vocab);
    *n_out = N_TOKENS * r.n_vocab;
    float *logits = malloc((size_t)*n_out * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, N_TOKENS, chunk, true, logits);
    runner_close(&r);
    return logits;
}

/* The same on n GPUs, with peer access or without. */
static float *gpu_logits(const char *path, int n_gpus, const char *split, int bits, int64_t chunk,
                         int64_t *n_out)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_gpus;
    config.may_share = true;
    config.peer_access = n_gpus != 3;
    config.seed = (uint64_t)(n_gpus + chunk);
    if (!cudasim_have(&config))
        return NULL;
    float *logits = logits_of(path, "cuda", split, bits, chunk, n_out);
    nothing_is_left();
    return logits;
}

/* Eight tokens share a product with 8 bits, and four with 16: chunks of 1, 3 and 7 tokens, and all. */
static void check_model(const struct synth_model_config *model)
{
    static const struct {
        int n_gpus;
        const char *split;
        int64_t chunk;
    } ways[] = {{1, NULL, 1}, {2, "3,1", 7}, {2, "1,2", 3}, {3, "1,2,1", 0}};
    char path[DIRECTORY_PATH];
    int64_t n;
    close(directory_new(path));
    synth_model_write(model, path);
    float *alone = gpu_logits(path, 1, NULL, 8, 0, &n), *more = gpu_logits(path, 1, NULL, 16, 0, &n);
    if (!alone || !more)
        skip();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        float *logits = gpu_logits(path, ways[i].n_gpus, ways[i].split, 8, ways[i].chunk, &n);
        if (logits && memcmp(logits, alone, (size_t)n * sizeof *logits) != 0)
            fail_msg("%s: %d GPUs, split %s, chunks of %d: other bits", tsr_type_name(model->weight_type),
                     ways[i].n_gpus, ways[i].split ? ways[i].split : "-", (int)ways[i].chunk);
        free(logits);
    }
    float *host = logits_of(path, "host:1,threads=1", NULL, 8, 0, &n);
    const double from_more = reference_relative_error(alone, more, n);
    const int64_t n_vocab = n / N_TOKENS;
    int n_close = 0;
    for (int64_t t = 0; t < n; t += n_vocab)
        n_close += reference_relative_error(alone + t, host + t, n_vocab) < 1e-5;
    print_message("%s: %d of %d tokens' logits are close to the host's, all %.1e from those with 16 bits\n",
                  tsr_type_name(model->weight_type), n_close, N_TOKENS, from_more);
    assert_true(from_more > 1e-3 && from_more < 5e-2);
    assert_true(n_close >= N_TOKENS / 4);
    unlink(path);
    free(alone);
    free(more);
    free(host);
}

static void dense_models_have_the_same_bits_on_any_gpus(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.weight_type = TSR_TYPE_Q4_K;
    model.head_dim = 64; /* so that a row of blocks of 256 columns has more than one granule */
    model.n_ff = 768;
    check_model(&model);
}

static void mixtures_of_experts_have_the_same_bits_on_any_gpus(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.weight_type = TSR_TYPE_Q8_0;
    model.n_experts = 5;
    model.n_experts_used = 2;
    check_model(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_models_have_the_same_bits_on_any_gpus),
        cmocka_unit_test(mixtures_of_experts_have_the_same_bits_on_any_gpus),
    };
    return cmocka_run_group_tests_name("activations of 8 bits on simulated GPUs", tests, NULL, NULL);
}
