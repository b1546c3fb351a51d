/* 05: changing the split in the middle of a text.
 *
 * Generates a text twice: once without a break, and once with the model moved to another tensor_split every
 * few tokens. The session stays, its keys and values move with the heads, and the tokens are the same, since
 * the logits are equal to the bit.
 *
 *     build/bin/05_resplit
 *     build/bin/05_resplit model.gguf "Once upon a time"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum { N_DEVICES = 2, N_PREDICT = 24, N_PER_SPLIT = 6, MAX_PROMPT = 256 };

static const float splits[][N_DEVICES] = {{3, 1}, {1, 1}, {0, 1}, {1, 0}};

/* The likeliest token after each, into tokens[N_PREDICT]; with another split every N_PER_SPLIT of them if
 * `change`. */
static int generate(tsr_model *model, const int32_t *prompt, int64_t n_prompt, int change, int32_t *tokens)
{
    int failed = 1;
    tsr_session *session = NULL;
    tsr_sampler *sampler = NULL;
    tsr_model_info info;
    tsr_sampler_config greedy = tsr_sampler_config_default();
    greedy.temperature = 0;
    tsr_model_get_info(model, &info);
    float *logits = malloc((size_t)info.n_vocab * sizeof *logits);
    if (!logits)
        goto out;

    TRY(tsr_session_create(model, &session));
    TRY(tsr_sampler_create(&greedy, info.n_vocab, &sampler));
    tsr_batch batch = {.n_tokens = n_prompt, .tokens = prompt};
    for (int i = 0; i < N_PREDICT; i++) {
        if (change && i % N_PER_SPLIT == 0)
            TRY(tsr_model_resplit(model, splits[i / N_PER_SPLIT], N_DEVICES)); /* the session is still good */
        TRY(tsr_session_decode(session, &batch, logits));
        TRY(tsr_sampler_sample(sampler, logits, info.n_vocab, &tokens[i]));
        batch = (tsr_batch){.n_tokens = 1, .tokens = &tokens[i]};
    }
    failed = 0;
out:
    tsr_sampler_destroy(sampler);
    tsr_session_destroy(session);
    free(logits);
    return failed;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    const char *prompt = argc > 2 ? argv[2] : "lighthouse (n.):";
    int32_t ids[MAX_PROMPT], steady[N_PREDICT], moved[N_PREDICT];
    size_t n_ids;
    int failed = 1;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_tokenizer *tokenizer = NULL;
    tsr_runtime_config runtime = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runtime.devices = "host:2,threads=1";
    config.split.tensor_split = splits[1];
    config.split.n_tensor_split = N_DEVICES;

    TRY(tsr_runtime_open(&runtime, &rt));
    TRY(tsr_model_open(rt, path, &config, &model));
    TRY(tsr_model_tokenizer(model, &tokenizer));
    TRY(tsr_tokenizer_encode(tokenizer, prompt, strlen(prompt), TSR_ENCODE_ADD_SPECIAL, ids, MAX_PROMPT,
                             &n_ids));
    if (generate(model, ids, (int64_t)n_ids, 0, steady) || generate(model, ids, (int64_t)n_ids, 1, moved))
        goto out;
    failed = memcmp(steady, moved, sizeof steady) != 0;
    printf("%d tokens, another tensor_split every %d: %s\n", N_PREDICT, N_PER_SPLIT,
           failed ? "OTHER TOKENS than without" : "the same tokens as without");
out:
    tsr_tokenizer_destroy(tokenizer);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    return failed;
}
