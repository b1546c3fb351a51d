/* tsr embed: the embedding of a text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/gguf.h>
#include <tsr/session.h>
#include <tsr/tokenizer.h>

#include "engine.h"
#include "json.h"
#include "text.h"
#include "text_file.h"
#include "tsr.h"

typedef enum pooling { POOLING_NONE, POOLING_MEAN, POOLING_LAST, N_POOLINGS } pooling;
static const char *const pooling_names[] = {"none", "mean", "last"};

typedef struct options {
    tool_engine_options engine;
    const char *text, *file, *pooling_name;
    pooling pooling; /* N_POOLINGS: as the file says */
    bool parse_special, normalize;
} options;

/* -- options -- */

static int check(options *o)
{
    const char *wrong = NULL;
    for (o->pooling = POOLING_NONE; o->pooling_name && o->pooling < N_POOLINGS; o->pooling++)
        if (strcmp(o->pooling_name, pooling_names[o->pooling]) == 0)
            break;
    if (!o->engine.model.model || !*o->engine.model.model)
        wrong = "no model given; use -m FILE";
    else if (o->text && o->file)
        wrong = "-p and -f exclude each other: one text is embedded";
    else if (o->engine.mpi && !o->text && (!o->file || strcmp(o->file, "-") == 0))
        wrong = "with --mpi only one process has standard input; give the text with -p TEXT or -f FILE";
    else if (o->pooling_name && o->pooling == N_POOLINGS)
        wrong = "--pooling takes none, mean or last";
    if (!o->pooling_name)
        o->pooling = N_POOLINGS;
    if (!wrong)
        return tool_engine_check("embed", &o->engine);
    fprintf(stderr, "tsr embed: %s\n", wrong);
    return TOOL_EXIT_USAGE;
}

static int read_options(int argc, char **argv, options *o)
{
    *o = (options){.engine = TOOL_ENGINE_OPTIONS_INIT};
    o->engine.model.embeddings = true;
    tool_option rows[] = {
        TOOL_ENGINE_OPTION_ROWS(o->engine),
        TOOL_HEADING_ROW("text and embedding"),
        {"-p", "--prompt", TOOL_STRING, &o->text, "TEXT", "the text", 0, 0},
        {"-f", "--file", TOOL_STRING, &o->file, "FILE", "a file with the text (default -: standard input)", 0,
         0},
        {NULL, "--parse-special", TOOL_FLAG, &o->parse_special, NULL,
         "read the names of special tokens in the text as these tokens", 0, 0},
        {NULL, "--pooling", TOOL_STRING, &o->pooling_name, "HOW",
         "none: of every token; mean; last: of the last token (default: as the file says, or last)", 0, 0,
         "none mean last"},
        {NULL, "--normalize", TOOL_FLAG, &o->normalize, NULL, "divide by the Euclidean norm", 0, 0},
        TOOL_MESSAGE_ROWS(o->engine, "show no progress"),
    };
    const tool_command command = {
        .name = "embed",
        .summary = TOOL_EMBED_SUMMARY,
        .options = rows,
        .n_options = TOOL_COUNT(rows),
        .description = "An embedding is the hidden state of a token behind the model's last norm, before the "
                       "output matrix; of a text that of its last token, or the mean of those of all tokens. "
                       "Attention is causal. Like logits, embeddings have the same bits for every split. The "
                       "result is JSON.",
        .examples = "tsr embed -m model.gguf -p \"Once upon a time\" --normalize\n"
                    "tsr embed -m model.gguf -f text.txt --pooling mean",
        .pages = "devices splitting offload fitting processes json"};
    const int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    return code == TOOL_GO_ON ? check(o) : code;
}

/* -- the text -- */

static int fail_memory(void)
{
    fprintf(stderr, "tsr embed: out of memory\n");
    return TOOL_EXIT_FAILED;
}

/* The text's tokens, at least one. */
static int encode(const options *o, const tsr_model *model, const char *text, size_t bytes,
                  int32_t **tokens_out, size_t *n_out)
{
    const unsigned flags = TSR_ENCODE_ADD_SPECIAL | (o->parse_special ? TSR_ENCODE_PARSE_SPECIAL : 0);
    tsr_tokenizer *tokenizer = NULL;
    size_t n = 0;
    tsr_status status = tsr_model_tokenizer(model, &tokenizer);
    if (status == TSR_OK)
        status = tsr_tokenizer_encode(tokenizer, text, bytes, flags, NULL, 0, &n);
    int32_t *tokens = *tokens_out = malloc((n + 1) * sizeof *tokens);
    if (status == TSR_OK && tokens)
        status = tsr_tokenizer_encode(tokenizer, text, bytes, flags, tokens, n, &n);
    tsr_tokenizer_destroy(tokenizer);
    *n_out = n;
    if (status != TSR_OK)
        return tool_fail("embed", status);
    if (!tokens)
        return fail_memory();
    if (n > 0)
        return TOOL_GO_ON;
    fprintf(stderr, "tsr embed: the text has no token; give one with -p TEXT or -f FILE\n");
    return TOOL_EXIT_FAILED;
}

static int read_text(const options *o, char **text_out, size_t *bytes_out)
{
    if (!o->text)
        return tool_text_read("embed", "the text", o->file ? o->file : "-", text_out, bytes_out);
    *text_out = strdup(o->text);
    *bytes_out = strlen(o->text);
    return *text_out ? TOOL_GO_ON : fail_memory();
}

/* -- the embedding -- */

