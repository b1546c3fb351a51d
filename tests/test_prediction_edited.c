/* Prediction layers of recorded models (../shared/ref/hf) that were edited: of architectures whose recorded
 * models have none, against a reference in double (tests/predictions/make.py), and with what published files
 * have or lack. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/runtime.h>

#include "support/directory.h"
#include "support/edited_file.h"
#include "support/runner.h"

enum { N_TOKENS = 40, N_VOCAB = 320, N_KEPT = 40, MAX_EMBD = 96, MAX_EDITS = 16 };

static const struct {
    const char *folder;
    double logits[N_KEPT]; /* of the last of N_TOKENS tokens, every eighth */
} expected[] = {
#include "predictions/edited.inc"
};

/* A model's file, the edits that give it a prediction layer, and the length of its residual stream. */
typedef struct predictor {
    const char *folder;
    int64_t n_embd;
    file_edit edits[MAX_EDITS];
} predictor;

static const file_edit none = {0};

static const char *model_of(const char *folder)
{
    static char path[128];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", folder);
    return path;
}

static bool is_missing(const char *folder)
{
    if (access(model_of(folder), R_OK) == 0)
        return false;
    printf("skipped: %s is missing\n", model_of(folder));
    return true;
}

static const char *write_model(const predictor *p, file_edit more)
{
    file_edit edits[MAX_EDITS + 2] = {{0}};
    int n = 0;
    for (; n < MAX_EDITS && p->edits[n].name; n++)
        edits[n] = p->edits[n];
    edits[n] = more;
    const char *path = directory_file("edited.gguf");
    edited_file_write(model_of(p->folder), edits, path);
    return path;
}

static tsr_model_config predicting(void)
{
    tsr_model_config config = tsr_model_config_default();
    config.prediction.load = true;
    config.session.n_ctx = 64;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    return config;
}

/* Logits of the prediction after n tokens. */
static void predict(const predictor *p, file_edit more, const char *devices, const char *split, int64_t n,
                    float *logits)
{
    int32_t tokens[N_TOKENS], seqs[N_TOKENS] = {0};
    static float hidden[N_TOKENS * MAX_EMBD];
    const tsr_model_config config = predicting();
    runner r;
    runner_open(&r, write_model(p, more), devices, split, &config);
    assert_int_equal(r.n_vocab, N_VOCAB);
    for (int64_t i = 0; i < n; i++) { /* as make.py has them */
        tokens[i] = (int32_t)(i * 37 + 11) % N_VOCAB;
        for (int64_t j = 0; j < p->n_embd; j++)
            hidden[i * p->n_embd + j] = (float)((i * 37 + j * 101) % 64 - 32) / 16;
    }
    const tsr_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs};
    runner_ok(tsr_session_decode(r.session, &batch, logits), "decode");
    const tsr_prediction request = {.n_tokens = n, .tokens = tokens, .hidden = hidden};
    runner_ok(tsr_session_predict(r.session, &request, logits), "predict");
    runner_close(&r);
}

/* Logits of a model that is opened without its prediction layer. */
static void decode_alone(const char *path, float *logits)
{
    static const int32_t tokens[] = {5, 17, 3, 200, 41, 8};
    runner r;
    runner_open(&r, path, "host:1,threads=1", NULL, NULL);
    runner_decode(&r, tokens, sizeof tokens / sizeof *tokens, 0, false, logits);
    runner_close(&r);
}

static bool same(const predictor *p, int64_t n, file_edit a, file_edit b)
{
    float x[N_VOCAB], y[N_VOCAB];
    predict(p, a, "host:1,threads=1", NULL, n, x);
    predict(p, b, "host:1,threads=1", NULL, n, y);
    return memcmp(x, y, sizeof x) == 0;
}

static void check_reference(const predictor *p, const float *logits)
{
    double error = 0, size = 0;
    size_t m = 0;
    while (m < sizeof expected / sizeof *expected && strcmp(expected[m].folder, p->folder) != 0)
        m++;
    assert_true(m < sizeof expected / sizeof *expected);
    for (int i = 0; i < N_KEPT; i++) {
        const double d = logits[i * N_VOCAB / N_KEPT] - expected[m].logits[i];
        error += d * d;
        size += expected[m].logits[i] * expected[m].logits[i];
    }
    print_message("%s: relative error %.1e\n", p->folder, sqrt(error / size));
    assert_true(error <= 1e-10 * size);
}

