#!/usr/bin/env python3
"""Expected logits of tests/test_prediction.c and tests/test_prediction_edited.c, in double: the prediction layers
of the recorded models (../shared/ref/hf), and those that the latter test adds to others, by their formulas, from
their GGUF files alone. Needs numpy.

    python3 tests/predictions/make.py >tests/predictions/expected.inc
    python3 tests/predictions/make.py edited >tests/predictions/edited.inc
"""
import struct
import sys

import numpy as np

FOLDER = "../shared/ref/hf/"
N_TOKENS = 40
STEP = 8  # every so many logits are kept


def read_gguf(path):
    data = open(path, "rb").read()
    at = 0

    def take(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize("<" + code)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    take("I"), take("I")
    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = text()
        ne = [take("Q") for _ in range(take("I"))]
        kind, offset = take("I"), take("Q")
        assert kind == 0, "all tensors are F32"
        infos.append((name, ne, offset))
    start = (at + 31) // 32 * 32
    tensors = {name: np.frombuffer(data, "<f4", int(np.prod(ne)), start + offset).astype(float).reshape(ne[::-1])
               for name, ne, offset in infos}
    return keys, tensors


class Model:
    def __init__(self, folder):
        keys, self.tensors = read_gguf(FOLDER + folder + "/model.gguf")
        self.arch = keys["general.architecture"]
        self.keys = keys
        self.layer = self["block_count"] - 1
        self.eps = keys.get(self.arch + ".attention.layer_norm_rms_epsilon")
        if self.eps is None:
            self.eps = self["attention.layer_norm_epsilon"]

    def __getitem__(self, suffix):
        return self.keys[self.arch + "." + suffix]

    def w(self, name):
        return self.tensors[f"blk.{self.layer}.{name}.weight"]

    def get(self, suffix, default):
        return self.keys.get(self.arch + "." + suffix, default)

    def of_layer(self, suffix):
        value = self[suffix]
        return value[self.layer] if isinstance(value, list) else value

    def maybe(self, name, other):
        return self.tensors.get(f"blk.{self.layer}.{name}.weight", self.tensors[other + ".weight"])

    def copy(self, to, source):
        """Tensors whose names begin with `source`, once more under names that begin with `to`."""
        names = [name for name in self.tensors if name.startswith(source)]
        assert names
        self.tensors.update({to + name[len(source):]: self.tensors[name] for name in names})

    def predicts(self, layer):
        """Layer `layer` becomes a prediction layer (NEXTN in the test)."""
        n = self["embedding_length"]
        self.layer = layer
        self.tensors[f"blk.{layer}.nextn.eh_proj.weight"] = simple_numbers(n, 2 * n)
        for norm in ("enorm", "hnorm"):
            self.tensors[f"blk.{layer}.nextn.{norm}.weight"] = np.ones(n)

    def rms(self, x, weight):
        if self.arch == "cohere2moe":
            x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * weight


def simple_numbers(*shape):
    i = np.arange(np.prod(shape), dtype=np.uint64)
    return ((i * 2654435761 % 2**32 >> 16) / 65536 - 0.5).reshape(shape)


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rotate(x, base, n_rot, pairs):
    """The first n_rot elements of x [position, head, element]."""
    angle = np.arange(x.shape[0])[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    y = x.copy()
    a = slice(0, n_rot, 2) if pairs else slice(0, n_rot // 2)
    b = slice(1, n_rot, 2) if pairs else slice(n_rot // 2, n_rot)
    y[..., a] = x[..., a] * cos - x[..., b] * sin
    y[..., b] = x[..., b] * cos + x[..., a] * sin
    return y


def attend(q, k, v, scale, seen=None):
    """Causal, [position, head, element] each; seen[position of q, position of k]."""
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    scores = np.where(np.tri(len(q), dtype=bool) if seen is None else seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)


def attention_qwen35(m, x):
    n, heads, kv, dim = len(x), m["attention.head_count"], m["attention.head_count_kv"], m["attention.key_length"]
    q, gate = np.split((x @ m.w("attn_q").T).reshape(n, heads, 2 * dim), 2, -1)
    k, v = ((x @ m.w(name).T).reshape(n, kv, dim) for name in ("attn_k", "attn_v"))
    q, k = m.rms(q, m.w("attn_q_norm")), m.rms(k, m.w("attn_k_norm"))
    q, k = (rotate(y, m["rope.freq_base"], m["rope.dimension_count"], False) for y in (q, k))
    k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
    y = attend(q, k, v, dim ** -0.5) * sigmoid(gate)
    return y.reshape(n, -1) @ m.w("attn_output").T


def attention_plain(m, x):
    """Of bailingmoe2, with norms of heads and a rotation, cohere2moe, with a rotation, or nemotron_h_moe."""
    n, heads, kv, dim = len(x), m["attention.head_count"], m.of_layer("attention.head_count_kv"), m["attention.key_length"]
    if m.arch == "bailingmoe2":
        q, k, v = np.split(x @ m.w("attn_qkv").T, [heads * dim, (heads + kv) * dim], -1)
    else:
        q, k, v = (x @ m.w(name).T for name in ("attn_q", "attn_k", "attn_v"))
    q, k, v = (y.reshape(n, -1, dim) for y in (q, k, v))
    if m.arch == "bailingmoe2":
        q, k = m.rms(q, m.w("attn_q_norm")), m.rms(k, m.w("attn_k_norm"))
    if m.arch != "nemotron_h_moe":
        pairs = m.arch == "cohere2moe"
        q, k = (rotate(y, m["rope.freq_base"], m["rope.dimension_count"], pairs) for y in (q, k))
    k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
    return attend(q, k, v, dim ** -0.5).reshape(n, -1) @ m.w("attn_output").T


def selected(m, x, q_input):
    """Positions that each token sees by the index of glm-dsa."""
    n, heads, dim = len(x), m["attention.indexer.head_count"], m["attention.indexer.key_length"]
    k = x @ m.w("indexer.attn_k").T
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6) * m.w("indexer.k_norm")
    k = k + m.tensors[f"blk.{m.layer}.indexer.k_norm.bias"]
    q = (q_input @ m.w("indexer.attn_q_b").T).reshape(n, heads, dim)
    q, k = (rotate(y, m["rope.freq_base"], m["rope.dimension_count"], True) for y in (q, k[:, None]))
    scores = np.maximum(np.einsum("ihd,jkd->hij", q, k), 0)
    scores = np.einsum("ih,hij->ij", x @ m.w("indexer.proj").T, scores)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    seen = np.zeros((n, n), dtype=bool)
    for t in range(n):
        seen[t, np.argsort(-scores[t], kind="stable")[:m["attention.indexer.top_k"]]] = True
    return seen & np.tri(n, dtype=bool)


def attention_deepseek2(m, x):
    n, heads, rank = len(x), m["attention.head_count"], m["attention.kv_lora_rank"]
    n_rot, dim = m["rope.dimension_count"], m["attention.key_length_mla"]
    c = m.rms(x @ m.w("attn_q_a").T, m.w("attn_q_a_norm"))
    seen = selected(m, x, c) if m.arch == "glm-dsa" else None
    q = (c @ m.w("attn_q_b").T).reshape(n, heads, dim)
    row = x @ m.w("attn_kv_a_mqa").T
    c, r = m.rms(row[:, :rank], m.w("attn_kv_a_norm")), row[:, None, rank:]
    base = m["rope.freq_base"]
    q = np.concatenate([q[..., :dim - n_rot], rotate(q[..., dim - n_rot:], base, n_rot, True)], -1)
    r = np.repeat(rotate(r, base, n_rot, True), heads, 1)
    k = np.concatenate([np.einsum("nc,hcd->nhd", c, m.w("attn_k_b")), r], -1)
    v = np.einsum("nc,hdc->nhd", c, m.w("attn_v_b"))
    return attend(q, k, v, dim ** -0.5, seen).reshape(n, -1) @ m.w("attn_output").T


def ffn(m, x, suffix="", expert=...):
    up, down = (m.w(f"ffn_{part}{suffix}")[expert] for part in ("up", "down"))
    if m.arch == "nemotron_h_moe":
        return np.maximum(x @ up.T, 0) ** 2 @ down.T
    return (silu(x @ m.w(f"ffn_gate{suffix}")[expert].T) * (x @ up.T)) @ down.T


def experts(m, x):
    s = sigmoid(x @ m.w("ffn_gate_inp").T)
    choice = (s + m.tensors.get(f"blk.{m.layer}.exp_probs_b.bias", 0)).reshape(len(x), m.get("expert_group_count", 1), -1)
    groups = np.argsort(-np.sort(choice, -1)[..., -2:].sum(-1), -1)[:, m.get("expert_group_used_count", 1):]
    np.put_along_axis(choice, groups[..., None], -np.inf, 1)
    chosen = np.argsort(-choice.reshape(s.shape), -1)[:, :m["expert_used_count"]]
    y = ffn(m, x, "_shexp")
    for t in range(len(x)):
        weights = s[t, chosen[t]]
        weights *= m.get("expert_weights_scale", 1) / weights.sum()
        for e, weight in zip(chosen[t], weights):
            y[t] += weight * ffn(m, x[t], "_exps", e)
    return y / 2 if m.arch == "cohere2moe" else y


def predict(m, hidden, tokens):
    e = m.maybe("nextn.embed_tokens", "token_embd")[tokens]
    x = np.concatenate([m.rms(e, m.w("nextn.enorm")), m.rms(hidden, m.w("nextn.hnorm"))], -1) @ m.w("nextn.eh_proj").T
    h = m.rms(x, m.w("attn_norm"))
    x = x + ATTENTION.get(m.arch, attention_plain)(m, h)
    if m.arch == "cohere2moe":
        x = x + experts(m, h)
    elif m.arch == "qwen35":
        x = x + ffn(m, m.rms(x, m.w("post_attention_norm")))
    else:
        x = x + experts(m, m.rms(x, m.w("ffn_norm")))
    own = "layer_output_norm" if m.arch == "bailingmoe2" else "nextn.shared_head_norm"
    x = m.rms(x, m.maybe(own, "output_norm"))
    output = "output" if "output.weight" in m.tensors else "token_embd"
    return x @ m.maybe("nextn.shared_head_head", output).T * m.get("logit_scale", 1)


ATTENTION = {"qwen35": attention_qwen35, "deepseek2": attention_deepseek2, "glm-dsa": attention_deepseek2}


def recorded():
    return [(folder, Model(folder)) for folder in ("qwen35-mtp", "glm4-moe-lite-mtp")]


def edited():
    """The models of the tests' tables."""
    folders = ("glm-dsa", "nemotron_h_moe", "bailingmoe2", "cohere2moe")
    glm, nemotron, bailing, cohere = models = [Model(folder) for folder in folders]
    glm.predicts(3)
    glm.copy("blk.3.indexer.", "blk.2.indexer.")
    nemotron.predicts(7)
    nemotron.keys["nemotron_h_moe.attention.head_count_kv"].append(2)
    for name in ("attn_norm.weight", "attn_q.", "attn_k.", "attn_v.", "attn_output."):
        nemotron.copy("blk.7." + name, "blk.3." + name)
    nemotron.copy("blk.7.ffn_", "blk.6.ffn_")
    nemotron.copy("blk.7.exp_probs_b.", "blk.6.exp_probs_b.")
    nemotron.copy("blk.7.ffn_norm.weight", "blk.6.attn_norm.weight")
    bailing.predicts(3)
    bailing.copy("blk.3.layer_output_norm.weight", "blk.0.attn_norm.weight")
    cohere.predicts(4)
    return zip(folders, models)


def main():
    print("/* Written by tests/predictions/make.py: logits of the last of 40 tokens, every eighth. */")
    for folder, m in edited() if "edited" in sys.argv else recorded():
        n_embd, t = m["embedding_length"], np.arange(N_TOKENS)
        tokens = (t * 37 + 11) % 320
        hidden = ((t[:, None] * 37 + np.arange(n_embd)[None] * 101) % 64 - 32) / 16
        logits = predict(m, hidden, tokens)[-1]
        print(f'{{"{folder}",\n {{', end="")
        print(",\n  ".join(", ".join(f"{v:.9g}" for v in row) for row in logits[::STEP].reshape(-1, 5)), end="}},\n")


main()