/* The pooling that the file names: gguf's numbers are 0 none, 1 mean, 2 that of the first token, 3 last, 4 a
 * rank. Causal attention has no use for the first token. */
static int find_pooling(options *o, const tsr_model *model)
{
    tsr_model_info info;
    char key[96];
    uint64_t kind = 3;
    if (o->pooling != N_POOLINGS)
        return TOOL_GO_ON;
    tsr_model_get_info(model, &info);
    snprintf(key, sizeof key, "%s.pooling_type", info.architecture);
    if (tsr_gguf_has_key(tsr_model_gguf(model), key)) {
        const tsr_status status = tsr_gguf_get_u64(tsr_model_gguf(model), key, &kind);
        if (status != TSR_OK)
            return tool_fail("embed", status);
    }
    if (kind <= 1 || kind == 3) {
        o->pooling = kind == 3 ? POOLING_LAST : (pooling)kind;
        return TOOL_GO_ON;
    }
    fprintf(stderr, "tsr embed: %s: %s is %llu, which is not computed; choose --pooling none, mean or last\n",
            o->engine.model.model, key, (unsigned long long)kind);
    return TOOL_EXIT_FAILED;
}

/* The mean of n rows, in the order of the rows, in place of the first one. */
static void average(float *rows, int64_t n, int64_t n_embd)
{
    for (int64_t i = 0; i < n_embd; i++) {
        double sum = 0;
        for (int64_t r = 0; r < n; r++)
            sum += (double)rows[r * n_embd + i];
        rows[i] = (float)(sum / (double)n);
    }
}

static json_t *row_json(const float *row, int64_t n_embd, bool normalize)
{
    json_t *array = json_array();
    double squares = 0;
    for (int64_t i = 0; i < n_embd; i++)
        squares += (double)row[i] * (double)row[i];
    const double norm = normalize && squares > 0 ? sqrt(squares) : 1;
    for (int64_t i = 0; i < n_embd; i++)
        json_array_append_new(array, json_real((double)(float)((double)row[i] / norm)));
    return array;
}

static int print(const options *o, const float *rows, int64_t n_tokens, int64_t n_rows, int64_t n_embd)
{
    json_t *embeddings = json_array();
    for (int64_t i = 0; i < n_rows * n_embd; i++)
        if (!isfinite(rows[i])) {
            fprintf(stderr,
                    "tsr embed: the embedding is infinite or not a number; the model may be damaged\n");
            json_decref(embeddings);
            return TOOL_EXIT_FAILED;
        }
    for (int64_t r = 0; r < n_rows; r++)
        json_array_append_new(embeddings, row_json(rows + r * n_embd, n_embd, o->normalize));
    return tool_json_print("embed", json_pack("{s:o, s:I, s:s, s:b, s:o}", "model",
                                              tool_text_json(o->engine.model.model), "n_tokens",
                                              (json_int_t)n_tokens, "pooling", pooling_names[o->pooling],
                                              "normalized", o->normalize, "embeddings", embeddings));
}

static int embed(options *o, tsr_model *model, const char *text, size_t bytes)
{
    tsr_session *session = NULL;
    tsr_model_info info;
    int32_t *tokens = NULL;
    float *rows = NULL;
    bool *outputs = NULL;
    size_t n = 0;
    int code = find_pooling(o, model);
    if (code == TOOL_GO_ON)
        code = encode(o, model, text, bytes, &tokens, &n);
    tsr_model_get_info(model, &info);
    if (code == TOOL_GO_ON) {
        const bool all = o->pooling != POOLING_LAST;
        const size_t n_rows = all ? n : 1;
        rows = calloc(n_rows * (size_t)info.n_embd, sizeof *rows);
        outputs = malloc(n);
        if (outputs)
            memset(outputs, all, n);
        const tsr_batch batch = {.n_tokens = (int64_t)n, .tokens = tokens, .outputs = all ? outputs : NULL};
        tsr_status status = tsr_session_create(model, &session);
        if (status == TSR_OK && rows && outputs)
            status = tsr_session_decode_embeddings(session, &batch, rows);
        if (status != TSR_OK)
            code = tool_fail("embed", status);
        else if (!rows || !outputs)
            code = fail_memory();
        else if (o->pooling == POOLING_MEAN)
            average(rows, (int64_t)n, info.n_embd);
        if (code == TOOL_GO_ON)
            code = print(o, rows, (int64_t)n, o->pooling == POOLING_NONE ? (int64_t)n : 1, info.n_embd);
    }
    tsr_session_destroy(session);
    free(outputs);
    free(rows);
    free(tokens);
    return code;
}

int tsr_cmd_embed(int argc, char **argv)
{
    options o;
    tool_engine engine = {0};
    tool_processes processes = {0};
    tsr_model *model = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int code = read_options(argc, argv, &o);
    if (code == TOOL_GO_ON)
        code = read_text(&o, &text, &bytes);
    if (code == TOOL_GO_ON)
        code = tool_engine_read("embed", &o.engine, &engine);
    if (code == TOOL_GO_ON)
        code = tool_processes_join("embed", o.engine.mpi, &processes);
    if (code == TOOL_GO_ON) {
        tsr_status status = tool_engine_open(&engine, &processes);
        if (status == TSR_OK)
            status = tool_engine_load(&engine, o.engine.model.model, &engine.config, &model);
        if (status == TSR_OK)
            tool_engine_show(&engine, model);
        code = status == TSR_OK ? embed(&o, model, text, bytes) : tool_fail("embed", status);
    }
    tsr_model_close(model);
    tool_engine_close(&engine);
    free(text);
    return code;
}
