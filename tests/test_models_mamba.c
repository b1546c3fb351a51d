/* Mamba-2 in shapes that no recorded model has, against its formulas in double precision: one group of heads,
 * whose norm is over all of them; uneven numbers of heads; a convolution of two tokens without a bias. The
 * models are Nemotron-H: layers of Mamba-2 around one of attention and an FFN that add nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/runtime.h>

#include "support/directory.h"
#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/runner.h"

enum {
    N_LAYERS = 4,
    ATTENTION = 1,
    FFN = 2,
    N_EMBD = 32,
    N_VOCAB = 64,
    N_TOKENS = 40,
    CANCEL_AT = 10, /* tokens before a call that is cancelled */
    CANCEL_CHUNK = 8,
    HEAD = 16,
    MOST = 512
};

static const double eps = 1e-5;

typedef struct shape {
    int heads, groups, head_dim, state, kernel;
    bool biased;
    tsr_type type; /* of matrices */
} shape;

/* Sizes that follow: values, keys, what is convolved, the rows of ssm_in. */
static int n_values(const shape *s)
{
    return s->heads * s->head_dim;
}

static int n_keys(const shape *s)
{
    return s->groups * s->state;
}

static int n_convolved(const shape *s)
{
    return n_values(s) + 2 * n_keys(s);
}

/* -- a model -- */

typedef struct layer {
    const float *attn_norm, *in, *conv, *bias, *a, *d, *dt, *norm, *out;
} layer;

typedef struct model {
    shape s;
    layer layers[N_LAYERS];
    const float *embedding, *output_norm, *output;
    float pool[1 << 18]; /* all weights */
    size_t used;
    uint64_t seed;
    gguf_writer *file;
} model;

/* Elements around `mean`; ne1 0: a vector. */
static const float *draw(model *m, const char *name, int ne0, int ne1, float mean, float deviation)
{
    float *x = m->pool + m->used;
    m->used += (size_t)(ne0 * (ne1 ? ne1 : 1));
    assert_true(m->used <= sizeof m->pool / sizeof *m->pool);
    for (float *p = x; p < m->pool + m->used; p++)
        *p = mean + deviation * random_normal(&m->seed);
    const bool matrix = strstr(name, "ssm_in") || strstr(name, "ssm_out");
    gguf_writer_tensor_f32(m->file, name, matrix ? m->s.type : TSR_TYPE_F32, ne1 ? 2 : 1,
                           (int64_t[]){ne0, ne1}, x);
    return x;
}

static const float *draw_in(model *m, int l, const char *name, int ne0, int ne1, float mean, float deviation)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", l, name);
    return draw(m, full, ne0, ne1, mean, deviation);
}

static bool is_mamba(int l)
{
    return l != ATTENTION && l != FFN;
}

static float like(int columns)
{
    return 1 / sqrtf((float)columns);
}

static void draw_mamba(model *m, int l)
{
    const shape *s = &m->s;
    const int n = n_values(s), all = n_convolved(s);
    layer *w = &m->layers[l];
    w->in = draw_in(m, l, "ssm_in.weight", N_EMBD, n + all + s->heads, 0, like(N_EMBD));
    w->conv = draw_in(m, l, "ssm_conv1d.weight", s->kernel, all, 0, 0.5f);
    w->bias = s->biased ? draw_in(m, l, "ssm_conv1d.bias", all, 0, 0, 0.3f) : NULL;
    w->a = draw_in(m, l, "ssm_a", 1, s->heads, -1, 0.2f);
    w->d = draw_in(m, l, "ssm_d", 1, s->heads, 0, 1);
    w->dt = draw_in(m, l, "ssm_dt.bias", s->heads, 0, -1, 1);
    w->norm = draw_in(m, l, "ssm_norm.weight", n / s->groups, s->groups, 1, 0.2f);
    w->out = draw_in(m, l, "ssm_out.weight", n, N_EMBD, 0, like(n));
}

static void draw_other(model *m, int l)
{
    if (l == FFN) {
        draw_in(m, l, "ffn_up.weight", N_EMBD, 48, 0, 1);
        draw_in(m, l, "ffn_down.weight", 48, N_EMBD, 0, 0);
        return;
    }
    draw_in(m, l, "attn_q.weight", N_EMBD, 2 * HEAD, 0, 1);
    draw_in(m, l, "attn_k.weight", N_EMBD, HEAD, 0, 1);
    draw_in(m, l, "attn_v.weight", N_EMBD, HEAD, 0, 1);
    draw_in(m, l, "attn_output.weight", 2 * HEAD, N_EMBD, 0, 0);
}

static void put_int(const model *m, const char *suffix, int value)
{
    char key[64];
    snprintf(key, sizeof key, "nemotron_h.%s", suffix);
    gguf_writer_u32(m->file, key, (uint32_t)value);
}

