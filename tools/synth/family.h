/* What the architectures of synthetic models are made of. */
#ifndef TSR_TOOLS_SYNTH_FAMILY_H
#define TSR_TOOLS_SYNTH_FAMILY_H

#include "synth/synth.h"

/* What the layers of an architecture have besides a llama's; bits above those of a shape's parts. */
enum {
    SYNTH_QKV_BIASES = 1 << 8,
    SYNTH_OUTPUT_BIAS = 1 << 9,    /* of attention */
    SYNTH_POST_NORMS = 1 << 10,    /* behind attention and FFN */
    SYNTH_NO_PRE_NORMS = 1 << 11,  /* before them */
    SYNTH_RENAMED_NORM = 1 << 12,  /* the norm before the FFN is called post_attention_norm */
    SYNTH_SINKS = 1 << 13,         /* of every head */
    SYNTH_EXPERT_BIASES = 1 << 14, /* and of the router */
    SYNTH_CHOICE_BIAS = 1 << 15,   /* on the choice of experts */
    SYNTH_SIGMOIDS = 1 << 16,      /* choose experts */
    SYNTH_SHARED_EXPERT = 1 << 17,
    SYNTH_SHARED_GATE = 1 << 18,   /* a factor per token on the shared experts */
    SYNTH_FUSED_GATE_UP = 1 << 19, /* of experts */
    SYNTH_DENSE_TOO = 1 << 20,     /* a dense FFN in layers with experts */
    SYNTH_FUSED_QKV = 1 << 21,
    SYNTH_WIDE_NORMS = 1 << 22,    /* one norm over all query heads, and one over all key heads */
    SYNTH_ELEMENT_GATE = 1 << 23,  /* of every element of attention's result */
    SYNTH_HEAD_GATE = 1 << 24,     /* of every head of attention's result */
    SYNTH_GATED_QUERIES = 1 << 25, /* gates of elements are rows of attn_q */
    SYNTH_FUSED_ALPHA_BETA = 1 << 26,
    SYNTH_OUTPUT_SCALE = 1 << 27, /* a factor on the result of a layer */
    SYNTH_FULL_FIRST = 1 << 28    /* the layer without a window is the first of a period, not the last */
};

enum {
    SYNTH_CONV_KERNEL = 4 /* tokens that a convolution before a recurrence sees */,
    SYNTH_MOST_LAYERS = 128
};

typedef struct synth_family {
    const char *architecture;
    unsigned parts;
    int window;        /* of some layers; 0: of none, or the shape says it */
    float rope_factor; /* by which the context is stretched; 0: it is not */
    int n_ctx_orig;    /* before stretching by YaRN; 0: linear */
    int rotated;       /* one in this many elements of a head has a rotation; 0: all of them */
    int period;        /* layers of which one has no window, or attention instead of a recurrence */
} synth_family;

const synth_family *synth_family_of(const synth_shape *shape);

/* Whether the shape or its architecture has a part. */
bool synth_has(const synth_shape *shape, unsigned part);

/* A layer's attention, or its recurrence; further layers are prediction layers. */
typedef struct synth_heads {
    bool recurrent, windowed;
    int n_head, n_head_kv, head_dim;
} synth_heads;

synth_heads synth_heads_of(const synth_shape *shape, int layer);

#endif
