/* Architectures as synth_model.h writes them: which tensors a layer has, and keys that only they have, with
 * numbers that make a difference in a model of a few layers and a text of a few tokens. */
#ifndef TSR_TESTS_SYNTH_ARCH_H
#define TSR_TESTS_SYNTH_ARCH_H

#include <stdbool.h>
#include <stddef.h>

enum {
    SYNTH_QKV_BIASES = 1 << 0,
    SYNTH_OTHER_BIASES = 1 << 1, /* of W_o and the FFN */
    SYNTH_HEAD_NORMS = 1 << 2,   /* of queries and keys, head by head */
    SYNTH_WIDE_NORMS = 1 << 3,   /* of queries and keys, all heads at once */
    SYNTH_POST_NORMS = 1 << 4,
    SYNTH_NO_PRE_NORMS = 1 << 5,
    SYNTH_FUSED_QKV = 1 << 6,
    SYNTH_FUSED_FFN = 1 << 7,
    SYNTH_LONGROPE = 1 << 8,     /* factors for short and long contexts */
    SYNTH_HALF_ROTATED = 1 << 9, /* half of every head (rounded down to pairs) */
    SYNTH_EXPERTS = 1 << 10,     /* also by n_experts of the config */
    SYNTH_EXPERT_BIASES = 1 << 11,
    SYNTH_ROUTER_BIAS = 1 << 12, /* on the logits */
    SYNTH_SINKS = 1 << 13,
    SYNTH_OTHER_FFN_NORM = 1 << 14, /* is called post_attention_norm */
    SYNTH_SHARED = 1 << 15,         /* experts that every token uses, of expert_shared_feed_forward_length */
    SYNTH_SHARED_GATE = 1 << 16,
    SYNTH_CHOICE_BIAS = 1 << 17, /* of the router, for choosing only */
    SYNTH_DENSE_FIRST = 1 << 18, /* a dense FFN in the first layer, of other length than experts */
    SYNTH_PREDICTION = 1 << 19   /* the last layer has a tensor of prediction layers */
};

enum {
    SYNTH_LAYER_NORM = 1 << 20, /* only a key; norms are LayerNorms */
    SYNTH_NORM_BIASES = 1 << 21,
    SYNTH_NO_GATE = 1 << 22, /* an FFN of up and down */
    SYNTH_NO_FFN_NORM = 1 << 23,
    SYNTH_ATTENTION_NORM = 1 << 24, /* attention's own, attn_norm_2 */
    SYNTH_OUTPUT_BIAS = 1 << 25,
    SYNTH_SEQUENTIAL = 1 << 26, /* a key against parallel blocks */
    SYNTH_HEADS_NORMS = 1 << 27 /* of queries and keys, with a weight for each head */
};

struct synth_key {
    const char *suffix;
    double value;
    bool real;
    int n; /* an array of this length, all of the same value; 0: no array */
};

struct synth_arch {
    const char *title; /* where one architecture is here in several forms */
    const char *name;  /* general.architecture */
    unsigned parts;
    struct synth_key keys[10]; /* ends with a NULL suffix */
};

extern const struct synth_arch synth_archs[];
extern const size_t n_synth_archs;

#endif
