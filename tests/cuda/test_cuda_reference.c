/* Recorded logits of real models (support/reference.h) on simulated machines of 1, 2, 3, 5 and 8 GPUs. The
 * tokens after a prompt are decoded one by one on some machines and several at once on others, with kernels
 * of their own.
 *
 * Each model runs a short prompt on one machine, so that every machine has its turn, and two models, one in
 * F16 and one quantized, a prompt of 200 tokens on one GPU. That the other machines give the same bits is
 * test_cuda_split's to tell. With TSR_TEST_LONG=1, and on GPUs, every model runs everything on all machines.
 * Under a sanitizer, which is several times slower, the long prompts are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/reference.h"
#include "support/sanitized.h"

static const struct {
    int n_gpus;
    const char *collectives, *split;
    int64_t chunk;
} machines[] = {{1, NULL, NULL, 1},
                {2, "peer", "3,1", 8},
                {3, "staged", "1,2,1", 4},
                {5, NULL, "1,3,0.5,2,1", 32},
                {8, "peer", "1,2,1,1,3,1,1,2", 16}};

/* Devices that may share a GPU: eight could not wait for each other in its queues. */
enum { MOST_SHARING = 5 };

static bool wanted(int index, int machine, unsigned *prompts)
{
    enum { ALL_MACHINES = sizeof machines / sizeof *machines, LONG_EVERY = 5 };
    if (getenv("TSR_TEST_LONG") || !CUDASIM_SIMULATED) {
        *prompts = REFERENCE_ALL;
        return true;
    }
    *prompts = 1;
    if (machine == 0 && index % LONG_EVERY == 0 && !TSR_TEST_SANITIZED)
        *prompts |= REFERENCE_LONG;
    return machine == index % ALL_MACHINES;
}

static void check_model(const char *name, int index)
{
    char path[256];
    unsigned prompts;
    if (!reference_path(name, path, sizeof path))
        skip();
    for (int i = 0; i < (int)(sizeof machines / sizeof *machines); i++) {
        if (!wanted(index, i, &prompts))
            continue;
        cudasim_config config = CUDASIM_CONFIG_INIT;
        config.n_devices = machines[i].n_gpus;
        config.may_share = machines[i].n_gpus <= MOST_SHARING;
        config.seed = (uint64_t)i + 1;
        if (!cudasim_have(&config))
            continue;
        print_message("%d GPUs\n", config.n_devices);
        reference_check(name, "cuda", machines[i].collectives, machines[i].split, 16, machines[i].chunk,
                        prompts);
        nothing_is_left();
    }
}

#define MODEL_TEST(function, name, index) \
    static void function(void **state)    \
    {                                     \
        (void)state;                      \
        check_model(name, index);         \
    }

MODEL_TEST(f16_with_tied_output_and_rope_factors_has_the_recorded_logits, "nano-l31-F16", 0)
MODEL_TEST(f16_without_grouped_queries_has_the_recorded_logits, "nano-mha-F16", 1)
MODEL_TEST(bf16_has_the_recorded_logits, "nano-mha-BF16", 2)
MODEL_TEST(q6_k_with_q8_0_down_has_the_recorded_logits, "nano-mha-Q6_K", 3)
MODEL_TEST(trained_q8_0_has_the_recorded_logits, "glossary-7m-Q8_0", 4)
MODEL_TEST(trained_q4_0_has_the_recorded_logits, "glossary-7m-Q4_0", 5)
MODEL_TEST(trained_q4_k_has_the_recorded_logits, "glossary-7m-Q4_K_M", 6)
MODEL_TEST(trained_q5_k_has_the_recorded_logits, "glossary-7m-Q5_K_M", 7)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_with_tied_output_and_rope_factors_has_the_recorded_logits),
        cmocka_unit_test(f16_without_grouped_queries_has_the_recorded_logits),
        cmocka_unit_test(bf16_has_the_recorded_logits),
        cmocka_unit_test(q6_k_with_q8_0_down_has_the_recorded_logits),
        cmocka_unit_test(trained_q8_0_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_0_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_k_has_the_recorded_logits),
        cmocka_unit_test(trained_q5_k_has_the_recorded_logits),
    };
    return cmocka_run_group_tests_name("recorded logits on simulated GPUs", tests, NULL, NULL);
}
