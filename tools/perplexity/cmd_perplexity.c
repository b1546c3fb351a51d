/* tsr perplexity: how well a model predicts a text, and how far its distributions are from a reference's. */
#include <stdlib.h>
#include <string.h>

#include <tsr/gguf.h>
#include <tsr/tokenizer.h>

#include "engine.h"
#include "json.h"
#include "perplexity/perplexity.h"
#include "text.h"
#include "text_file.h"
#include "tsr.h"

enum { DEFAULT_CHUNK = 512 };

#define SHORT_CHUNK "a chunk of one token predicts none; use -c 2 or more"

typedef struct options {
    tool_engine_options engine;
    const char *file, *reference;
    bool parse_special, as_json;
} options;

/* -- options -- */

static int check(const options *o)
{
    const char *wrong = NULL;
    if (!o->engine.model.model || !*o->engine.model.model)
        wrong = "no model given; use -m FILE";
    else if (o->engine.mpi && strcmp(o->file, "-") == 0)
        wrong = "with --mpi only one process has standard input; give the text with -f FILE";
    else if (o->engine.model.n_ctx == 1)
        wrong = SHORT_CHUNK;
    if (!wrong)
        return tool_engine_check("perplexity", &o->engine);
    fprintf(stderr, "tsr perplexity: %s\n", wrong);
    return TOOL_EXIT_USAGE;
}

static int read_options(int argc, char **argv, options *o)
{
    *o = (options){.engine = TOOL_ENGINE_OPTIONS_INIT, .file = "-"};
    tool_option rows[] = {
        TOOL_ENGINE_OPTION_ROWS(o->engine),
        TOOL_HEADING_ROW("text"),
        {"-f", "--file", TOOL_STRING, &o->file, "FILE", "the text (default -: standard input)", 0, 0},
        {NULL, "--parse-special", TOOL_FLAG, &o->parse_special, NULL,
         "read the names of special tokens in the text as these tokens", 0, 0},
        {NULL, "--reference", TOOL_STRING, &o->reference, "FILE",
         "a model whose distributions are compared with: the same one in F16 or F32", 0, 0},
        {NULL, "--json", TOOL_FLAG, &o->as_json, NULL, "print JSON", 0, 0},
        TOOL_MESSAGE_ROWS(o->engine, "show no progress"),
    };
    for (int i = 0; i < TOOL_COUNT(rows); i++)
        if (rows[i].long_name && strcmp(rows[i].long_name, "--ctx-size") == 0)
            rows[i].help =
                "tokens of a chunk, 0: as trained, or fewer with --fit (default 512, or as trained if fewer)";
    const tool_command command = {
        .name = "perplexity",
        .summary = TOOL_PERPLEXITY_SUMMARY,
        .options = rows,
        .n_options = TOOL_COUNT(rows),
        .description =
            "The text's tokens are divided into chunks of `-c` tokens, which are computed alone; the first "
            "token of each is replaced by the one that begins a text (BOS), where the vocabulary has it. "
            "Of a chunk of n tokens the tokens n / 2 + 1 to n - 1 count, from 0: each is predicted from "
            "all tokens before it in its chunk. The perplexity is exp(mean of -log p(token)), as "
            "llama-perplexity of llama.cpp computes it. Tokens behind the last whole chunk are left out; "
            "a text that is shorter than a chunk is one chunk.\n\n"
            "With `--reference` a second model of the same vocabulary computes the same chunks, on the "
            "same devices with the same options, but `--activations 16`. The Kullback-Leibler divergence "
            "of a token is the sum of r log(r / p) over the vocabulary, in nats: r are the reference's "
            "probabilities, p the model's.",
        .examples = "tsr perplexity -m model.gguf -f text.txt\n"
                    "tsr perplexity -m model-q4_k_m.gguf -f text.txt --reference model-f16.gguf --json",
        .pages = "precision devices splitting offload fitting processes json"};
    const int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    return code == TOOL_GO_ON ? check(o) : code;
}

/* -- the text -- */

int perplexity_fail_memory(void)
{
    fprintf(stderr, "tsr perplexity: out of memory\n");
    return TOOL_EXIT_FAILED;
}

