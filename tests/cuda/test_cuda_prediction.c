/* Prediction layers over simulated GPUs. tests/test_prediction.c compares a host device with the formulas. */
#include "cuda/model_run.h"
#include "support/directory.h"
#include "support/edited_file.h"

enum { MOST_VOCAB = 320, MOST_EMBD = 96 };

/* Proposals for all tokens of a text, from the model's own hidden states. */
static void predict(const char *path, const char *devices, const char *split, int64_t at_a_time,
                    float *logits)
{
    int32_t tokens[MODEL_TOKENS + 1];
    static float hidden[MODEL_TOKENS * MOST_EMBD], last[MOST_VOCAB];
    runner r;
    tsr_model_info info;
    tsr_model_config config = tsr_model_config_default();
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    config.session.n_ctx = 64;
    config.prediction.load = true;
    runner_open(&r, path, devices, split, &config);
    tsr_model_get_info(r.model, &info);
    assert_true(info.n_embd <= MOST_EMBD && info.n_vocab == MOST_VOCAB);
    for (int i = 0; i <= MODEL_TOKENS; i++)
        tokens[i] = (int32_t)((i * 97 + 11) % MOST_VOCAB);
    const tsr_batch batch = {.n_tokens = MODEL_TOKENS, .tokens = tokens};
    runner_ok(tsr_session_decode_hidden(r.session, &batch, last, hidden), "decode");
    for (int64_t i = 0; i < MODEL_TOKENS; i += at_a_time) {
        const tsr_prediction p = {.position = i,
                                  .n_tokens = i + at_a_time <= MODEL_TOKENS ? at_a_time : MODEL_TOKENS - i,
                                  .tokens = tokens + i + 1,
                                  .hidden = hidden + i * info.n_embd};
        runner_ok(tsr_session_predict(r.session, &p, logits), "predict");
    }
    runner_close(&r);
}

/* A recorded model, and the edits that give it a prediction layer if it has none. */
typedef struct predictor {
    const char *folder;
    file_edit edits[8];
} predictor;

static void check(void **state)
{
    const predictor *p = *state;
    static const struct {
        const char *devices, *split;
        int64_t at_a_time;
    } ways[] = {
        {"cuda:0", NULL, MODEL_TOKENS}, {"cuda:0,cuda:1", "3,1", 12}, {"cuda:0,cuda:1,cuda:2", "1,1,2", 1}};
    static float host[MOST_VOCAB], first[MOST_VOCAB], logits[MOST_VOCAB];
    cudasim_config config = CUDASIM_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", p->folder);
    config.n_devices = 3;
    if (access(path, R_OK) != 0 || !cudasim_have(&config)) {
        print_message("skipped: %s is missing, or three GPUs\n", path);
        skip();
    }
    if (p->edits[0].name) {
        const char *edited = directory_file("edited.gguf");
        edited_file_write(path, p->edits, edited);
        snprintf(path, sizeof path, "%s", edited);
    }
    predict(path, "host:1,threads=1", NULL, MODEL_TOKENS, host);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        predict(path, ways[i].devices, ways[i].split, ways[i].at_a_time, i ? logits : first);
        if (i)
            assert_memory_equal(logits, first, sizeof first);
    }
    assert_true(reference_relative_error(first, host, MOST_VOCAB) <= 2e-5);
    nothing_is_left();
}

int main(void)
{
    static predictor recurrent = {"qwen35-mtp", {{0}}}, latent = {"glm4-moe-lite-mtp", {{0}}};
    static predictor selecting = {"glm-dsa",
                                  {{"glm-dsa.nextn_predict_layers", FILE_U32, {1}},
                                   {"glm-dsa.attention.indexer.types", FILE_U32S, {1, 0, 1}, 3},
                                   {"blk.3.indexer.", FILE_COPY, .from = "blk.2.indexer."},
                                   {"blk.3.nextn.eh_proj.weight", FILE_TENSOR, .ne = {160, 80}},
                                   {"blk.3.nextn.enorm.weight", FILE_TENSOR, .ne = {80}, .value = 1},
                                   {"blk.3.nextn.hnorm.weight", FILE_TENSOR, .ne = {80}, .value = 1}}};
    const struct CMUnitTest tests[] = {
        {"behind recurrent layers", check, NULL, NULL, &recurrent},
        {"with latent attention and experts", check, NULL, NULL, &latent},
        {"with an index of its own", check, NULL, NULL, &selecting},
    };
    return cmocka_run_group_tests_name("prediction layers on simulated GPUs", tests, NULL, NULL);
}