static void check_logits(const predictor *p)
{
    float one[N_VOCAB], three[N_VOCAB];
    predict(p, none, "host:1,threads=1", NULL, N_TOKENS, one);
    check_reference(p, one);
    predict(p, none, "host:3,threads=1", "2,1,1", N_TOKENS, three);
    assert_memory_equal(one, three, sizeof one);
}

static void check_refused(const char *path, tsr_status wanted, const char *reason)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    const tsr_model_config model_config = predicting();
    tsr_runtime *rt;
    tsr_model *model = NULL;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    assert_int_equal(tsr_model_open(rt, path, &model_config, &model), wanted);
    if (!strstr(tsr_last_error(), reason))
        fail_msg("this should say \"%s\": %s", reason, tsr_last_error());
    tsr_runtime_close(rt);
}

#define NEXTN(layer, n)                                                           \
    {"blk." layer ".nextn.eh_proj.weight", FILE_TENSOR, .ne = {2 * (n), (n)}},    \
        {"blk." layer ".nextn.enorm.weight", FILE_TENSOR, .ne = {n}, .value = 1}, \
    {                                                                             \
        "blk." layer ".nextn.hnorm.weight", FILE_TENSOR, .ne = {n}, .value = 1    \
    }

/* The index of the recorded model takes 16 positions, which are all of 16 tokens. */
static void a_prediction_layer_selects_positions_by_an_index_of_its_own(void **state)
{
    (void)state;
    static const predictor glm = {"glm-dsa",
                                  80,
                                  {{"glm-dsa.nextn_predict_layers", FILE_U32, {1}},
                                   {"glm-dsa.attention.indexer.types", FILE_U32S, {1, 0, 1}, 3},
                                   {"blk.3.indexer.", FILE_COPY, .from = "blk.2.indexer."},
                                   NEXTN("3", 80)}};
    static const file_edit more = {"glm-dsa.attention.indexer.top_k", FILE_U32, {64}};
    if (is_missing(glm.folder))
        skip();
    check_logits(&glm);
    assert_true(same(&glm, 16, none, more));
    assert_false(same(&glm, N_TOKENS, none, more));
    predictor without = glm;
    without.edits[2] = (file_edit){"blk.3.indexer.", FILE_DROP};
    check_refused(write_model(&without, none), TSR_ERR_FORMAT, "blk.3.indexer.attn_q_b.weight is missing");
}

