/* Embeddings in place of logits: the same bits for every split and for batches of every kind, rows that the
 * output matrix makes the reference's logits of, and what the calls refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/runtime.h>
#include <tsr/types.h>

#include "support/decoder_reference.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N = 40, N_EMBD = 128, N_VOCAB = 300, N_CTX = 256 };

static char path[DIRECTORY_PATH];
static int32_t tokens[N];

static int write_model(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_embd = N_EMBD;
    model.n_heads = 4;
    model.n_vocab = N_VOCAB;
    model.n_ctx = N_CTX;
    model.weight_type = TSR_TYPE_F32;
    close(directory_new(path));
    synth_model_write(&model, path);
    for (int i = 0; i < N; i++)
        tokens[i] = i * 37 % N_VOCAB;
    return 0;
}

static tsr_model_config embedding_config(int n_batch)
{
    tsr_model_config config = tsr_model_config_default();
    config.output.embeddings = true;
    config.session.n_batch = n_batch;
    config.session.n_seq_max = 2;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    return config;
}

/* Every token of sequence 0 in one call; then every third, among the tokens of another sequence. */
static void embed(const char *devices, const char *split, tsr_split_mode mode, int n_batch,
                  float e[N][N_EMBD])
{
    static float mixed[N][N_EMBD];
    tsr_model_config config = embedding_config(n_batch);
    config.split.mode = mode;
    bool all[N], some[2 * N] = {false};
    int32_t both[2 * N], seqs[2 * N];
    runner r;
    tsr_session_stats stats;
    for (int i = 0; i < N; i++) {
        all[i] = true;
        some[2 * i + 1] = i % 3 == 0;
        both[2 * i] = tokens[N - 1 - i];
        both[2 * i + 1] = tokens[i];
        seqs[2 * i] = 0;
        seqs[2 * i + 1] = 1;
    }
    runner_open(&r, path, devices, split, &config);
    tsr_batch batch = {.n_tokens = N, .tokens = tokens, .outputs = all};
    runner_ok(tsr_session_decode_embeddings(r.session, &batch, e[0]), "all");
    tsr_session_get_stats(r.session, &stats);
    if (mode == TSR_SPLIT_MODE_TENSOR) /* a step has room for all its tokens */
        assert_int_equal(stats.n_steps, (N + n_batch - 1) / n_batch);
    runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
    batch = (tsr_batch){.n_tokens = (int64_t)2 * N, .tokens = both, .seqs = seqs, .outputs = some};
    runner_ok(tsr_session_decode_embeddings(r.session, &batch, mixed[0]), "some");
    for (int i = 0; i < N; i += 3)
        assert_memory_equal(mixed[i / 3], e[i], sizeof e[i]);
    runner_ok(tsr_session_trim(r.session, 1, 0), "trim");
    if (mode == TSR_SPLIT_MODE_TENSOR)
        runner_ok(tsr_model_resplit(r.model, (const float[]){1, 2, 3}, tsr_runtime_n_devices(r.rt)),
                  "resplit");
    batch = (tsr_batch){.n_tokens = N, .tokens = tokens, .seqs = seqs + 1, .outputs = NULL};
    for (int i = 0; i < N; i++)
        seqs[i + 1] = 1;
    runner_ok(tsr_session_decode_embeddings(r.session, &batch, mixed[0]), "the last");
    assert_memory_equal(mixed[0], e[N - 1], sizeof e[0]);
    runner_close(&r);
}

static void embeddings_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *split;
        tsr_split_mode mode;
        int n_batch;
    } ways[] = {{"host:2,threads=1", "3,1", TSR_SPLIT_MODE_TENSOR, 512},
                {"host:3,threads=1", "1,0,2", TSR_SPLIT_MODE_TENSOR, 7},
                {"host:3,threads=1", "1,4,2", TSR_SPLIT_MODE_TENSOR, 1},
                {"host:2,threads=1", "1,1", TSR_SPLIT_MODE_LAYER, 16}};
    static float first[N][N_EMBD], other[N][N_EMBD];
    embed("host:1,threads=2", "1", TSR_SPLIT_MODE_TENSOR, 512, first);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        memset(other, 0, sizeof other);
        embed(ways[i].devices, ways[i].split, ways[i].mode, ways[i].n_batch, other);
        assert_memory_equal(other, first, sizeof first);
    }
}

static void the_output_matrix_makes_the_logits_of_the_reference(void **state)
{
    (void)state;
    static float e[N][N_EMBD], w[N_VOCAB][N_EMBD];
    double *logits = decoder_reference(path, tokens, N, N_CTX), most = 0;
    tsr_gguf *gguf;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    const tsr_gguf_tensor *output = tsr_gguf_find_tensor(gguf, "output.weight");
    assert_int_equal(output->type, TSR_TYPE_F32);
    memcpy(w, output->data, sizeof w);
    tsr_gguf_close(gguf);
    embed("host:2,threads=1", "2,1", TSR_SPLIT_MODE_TENSOR, 512, e);
    for (int i = 0; i < N * N_VOCAB; i++)
        most = fmax(most, fabs(logits[i]));
    for (int t = 0; t < N; t++)
        for (int v = 0; v < N_VOCAB; v++) {
            double sum = 0;
            for (int k = 0; k < N_EMBD; k++)
                sum += (double)w[v][k] * (double)e[t][k];
            assert_true(fabs(sum - logits[t * N_VOCAB + v]) <= 1e-5 * most);
        }
    free(logits);
}

static void assert_refused(tsr_status status, const char *words)
{
    assert_int_equal(status, TSR_ERR_INVALID);
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

static void one_kind_of_result_is_refused_where_the_other_was_chosen(void **state)
{
    (void)state;
    static float rows[N_VOCAB];
    tsr_candidate candidates[2];
    const bool none[N] = {false};
    const tsr_batch batch = {.n_tokens = N, .tokens = tokens};
    const tsr_batch append = {.n_tokens = N, .tokens = tokens, .outputs = none};
    tsr_model_config config = embedding_config(512);
    tsr_model *model = NULL;
    runner r;
    runner_open(&r, path, "host:1,threads=1", NULL, &config);
    assert_refused(tsr_session_decode(r.session, &batch, rows), "opened for embeddings");
    assert_refused(tsr_session_decode_candidates(r.session, &batch, 2, candidates), "opened for embeddings");
    assert_refused(tsr_session_decode_embeddings(r.session, &batch, NULL), "embeddings are wanted but");
    assert_refused(tsr_session_decode_embeddings(NULL, &batch, rows), "session must not be NULL");
    assert_int_equal(tsr_session_length(r.session, 0), 0);
    runner_ok(tsr_session_decode(r.session, &append, NULL), "append");
    runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
    runner_ok(tsr_session_decode_embeddings(r.session, &append, NULL), "append");
    config.prediction.load = true;
    assert_refused(tsr_model_open(r.rt, path, &config, &model), "");
    runner_close(&r);
    config = embedding_config(512);
    config.output.embeddings = false;
    runner_open(&r, path, "host:1,threads=1", NULL, &config);
    assert_refused(tsr_session_decode_embeddings(r.session, &batch, rows), "opened for logits");
    assert_int_equal(tsr_session_length(r.session, 0), 0);
    runner_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_do_not_depend_on_the_split),
        cmocka_unit_test(the_output_matrix_makes_the_logits_of_the_reference),
        cmocka_unit_test(one_kind_of_result_is_refused_where_the_other_was_chosen),
    };
    return cmocka_run_group_tests(tests, write_model, NULL);
}
