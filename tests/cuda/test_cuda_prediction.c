/* Prediction layers over simulated GPUs. tests/test_prediction.c compares a host device with the formulas. */
#include "cuda/model_run.h"

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
                                  .n_tokens = at_a_time,
                                  .tokens = tokens + i + 1,
                                  .hidden = hidden + i * info.n_embd};
        runner_ok(tsr_session_predict(r.session, &p, logits), "predict");
    }
    runner_close(&r);
}

static void check(void **state)
{
    static const struct {
        const char *devices, *split;
        int64_t at_a_time;
    } ways[] = {
        {"cuda:0", NULL, MODEL_TOKENS}, {"cuda:0,cuda:1", "3,1", 10}, {"cuda:0,cuda:1,cuda:2", "1,1,2", 1}};
    static float host[MOST_VOCAB], first[MOST_VOCAB], logits[MOST_VOCAB];
    cudasim_config config = CUDASIM_CONFIG_INIT;
    char path[128];
    snprintf(path, sizeof path, "../shared/ref/hf/%s/model.gguf", (const char *)*state);
    config.n_devices = 3;
    if (access(path, R_OK) != 0 || !cudasim_have(&config)) {
        print_message("skipped: %s is missing, or three GPUs\n", path);
        skip();
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
    const struct CMUnitTest tests[] = {
        {"behind recurrent layers", check, NULL, NULL, (void *)"qwen35-mtp"},
        {"with latent attention and experts", check, NULL, NULL, (void *)"glm4-moe-lite-mtp"},
    };
    return cmocka_run_group_tests_name("prediction layers on simulated GPUs", tests, NULL, NULL);
}
