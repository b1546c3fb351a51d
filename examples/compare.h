/* What engines with model code of their own (07, 08) have in common: running a step, generating a text with
 * it for four splits, and comparing all logits with those of the library's model layer (tsr/session.h). */
#ifndef TSR_EXAMPLES_COMPARE_H
#define TSR_EXAMPLES_COMPARE_H

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

enum { N_DEVICES = 3, N_PREDICT = 10, MAX_PROMPT = 256, MAX_ROT = 256 };

/* A graph for n_tokens tokens of one sequence, of which the last has logits. */
typedef struct step {
    int64_t n_tokens;
    tsr_graph *graph;
    tsr_program *program;
    tsr_kv_inputs *inputs;
    tsr_tensor *tokens, *table, *last, *logits;
} step;

/* The model code of an example. A model's struct is `bytes` long and begins with an opened_model. */
typedef struct opened_model {
    tsr_runtime *rt;
    const tsr_gguf *gguf;
    tsr_kv *kv;
    tsr_rope_config rope;
} opened_model;

typedef struct engine {
    size_t bytes;
    tsr_status (*load)(opened_model *m, const float tensor_split[N_DEVICES]);
    void (*unload)(opened_model *m);
    /* From the tokens' rows to the last logits; the other inputs of the step are made. */
    tsr_tensor *(*build)(const opened_model *m, const step *st);
} engine;

static tsr_status build_step(const engine *e, const opened_model *m, int64_t n_tokens, step *st)
{
    tsr_status status;
    TRY(status = tsr_graph_create(m->rt, &st->graph));
    st->n_tokens = n_tokens;
    st->tokens = tsr_graph_input(st->graph, TSR_TYPE_I32, n_tokens, 1, "tokens");
    st->table = tsr_graph_input(st->graph, TSR_TYPE_F32, m->rope.n_rot, n_tokens, "rope_table");
    st->last = tsr_graph_input(st->graph, TSR_TYPE_I32, 1, 1, "last");
    st->inputs = tsr_graph_kv_inputs(st->graph, m->kv, n_tokens);
    st->logits = tsr_graph_output(st->graph, e->build(m, st));
    TRY(status = tsr_program_compile(st->graph, NULL, &st->program));
out:
    return status;
}

static tsr_status run_step(const opened_model *m, step *st, const int32_t *tokens, float *logits)
{
    static float rows[MAX_PROMPT * MAX_ROT];
    int32_t positions[MAX_PROMPT], last = (int32_t)st->n_tokens - 1;
    tsr_status status;
    TRY(status = tsr_kv_inputs_append(st->inputs, NULL, positions)); /* all tokens to sequence 0 */
    TRY(status = tsr_rope_fill(&m->rope, positions, st->n_tokens, rows));
    TRY(status = tsr_tensor_set(st->table, rows, 0, tsr_tensor_bytes(st->table)));
    TRY(status = tsr_tensor_set(st->tokens, tokens, 0, tsr_tensor_bytes(st->tokens)));
    TRY(status = tsr_tensor_set(st->last, &last, 0, sizeof last));
    TRY(status = tsr_program_run(st->program));
    TRY(status = tsr_tensor_get(st->logits, logits, 0, tsr_tensor_bytes(st->logits)));
out:
    return status;
}

/* The likeliest next tokens, and the logits of each; by the model layer if `session` is not NULL. */
static int generate(const engine *e, const opened_model *m, tsr_session *session, const int32_t *prompt,
                    int64_t n_prompt, int64_t n_vocab, int32_t *tokens, float *logits)
{
    int failed = 1;
    step steps[2] = {{0}}; /* of the prompt, and of one token */
    tsr_sampler *sampler = NULL;
    tsr_sampler_config greedy = tsr_sampler_config_default();
    greedy.temperature = 0;
    TRY(tsr_sampler_create(&greedy, n_vocab, &sampler));
    for (int i = 0; i < 2 && !session; i++)
        TRY(build_step(e, m, i == 0 ? n_prompt : 1, &steps[i]));
    tsr_batch batch = {.n_tokens = n_prompt, .tokens = prompt};
    for (int i = 0; i < N_PREDICT; i++, logits += n_vocab) {
        TRY(session ? tsr_session_decode(session, &batch, logits)
                    : run_step(m, &steps[i > 0], batch.tokens, logits));
        TRY(tsr_sampler_sample(sampler, logits, n_vocab, &tokens[i]));
        batch = (tsr_batch){.n_tokens = 1, .tokens = &tokens[i]};
    }
    failed = 0;
out:
    for (int i = 0; i < 2; i++) {
        tsr_program_destroy(steps[i].program);
        tsr_graph_destroy(steps[i].graph);
    }
    tsr_sampler_destroy(sampler);
    return failed;
}

