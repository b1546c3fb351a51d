/* See reductions.h. */
#include "support/reductions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/reference.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_PROMPT = 48, N_AFTER = 4, N_TOKENS = N_PROMPT + N_AFTER };

/* Every token's logits; the caller frees them. */
static float *logits_of(const char *path, tsr_reduction reduction, const char *devices,
                        const char *collectives, const char *split, int64_t *n_out)
{
    runner r;
    int32_t tokens[N_TOKENS];
    tsr_model_config config = tsr_model_config_default();
    config.compute.reduction = reduction;
    config.session.n_outputs_max = N_PROMPT;
    runner_open_with(&r, path, devices, collectives, split, &config);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((i * 7919 + 13) % r.n_vocab);
    float *logits = malloc((size_t)(N_TOKENS * r.n_vocab) * sizeof *logits);
    assert_non_null(logits);
    runner_decode(&r, tokens, N_PROMPT, 0, true, logits);
    runner_decode(&r, tokens + N_PROMPT, N_AFTER, 1, true, logits + N_PROMPT * r.n_vocab);
    *n_out = N_TOKENS * r.n_vocab;
    runner_close(&r);
    return logits;
}

void reductions_check(tsr_type type, const char *devices, const char *collectives, const char *split)
{
    char path[DIRECTORY_PATH];
    int file = directory_new(path);
    assert_true(file >= 0);
    close(file);
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.weight_type = type;
    synth_model_write(&config, path);
    int64_t n;
    float *exact = logits_of(path, TSR_REDUCTION_EXACT, devices, collectives, split, &n);
    float *f32 = logits_of(path, TSR_REDUCTION_F32, devices, collectives, split, &n);
    float *bf16 = logits_of(path, TSR_REDUCTION_BF16, devices, collectives, split, &n);
    unlink(path);
    double error_f32 = reference_relative_error(f32, exact, n),
           error_bf16 = reference_relative_error(bf16, exact, n);
    print_message("%s on %s, %s: f32 %.2e, bf16 %.2e from exact\n", tsr_type_name(type), devices,
                  collectives ? collectives : "any collectives", error_f32, error_bf16);
    assert_true(error_f32 <= (type == TSR_TYPE_BF16 ? 0x1p-6 : 0x1p-8));
    assert_true(error_bf16 <= 0x1p-6);
    assert_true(error_bf16 > error_f32 / 4);
    assert_true(error_bf16 > 0x1p-12); /* it was rounded */
    free(exact);
    free(f32);
    free(bf16);
}
