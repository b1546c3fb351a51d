/* See decoder_reference.h. The descriptions followed:
 *
 *     Llama, Mistral           arXiv:2302.13971, arXiv:2310.06825;
 *                              tables of factors as in Llama 3.1's model.py
 *     Qwen 2, Qwen 3           arXiv:2407.10671, arXiv:2505.09388
 *     Gemma 1, 2, 3            arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786
 *     Phi 3, LongRoPE          arXiv:2404.14219, arXiv:2402.13753
 *     Granite, MiniCPM         scales of their modeling_granite.py and modeling_minicpm.py
 *     OLMo 2                   arXiv:2501.00656
 *     YaRN, Llama 4's growth   arXiv:2309.00071; modeling_llama4.py, modeling_ministral3.py
 *     gpt-oss                  gpt_oss/torch/model.py of github.com/openai/gpt-oss
 *     shared experts           arXiv:2401.06066 (DeepSeek 1), arXiv:2412.19437 (sigmoids and biases);
 *                              the models' modeling_*.py on huggingface.co
 */
#include "support/decoder_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/types.h>

#include "support/runner.h"

static const double pi = 3.14159265358979323846;

typedef struct model {
    tsr_gguf *gguf;
    char arch[64];
    int64_t n_layers, n_embd, n_head, n_head_kv, d, n_ff, n_rot, n_vocab, n_ctx;
    bool neighbours; /* are rotated together; else elements half a rotation apart */
    bool gelu, gpt_oss;
    bool sigmoids, over_all; /* a router's probabilities; the chosen ones' do not become 1 */
    bool other_norm;         /* before the FFN: post_attention_norm */
    int64_t n_ff_expert, n_dense;
    bool layer_norm, parallel; /* norms take off the mean; attention and FFN side by side */
    double embedding_scale, residual_scale, score_scale, logit_scale, score_cap, logit_cap;
    int64_t window, period; /* all but the last of every `period` layers; 0: all */
    bool window_is_plain;   /* layers with a window rotate as trained */
    double local_base;      /* of their rotation */
    double temperature;
    bool skip_every_fourth; /* rotation */
} model;

/* -- the file -- */

static double key(const model *m, const char *suffix, double otherwise)
{
    char name[128];
    double value = otherwise;
    snprintf(name, sizeof name, "%s.%s", m->arch, suffix);
    if (tsr_gguf_has_key(m->gguf, name))
        runner_ok(tsr_gguf_get_f64(m->gguf, name, &value), name);
    return value;
}

static const tsr_gguf_tensor *find(const model *m, int64_t layer, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, layer < 0 ? "%s" : "blk.%2$d.%1$s", name, (int)layer);
    return tsr_gguf_find_tensor(m->gguf, full);
}

/* Rows [first, first + n) of a tensor (elements, of a vector), decoded; NULL if the file has none. */
static float *rows(const model *m, int64_t layer, const char *name, int64_t first, int64_t n)
{
    const tsr_gguf_tensor *t = find(m, layer, name);
    if (!t)
        return NULL;
    int64_t width = t->ne[1] > 1 ? t->ne[0] : 1;
    float *values = malloc((size_t)(n * width) * sizeof *values);
    assert_non_null(values);
    assert_true(first + n <= (t->ne[1] > 1 ? t->ne[1] * t->ne[2] : t->ne[0]));
    const unsigned char *data = t->data;
    runner_ok(tsr_type_to_f32(t->type, data + (size_t)first * tsr_type_row_bytes(t->type, width), values,
                              n * width),
              name);
    return values;
}

/* Elements [first, first + n) of a bias, or of those of all experts, one behind the other. */
static float *biases(const model *m, int64_t layer, const char *name, int64_t first, int64_t n)
{
    const tsr_gguf_tensor *t = find(m, layer, name);
    if (!t || t->ne[1] == 1)
        return rows(m, layer, name, first, n);
    assert_true(t->type == TSR_TYPE_F32 && first + n <= t->ne[0] * t->ne[1]);
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    memcpy(values, (const float *)t->data + first, (size_t)n * sizeof *values);
    return values;
}

