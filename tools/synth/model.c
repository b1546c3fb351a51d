/* The tensors of a shape, with the names and extents that files of its architecture have (llama.cpp's
 * gguf-py/gguf/constants.py). */
#include <stdlib.h>
#include <string.h>

#include "synth/family.h"

enum { MOST_TENSORS_PER_LAYER = 32 };

typedef struct list {
    const synth_model *model;
    synth_tensor *at;
    int n;
} list;

/* Extents of 0 are omitted; layer -1: outside layers. */
static void add(list *l, int layer, const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
{
    synth_tensor *t = &l->at[l->n++];
    *t = (synth_tensor){.layer = layer,
                        .n_dims = 1 + (ne1 > 0) + (ne2 > 0),
                        .ne = {ne0, ne1 > 0 ? ne1 : 1, ne2 > 0 ? ne2 : 1}};
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->type = synth_tensor_type(l->model, t);
}

static void add_qkv(list *l, int layer, const synth_heads *h)
{
    const synth_shape *s = &l->model->shape;
    int64_t n_q = (int64_t)h->n_head * h->head_dim, n_kv = (int64_t)h->n_head_kv * h->head_dim;
    if (synth_has(s, SYNTH_FUSED_QKV)) {
        add(l, layer, "attn_qkv.weight", s->n_embd, n_q + 2 * n_kv, 0);
        return;
    }
    add(l, layer, "attn_q.weight", s->n_embd, synth_has(s, SYNTH_GATED_QUERIES) ? 2 * n_q : n_q, 0);
    add(l, layer, "attn_k.weight", s->n_embd, n_kv, 0);
    if (h->windowed || !synth_has(s, SYNTH_KEYS_ARE_VALUES))
        add(l, layer, "attn_v.weight", s->n_embd, n_kv, 0);
    if (synth_has(s, SYNTH_QKV_BIASES)) {
        add(l, layer, "attn_q.bias", n_q, 0, 0);
        add(l, layer, "attn_k.bias", n_kv, 0, 0);
        add(l, layer, "attn_v.bias", n_kv, 0, 0);
    }
}

static void add_attention(list *l, int layer, const synth_heads *h)
{
    const synth_shape *s = &l->model->shape;
    const bool wide = synth_has(s, SYNTH_WIDE_NORMS);
    int64_t n_q = (int64_t)h->n_head * h->head_dim;
    add_qkv(l, layer, h);
    add(l, layer, "attn_output.weight", n_q, s->n_embd, 0);
    if (synth_has(s, SYNTH_OUTPUT_BIAS))
        add(l, layer, "attn_output.bias", s->n_embd, 0, 0);
    if (synth_has(s, SYNTH_SINKS))
        add(l, layer, "attn_sinks.weight", h->n_head, 0, 0);
    if (wide || synth_has(s, SYNTH_HEAD_NORMS)) {
        add(l, layer, "attn_q_norm.weight", wide ? n_q : h->head_dim, 0, 0);
        add(l, layer, "attn_k_norm.weight", (wide ? h->n_head_kv : 1) * (int64_t)h->head_dim, 0, 0);
    }
    if (synth_has(s, SYNTH_ELEMENT_GATE))
        add(l, layer, "attn_gate.weight", s->n_embd, n_q, 0);
    if (synth_has(s, SYNTH_HEAD_GATE))
        add(l, layer, "attn_gate.weight", s->n_embd, h->n_head, 0);
}

static void add_latent(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    const synth_latent *a = &s->latent;
    add(l, layer, "attn_q_a.weight", s->n_embd, a->q_rank, 0);
    add(l, layer, "attn_q_a_norm.weight", a->q_rank, 0, 0);
    add(l, layer, "attn_q_b.weight", a->q_rank, (int64_t)s->n_head * (a->n_plain + a->n_rot), 0);
    add(l, layer, "attn_kv_a_mqa.weight", s->n_embd, a->kv_rank + a->n_rot, 0);
    add(l, layer, "attn_kv_a_norm.weight", a->kv_rank, 0, 0);
    add(l, layer, "attn_k_b.weight", a->n_plain, a->kv_rank, s->n_head);
    add(l, layer, "attn_v_b.weight", a->kv_rank, s->head_dim, s->n_head);
    add(l, layer, "attn_output.weight", (int64_t)s->n_head * s->head_dim, s->n_embd, 0);
}

static void add_recurrence(list *l, int layer, const synth_heads *h)
{
    const synth_shape *s = &l->model->shape;
    int64_t n_k = (int64_t)h->n_head_kv * h->head_dim, n_v = (int64_t)h->n_head * h->head_dim;
    add(l, layer, "attn_qkv.weight", s->n_embd, 2 * n_k + n_v, 0);
    add(l, layer, "attn_gate.weight", s->n_embd, n_v, 0);
    add(l, layer, "ssm_conv1d.weight", SYNTH_CONV_KERNEL, 2 * n_k + n_v, 0);
    if (synth_has(s, SYNTH_FUSED_ALPHA_BETA)) {
        add(l, layer, "ssm_ba.weight", s->n_embd, 2 * (int64_t)h->n_head, 0);
    } else {
        add(l, layer, "ssm_alpha.weight", s->n_embd, h->n_head, 0);
        add(l, layer, "ssm_beta.weight", s->n_embd, h->n_head, 0);
    }
    add(l, layer, "ssm_a", h->n_head, 0, 0);
    add(l, layer, "ssm_dt.bias", h->n_head, 0, 0);
    add(l, layer, "ssm_norm.weight", h->head_dim, 0, 0);
    add(l, layer, "ssm_out.weight", n_v, s->n_embd, 0);
}

static void add_mixer(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    const synth_heads h = synth_heads_of(s, layer);
    if (!synth_has(s, SYNTH_NO_PRE_NORMS))
        add(l, layer, "attn_norm.weight", s->n_embd, 0, 0);
    if (s->latent.kv_rank > 0)
        add_latent(l, layer);
    else if (h.recurrent)
        add_recurrence(l, layer, &h);
    else
        add_attention(l, layer, &h);
}

static void add_shared_experts(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    const int n_ff = s->n_ff_shared ? s->n_ff_shared : s->n_ff_expert;
    add(l, layer, "ffn_gate_shexp.weight", s->n_embd, n_ff, 0);
    add(l, layer, "ffn_up_shexp.weight", s->n_embd, n_ff, 0);
    add(l, layer, "ffn_down_shexp.weight", n_ff, s->n_embd, 0);
    if (synth_has(s, SYNTH_SHARED_GATE))
        add(l, layer, "ffn_gate_inp_shexp.weight", s->n_embd, 0, 0);
}

static void add_expert_biases(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add(l, layer, "ffn_gate_inp.bias", s->n_expert, 0, 0);
    add(l, layer, "ffn_gate_exps.bias", s->n_ff_expert, s->n_expert, 0);
    add(l, layer, "ffn_up_exps.bias", s->n_ff_expert, s->n_expert, 0);
    add(l, layer, "ffn_down_exps.bias", s->n_embd, s->n_expert, 0);
}

static void add_experts(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add(l, layer, "ffn_gate_inp.weight", s->n_embd, s->n_expert, 0);
    if (synth_has(s, SYNTH_FUSED_GATE_UP)) {
        add(l, layer, "ffn_gate_up_exps.weight", s->n_embd, 2 * (int64_t)s->n_ff_expert, s->n_expert);
    } else {
        add(l, layer, "ffn_gate_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
        add(l, layer, "ffn_up_exps.weight", s->n_embd, s->n_ff_expert, s->n_expert);
    }
    add(l, layer, "ffn_down_exps.weight", s->n_ff_expert, s->n_embd, s->n_expert);
    if (synth_has(s, SYNTH_EXPERT_BIASES))
        add_expert_biases(l, layer);
    if (synth_has(s, SYNTH_CHOICE_BIAS))
        add(l, layer, "exp_probs_b.bias", s->n_expert, 0, 0);
    if (synth_has(s, SYNTH_SHARED_EXPERT))
        add_shared_experts(l, layer);
    if (synth_has(s, SYNTH_DENSE_TOO)) {
        add(l, layer, "ffn_gate_inp.scale", s->n_embd, 0, 0);
        add(l, layer, "ffn_down_exps.scale", s->n_expert, 0, 0);
        add(l, layer, "post_ffw_norm_1.weight", s->n_embd, 0, 0);
        add(l, layer, "pre_ffw_norm_2.weight", s->n_embd, 0, 0);
        add(l, layer, "post_ffw_norm_2.weight", s->n_embd, 0, 0);
    }
}

static void add_layer_input(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add(l, layer, "inp_gate.weight", s->n_embd, s->n_layer_input, 0);
    add(l, layer, "proj.weight", s->n_layer_input, s->n_embd, 0);
    add(l, layer, "post_norm.weight", s->n_embd, 0, 0);
}

static void add_layer(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    const bool experts = s->n_expert && layer >= s->n_dense_layers &&
                         (s->expert_step == 0 || (layer + 1) % s->expert_step == 0);
    add_mixer(l, layer);
    if (synth_has(s, SYNTH_POST_NORMS))
        add(l, layer, "post_attention_norm.weight", s->n_embd, 0, 0);
    if (!synth_has(s, SYNTH_NO_PRE_NORMS))
        add(l, layer, synth_has(s, SYNTH_RENAMED_NORM) ? "post_attention_norm.weight" : "ffn_norm.weight",
            s->n_embd, 0, 0);
    if (!experts || synth_has(s, SYNTH_DENSE_TOO)) {
        add(l, layer, "ffn_gate.weight", s->n_embd, s->n_ff, 0);
        add(l, layer, "ffn_up.weight", s->n_embd, s->n_ff, 0);
        add(l, layer, "ffn_down.weight", s->n_ff, s->n_embd, 0);
    }
    if (experts)
        add_experts(l, layer);
    if (synth_has(s, SYNTH_POST_NORMS))
        add(l, layer, "post_ffw_norm.weight", s->n_embd, 0, 0);
    if (s->n_layer_input)
        add_layer_input(l, layer);
    if (synth_has(s, SYNTH_OUTPUT_SCALE))
        add(l, layer, "layer_output_scale.weight", 1, 0, 0);
}

/* The layer that predicts further tokens: a layer like others and what joins its two inputs. */
static void add_nextn(list *l, int layer)
{
    const synth_shape *s = &l->model->shape;
    add_layer(l, layer);
    add(l, layer, "nextn.eh_proj.weight", 2 * (int64_t)s->n_embd, s->n_embd, 0);
    add(l, layer, "nextn.embed_tokens.weight", s->n_embd, s->n_vocab, 0);
    add(l, layer, "nextn.enorm.weight", s->n_embd, 0, 0);
    add(l, layer, "nextn.hnorm.weight", s->n_embd, 0, 0);
    add(l, layer, "nextn.shared_head_head.weight", s->n_embd, s->n_vocab, 0);
    add(l, layer, "nextn.shared_head_norm.weight", s->n_embd, 0, 0);
}

synth_tensor *synth_tensors(const synth_model *model, int *n_out)
{
    const synth_shape *s = &model->shape;
    list l = {.model = model};
    l.at = calloc(((size_t)s->n_layers + 1) * MOST_TENSORS_PER_LAYER + 8, sizeof *l.at);
    if (!l.at)
        return NULL;
    add(&l, -1, "token_embd.weight", s->n_embd, s->n_vocab, 0);
    if (s->n_layer_input) {
        const int64_t all = (int64_t)s->n_layer_input * s->n_layers;
        add(&l, -1, "per_layer_token_embd.weight", all, s->n_vocab, 0);
        add(&l, -1, "per_layer_model_proj.weight", s->n_embd, all, 0);
        add(&l, -1, "per_layer_proj_norm.weight", s->n_layer_input, 0, 0);
    }
    for (int layer = 0; layer < s->n_layers; layer++)
        add_layer(&l, layer);
    if (synth_has(s, SYNTH_NEXTN))
        add_nextn(&l, s->n_layers);
    add(&l, -1, "output_norm.weight", s->n_embd, 0, 0);
    if (!synth_has(s, SYNTH_TIED))
        add(&l, -1, "output.weight", s->n_embd, s->n_vocab, 0);
    if (synth_has(s, SYNTH_ROPE_FACTORS))
        add(&l, -1, "rope_freqs.weight", s->head_dim / 2, 0, 0);
    *n_out = l.n;
    return l.at;
}
