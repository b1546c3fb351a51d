/* Models with latent attention, and models whose tokens see a part of the positions before them, over
 * simulated GPUs. */
#include "cuda/model_run.h"

static void check_within(const char *name, double bound)
{
    static const model_way ways[] = {
        {1, NULL, 0}, {1, NULL, 1}, {2, "1,1", 0}, {3, "2,0,1", 3}, {3, "1,1,2", 2}};
    model_check_ways(name, ways, sizeof ways / sizeof *ways, bound);
}

static void check(void **state)
{
    check_within(*state, 1e-5);
}

/* Hosts and GPUs round the activations of quantized experts to integers that may differ by one. */
static void check_quantized(void **state)
{
    check_within(*state, 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"deepseek2-v2lite", check, NULL, NULL, (void *)"deepseek2-v2lite"},
        {"deepseek2-v3", check, NULL, NULL, (void *)"deepseek2-v3"},
        {"mistral4-temp", check, NULL, NULL, (void *)"mistral4-temp"},
        {"llama4", check, NULL, NULL, (void *)"llama4"},
        {"glm-dsa", check, NULL, NULL, (void *)"glm-dsa"},
        {"minimax-m3", check, NULL, NULL, (void *)"minimax-m3"},
        {"deepseek4", check_quantized, NULL, NULL, (void *)"deepseek4"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
