/* Recorded logits of real models on host devices (support/reference.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/reference.h"

#define MODEL_TEST(function, name, devices, split) BITS_TEST(function, name, devices, split, 16)
#define BITS_TEST(function, name, devices, split, bits)                      \
    static void function(void **state)                                       \
    {                                                                        \
        (void)state;                                                         \
        reference_check(name, devices, NULL, split, bits, 1, REFERENCE_ALL); \
    }

MODEL_TEST(f16_with_tied_output_and_rope_factors_has_the_recorded_logits, "nano-l31-F16", "host:3,threads=1",
           "2,1,3")
MODEL_TEST(f16_without_grouped_queries_has_the_recorded_logits, "nano-mha-F16", "host:2,threads=1", "3,1")
MODEL_TEST(qwen2_biases_and_tied_output_has_the_recorded_logits, "nano-qwen2-F16", "host:3,threads=1",
           "2,1,3")
MODEL_TEST(qwen3_head_norms_has_the_recorded_logits, "nano-qwen3-F16", "host:2,threads=1", "3,1")
MODEL_TEST(bf16_has_the_recorded_logits, "nano-mha-BF16", "host:2,threads=1", "1,1")
MODEL_TEST(q6_k_with_q8_0_down_has_the_recorded_logits, "nano-mha-Q6_K", "host:2,threads=1", "1,2")
MODEL_TEST(trained_q4_0_has_the_recorded_logits, "glossary-7m-Q4_0", "host:2,threads=1", "1,1")
MODEL_TEST(trained_q4_k_has_the_recorded_logits, "glossary-7m-Q4_K_M", "host:2,threads=1", "1,1")
MODEL_TEST(trained_q5_k_has_the_recorded_logits, "glossary-7m-Q5_K_M", "host:2,threads=1", "1,1")
MODEL_TEST(trained_q8_0_has_the_recorded_logits, "glossary-7m-Q8_0", "host:2,threads=1", "3,1")
MODEL_TEST(mixtral_has_the_recorded_logits, "nano-moe-F16", "host:2,threads=1", "1,2")
MODEL_TEST(qwen3moe_has_the_recorded_logits, "nano-qwen3moe-F16", "host:3,threads=1", "2,1,1")

/* Activations of 8 bits are what the other engine has. */
BITS_TEST(q6_k_with_8_bits_has_the_recorded_logits, "nano-mha-Q6_K", "host:2,threads=1", "1,2", 8)
BITS_TEST(trained_q4_0_with_8_bits_has_the_recorded_logits, "glossary-7m-Q4_0", "host:2,threads=1", "1,1", 8)
BITS_TEST(trained_q4_k_with_8_bits_has_the_recorded_logits, "glossary-7m-Q4_K_M", "host:2,threads=1", "1,1",
          8)
BITS_TEST(trained_q8_0_with_8_bits_has_the_recorded_logits, "glossary-7m-Q8_0", "host:2,threads=1", "3,1", 8)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_with_tied_output_and_rope_factors_has_the_recorded_logits),
        cmocka_unit_test(f16_without_grouped_queries_has_the_recorded_logits),
        cmocka_unit_test(qwen2_biases_and_tied_output_has_the_recorded_logits),
        cmocka_unit_test(qwen3_head_norms_has_the_recorded_logits),
        cmocka_unit_test(bf16_has_the_recorded_logits),
        cmocka_unit_test(q6_k_with_q8_0_down_has_the_recorded_logits),
        cmocka_unit_test(trained_q8_0_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_0_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_k_has_the_recorded_logits),
        cmocka_unit_test(trained_q5_k_has_the_recorded_logits),
        cmocka_unit_test(q6_k_with_8_bits_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_0_with_8_bits_has_the_recorded_logits),
        cmocka_unit_test(trained_q4_k_with_8_bits_has_the_recorded_logits),
        cmocka_unit_test(trained_q8_0_with_8_bits_has_the_recorded_logits),
        cmocka_unit_test(mixtral_has_the_recorded_logits),
        cmocka_unit_test(qwen3moe_has_the_recorded_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