/* A rotation longer than a head does not matter: there is none. */
static void put_keys(const model *m)
{
    static const int32_t kv[N_LAYERS] = {[ATTENTION] = 1}, ff[N_LAYERS] = {[FFN] = 48};
    const shape *s = &m->s;
    gguf_writer_string(m->file, "general.architecture", "nemotron_h");
    put_int(m, "block_count", N_LAYERS);
    put_int(m, "context_length", 512);
    put_int(m, "embedding_length", N_EMBD);
    put_int(m, "attention.head_count", 2);
    put_int(m, "attention.key_length", HEAD);
    put_int(m, "attention.value_length", HEAD);
    put_int(m, "rope.dimension_count", 2 * HEAD + 1);
    put_int(m, "ssm.time_step_rank", s->heads);
    put_int(m, "ssm.group_count", s->groups);
    put_int(m, "ssm.inner_size", n_values(s));
    put_int(m, "ssm.state_size", s->state);
    put_int(m, "ssm.conv_kernel", s->kernel);
    gguf_writer_array(m->file, "nemotron_h.attention.head_count_kv", TSR_GGUF_I32, kv, N_LAYERS);
    gguf_writer_array(m->file, "nemotron_h.feed_forward_length", TSR_GGUF_I32, ff, N_LAYERS);
    gguf_writer_f32(m->file, "nemotron_h.attention.layer_norm_epsilon", (float)eps);
}

static const char *write_model(model *m, const shape *s)
{
    const char *path = directory_file("mamba.gguf");
    *m = (model){.s = *s, .seed = 7, .file = gguf_writer_create(3)};
    put_keys(m);
    m->embedding = draw(m, "token_embd.weight", N_EMBD, N_VOCAB, 0, 1);
    for (int l = 0; l < N_LAYERS; l++) {
        m->layers[l].attn_norm = draw_in(m, l, "attn_norm.weight", N_EMBD, 0, 1, 0.2f);
        (is_mamba(l) ? draw_mamba : draw_other)(m, l);
    }
    m->output_norm = draw(m, "output_norm.weight", N_EMBD, 0, 1, 0.2f);
    m->output = draw(m, "output.weight", N_EMBD, N_VOCAB, 0, like(N_EMBD));
    gguf_writer_save(m->file, path);
    gguf_writer_destroy(m->file);
    return path;
}

/* -- its logits -- */

static void multiply(const float *w, const double *x, int n_in, int n_out, double *y)
{
    for (int r = 0; r < n_out; r++) {
        y[r] = 0;
        for (int i = 0; i < n_in; i++)
            y[r] += (double)w[r * n_in + i] * x[i];
    }
}

static void norm(const float *w, int n, const double *x, double *y)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = (double)w[i] * x[i] / sqrt(squares / n + eps);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* What a layer keeps from token to token. */
typedef struct memory {
    double inputs[8][MOST]; /* of the convolution, the last one first */
    double states[MOST][64];
} memory;

static void convolve(const shape *s, const layer *w, memory *kept, const double *x, double *y)
{
    memmove(kept->inputs[1], kept->inputs[0], 7 * sizeof kept->inputs[0]);
    memcpy(kept->inputs[0], x, (size_t)n_convolved(s) * sizeof *x);
    for (int c = 0; c < n_convolved(s); c++) {
        double sum = w->bias ? (double)w->bias[c] : 0;
        for (int k = 0; k < s->kernel; k++)
            sum += (double)w->conv[c * s->kernel + s->kernel - 1 - k] * kept->inputs[k][c];
        y[c] = silu(sum);
    }
}

/* One value after another; S of a value is a row of `state` numbers. */
static void recur(const shape *s, const layer *w, memory *kept, const double *xbc, const double *steps,
                  double *y)
{
    for (int i = 0; i < n_values(s); i++) {
        const int h = i / s->head_dim, g = h / (s->heads / s->groups);
        const double *b = xbc + n_values(s) + g * s->state, *c = b + n_keys(s);
        const double dt = log1p(exp(steps[h] + (double)w->dt[h]));
        y[i] = (double)w->d[h] * xbc[i];
        for (int k = 0; k < s->state; k++) {
            double *state = &kept->states[i][k];
            *state = exp(dt * (double)w->a[h]) * *state + dt * xbc[i] * b[k];
            y[i] += *state * c[k];
        }
    }
}

static void add_mamba(const shape *s, const layer *w, memory *kept, double *x)
{
    double h[N_EMBD], in[2 * MOST], xbc[MOST], y[MOST], normed[MOST], out[N_EMBD];
    const int n = n_values(s), of_group = n / s->groups, all = n_convolved(s);
    assert_true(all <= MOST && n + all + s->heads <= 2 * MOST && s->state <= 64);
    norm(w->attn_norm, N_EMBD, x, h);
    multiply(w->in, h, N_EMBD, n + all + s->heads, in);
    convolve(s, w, kept, in + n, xbc);
    recur(s, w, kept, xbc, in + n + all, y);
    for (int i = 0; i < n; i++)
        y[i] *= silu(in[i]);
    for (int g = 0; g < s->groups; g++)
        norm(w->norm + g * of_group, of_group, y + g * of_group, normed + g * of_group);
    multiply(w->out, normed, n, N_EMBD, out);
    for (int i = 0; i < N_EMBD; i++)
        x[i] += out[i];
}

