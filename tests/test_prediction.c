/* Prediction layers: their logits against a reference in double (tests/predictions/make.py), for any split
 * and any number of tokens in a call; copies, cuts and changes of split of the sequences; decoding, saved
 * sequences and plans with them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/runner.h"

enum { N_TOKENS = 40, N_VOCAB = 320, N_KEPT = 40, MAX_EMBD = 96 };

static const struct {
    const char *folder;
    double logits[N_KEPT]; /* of the last of N_TOKENS tokens, every eighth */
} expected[] = {
#include "predictions/expected.inc"
};

enum { N_MODELS = sizeof expected / sizeof *expected };

/* A model with its prediction layer, and a sequence of N_TOKENS tokens. */
typedef struct fixture {
    char path[128];
    int64_t n_embd;
    int32_t tokens[N_TOKENS], next[N_TOKENS];
    float hidden[N_TOKENS * MAX_EMBD]; /* not the model's: simple numbers, as make.py has them */
} fixture;

typedef struct way {
    const char *devices;
    const float *split;
    tsr_split_mode mode;
    int n_batch, n_calls; /* n_calls: of a prediction */
} way;

static bool make_fixture(int m, fixture *f)
{
    tsr_gguf *gguf;
    snprintf(f->path, sizeof f->path, "../shared/ref/hf/%s/model.gguf", expected[m].folder);
    if (access(f->path, R_OK) != 0) {
        printf("skipped: %s is missing\n", f->path);
        return false;
    }
    runner_ok(tsr_gguf_open(f->path, NULL, &gguf), f->path);
    f->n_embd = tsr_gguf_find_tensor(gguf, "token_embd.weight")->ne[0];
    tsr_gguf_close(gguf);
    assert_true(f->n_embd <= MAX_EMBD);
    for (int64_t i = 0; i < N_TOKENS; i++) {
        f->tokens[i] = (int32_t)(i * 29 + 3) % N_VOCAB;
        f->next[i] = (int32_t)(i * 37 + 11) % N_VOCAB;
        for (int64_t j = 0; j < f->n_embd; j++)
            f->hidden[i * f->n_embd + j] = (float)((i * 37 + j * 101) % 64 - 32) / 16;
    }
    return true;
}

static tsr_model_config config_of(const way *w)
{
    tsr_model_config config = tsr_model_config_default();
    config.prediction.load = true;
    config.session.n_ctx = 512;
    config.session.n_seq_max = 3;
    config.session.n_batch = w->n_batch;
    config.session.type_k = config.session.type_v = TSR_TYPE_F32;
    config.split.tensor_split = w->split;
    config.split.n_tensor_split = w->split ? 3 : 0;
    config.split.mode = w->mode;
    return config;
}

typedef struct opened {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
} opened;

static void open_way(const fixture *f, const way *w, opened *o)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = config_of(w);
    runtime_config.devices = w->devices;
    runner_ok(tsr_runtime_open(&runtime_config, &o->rt), "devices");
    runner_ok(tsr_model_open(o->rt, f->path, &config, &o->model), f->path);
    runner_ok(tsr_session_create(o->model, &o->session), "session");
}

static void close_way(opened *o)
{
    tsr_session_destroy(o->session);
    tsr_model_close(o->model);
    tsr_runtime_close(o->rt);
}