static int encode(const tsr_tokenizer *tokenizer, const char *bytes, size_t n_bytes, unsigned flags,
                  int32_t **tokens_out, int64_t *n_out)
{
    size_t n;
    tsr_status status = tsr_tokenizer_encode(tokenizer, bytes, n_bytes, flags, NULL, 0, &n);
    if (status != TSR_OK)
        return tool_fail("perplexity", status);
    int32_t *tokens = *tokens_out = malloc((n + 1) * sizeof *tokens);
    if (!tokens)
        return perplexity_fail_memory();
    status = tsr_tokenizer_encode(tokenizer, bytes, n_bytes, flags, tokens, n, &n);
    *n_out = (int64_t)n;
    return status == TSR_OK ? TOOL_GO_ON : tool_fail("perplexity", status);
}

/* What the files' headers say, before any weight is read. */
typedef struct header {
    tsr_gguf *gguf;
    tsr_tokenizer *tokenizer;
    int32_t *tokens; /* of the text */
    int64_t n_tokens;
} header;

static int read_header(const char *path, const char *bytes, size_t n_bytes, unsigned flags, header *h)
{
    tsr_status status = tsr_gguf_open(path, NULL, &h->gguf);
    if (status == TSR_OK)
        status = tsr_tokenizer_create(h->gguf, &h->tokenizer);
    return status == TSR_OK ? encode(h->tokenizer, bytes, n_bytes, flags, &h->tokens, &h->n_tokens)
                            : tool_fail("perplexity", status);
}

static void free_header(header *h)
{
    free(h->tokens);
    tsr_tokenizer_destroy(h->tokenizer);
    tsr_gguf_close(h->gguf);
}

static bool same_vocabulary(const header *a, const header *b)
{
    return tsr_tokenizer_n_vocab(a->tokenizer) == tsr_tokenizer_n_vocab(b->tokenizer) &&
           a->n_tokens == b->n_tokens &&
           memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens) == 0;
}

/* Tokens of context that the model was trained with, where the file has them. */
static int context_of(const tsr_gguf *gguf)
{
    tsr_gguf_string architecture;
    char key[96];
    uint64_t n_ctx;
    if (tsr_gguf_get_string(gguf, "general.architecture", &architecture) != TSR_OK)
        return DEFAULT_CHUNK;
    snprintf(key, sizeof key, "%.*s.context_length", (int)architecture.bytes, architecture.data);
    return tsr_gguf_get_u64(gguf, key, &n_ctx) == TSR_OK && n_ctx < DEFAULT_CHUNK ? (int)n_ctx
                                                                                  : DEFAULT_CHUNK;
}

/* The text's tokens, and the length of chunks if no option sets it. */
static int read_text(options *o, perplexity_text *text)
{
    header h = {0}, reference = {0};
    char *bytes = NULL;
    size_t n_bytes = 0;
    const unsigned flags = TSR_ENCODE_ADD_SPECIAL | (o->parse_special ? TSR_ENCODE_PARSE_SPECIAL : 0);
    int code = tool_text_read("perplexity", "the text", o->file, &bytes, &n_bytes);
    if (code == TOOL_GO_ON)
        code = read_header(o->engine.model.model, bytes, n_bytes, flags, &h);
    if (code == TOOL_GO_ON && o->reference)
        code = read_header(o->reference, bytes, n_bytes, flags, &reference);
    if (code == TOOL_GO_ON && h.n_tokens < 2) {
        fprintf(stderr, "tsr perplexity: the text has %lld token%s; a prediction takes two at least\n",
                (long long)h.n_tokens, tool_plural(h.n_tokens));
        code = TOOL_EXIT_FAILED;
    } else if (code == TOOL_GO_ON && o->reference && !same_vocabulary(&h, &reference)) {
        fprintf(
            stderr,
            "tsr perplexity: --reference %s: the vocabulary is not that of the model; give the same model "
            "with other weights\n",
            o->reference);
        code = TOOL_EXIT_FAILED;
    }
    if (code == TOOL_GO_ON) {
        *text = (perplexity_text){.tokens = h.tokens, .n_tokens = h.n_tokens, .bos = -1};
        if (tsr_tokenizer_adds_bos(h.tokenizer))
            text->bos = tsr_tokenizer_bos(h.tokenizer);
        if (o->engine.model.n_ctx < 0)
            o->engine.model.n_ctx = context_of(h.gguf);
        h.tokens = NULL;
    }
    free_header(&h);
    free_header(&reference);
    free(bytes);
    return code;
}