static void exact_logits(const model *m, const int32_t *tokens, float logits[N_TOKENS][N_VOCAB])
{
    static memory kept[N_LAYERS];
    memset(kept, 0, sizeof kept);
    for (int t = 0; t < N_TOKENS; t++) {
        double x[N_EMBD], h[N_EMBD], y[N_VOCAB];
        for (int i = 0; i < N_EMBD; i++)
            x[i] = (double)m->embedding[tokens[t] * N_EMBD + i];
        for (int l = 0; l < N_LAYERS; l++)
            if (is_mamba(l))
                add_mamba(&m->s, &m->layers[l], &kept[l], x);
        norm(m->output_norm, N_EMBD, x, h);
        multiply(m->output, h, N_EMBD, N_VOCAB, y);
        for (int i = 0; i < N_VOCAB; i++)
            logits[t][i] = (float)y[i];
    }
}

/* -- the test -- */

static void run(const char *path, const char *devices, const char *split, int chunk, const int32_t *tokens,
                float logits[N_TOKENS][N_VOCAB])
{
    runner r;
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = N_TOKENS;
    config.session.n_batch = config.session.n_outputs_max = N_TOKENS;
    runner_open(&r, path, devices, split, &config);
    assert_int_equal(r.n_vocab, N_VOCAB);
    runner_decode(&r, tokens, N_TOKENS, chunk, true, logits[0]);
    runner_close(&r);
}

static void cancel(int64_t n_done, int64_t n_tokens, void *session)
{
    assert_int_equal(n_tokens, N_TOKENS - CANCEL_AT);
    if (n_done == 2 * CANCEL_CHUNK)
        tsr_session_cancel(session);
}

/* A call that is cancelled after two of its chunks, and made again: states are those before the call. */
static void run_cancelled(const char *path, const int32_t *tokens, float logits[N_TOKENS][N_VOCAB])
{
    runner r;
    bool all[N_TOKENS];
    tsr_model_config config = tsr_model_config_default();
    const tsr_batch batch = {.n_tokens = N_TOKENS - CANCEL_AT, .tokens = tokens + CANCEL_AT, .outputs = all};
    memset(all, true, sizeof all);
    config.session.n_ctx = N_TOKENS;
    config.session.n_batch = config.session.n_outputs_max = CANCEL_CHUNK;
    runner_open(&r, path, "host:2,threads=1", "1,1", &config);
    runner_decode(&r, tokens, CANCEL_AT, 0, true, logits[0]);
    tsr_session_set_progress(r.session, cancel, r.session);
    assert_int_equal(tsr_session_decode(r.session, &batch, logits[CANCEL_AT]), TSR_ERR_CANCELLED);
    tsr_session_set_progress(r.session, NULL, NULL);
    assert_int_equal(tsr_session_length(r.session, 0), CANCEL_AT);
    runner_ok(tsr_session_decode(r.session, &batch, logits[CANCEL_AT]), "the call again");
    runner_close(&r);
}

static void check_shape(const shape *s)
{
    static model m;
    static float exact[N_TOKENS][N_VOCAB], plain[N_TOKENS][N_VOCAB], other[N_TOKENS][N_VOCAB];
    static const struct {
        const char *devices, *split;
        int chunk;
    } ways[] = {{"host:2,threads=1", "1,1", 0},
                {"host:2,threads=1", "5,1", 1},
                {"host:3,threads=1", "1,0,3", 7},
                {"host:7,threads=1", NULL, 13}};
    int32_t tokens[N_TOKENS];
    const char *path = write_model(&m, s);
    for (int t = 0; t < N_TOKENS; t++)
        tokens[t] = (7 * t + t * t / 3) % N_VOCAB;
    exact_logits(&m, tokens, exact);
    run(path, "host:1,threads=1", NULL, 0, tokens, plain);
    for (int t = 0; t < N_TOKENS; t++) {
        const double error = reference_relative_error(plain[t], exact[t], N_VOCAB);
        if (!(error <= (s->type == TSR_TYPE_F32 ? 5e-6 : 5e-2)))
            fail_msg("%d heads, %d groups: token %d: relative error %.1e", s->heads, s->groups, t, error);
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run(path, ways[i].devices, ways[i].split, ways[i].chunk, tokens, other);
        if (memcmp(plain, other, sizeof plain) != 0)
            fail_msg("%d heads, %d groups: other bits on %s, %s", s->heads, s->groups, ways[i].devices,
                     ways[i].split ? ways[i].split : "evenly");
    }
    run_cancelled(path, tokens, other);
    assert_memory_equal(plain, other, sizeof plain);
}

static void all_shapes_are_exact(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {1, 1, 32, 8, 4, true, TSR_TYPE_F32},
        {5, 1, 12, 20, 4, true, TSR_TYPE_F32},
        {8, 1, 16, 64, 3, true, TSR_TYPE_F32},
        {9, 3, 8, 16, 2, false, TSR_TYPE_F32},
        {4, 4, 24, 8, 8, true, TSR_TYPE_F32},
        {12, 1, 24, 16, 4, true, TSR_TYPE_Q8_0}, /* four heads are three blocks */
        {12, 6, 24, 16, 4, true, TSR_TYPE_Q8_0}, /* so are two groups */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_shapes_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