static void decode(const fixture *f, opened *o, int seq, int64_t n, float *logits, float *hidden)
{
    int32_t seqs[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        seqs[i] = seq;
    const tsr_batch batch = {.n_tokens = n, .tokens = f->tokens, .seqs = seqs};
    runner_ok(tsr_session_decode_hidden(o->session, &batch, logits, hidden), "decode");
}

/* Tokens [begin, end) in one call. */
static void predict(const fixture *f, opened *o, int seq, int64_t begin, int64_t end, float *logits)
{
    const tsr_prediction p = {.seq = seq,
                              .position = begin,
                              .n_tokens = end - begin,
                              .tokens = f->next + begin,
                              .hidden = f->hidden + begin * f->n_embd};
    runner_ok(tsr_session_predict(o->session, &p, logits), "predict");
}

static void check_reference(int m, const float *logits)
{
    double error = 0, size = 0;
    for (int i = 0; i < N_KEPT; i++) {
        const double d = logits[i * N_VOCAB / N_KEPT] - expected[m].logits[i];
        error += d * d;
        size += expected[m].logits[i] * expected[m].logits[i];
    }
    print_message("%s: relative error %.1e\n", expected[m].folder, sqrt(error / size));
    assert_true(error <= 1e-10 * size);
}

static const way plain = {"host:1,threads=1", NULL, TSR_SPLIT_MODE_TENSOR, 64, 1};

static void logits_are_those_of_the_formulas_whatever_the_split(void **state)
{
    (void)state;
    static const float even[] = {1, 1, 1}, uneven[] = {3, 0, 1};
    static const way ways[] = {
        {"host:3,threads=1", even, TSR_SPLIT_MODE_TENSOR, 64, 1},
        {"host:3,threads=1", uneven, TSR_SPLIT_MODE_TENSOR, 7, 1},
        {"host:3,threads=1", even, TSR_SPLIT_MODE_LAYER, 64, 3},
        {"host:2,threads=2", NULL, TSR_SPLIT_MODE_AUTO, 64, N_TOKENS},
    };
    for (int m = 0; m < N_MODELS; m++) {
        static fixture f;
        static float one[N_VOCAB], other[N_VOCAB], logits[2][N_VOCAB], hidden[2][N_TOKENS * MAX_EMBD];
        opened o;
        if (!make_fixture(m, &f))
            skip();
        open_way(&f, &plain, &o);
        decode(&f, &o, 0, N_TOKENS, logits[0], hidden[0]);
        predict(&f, &o, 0, 0, N_TOKENS, one);
        check_reference(m, one);
        close_way(&o);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            open_way(&f, &ways[i], &o);
            decode(&f, &o, 0, N_TOKENS, logits[1], hidden[1]);
            for (int64_t c = 0; c < ways[i].n_calls; c++)
                predict(&f, &o, 0, c * N_TOKENS / ways[i].n_calls, (c + 1) * N_TOKENS / ways[i].n_calls,
                        other);
            assert_memory_equal(other, one, sizeof one);
            assert_memory_equal(logits[1], logits[0], sizeof logits[0]);
            assert_memory_equal(hidden[1], hidden[0], (size_t)(N_TOKENS * f.n_embd) * sizeof(float));
            close_way(&o);
        }
    }
}

/* Two sequences share a page that is full; each goes on with another token after it. */
static void copies_of_a_sequence_predict_on_their_own(void **state)
{
    (void)state;
    enum { SHARED = 32 };
    static const float first[] = {2, 1, 1}, second[] = {1, 0, 3};
    for (int m = 0; m < N_MODELS; m++) {
        static fixture f, g;
        static float a[N_VOCAB], b[N_VOCAB], again[N_VOCAB];
        const way w = {"host:3,threads=1", first, TSR_SPLIT_MODE_TENSOR, 64, 1};
        opened o;
        if (!make_fixture(m, &f))
            skip();
        g = f;
        g.next[SHARED - 1] = 7;
        open_way(&f, &w, &o);
        decode(&f, &o, 2, N_TOKENS, a, NULL); /* alone, for comparison */
        predict(&f, &o, 2, 0, N_TOKENS, a);
        predict(&g, &o, 2, SHARED - 1, N_TOKENS, b);
        runner_ok(tsr_session_trim(o.session, 2, 0), "trim");
        assert_memory_not_equal(a, b, sizeof a);

        decode(&f, &o, 0, SHARED, again, NULL);
        predict(&f, &o, 0, 0, SHARED, again);
        runner_ok(tsr_session_fork(o.session, 0, 1), "fork");
        for (int seq = 0; seq < 2; seq++) {
            int32_t seqs[N_TOKENS - SHARED];
            for (int i = 0; i < N_TOKENS - SHARED; i++)
                seqs[i] = seq;
            const tsr_batch rest = {.n_tokens = N_TOKENS - SHARED, .tokens = f.tokens + SHARED, .seqs = seqs};
            runner_ok(tsr_session_decode(o.session, &rest, again), "the rest");
        }
        predict(&g, &o, 1, SHARED - 1, N_TOKENS, again);
        assert_memory_equal(again, b, sizeof b);
        runner_ok(tsr_model_resplit(o.model, second, 3), "another split");
        predict(&f, &o, 0, SHARED, N_TOKENS, again);
        assert_memory_equal(again, a, sizeof a);
        close_way(&o);
    }
}

