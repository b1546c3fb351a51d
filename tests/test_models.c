/* Every architecture that runs, on random weights of several types and shapes: its logits against a
 * computation in double precision (support/decoder_reference.h), and those of some tokens against those of
 * all. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/isa.h>

#include "support/decoder_reference.h"
#include "support/directory.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

enum { N_TOKENS = 13, N_CTX = 64 };

/* The largest relative error of any token's logits, and no argmax but the exact one where its margin exceeds
 * what both logits may be off by. */
static double compare(const float *logits, const double *exact, int64_t n_vocab)
{
    double worst = 0;
    for (int64_t t = 0; t < N_TOKENS; t++) {
        const float *a = logits + t * n_vocab;
        const double *e = exact + t * n_vocab;
        double difference = 0, norm = 0, largest = 0;
        int64_t best = 0;
        for (int64_t i = 0; i < n_vocab; i++) {
            double d = (double)a[i] - e[i];
            difference += d * d;
            norm += e[i] * e[i];
            largest = fmax(largest, fabs(d));
            best = e[i] > e[best] ? i : best;
        }
        int64_t mine = runner_argmax(a, n_vocab);
        assert_true(mine == best || e[best] - e[mine] <= 2 * largest);
        worst = fmax(worst, sqrt(difference / norm));
    }
    return worst;
}

/* Relative. Keys and values are in F32. What is left is the rounding of sums, of activations to 16 bits where
 * weights are quantized, and to 17 bits where AMX multiplies F16 and BF16
 * (src/host/kernels/mul_mat/halves_amx.h). */
static double error_bound(tsr_type type)
{
    tsr_isa_list isa;
    runner_ok(tsr_isa_discover(&isa), "isa");
    if (tsr_type_block_elems(type) > 1)
        return 1e-3;
    return type != TSR_TYPE_F32 && strcmp(isa.levels[isa.chosen].name, "amx") == 0 ? 1e-4 : 1e-5;
}

/* A token's logits do not depend on whose else are wanted: of one chunk's tokens some, of another's none. */
static void check_some(runner *r, const int32_t *tokens, const float *all)
{
    static const bool outputs[N_TOKENS] = {[1] = true, [3] = true, [11] = true};
    const tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens, .outputs = outputs};
    const size_t row_bytes = (size_t)r->n_vocab * sizeof(float);
    float *logits = malloc(3 * row_bytes);
    assert_non_null(logits);
    runner_ok(tsr_session_trim(r->session, 0, 0), "trim");
    runner_ok(tsr_session_decode(r->session, &batch, logits), "some outputs");
    for (int64_t i = 0, n = 0; i < N_TOKENS; i++)
        if (outputs[i])
            assert_memory_equal(logits + n++ * r->n_vocab, all + i * r->n_vocab, row_bytes);
    free(logits);
}

static void check_model(const struct synth_model_config *config, const char *devices, const char *split)
{
    char path[DIRECTORY_PATH];
    const double bound = error_bound(config->weight_type);
    int32_t tokens[N_TOKENS];
    uint64_t seed = config->seed;
    tsr_model_config model_config = tsr_model_config_default();
    runner r;
    close(directory_new(path));
    synth_model_write(config, path);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)random_below(&seed, (uint64_t)config->n_vocab);
    model_config.session.n_ctx = N_CTX;
    model_config.session.n_batch = 5;
    model_config.session.n_outputs_max = 4;
    model_config.session.type_k = model_config.session.type_v = TSR_TYPE_F32;
    runner_open(&r, path, devices, split, &model_config);
    float *logits = malloc((size_t)(N_TOKENS * r.n_vocab) * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, N_TOKENS, 8, true, logits);
    double *exact = decoder_reference(path, tokens, N_TOKENS, N_CTX);
    double error = compare(logits, exact, r.n_vocab);
    if (!(error <= bound))
        fail_msg("%s, %s, %d heads of %d: relative error %.2e", config->arch->title,
                 tsr_type_name(config->weight_type), config->n_heads, config->head_dim, error);
    check_some(&r, tokens, logits);
    free(logits);
    free(exact);
    runner_close(&r);
    unlink(path);
}

static void architectures(const tsr_type type, size_t first, size_t step)
{
    for (size_t i = first; i < n_synth_archs; i += step) {
        struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
        config.arch = &synth_archs[i];
        config.weight_type = type;
        config.n_layers = 4;
        config.n_vocab = 300;
        config.seed = 1 + i;
        config.tied_output = i % 2;
        config.rope_factors = i % 5 == 4;
        check_model(&config, "host:2,threads=1", i % 3 ? "1,1" : "3,1");
    }
}

#define TYPE_TEST(type, first, step)                                        \
    static void architectures_in_##type##_equal_the_reference(void **state) \
    {                                                                       \
        (void)state;                                                        \
        architectures(TSR_TYPE_##type, first, step);                        \
    }

TYPE_TEST(F32, 0, 1)
TYPE_TEST(Q4_K, TSR_TEST_FIRST(3), TSR_TEST_EVERY(3))

/* Odd numbers of heads, heads of other lengths than the width says, lengths that are multiples of nothing.
 * Under a sanitizer every architecture has one of the shapes. */
static void unusual_shapes_equal_the_reference(void **state)
{
    (void)state;
    static const struct {
        int n_embd, n_heads, n_kv_heads, head_dim, n_ff;
        tsr_type type;
    } shapes[] = {{160, 5, 5, 80, 200, TSR_TYPE_F16},
                  {96, 6, 3, 96, 129, TSR_TYPE_BF16},
                  {120, 3, 1, 256, 320, TSR_TYPE_Q8_0},
                  {72, 7, 7, 18, 127, TSR_TYPE_F16}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t i = (s + TSR_TEST_FIRST(4)) % TSR_TEST_EVERY(4); i < n_synth_archs;
             i += TSR_TEST_EVERY(4)) {
            struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
            config.arch = &synth_archs[i];
            config.weight_type = shapes[s].type;
            config.n_embd = shapes[s].n_embd;
            config.n_heads = shapes[s].n_heads;
            config.n_kv_heads = shapes[s].n_kv_heads;
            config.head_dim = shapes[s].head_dim;
            config.n_ff = shapes[s].n_ff;
            config.n_layers = synth_archs[i].parts & SYNTH_DENSE_FIRST ? 3 : 2;
            config.n_vocab = 261;
            config.seed = 100 + i;
            config.tied_output = (i + s) % 2;
            check_model(&config, "host:3,threads=1", "2,1,3");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures_in_F32_equal_the_reference),
        cmocka_unit_test(architectures_in_Q4_K_equal_the_reference),
        cmocka_unit_test(unusual_shapes_equal_the_reference),
    };
    return cmocka_run_group_tests_name("models are what their papers say", tests, NULL, NULL);
}