static bool is_one_of(const char *name, const char *list)
{
    size_t n = strlen(name);
    for (const char *p = strstr(list, name); p; p = strstr(p + 1, name))
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

static void read_model(model *m)
{
    tsr_gguf_string arch;
    runner_ok(tsr_gguf_get_string(m->gguf, "general.architecture", &arch), "architecture");
    snprintf(m->arch, sizeof m->arch, "%.*s", (int)arch.bytes, arch.data);
    m->n_layers = (int64_t)key(m, "block_count", 0);
    m->n_embd = (int64_t)key(m, "embedding_length", 0);
    m->n_head = (int64_t)key(m, "attention.head_count", 0);
    m->n_head_kv = (int64_t)key(m, "attention.head_count_kv", (double)m->n_head);
    m->d = (int64_t)key(m, "attention.key_length", (double)(m->n_embd / m->n_head));
    m->n_ff = (int64_t)key(m, "feed_forward_length", 0);
    m->n_rot = (int64_t)key(m, "rope.dimension_count", (double)m->d);
    m->n_vocab = find(m, -1, "token_embd.weight")->ne[1];
    m->embedding_scale = m->residual_scale = m->logit_scale = 1;
    m->score_scale = 1 / sqrt((double)m->d);
}

static bool is_told_to_be_sequential(const model *m)
{
    static const char name[] = "gptneox.use_parallel_residual";
    bool parallel = true;
    if (tsr_gguf_has_key(m->gguf, name))
        runner_ok(tsr_gguf_get_bool(m->gguf, name, &parallel), name);
    return !parallel;
}

static void read_family(model *m)
{
    bool gemma = is_one_of(m->arch, "gemma gemma2 gemma3");
    m->neighbours = is_one_of(
        m->arch, "llama mistral3 smollm3 internlm2 xverse ernie4_5 minicpm granite "
                 "chatglm glm4 granitemoe deepseek bailingmoe ernie4_5-moe command-r cohere2 arcee");
    if (!m->neighbours && !gemma &&
        !is_one_of(m->arch,
                   "qwen2 qwen3 phi3 olmo2 exaone qwen3moe qwen3vlmoe olmoe gpt-oss qwen2moe dots1 glm4moe "
                   "starcoder2 nemotron stablelm gptneox phi2 falcon hunyuan-dense exaone4"))
        fail_msg("the reference does not know %s", m->arch);
    if (is_one_of(m->arch, "glm4")) /* the order of Q and K in files with M-RoPE */
        m->neighbours = !tsr_gguf_has_key(m->gguf, "glm4.rope.dimension_sections");
    m->gpt_oss = is_one_of(m->arch, "gpt-oss");
    m->sigmoids = is_one_of(m->arch, "dots1 glm4moe");
    m->over_all = is_one_of(m->arch, "olmoe qwen2moe deepseek bailingmoe");
    m->other_norm = is_one_of(m->arch, "gpt-oss glm4moe");
    m->n_ff_expert = (int64_t)key(m, "expert_feed_forward_length", (double)m->n_ff);
    m->n_dense = (int64_t)key(m, "leading_dense_block_count", 0);
    m->n_layers -= (int64_t)key(m, "nextn_predict_layers", 0);
    if (gemma) {
        m->gelu = true;
        m->embedding_scale = sqrt((double)m->n_embd);
        m->score_cap = key(m, "attn_logit_softcapping", 0);
        m->logit_cap = key(m, "final_logit_softcapping", 0);
    }
    m->layer_norm = is_one_of(m->arch, "starcoder2 nemotron stablelm gptneox phi2 falcon command-r cohere2");
    m->parallel = is_one_of(m->arch, "phi2 falcon command-r cohere2") ||
                  (is_one_of(m->arch, "gptneox") && !is_told_to_be_sequential(m)) ||
                  (is_one_of(m->arch, "stablelm") && !find(m, 0, "ffn_norm.weight"));
    if (is_one_of(m->arch, "command-r cohere2"))
        m->logit_scale = key(m, "logit_scale", 1);
    m->window = (int64_t)key(m, "attention.sliding_window", 0);
    m->period = (int64_t)key(m, "attention.sliding_window_pattern",
                             is_one_of(m->arch, "gemma2 gpt-oss")          ? 2
                             : is_one_of(m->arch, "gemma3")                ? 6
                             : is_one_of(m->arch, "olmo2 cohere2 exaone4") ? 4
                                                                           : 0);
    m->window_is_plain = is_one_of(m->arch, "gemma3 olmo2");
    m->local_base =
        key(m, "rope.freq_base_swa", is_one_of(m->arch, "gemma3") ? 10000 : key(m, "rope.freq_base", 10000));
    m->skip_every_fourth = is_one_of(m->arch, "smollm3");
    m->temperature = key(m, "attention.temperature_scale", 0);
    if (is_one_of(m->arch, "granite granitemoe minicpm")) {
        bool minicpm = is_one_of(m->arch, "minicpm");
        m->embedding_scale = key(m, "embedding_scale", minicpm ? 12 : 1);
        m->residual_scale = key(m, "residual_scale", minicpm ? 1.4 / sqrt((double)m->n_layers) : 1);
        m->score_scale = key(m, "attention.scale", m->score_scale);
        m->logit_scale = 1 / key(m, "logit_scale", minicpm ? (double)m->n_embd / 256 : 1);
    }
}

/* -- its parts, one vector at a time -- */

/* y[n_out] (+)= W x + b; W [n_out][n_in], b may be NULL. */
static void linear(const float *w, const float *b, const double *x, int64_t n_in, int64_t n_out, double *y)
{
    for (int64_t r = 0; r < n_out; r++) {
        double sum[4] = {b ? (double)b[r] : 0}; /* four, so that the test is quick */
        for (int64_t i = 0; i < n_in; i++)
            sum[i % 4] += (double)w[r * n_in + i] * x[i];
        y[r] = sum[0] + sum[1] + sum[2] + sum[3];
    }
}

/* Root mean square norm (arXiv:1910.07467) of every `n` of the `all` elements, or LayerNorm
 * (arXiv:1607.06450); in place. */
static void norm(const model *m, const float *weight, const float *bias, int64_t n, int64_t all, double *x)
{
    double eps =
        key(m, m->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 0);
    for (int64_t first = 0; weight && first < all; first += n) {
        double squares = 0, mean = 0;
        for (int64_t i = 0; i < n && m->layer_norm; i++)
            mean += x[first + i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            squares += (x[first + i] - mean) * (x[first + i] - mean);
        for (int64_t i = 0; i < n; i++)
            x[first + i] = (x[first + i] - mean) * (double)weight[i] / sqrt(squares / (double)n + eps) +
                           (bias ? (double)bias[i] : 0);
    }
}

/* The norm of a layer by name, or of its heads, if the file has it. */
static void named_norm(const model *m, int64_t layer, const char *name, int64_t all, double *x)
{
    const tsr_gguf_tensor *t = find(m, layer, name);
    if (!t)
        return;
    char bias_name[64];
    snprintf(bias_name, sizeof bias_name, "%.*s.bias", (int)(strlen(name) - strlen(".weight")), name);
    float *weight = biases(m, layer, name, 0, t->ne[0] * t->ne[1]);
    float *bias = rows(m, layer, bias_name, 0, t->ne[0]);
    if (t->ne[1] == 1)
        norm(m, weight, bias, t->ne[0], all, x);
    for (int64_t i = 0; t->ne[1] > 1 && i < t->ne[1]; i++) /* a weight for each head */
        norm(m, weight + i * t->ne[0], bias, t->ne[0], t->ne[0], x + i * t->ne[0]);
    free(weight);
    free(bias);
}

/* Angle per position of pair i, and what cos and sin are multiplied by. */
static double frequency(const model *m, int64_t i, bool windowed, double *magnitude)
{
    const double base = windowed ? m->local_base : key(m, "rope.freq_base", 10000);
    const double theta = pow(base, -2.0 * (double)i / (double)m->n_rot);
    const double factor = key(m, "rope.scaling.factor", 1),
                 n = key(m, "rope.scaling.original_context_length", 0);
    const bool has_long = find(m, -1, "rope_factors_long.weight");
    *magnitude = 1;
    if (windowed && m->window_is_plain)
        return theta;
    *magnitude = key(m, "rope.scaling.attn_factor", 1);
    const char *table = !has_long              ? "rope_freqs.weight"
                        : (double)m->n_ctx > n ? "rope_factors_long.weight"
                                               : "rope_factors_short.weight";
    float *factors = rows(m, -1, table, i, 1);
    double divided = theta / (factors ? (double)*factors : 1);
    free(factors);
    if (!is_one_of(m->arch, "mistral3 gpt-oss")) /* linear, where the others stretch */
        return divided / factor;
    double fast = (double)m->n_rot * log(n / (32 * 2 * pi)) / (2 * log(base));
    double slow = (double)m->n_rot * log(n / (1 * 2 * pi)) / (2 * log(base));
    fast = fmax(0, m->gpt_oss ? fast : floor(fast));
    slow = fmin((double)m->n_rot - 1, m->gpt_oss ? slow : ceil(slow));
    double stretched = fmin(1, fmax(0, ((double)i - fast) / fmax(0.001, slow - fast)));
    double growth = 0.1 * log(factor);
    *magnitude *= (1 + growth) / (1 + key(m, "rope.scaling.yarn_log_multiplier", 0) * growth);
    return divided * (1 - stretched) + divided / factor * stretched;
}

static void rotate(const model *m, int64_t position, bool windowed, double grow, int64_t n_heads, double *x)
{
    for (int64_t i = 0; i < m->n_rot / 2; i++) {
        double magnitude, angle = (double)position * frequency(m, i, windowed, &magnitude);
        double c = magnitude * grow * cos(angle), s = magnitude * grow * sin(angle);
        for (int64_t h = 0; h < n_heads; h++) {
            double *a = x + h * m->d + (m->neighbours ? 2 * i : i);
            double *b = m->neighbours ? a + 1 : a + m->n_rot / 2;
            double old = *a;
            *a = old * c - *b * s;
            *b = old * s + *b * c;
        }
    }
}

/* One query head over keys and values of positions [first, t]; their rows are n_kv apart. Its sink is a score
 * without a value. */
static void attend(const model *m, const double *q, const double *k, const double *v, const float *sink,
                   int64_t first, int64_t t, double *out)
{
    int64_t stride = m->n_head_kv * m->d;
    double *p = malloc((size_t)(t + 1) * sizeof *p), sum = 0, top = sink ? (double)*sink : -INFINITY;
    assert_non_null(p);
    for (int64_t j = first; j <= t; j++) {
        double s = 0;
        for (int64_t i = 0; i < m->d; i++)
            s += q[i] * k[j * stride + i];
        s *= m->score_scale;
        p[j] = m->score_cap > 0 ? m->score_cap * tanh(s / m->score_cap) : s;
        top = fmax(top, p[j]);
    }
    if (sink)
        sum = exp((double)*sink - top);
    for (int64_t j = first; j <= t; j++)
        sum += p[j] = exp(p[j] - top);
    for (int64_t i = 0; i < m->d; i++) {
        out[i] = 0;
        for (int64_t j = first; j <= t; j++)
            out[i] += p[j] / sum * v[j * stride + i];
    }
    free(p);
}

/* -- blocks, all tokens -- */

/* Tokens' vectors of n_out from those of n_in by a named matrix (its rows from `first` on) and bias. */
static double *project(const model *m, int64_t layer, const char *name, int64_t first, int64_t n_in,
                       int64_t n_out, const double *x, int64_t n)
{
    char weight_name[64], bias_name[64];
    snprintf(weight_name, sizeof weight_name, "%s.weight", name);
    snprintf(bias_name, sizeof bias_name, "%s.bias", name);
    float *w = rows(m, layer, weight_name, first, n_out), *b = biases(m, layer, bias_name, first, n_out);
    double *y = malloc((size_t)(n * n_out) * sizeof *y);
    assert_non_null(w);
    assert_non_null(y);
    for (int64_t t = 0; t < n; t++)
        linear(w, b, x + t * n_in, n_in, n_out, y + t * n_out);
    free(w);
    free(b);
    return y;
}

static void norm_heads(const model *m, int64_t l, double *q, double *k)
{
    named_norm(m, l, "attn_q_norm.weight", m->n_head * m->d, q);
    named_norm(m, l, "attn_k_norm.weight", m->n_head_kv * m->d, k);
}

static double *attention(const model *m, int64_t l, const double *h, int64_t n)
{
    int64_t n_q = m->n_head * m->d, n_kv = m->n_head_kv * m->d, group = m->n_head / m->n_head_kv;
    bool fused = find(m, l, "attn_qkv.weight");
    bool windowed = m->window > 0 && (m->period == 0 || l % m->period < m->period - 1);
    bool still = m->skip_every_fourth && l % 4 == 3;
    if (is_one_of(m->arch, "cohere2 exaone4"))
        still = m->window > 0 && !windowed;
    bool rotated_first = is_one_of(m->arch, "hunyuan-dense");
    double *q = project(m, l, fused ? "attn_qkv" : "attn_q", 0, m->n_embd, n_q, h, n);
    double *k = project(m, l, fused ? "attn_qkv" : "attn_k", fused ? n_q : 0, m->n_embd, n_kv, h, n);
    double *v = project(m, l, fused ? "attn_qkv" : "attn_v", fused ? n_q + n_kv : 0, m->n_embd, n_kv, h, n);
    double *a = malloc((size_t)(n * n_q) * sizeof *a);
    float *sinks = rows(m, l, "attn_sinks.weight", 0, m->n_head);
    assert_non_null(a);
    for (int64_t t = 0; t < n; t++) {
        double orig = key(m, "rope.scaling.original_context_length", key(m, "context_length", 1));
        if (!rotated_first)
            norm_heads(m, l, q + t * n_q, k + t * n_kv);
        if (!still) {
            rotate(m, t, windowed, 1 + m->temperature * log(1 + floor((double)t / orig)), m->n_head,
                   q + t * n_q);
            rotate(m, t, windowed, 1, m->n_head_kv, k + t * n_kv);
        }
        if (rotated_first)
            norm_heads(m, l, q + t * n_q, k + t * n_kv);
        int64_t first = windowed && t >= m->window ? t - m->window + 1 : 0;
        for (int64_t i = 0; i < m->n_head; i++)
            attend(m, q + t * n_q + i * m->d, k + i / group * m->d, v + i / group * m->d,
                   sinks ? sinks + i : NULL, first, t, a + t * n_q + i * m->d);
    }
    double *y = project(m, l, "attn_output", 0, n_q, m->n_embd, a, n);
    free(sinks);
    free(q);
    free(k);
    free(v);
    free(a);
    return y;
}

/* gate[i] = act(gate[i]) up[i] */
static void multiply_gated(const model *m, double *gate, const double *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = m->gpt_oss ? fmin(gate[i], 7) : gate[i], slope = m->gpt_oss ? 1.702 : 1;
        gate[i] = m->gelu ? x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
                          : x / (1 + exp(-slope * x));
        gate[i] *= m->gpt_oss ? fmax(-7, fmin(7, up[i])) + 1 : up[i];
    }
}

/* Experts' weights for a token with these logits, 0 for those that are not chosen. */
static void weigh_experts(const model *m, const double *logits, const float *bias, int64_t n_experts,
                          double *weights)
{
    int64_t n_used = (int64_t)key(m, "expert_used_count", 0);
    double all = 0, chosen = 0, *p = malloc((size_t)n_experts * sizeof *p);
    assert_non_null(p);
    for (int64_t e = 0; e < n_experts; e++)
        all += exp(logits[e]);
    for (int64_t e = 0; e < n_experts; e++)
        p[e] = m->sigmoids ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / all;
    for (int64_t e = 0; e < n_experts; e++) {
        int64_t before = 0;
        double mine = p[e] + (bias ? (double)bias[e] : 0);
        for (int64_t i = 0; i < n_experts; i++) {
            double other = p[i] + (bias ? (double)bias[i] : 0);
            before += other > mine || (other == mine && i < e);
        }
        weights[e] = before < n_used ? p[e] : 0;
        chosen += weights[e];
    }
    for (int64_t e = 0; e < n_experts; e++)
        weights[e] *= key(m, "expert_weights_scale", 1) / (m->over_all ? 1 : chosen);
    free(p);
}

/* down(act(gate h) up h), matrices called ffn_<kind><suffix>;
 * of expert e, where they are those of several. */
static double *gated(const model *m, int64_t l, const char *suffix, int64_t e, int64_t n_ff, const double *h,
                     int64_t n)
{
    char gate_name[32], up_name[32], down_name[32];
    snprintf(gate_name, sizeof gate_name, "ffn_gate%s", suffix);
    snprintf(up_name, sizeof up_name, "ffn_up%s", suffix);
    snprintf(down_name, sizeof down_name, "ffn_down%s", suffix);
    double *gate = project(m, l, gate_name, e * n_ff, m->n_embd, n_ff, h, n);
    double *up = project(m, l, up_name, e * n_ff, m->n_embd, n_ff, h, n);
    multiply_gated(m, gate, up, n * n_ff);
    double *y = project(m, l, down_name, e * m->n_embd, n_ff, m->n_embd, gate, n);
    free(gate);
    free(up);
    return y;
}

/* y += what the experts give that every token uses, by its part of them. */
static void add_shared(const model *m, int64_t l, const double *h, int64_t n, double *y)
{
    const tsr_gguf_tensor *up = find(m, l, "ffn_up_shexp.weight");
    float *part = rows(m, l, "ffn_gate_inp_shexp.weight", 0, m->n_embd);
    double *shared = gated(m, l, "_shexp", 0, up->ne[1], h, n);
    for (int64_t t = 0; t < n; t++) {
        double logit = 0;
        if (part)
            linear(part, NULL, h + t * m->n_embd, m->n_embd, 1, &logit);
        for (int64_t i = 0; i < m->n_embd; i++)
            y[t * m->n_embd + i] += shared[t * m->n_embd + i] * (part ? 1 / (1 + exp(-logit)) : 1);
    }
    free(part);
    free(shared);
}

static double *mixture(const model *m, int64_t l, const double *h, int64_t n)
{
    int64_t n_experts = (int64_t)key(m, "expert_count", 0);
    double *logits = project(m, l, "ffn_gate_inp", 0, m->n_embd, n_experts, h, n);
    double *weights = malloc((size_t)(n * n_experts) * sizeof *weights);
    double *y = calloc((size_t)(n * m->n_embd), sizeof *y);
    float *bias = rows(m, l, "exp_probs_b.bias", 0, n_experts);
    assert_true(weights && y);
    for (int64_t t = 0; t < n; t++)
        weigh_experts(m, logits + t * n_experts, bias, n_experts, weights + t * n_experts);
    for (int64_t e = 0; e < n_experts; e++) {
        double *of_expert = gated(m, l, "_exps", e, m->n_ff_expert, h, n);
        for (int64_t i = 0; i < n * m->n_embd; i++)
            y[i] += weights[i / m->n_embd * n_experts + e] * of_expert[i];
        free(of_expert);
    }
    if (find(m, l, "ffn_up_shexp.weight"))
        add_shared(m, l, h, n, y);
    free(bias);
    free(weights);
    free(logits);
    return y;
}

/* down(act(up x)): GELU, or the square of ReLU. */
static double *ungated(const model *m, int64_t l, const double *h, int64_t n)
{
    double *up = project(m, l, "ffn_up", 0, m->n_embd, m->n_ff, h, n);
    bool squared = is_one_of(m->arch, "nemotron arcee");
    for (int64_t i = 0; i < n * m->n_ff; i++) {
        double x = up[i];
        up[i] = squared ? (x > 0 ? x * x : 0) : x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    }
    double *y = project(m, l, "ffn_down", 0, m->n_ff, m->n_embd, up, n);
    free(up);
    return y;
}

static double *feed_forward(const model *m, int64_t l, const double *h, int64_t n)
{
    if (is_one_of(m->arch, "starcoder2 nemotron gptneox phi2 falcon arcee"))
        return ungated(m, l, h, n);
    if (l >= m->n_dense && find(m, l, "ffn_gate_inp.weight"))
        return mixture(m, l, h, n);
    if (find(m, l, "ffn_gate.weight"))
        return gated(m, l, "", 0, m->n_ff, h, n);
    double *gate = project(m, l, "ffn_up", 0, m->n_embd, m->n_ff, h, n); /* both are one tensor */
    double *up = project(m, l, "ffn_up", m->n_ff, m->n_embd, m->n_ff, h, n);
    multiply_gated(m, gate, up, n * m->n_ff);
    double *y = project(m, l, "ffn_down", 0, m->n_ff, m->n_embd, gate, n);
    free(gate);
    free(up);
    return y;
}

/* x += scale * post(block(pre(x))) */
static void add_block(const model *m, int64_t l,
                      double *(*block)(const model *, int64_t, const double *, int64_t), const char *pre,
                      const char *post, double *x, int64_t n)
{
    double *h = malloc((size_t)(n * m->n_embd) * sizeof *h);
    assert_non_null(h);
    memcpy(h, x, (size_t)(n * m->n_embd) * sizeof *h);
    for (int64_t t = 0; t < n; t++)
        named_norm(m, l, pre, m->n_embd, h + t * m->n_embd);
    double *y = block(m, l, h, n);
    for (int64_t t = 0; post && t < n; t++)
        named_norm(m, l, post, m->n_embd, y + t * m->n_embd);
    for (int64_t i = 0; i < n * m->n_embd; i++)
        x[i] += m->residual_scale * y[i];
    free(h);
    free(y);
}

/* x + attention(norm(x)) + ffn(norm'(x)) */
static void add_parallel_blocks(const model *m, int64_t l, double *x, int64_t n)
{
    size_t bytes = (size_t)(n * m->n_embd) * sizeof *x;
    double *of_attention = malloc(bytes), *of_ffn = malloc(bytes);
    assert_true(of_attention && of_ffn);
    memcpy(of_attention, x, bytes);
    memcpy(of_ffn, x, bytes);
    bool own = find(m, l, "attn_norm_2.weight"), shared = !find(m, l, "ffn_norm.weight");
    add_block(m, l, attention, own ? "attn_norm_2.weight" : "attn_norm.weight", "none", of_attention, n);
    add_block(m, l, feed_forward, shared ? "attn_norm.weight" : "ffn_norm.weight", "none", of_ffn, n);
    for (int64_t i = 0; i < n * m->n_embd; i++)
        x[i] = of_attention[i] + of_ffn[i] - x[i];
    free(of_attention);
    free(of_ffn);
}

double *decoder_reference(const char *path, const int32_t *tokens, int64_t n, int64_t n_ctx)
{
    model m = {.n_ctx = n_ctx};
    runner_ok(tsr_gguf_open(path, NULL, &m.gguf), path);
    read_model(&m);
    read_family(&m);
    double *x = malloc((size_t)(n * m.n_embd) * sizeof *x);
    assert_non_null(x);
    for (int64_t t = 0; t < n; t++) {
        float *row = rows(&m, -1, "token_embd.weight", tokens[t], 1);
        for (int64_t i = 0; i < m.n_embd; i++)
            x[t * m.n_embd + i] = m.embedding_scale * (double)row[i];
        free(row);
    }
    const char *const post = "post_attention_norm.weight";
    for (int64_t l = 0; l < m.n_layers; l++) {
        if (m.parallel) {
            add_parallel_blocks(&m, l, x, n);
            continue;
        }
        add_block(&m, l, attention, "attn_norm.weight", m.other_norm ? NULL : post, x, n);
        add_block(&m, l, feed_forward, m.other_norm ? post : "ffn_norm.weight", "post_ffw_norm.weight", x, n);
    }
    for (int64_t t = 0; t < n; t++)
        named_norm(&m, -1, "output_norm.weight", m.n_embd, x + t * m.n_embd);
    double *logits = project(&m, -1, find(&m, -1, "output.weight") ? "output" : "token_embd", 0, m.n_embd,
                             m.n_vocab, x, n);
    for (int64_t i = 0; i < n * m.n_vocab; i++) {
        logits[i] *= m.logit_scale;
        if (m.logit_cap > 0)
            logits[i] = m.logit_cap * tanh(logits[i] / m.logit_cap);
    }
    free(x);
    tsr_gguf_close(m.gguf);
    return logits;
}
