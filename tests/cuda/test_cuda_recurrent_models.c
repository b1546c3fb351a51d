/* Models with recurrent layers over simulated GPUs. tests/test_models_recorded.c compares the host with
 * recorded logits of the same models. */
#include "cuda/model_run.h"

static void check(void **state)
{
    static const model_way ways[] = {
        {1, NULL, 0}, {1, NULL, 7}, {2, "1,1", 0}, {2, "3,1", 1}, {3, "1,0,2", 13}};
    model_check_ways(*state, ways, sizeof ways / sizeof *ways, 2e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"value heads of a key head are neighbours", check, NULL, NULL, (void *)"qwen3next"},
        {"value heads are in parts", check, NULL, NULL, (void *)"qwen35"},
        {"short convolutions", check, NULL, NULL, (void *)"lfm2"},
        {"a decay for each row, beside latent attention", check, NULL, NULL, (void *)"kimi-linear"},
        {"Mamba-2 divided by groups", check, NULL, NULL, (void *)"granitehybrid"},
        {"layers of one block, experts without a gate in a latent space", check, NULL, NULL,
         (void *)"nemotron_h_moe-latent"},
        {"Mamba-2 divided by heads, beside attention", check, NULL, NULL, (void *)"falcon-h1"},
    };
    return cmocka_run_group_tests_name("recurrent models on simulated GPUs", tests, NULL, NULL);
}
