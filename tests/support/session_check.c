/* See session_check.h. */
#include "support/session_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "support/directory.h"
#include "support/random.h"
#include "support/synth_model.h"

enum { N_EMBD = 128, F16_NAN = 0x7e00 };

char session_model_path[DIRECTORY_PATH];

static void poison_embedding(const char *path)
{
    tsr_gguf *gguf;
    uint16_t row[N_EMBD];
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    const tsr_gguf_tensor *embedding = tsr_gguf_find_tensor(gguf, "token_embd.weight");
    assert_int_equal(embedding->ne[0], N_EMBD);
    assert_int_equal(embedding->type, TSR_TYPE_F16);
    for (int i = 0; i < N_EMBD; i++)
        row[i] = F16_NAN;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)embedding->offset + SESSION_POISON * (long)sizeof row, SEEK_SET), 0);
    assert_int_equal(fwrite(row, sizeof row, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    tsr_gguf_close(gguf);
}

static int write_model(int n_layers)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = n_layers;
    config.n_embd = N_EMBD;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.n_ff = 384;
    config.n_vocab = SESSION_VOCAB;
    close(directory_new(session_model_path));
    synth_model_write(&config, session_model_path);
    poison_embedding(session_model_path);
    return 0;
}

int session_model_write(void **state)
{
    (void)state;
    return write_model(2);
}

int session_deep_model_write(void **state)
{
    (void)state;
    return write_model(7);
}

tsr_model_config session_config(int64_t n_ctx, int n_seq_max, int n_batch, int n_outputs_max)
{
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = n_ctx;
    config.session.n_seq_max = n_seq_max;
    config.session.n_batch = n_batch;
    config.session.n_outputs_max = n_outputs_max;
    return config;
}

void session_random_tokens(uint64_t *seed, int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)random_below(seed, SESSION_POISON);
}

float *session_plain_logits(const tsr_model_config *types, const int32_t *tokens, int64_t n)
{
    tsr_model_config config = session_config(n, 1, 1, 1);
    float *logits = malloc((size_t)n * SESSION_VOCAB * sizeof *logits);
    runner r;
    assert_non_null(logits);
    if (types) {
        config.session.type_k = types->session.type_k;
        config.session.type_v = types->session.type_v;
    }
    runner_open(&r, session_model_path, "host:1,threads=1", NULL, &config);
    runner_decode(&r, tokens, n, 1, true, logits);
    runner_close(&r);
    return logits;
}

void session_assert_row(const float *row, const float *plain, int64_t position)
{
    if (memcmp(row, plain + position * SESSION_VOCAB, SESSION_VOCAB * sizeof *row) != 0)
        fail_msg("position %lld: other bits", (long long)position);
}

tsr_status session_append(tsr_session *session, int seq, const int32_t *tokens, int64_t n, float *logits)
{
    int32_t seqs[SESSION_MAX_TOKENS];
    assert_true(n <= SESSION_MAX_TOKENS);
    for (int64_t i = 0; i < n; i++)
        seqs[i] = seq;
    tsr_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs};
    return tsr_session_decode(session, &batch, logits);
}