/* Recurrent layers, alone and beside attention, and keys and values of another layer. */
static void prediction_layers_without_keys_and_values_are_refused(void **state)
{
    (void)state;
    static const predictor models[] = {
        {"lfm2moe", 64, {{"lfm2moe.nextn_predict_layers", FILE_U32, {1}}, NEXTN("5", 64)}},
        {"falcon-h1", 64, {{"falcon-h1.nextn_predict_layers", FILE_U32, {1}}, NEXTN("3", 64)}},
        {"gemma4-e", 64, {{"gemma4.nextn_predict_layers", FILE_U32, {1}}, NEXTN("5", 64)}},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (!is_missing(models[i].folder))
            check_refused(write_model(&models[i], none), TSR_ERR_UNSUPPORTED,
                          "open the model without its prediction layer");
}

/* In the files of Nemotron 3, the prediction layer is attention and then a mixture of experts, and in the
 * others a layer is one of them. */
static void a_prediction_layer_may_be_attention_and_experts(void **state)
{
    (void)state;
    static const predictor nemotron = {
        "nemotron_h_moe",
        64,
        {{"nemotron_h_moe.block_count", FILE_U32, {8}},
         {"nemotron_h_moe.nextn_predict_layers", FILE_U32, {1}},
         {"nemotron_h_moe.feed_forward_length", FILE_U32S, {0, 40, 0, 0, 40, 0, 40, 40}, 8},
         {"nemotron_h_moe.attention.head_count_kv", FILE_U32S, {0, 0, 0, 2, 0, 0, 0, 2}, 8},
         {"blk.7.", FILE_COPY, .from = "blk.3."},
         {"blk.7.ffn_", FILE_COPY, .from = "blk.6.ffn_"},
         {"blk.7.exp_probs_b.bias", FILE_COPY, .from = "blk.6.exp_probs_b.bias"},
         {"blk.7.ffn_norm.weight", FILE_COPY, .from = "blk.6.attn_norm.weight"},
         {"blk.7.nextn.shared_head_norm.weight", FILE_COPY, .from = "output_norm.weight"},
         NEXTN("7", 64)}};
    if (is_missing(nemotron.folder))
        skip();
    check_logits(&nemotron);
    float one[N_VOCAB], other[N_VOCAB];
    decode_alone(write_model(&nemotron, none), one);
    decode_alone(model_of(nemotron.folder), other);
    assert_memory_equal(one, other, sizeof one);
}

/* In the files of bailingmoe2 the norm before the output matrix has another name. */
static void the_last_norm_of_a_prediction_layer_has_two_names(void **state)
{
    (void)state;
    static const predictor bailing = {
        "bailingmoe2",
        64,
        {{"blk.3.layer_output_norm.weight", FILE_COPY, .from = "blk.0.attn_norm.weight"},
         {"bailingmoe2.nextn_predict_layers", FILE_U32, {1}},
         NEXTN("3", 64)}};
    if (is_missing(bailing.folder))
        skip();
    check_logits(&bailing);
    float one[N_VOCAB], other[N_VOCAB];
    predictor renamed = bailing;
    renamed.edits[0].name = "blk.3.nextn.shared_head_norm.weight";
    predict(&bailing, none, "host:1,threads=1", NULL, N_TOKENS, one);
    predict(&renamed, none, "host:1,threads=1", NULL, N_TOKENS, other);
    assert_memory_equal(one, other, sizeof one);
}

/* Without a flag for its window, the prediction layer of cohere2moe has none, and is rotated all the same. */
static void a_prediction_layer_may_be_without_a_flag_for_its_window(void **state)
{
    (void)state;
    static const char flags[] = "cohere2moe.attention.sliding_window_pattern";
    static const predictor cohere = {
        "cohere2moe", 64, {{"cohere2moe.nextn_predict_layers", FILE_U32, {1}}, NEXTN("4", 64)}};
    static const file_edit without = {flags, FILE_U32S, {0, 1, 1, 0}, 4},
                           few = {flags, FILE_U32S, {0, 1, 1}, 3},
                           open = {flags, FILE_U32S, {0, 1, 1, 0, 0}, 5};
    if (is_missing(cohere.folder))
        skip();
    predictor short_of_one = cohere;
    short_of_one.edits[4] = without;
    check_logits(&short_of_one);
    assert_true(same(&cohere, N_TOKENS, without, open));
    assert_false(same(&cohere, N_TOKENS, without, none));
    check_refused(write_model(&cohere, few), TSR_ERR_FORMAT,
                  "sliding_window_pattern has 3 entries for 5 layers");
}

static void halves_of_a_quantized_projection_are_whole_blocks(void **state)
{
    (void)state;
    static const predictor glm = {"glm4-moe-lite-mtp", 80, {{0}}};
    static const file_edit quantized = {"blk.3.nextn.eh_proj.weight", FILE_TENSOR, .ne = {160, 80},
                                        .type = TSR_TYPE_Q8_0};
    if (is_missing(glm.folder))
        skip();
    check_refused(write_model(&glm, quantized), TSR_ERR_UNSUPPORTED,
                  "the first 80 of its columns are no whole blocks of the type; quantize the model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prediction_layer_selects_positions_by_an_index_of_its_own),
        cmocka_unit_test(prediction_layers_without_keys_and_values_are_refused),
        cmocka_unit_test(a_prediction_layer_may_be_attention_and_experts),
        cmocka_unit_test(the_last_norm_of_a_prediction_layer_has_two_names),
        cmocka_unit_test(a_prediction_layer_may_be_without_a_flag_for_its_window),
        cmocka_unit_test(halves_of_a_quantized_projection_are_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
