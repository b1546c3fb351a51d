/* Files with a tensor for each expert on simulated GPUs: the bits of a file with one tensor for all experts.
 * tests/test_expert_tensors.c has the rest on host devices. */
#include "cuda/model_run.h"
#include "support/directory.h"
#include "support/expert_tensors.h"
#include "support/synth_model.h"

static void the_bits_are_those_of_joined_tensors(void **state)
{
    static const char *const splits[] = {"1,1", "1,0", "1,3"};
    char joined[DIRECTORY_PATH], separate[DIRECTORY_PATH];
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    int64_t n;
    (void)state;
    machine.n_devices = 2;
    if (!cudasim_have(&machine))
        skip();
    config.weight_type = TSR_TYPE_Q8_0;
    config.n_embd = 96;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.n_ff = 416;
    config.n_experts = 5;
    config.n_experts_used = 2;
    config.n_vocab = 300;
    snprintf(joined, sizeof joined, "%s", directory_file("joined.gguf"));
    snprintf(separate, sizeof separate, "%s", directory_file("separate.gguf"));
    synth_model_write(&config, joined);
    float *plain = model_logits(joined, "cuda", splits[0], 0, &n);
    for (int i = 0; i < 3; i++) {
        const expert_tensors how = {.order = i == 0 ? EXPERTS_BY_EXPERT : EXPERTS_SHUFFLED};
        expert_tensors_write(joined, &how, separate);
        float *logits = model_logits(separate, "cuda", splits[i], 7, &n);
        if (memcmp(logits, plain, (size_t)n * sizeof *logits) != 0)
            fail_msg("split %s: other bits", splits[i]);
        free(logits);
    }
    free(plain);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_joined_tensors),
    };
    return cmocka_run_group_tests_name("a tensor for each expert on simulated GPUs", tests, NULL, NULL);
}
