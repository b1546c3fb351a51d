/* 02: text from a model divided over several devices.
 *
 * Opens the same model under several tensor_split arrays, one device per entry, and generates from the same
 * prompt. The texts are equal, since the logits are equal to the bit: the place of a model changes its speed
 * and its memory, not what it says.
 *
 *     build/bin/02_generate
 *     build/bin/02_generate model.gguf "Once upon a time" 3,1 1,1,2
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

enum { N_PREDICT = 32, TEXT_BYTES = 4096, MAX_PROMPT = 256 };

/* What a runtime, a model and a session are made of; released in reverse order. */
typedef struct engine {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    tsr_tokenizer *tokenizer;
    float *logits; /* [n_vocab] */
    int64_t n_vocab;
} engine;

static void engine_close(engine *e)
{
    free(e->logits);
    tsr_tokenizer_destroy(e->tokenizer);
    tsr_session_destroy(e->session);
    tsr_model_close(e->model);
    tsr_runtime_close(e->rt);
}

/* 0 if all went well; otherwise what was opened is the caller's to close, too. */
static int engine_open(const char *path, const float *split, int n_split, engine *e)
{
    char devices[64];
    tsr_model_info info;
    tsr_runtime_config runtime = tsr_runtime_config_default();
    tsr_model_config model = tsr_model_config_default();
    snprintf(devices, sizeof devices, "host:%d,threads=1", n_split);
    runtime.devices = devices;
    model.split.tensor_split = split;
    model.split.n_tensor_split = n_split;

    TRY(tsr_runtime_open(&runtime, &e->rt));
    TRY(tsr_model_open(e->rt, path, &model, &e->model)); /* maps the file; no weight is read or copied yet */
    TRY(tsr_session_create(e->model, &e->session));      /* allocates exactly what the plan says */
    TRY(tsr_model_tokenizer(e->model, &e->tokenizer));
    tsr_model_get_info(e->model, &info);
    e->n_vocab = info.n_vocab;
    e->logits = malloc((size_t)info.n_vocab * sizeof *e->logits);
    if (!e->logits)
        fprintf(stderr, "out of memory\n");
    return e->logits == NULL;
out:
    return 1;
}

/* Append what a step made readable. A token may end in the middle of a character; the detokenizer holds that
 * back. */
static void append(char text[TEXT_BYTES], tsr_bytes piece)
{
    size_t used = strlen(text);
    if (used + piece.bytes < TEXT_BYTES) {
        memcpy(text + used, piece.data, piece.bytes);
        text[used + piece.bytes] = '\0';
    }
}

/* The likeliest continuation, up to N_PREDICT tokens, into text[TEXT_BYTES]. */
static int generate(engine *e, const char *prompt, char *text)
{
    int failed = 1;
    int32_t tokens[MAX_PROMPT], token;
    size_t n_prompt;
    tsr_sampler *sampler = NULL;
    tsr_detokenizer *stream = NULL;
    tsr_sampler_config greedy = tsr_sampler_config_default();
    greedy.temperature = 0;
    text[0] = '\0';

    TRY(tsr_sampler_create(&greedy, e->n_vocab, &sampler));
    TRY(tsr_detokenizer_create(e->tokenizer, &stream));
    TRY(tsr_tokenizer_encode(e->tokenizer, prompt, strlen(prompt), TSR_ENCODE_ADD_SPECIAL, tokens, MAX_PROMPT,
                             &n_prompt));

    /* The prompt at once, then one token after the other; each step gives the logits of its last token. */
    tsr_batch batch = {.n_tokens = (int64_t)n_prompt, .tokens = tokens};
    TRY(tsr_session_decode(e->session, &batch, e->logits));
    for (int i = 0; i < N_PREDICT; i++) {
        TRY(tsr_sampler_sample(sampler, e->logits, e->n_vocab, &token));
        if (tsr_tokenizer_is_eog(e->tokenizer, token))
            break;
        append(text, tsr_detokenizer_push(stream, token));
        batch = (tsr_batch){.n_tokens = 1, .tokens = &token};
        TRY(tsr_session_decode(e->session, &batch, e->logits));
    }
    append(text, tsr_detokenizer_finish(stream));
    failed = 0;
out:
    tsr_detokenizer_destroy(stream);
    tsr_sampler_destroy(sampler);
    return failed;
}

/* Open, generate, close, for one tensor_split as people write it ("3,1"). */
static int run_split(const char *path, const char *prompt, const char *split_text, char *text)
{
    float split[TSR_MAX_DEVICES];
    int n_split, failed = 1;
    engine e = {0};
    TRY(tsr_split_parse(split_text, split, TSR_MAX_DEVICES, &n_split));
    if (engine_open(path, split, n_split, &e) || generate(&e, prompt, text))
        goto out;

    printf("tensor_split %s:", split_text);
    for (int d = 0; d < n_split; d++) {
        tsr_device_info info;
        char bytes[TSR_BYTES_TEXT];
        TRY(tsr_runtime_device(e.rt, d, &info));
        printf("%s %s holds %s of weights", d ? "," : "", info.name,
               tsr_bytes_text(info.used[TSR_MEMORY_WEIGHTS], bytes));
    }
    printf("\n  %s%s\n", prompt, text);
    failed = 0;
out:
    engine_close(&e);
    return failed;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"1", "3,1", "1,2,1"};
    static char first[TEXT_BYTES], text[TEXT_BYTES];
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    const char *prompt = argc > 2 ? argv[2] : "lighthouse (n.):";
    int n_splits = argc > 3 ? argc - 3 : (int)(sizeof usual / sizeof *usual);
    int n_different = 0;

    for (int i = 0; i < n_splits; i++) {
        if (run_split(path, prompt, argc > 3 ? argv[3 + i] : usual[i], i ? text : first))
            return 1;
        n_different += i && strcmp(text, first) != 0;
    }
    printf("%s\n", n_different ? "The texts are DIFFERENT." : "The same text every time.");
    return n_different != 0;
}
