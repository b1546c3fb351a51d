/* Planning from headers with damaged numbers, of architectures that do not run: one line that names what is
 * wrong, and never more than that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/header_plan.h"

/* Write the model with one key replaced (value < 0: left out). */
static gguf_writer *damaged(const struct arch_model *m, const char *suffix, int64_t value)
{
    struct arch_key keys[32];
    struct arch_model copy = *m;
    int n = 0;
    for (const struct arch_key *k = m->keys; k->suffix; k++)
        if (strcmp(k->suffix, suffix) != 0)
            keys[n++] = *k;
    if (value >= 0)
        keys[n++] = (struct arch_key){suffix, value};
    keys[n] = (struct arch_key){NULL};
    copy.keys = keys;
    return arch_model_writer(&copy, TSR_TYPE_Q8_0);
}

static const struct arch_tensor no_layers[] = {{"token_embd.weight", {4096, 100}}, {NULL}};

static void damage_is_named(void **state)
{
    static const struct {
        const char *title, *suffix;
        int64_t value;
        const char *object;
    } cases[] = {
        {"Qwen3-8B", "embedding_length", -1, "qwen3.embedding_length"},
        {"Qwen3-8B", "embedding_length", 4095, "token_embd.weight"},
        {"Qwen3-8B", "context_length", 0, "qwen3.context_length"},
        {"Qwen3-8B", "attention.head_count", -1, "qwen3.attention.head_count"},
        {"Qwen3-8B", "attention.head_count", 64, "blk.0.attn_q.weight"},
        {"Qwen3-8B", "attention.head_count_kv", 5, "5 KV heads"},
        {"Qwen3-8B", "attention.head_count_kv", 4, "blk.0.attn_k.weight"},
        {"Qwen3-8B", "attention.key_length", 1 << 30, "qwen3.attention.key_length"},
        {"Qwen3-8B", "attention.value_length", 64, "blk.0.attn_v.weight"},
        {"Qwen3-8B", "feed_forward_length", 12289, "blk.0.ffn_gate.weight"},
        {"Qwen3-30B-A3B", "expert_count", 127, "blk.0.ffn_gate_inp.weight"},
        {"Qwen3-30B-A3B", "expert_used_count", -1, "qwen3moe.expert_used_count"},
        {"Qwen3-30B-A3B", "expert_used_count", 129, "qwen3moe.expert_used_count"},
        {"Qwen3-30B-A3B", "expert_feed_forward_length", 767, "blk.0.ffn_gate_exps.weight"},
        {"DeepSeek-V2-Lite", "rope.dimension_count", -1, "deepseek2.rope.dimension_count"},
        {"DeepSeek-V2-Lite", "rope.dimension_count", 192, "deepseek2.rope.dimension_count"},
        {"DeepSeek-V2-Lite", "attention.value_length", 192, "blk.0.attn_kv_b.weight"},
        {"DeepSeek-V2-Lite", "expert_shared_count", 3, "blk.1.ffn_gate_shexp.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer *w = damaged(header_published(cases[i].title), cases[i].suffix, cases[i].value);
        tsr_plan *plan = NULL;
        tsr_status status = header_plan(*state, w, 2, NULL, &plan);
        if (status != TSR_ERR_FORMAT)
            fail_msg("%s, %s: %s", cases[i].title, cases[i].suffix, tsr_status_name(status));
        assert_null(plan);
        header_check_message(cases[i].object);
    }
    struct arch_model headless = *header_published("Qwen3-8B"),
                      short_one = *header_published("DeepSeek-V2-Lite");
    tsr_plan *plan = NULL;
    headless.tensors++; /* no token_embd */
    assert_int_equal(header_plan(*state, arch_model_writer(&headless, TSR_TYPE_F16), 1, NULL, &plan),
                     TSR_ERR_FORMAT);
    header_check_message("token_embd.weight");
    short_one.tensors = no_layers;
    assert_int_equal(header_plan(*state, arch_model_writer(&short_one, TSR_TYPE_F16), 1, NULL, &plan),
                     TSR_ERR_FORMAT);
    header_check_message("deepseek2.block_count is 27; the tensors are of 0 layers");
}

/* Every key with every absurd number, tensors of the divided kind left out so that no shape objects: a plan
 * or one line. */
static void absurd_numbers_end_in_one_line(void **state)
{
    static const int64_t values[] = {-1, 0, 1, 3, 65535, 65536, 1 << 20, (1 << 22) - 1, INT32_MAX};
    static const struct arch_tensor few[] = {
        {"token_embd.weight", {2048, 100}}, {"blk.%d.attn_norm.weight", {2048}, true}, {NULL}};
    const struct arch_model *models[] = {header_published("DeepSeek-V2-Lite"),
                                         header_published("Qwen3-30B-A3B")};
    for (int m = 0; m < 2; m++) {
        struct arch_model model = *models[m];
        model.tensors = few;
        for (const struct arch_key *k = model.keys; k->suffix; k++) {
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                tsr_plan *plan = NULL;
                tsr_model_config config = tsr_model_config_default();
                config.session.n_ctx = 64;
                config.session.n_batch = 4;
                tsr_status status =
                    header_plan(*state, damaged(&model, k->suffix, values[v]), 2, &config, &plan);
                if (status != TSR_OK && (strlen(tsr_last_error()) < 20 || strchr(tsr_last_error(), '\n')))
                    fail_msg("%s = %lld: %s", k->suffix, (long long)values[v], tsr_last_error());
                tsr_plan_destroy(plan);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(absurd_numbers_end_in_one_line),
    };
    return cmocka_run_group_tests(tests, header_set_up, header_tear_down);
}