/* -- the result -- */

static perplexity_mean perplexity_of(const perplexity_sums *sums)
{
    return perplexity_exp(perplexity_mean_of(sums->n, sums->loss, sums->loss_squares));
}

static perplexity_mean perplexity_of_reference(const perplexity_sums *sums)
{
    return perplexity_exp(perplexity_mean_of(sums->n, sums->reference_loss, sums->reference_loss_squares));
}

static json_t *to_json(const options *o, const perplexity_text *text, perplexity_sums *sums, double seconds)
{
    const perplexity_mean p = perplexity_of(sums);
    json_t *root = json_pack(
        "{s:o, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "model", tool_text_json(o->engine.model.model),
        "activation_bits", o->engine.model.activations, "text_tokens", (json_int_t)text->n_tokens,
        "chunk_tokens", (json_int_t)text->n_chunk, "n_chunks", (json_int_t)text->n_chunks, "counted_tokens",
        (json_int_t)sums->n, "seconds", seconds, "perplexity", p.mean, "perplexity_error", p.error);
    if (o->reference) {
        double kl_99;
        const perplexity_mean kl = perplexity_kl(sums, &kl_99);
        const perplexity_mean r = perplexity_of_reference(sums);
        json_t *reference =
            json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "model", tool_text_json(o->reference),
                      "perplexity", r.mean, "perplexity_error", r.error, "kl", kl.mean, "kl_error", kl.error,
                      "kl_99", kl_99, "same_top", (double)sums->n_same / (double)sums->n);
        json_object_set_new(root, "reference", reference);
    }
    return root;
}

static void show(const options *o, const perplexity_text *text, perplexity_sums *sums, double seconds)
{
    const perplexity_mean p = perplexity_of(sums);
    printf("%lld tokens, %lld chunk%s of %lld, %lld tokens counted, %.1f s\n\n", (long long)text->n_tokens,
           (long long)text->n_chunks, tool_plural(text->n_chunks), (long long)text->n_chunk,
           (long long)sums->n, seconds);
    printf("perplexity %.4f +- %.4f\n", p.mean, p.error);
    if (!o->reference)
        return;
    double kl_99;
    const perplexity_mean kl = perplexity_kl(sums, &kl_99);
    const perplexity_mean r = perplexity_of_reference(sums);
    printf("reference  %.4f +- %.4f\n\n"
           "KL divergence from the reference, nats: mean %.4g +- %.2g, 99 %% of tokens below %.4g\n"
           "same most likely token: %.2f %%\n",
           r.mean, r.error, kl.mean, kl.error, kl_99, 100 * (double)sums->n_same / (double)sums->n);
}

static int print(const options *o, const perplexity_text *text, perplexity_sums *sums, double seconds)
{
    if (sums->is_infinite) {
        fprintf(stderr, "tsr perplexity: logits are infinite or not numbers; the model may be damaged\n");
        return TOOL_EXIT_FAILED;
    }
    if (o->as_json)
        return tool_json_print("perplexity", to_json(o, text, sums, seconds));
    show(o, text, sums, seconds);
    return TOOL_EXIT_OK;
}

/* -- computing -- */

/* A model with its session. */
typedef struct side {
    tsr_model *model;
    tsr_session *session;
} side;

static tsr_status open_side(tool_engine *engine, const char *path, int activations, side *s)
{
    tsr_model_config config = engine->config;
    config.compute.activation_bits = activations;
    config.session.n_outputs_max = PERPLEXITY_OUTPUTS;
    tsr_status status = tool_engine_load(engine, path, &config, &s->model);
    return status == TSR_OK ? tsr_session_create(s->model, &s->session) : status;
}

static void close_side(side *s)
{
    tsr_session_destroy(s->session);
    tsr_model_close(s->model);
}