/* The same text with the engine's code and a split: the same logits? */
static int check(const engine *e, tsr_runtime *rt, const tsr_gguf *gguf, const float split[N_DEVICES],
                 const int32_t *prompt, int64_t n_prompt, int64_t n_vocab, const float *expected)
{
    int failed = 1;
    int32_t tokens[N_PREDICT];
    opened_model *m = calloc(1, e->bytes);
    float *logits = malloc((size_t)n_vocab * N_PREDICT * sizeof *logits);
    if (!m || !logits)
        goto out;
    *m = (opened_model){.rt = rt, .gguf = gguf, .rope = tsr_rope_config_default()};
    TRY(e->load(m, split));
    failed = generate(e, m, NULL, prompt, n_prompt, n_vocab, tokens, logits) ||
             memcmp(expected, logits, (size_t)n_vocab * N_PREDICT * sizeof *logits) != 0;
    for (int d = 0; d < N_DEVICES; d++)
        printf("%s%g (%zu bytes of KV)", d ? ", " : "tensor_split ", (double)split[d],
               tsr_kv_reserved_bytes(m->kv, d));
    puts(failed ? ": OTHER LOGITS than the model layer's" : ": the model layer's logits, to the bit");
out:
    if (m)
        e->unload(m);
    free(m);
    free(logits);
    return failed;
}

/* Returns the exit status of the program. */
static int compare(const engine *e, const char *path, const char *prompt)
{
    static const float splits[][N_DEVICES] = {{1}, {1, 1}, {3, 1}, {1, 2, 5}};
    int32_t ids[MAX_PROMPT], tokens[N_PREDICT];
    size_t n_ids;
    int failed = 1;
    float *expected = NULL;
    tsr_gguf *gguf = NULL;
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    tsr_tokenizer *tokenizer = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:3,threads=1";
    TRY(tsr_runtime_open(&config, &rt));
    TRY(tsr_gguf_open(path, NULL, &gguf));
    TRY(tsr_tokenizer_create(gguf, &tokenizer));
    TRY(tsr_tokenizer_encode(tokenizer, prompt, strlen(prompt), TSR_ENCODE_ADD_SPECIAL, ids, MAX_PROMPT,
                             &n_ids));
    TRY(tsr_model_open(rt, path, NULL, &model));
    TRY(tsr_session_create(model, &session));
    const int64_t n_vocab = tsr_tokenizer_n_vocab(tokenizer);
    expected = malloc((size_t)n_vocab * N_PREDICT * sizeof *expected);
    failed = !expected || generate(e, NULL, session, ids, (int64_t)n_ids, n_vocab, tokens, expected);
    for (size_t i = 0; i < sizeof splits / sizeof *splits && !failed; i++)
        failed = check(e, rt, gguf, splits[i], ids, (int64_t)n_ids, n_vocab, expected);
    for (int i = 0; i < N_PREDICT && !failed; i++) {
        const tsr_bytes piece = tsr_tokenizer_piece(tokenizer, tokens[i]);
        printf("%.*s%s", (int)piece.bytes, piece.data, i + 1 == N_PREDICT ? "\n" : "");
    }
out:
    free(expected);
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_tokenizer_destroy(tokenizer);
    tsr_gguf_close(gguf);
    tsr_runtime_close(rt);
    return failed;
}

#endif
