/* Prediction layers of recorded models (../shared/ref/hf) that were edited: of architectures whose recorded
 * models have none, and with what published files have or lack. */
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

enum { N_TOKENS = 40, N_VOCAB = 320, MAX_EMBD = 96, MAX_EDITS = 24 };

/* A model's file, the edits that give it a prediction layer, and the length of its residual stream. */
typedef struct predictor {
    const char *folder;
    int64_t n_embd;
    file_edit edits[MAX_EDITS];
} predictor;

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
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 29 + 3) % N_VOCAB;
    for (int64_t i = 0; i < n * p->n_embd; i++)
        hidden[i] = (float)(i * 101 % 64 - 32) / 16;
    const tsr_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs};
    runner_ok(tsr_session_decode(r.session, &batch, logits), "decode");
    const tsr_prediction request = {.n_tokens = n, .tokens = tokens, .hidden = hidden};
    runner_ok(tsr_session_predict(r.session, &request, logits), "predict");
    runner_close(&r);
}

static bool same(const predictor *p, int64_t n, file_edit a, file_edit b)
{
    float x[N_VOCAB], y[N_VOCAB];
    predict(p, a, "host:1,threads=1", NULL, n, x);
    predict(p, b, "host:1,threads=1", NULL, n, y);
    return memcmp(x, y, sizeof x) == 0;
}

static void check_splits(const predictor *p)
{
    float one[N_VOCAB], three[N_VOCAB];
    predict(p, (file_edit){0}, "host:1,threads=1", NULL, N_TOKENS, one);
    predict(p, (file_edit){0}, "host:3,threads=1", "2,1,1", N_TOKENS, three);
    assert_memory_equal(one, three, sizeof one);
    for (int i = 0; i < N_VOCAB; i++)
        assert_true(one[i] > -1e6f && one[i] < 1e6f);
}

static void check_refused(const char *path, tsr_status expected, const char *reason)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    const tsr_model_config model_config = predicting();
    tsr_runtime *rt;
    tsr_model *model = NULL;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    assert_int_equal(tsr_model_open(rt, path, &model_config, &model), expected);
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
    static const file_edit none = {0}, more = {"glm-dsa.attention.indexer.top_k", FILE_U32, {64}};
    if (is_missing(glm.folder))
        skip();
    check_splits(&glm);
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
            check_refused(write_model(&models[i], (file_edit){0}), TSR_ERR_UNSUPPORTED,
                          "open the model without its prediction layer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prediction_layer_selects_positions_by_an_index_of_its_own),
        cmocka_unit_test(prediction_layers_without_keys_and_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