/* Chunks as long as the context of both models. That is what -c says; only with -c 0 it is what the files
 * say, or what --fit has made of that, which may be a single token. */
static int divide(const side sides[2], perplexity_text *text)
{
    text->n_chunk = text->n_tokens;
    for (int s = 0; s < 2 && sides[s].model; s++) {
        tsr_plan_info plan;
        tsr_plan_get_info(tsr_model_plan(sides[s].model), &plan);
        text->n_chunk = plan.n_ctx < text->n_chunk ? plan.n_ctx : text->n_chunk;
    }
    text->n_chunks = text->n_tokens / text->n_chunk;
    if (text->n_chunk >= 2)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr perplexity: " SHORT_CHUNK "\n");
    return TOOL_EXIT_USAGE;
}

/* A file may have more or fewer logits per token than its tokenizer has tokens. Both models must have the
 * same number of logits, and every token of the text must have one. The library refuses only tokens that it
 * computes; the last one of a chunk is no such token. */
static int check_logits(const options *o, const side sides[2], const perplexity_text *text,
                        int64_t *n_vocab_out)
{
    tsr_model_info info[2];
    for (int s = 0; s < 2 && sides[s].model; s++)
        tsr_model_get_info(sides[s].model, &info[s]);
    const int64_t n_vocab = *n_vocab_out = info[0].n_vocab;
    if (sides[1].model && info[1].n_vocab != n_vocab) {
        fprintf(stderr,
                "tsr perplexity: --reference %s: %lld logits per token, but %lld in the model; give the same "
                "model with other weights\n",
                o->reference, (long long)info[1].n_vocab, (long long)n_vocab);
        return TOOL_EXIT_FAILED;
    }
    for (int64_t i = 0; i < text->n_tokens; i++) {
        if (text->tokens[i] < n_vocab)
            continue;
        fprintf(
            stderr,
            "tsr perplexity: %s: token %d of the text has no logit, the model has %lld; give a file whose "
            "tokenizer is that of its weights\n",
            o->engine.model.model, (int)text->tokens[i], (long long)n_vocab);
        return TOOL_EXIT_FAILED;
    }
    return TOOL_GO_ON;
}

static int compute(const options *o, tool_engine *engine, const tool_processes *processes,
                   perplexity_text *text)
{
    side sides[2] = {{0}};
    perplexity_sums sums = {0};
    tool_progress progress = {.what = "text", .quiet = o->engine.quiet};
    int64_t n_vocab = 0;
    tsr_status status = tool_engine_open(engine, processes);
    if (status == TSR_OK)
        status = open_side(engine, o->engine.model.model, o->engine.model.activations, &sides[0]);
    if (status == TSR_OK && o->reference)
        status = open_side(engine, o->reference, 16, &sides[1]);
    int code = status == TSR_OK ? divide(sides, text) : tool_fail("perplexity", status);
    if (code == TOOL_GO_ON)
        code = check_logits(o, sides, text, &n_vocab);
    if (code == TOOL_GO_ON) {
        tool_engine_show(engine, sides[0].model);
        tsr_session *const sessions[2] = {sides[0].session, sides[1].session};
        const double start = tool_clock();
        code = perplexity_compute(sessions, n_vocab, text, &progress, &sums);
        if (code == TOOL_GO_ON)
            code = print(o, text, &sums, tool_clock() - start);
    }
    free(sums.kl);
    close_side(&sides[1]);
    close_side(&sides[0]);
    return code;
}

int tsr_cmd_perplexity(int argc, char **argv)
{
    options o;
    tool_engine engine = {0};
    tool_processes processes = {0};
    perplexity_text text = {0};
    int code = read_options(argc, argv, &o);
    if (code == TOOL_GO_ON)
        code = read_text(&o, &text);
    if (code == TOOL_GO_ON)
        code = tool_engine_read("perplexity", &o.engine, &engine);
    if (code == TOOL_GO_ON)
        code = tool_processes_join("perplexity", o.engine.mpi, &processes);
    if (code == TOOL_GO_ON)
        code = compute(&o, &engine, &processes, &text);
    tool_engine_close(&engine);
    free(text.tokens);
    return code;
}