/* Hidden states are those that the last norm and the output matrix make logits of. */
static void hidden_states_are_those_before_the_last_norm(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        static fixture f;
        static float logits[N_VOCAB], hidden[N_TOKENS * MAX_EMBD];
        opened o;
        tsr_gguf *gguf;
        double mean = 0, error = 0, size = 0;
        if (!make_fixture(m, &f))
            skip();
        open_way(&f, &plain, &o);
        decode(&f, &o, 0, N_TOKENS, logits, hidden);
        close_way(&o);
        runner_ok(tsr_gguf_open(f.path, NULL, &gguf), f.path);
        const float *norm = tsr_gguf_find_tensor(gguf, "output_norm.weight")->data;
        const float *output = tsr_gguf_find_tensor(gguf, "output.weight")->data;
        const float *h = hidden + (N_TOKENS - 1) * f.n_embd;
        for (int64_t i = 0; i < f.n_embd; i++)
            mean += (double)h[i] * h[i] / (double)f.n_embd;
        for (int64_t v = 0; v < N_VOCAB; v++) {
            double sum = 0;
            for (int64_t i = 0; i < f.n_embd; i++)
                sum += (double)output[v * f.n_embd + i] * norm[i] * h[i] / sqrt(mean + 1e-6);
            error += (sum - logits[v]) * (sum - logits[v]);
            size += sum * sum;
        }
        assert_true(error <= 1e-10 * size);
        tsr_gguf_close(gguf);
    }
}

/* Decoding has the same bits without the prediction layer, and files of sequences have the layer's keys and
 * values. */
static void sequences_are_saved_with_keys_and_values_of_the_layer(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        static fixture f;
        static float one[N_VOCAB], other[N_VOCAB], logits[2][N_VOCAB];
        char file[DIRECTORY_PATH];
        tsr_model_config config = config_of(&plain);
        opened o;
        tsr_model *without;
        tsr_session *session;
        if (!make_fixture(m, &f))
            skip();
        close(directory_new(file));
        open_way(&f, &plain, &o);
        decode(&f, &o, 0, N_TOKENS, logits[0], NULL);
        predict(&f, &o, 0, 0, N_TOKENS - 1, one);
        runner_ok(tsr_session_save(o.session, NULL, 0, file), "save");
        predict(&f, &o, 0, N_TOKENS - 1, N_TOKENS, one);
        runner_ok(tsr_session_load(o.session, (int[]){1}, 1, file), "load");
        predict(&f, &o, 1, N_TOKENS - 1, N_TOKENS, other);
        assert_memory_equal(other, one, sizeof one);
        config.prediction.load = false;
        runner_ok(tsr_model_open(o.rt, f.path, &config, &without), f.path);
        runner_ok(tsr_session_create(without, &session), "session");
        assert_int_equal(tsr_session_load(session, NULL, 0, file), TSR_ERR_INVALID);
        const tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = f.tokens};
        runner_ok(tsr_session_decode(session, &batch, logits[1]), "decode");
        assert_memory_equal(logits[1], logits[0], sizeof logits[0]);
        tsr_session_destroy(session);
        tsr_model_close(without);
        close_way(&o);
        unlink(file);
    }
}

static void predicting_survives_any_failing_allocation(void **state)
{
    (void)state;
    static fixture f;
    static float one[N_VOCAB], logits[N_VOCAB];
    bool fired = true;
    opened o;
    if (!make_fixture(0, &f))
        skip();
    open_way(&f, &plain, &o);
    decode(&f, &o, 0, N_TOKENS, logits, NULL);
    predict(&f, &o, 0, 0, N_TOKENS, one);
    close_way(&o);
    for (int n = 1; fired; n += 1 + n / 8) {
        const tsr_prediction p = {.n_tokens = N_TOKENS, .tokens = f.next, .hidden = f.hidden};
        open_way(&f, &plain, &o);
        decode(&f, &o, 0, N_TOKENS, logits, NULL);
        failing_alloc_set(n);
        const tsr_status status = tsr_session_predict(o.session, &p, logits);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        predict(&f, &o, 0, 0, N_TOKENS, logits);
        assert_memory_equal(logits, one, sizeof one);
        close_way(&o);
    }
}

static void bytes_are_those_of_the_plan(void **state)
{
    (void)state;
    static const float even[] = {1, 2, 1};
    for (int m = 0; m < N_MODELS; m++) {
        static fixture f;
        const way w = {"host:3,threads=1", even, TSR_SPLIT_MODE_TENSOR, 16, 1};
        opened o;
        tsr_plan_info info;
        if (!make_fixture(m, &f))
            skip();
        open_way(&f, &w, &o);
        const tsr_plan *plan = tsr_model_plan(o.model);
        tsr_plan_get_info(plan, &info);
        assert_int_equal(info.n_layers, 4);
        for (int d = 0; d < 3; d++) {
            tsr_plan_device planned;
            tsr_device_info device;
            runner_ok(tsr_plan_get_device(plan, d, &planned), "plan");
            runner_ok(tsr_runtime_device(o.rt, d, &device), "device");
            for (int i = 0; i < TSR_MEMORY_COUNT; i++)
                assert_int_equal(device.used[i], planned.bytes[i]);
        }
        close_way(&o);
    }
}

/* A new split needs room for a second arena and nothing more. All other room is a margin, so a byte of the
 * old split that is taken for another owner's makes the plan fail. */
static void a_split_can_be_made_anew_in_the_memory_of_the_plan(void **state)
{
    (void)state;
    static const float one_device[] = {1};
    static fixture f;
    static float before[N_VOCAB], after[N_VOCAB];
    char devices[64];
    opened o;
    tsr_plan_device planned;
    if (!make_fixture(0, &f))
        skip();
    open_way(&f, &plain, &o);
    runner_ok(tsr_plan_get_device(tsr_model_plan(o.model), 0, &planned), "plan");
    close_way(&o);

    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = config_of(&plain);
    const size_t margin = planned.bytes[TSR_MEMORY_ARENA] + planned.bytes[TSR_MEMORY_COMM];
    snprintf(devices, sizeof devices, "host:1,threads=1,mem=%zu", planned.total_bytes + margin);
    runtime_config.devices = devices;
    config.margin.bytes = &margin;
    config.margin.n = 1;
    runner_ok(tsr_runtime_open(&runtime_config, &o.rt), devices);
    runner_ok(tsr_model_open(o.rt, f.path, &config, &o.model), f.path);
    runner_ok(tsr_session_create(o.model, &o.session), "session");
    decode(&f, &o, 0, N_TOKENS, before, NULL);
    predict(&f, &o, 0, 0, N_TOKENS, before);
    runner_ok(tsr_model_resplit(o.model, one_device, 1), "the same split");
    predict(&f, &o, 0, 0, N_TOKENS, after);
    assert_memory_equal(after, before, sizeof before);
    close_way(&o);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    static fixture f;
    static float logits[N_VOCAB], hidden[MAX_EMBD];
    tsr_model_config config = config_of(&plain);
    tsr_model *model;
    opened o;
    if (!make_fixture(0, &f))
        skip();
    open_way(&f, &plain, &o);
    decode(&f, &o, 0, 4, logits, NULL);
    const int32_t token = 1, no_token = N_VOCAB;
    const tsr_prediction bad[] = {
        {.position = 4, .n_tokens = 1, .tokens = &token, .hidden = hidden},
        {.position = -1, .n_tokens = 1, .tokens = &token, .hidden = hidden},
        {.position = 0, .n_tokens = 0, .tokens = &token, .hidden = hidden},
        {.position = 0, .n_tokens = 1, .tokens = &no_token, .hidden = hidden},
        {.position = 0, .n_tokens = 1, .tokens = &token},
        {.seq = 3, .position = 0, .n_tokens = 1, .tokens = &token, .hidden = hidden},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tsr_session_predict(o.session, &bad[i], logits), TSR_ERR_INVALID);
    assert_int_equal(tsr_model_open(o.rt, "../shared/ref/hf/qwen35/model.gguf", &config, &model),
                     TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "no prediction layer"));
    config.prediction.load = false;
    tsr_session_destroy(o.session);
    runner_ok(tsr_model_open(o.rt, f.path, &config, &model), f.path);
    runner_ok(tsr_session_create(model, &o.session), "session");
    const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
    assert_int_equal(tsr_session_decode_hidden(o.session, &batch, logits, hidden), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_predict(o.session, &bad[0], logits), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "config.prediction.load"));
    tsr_session_destroy(o.session);
    o.session = NULL;
    tsr_model_close(model);
    close_way(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_formulas_whatever_the_split),
        cmocka_unit_test(copies_of_a_sequence_predict_on_their_own),
        cmocka_unit_test(hidden_states_are_those_before_the_last_norm),
        cmocka_unit_test(sequences_are_saved_with_keys_and_values_of_the_layer),
        cmocka_unit_test(predicting_survives_any_failing_allocation),
        cmocka_unit_test(bytes_are_those_of_the_plan),
        cmocka_unit_test(a_split_can_be_made_anew_in_the_memory_of_the_plan),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
