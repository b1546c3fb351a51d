/* See synth_arch.h. */
#include "support/synth_arch.h"

#define INT(suffix, value)   \
    {                        \
        suffix, value, false \
    }
#define REAL(suffix, value) \
    {                       \
        suffix, value, true \
    }

const struct synth_arch synth_archs[] = {
    {"qwen2", "qwen2", SYNTH_QKV_BIASES, {{NULL}}},
    {"qwen3", "qwen3", SYNTH_HEAD_NORMS, {{NULL}}},
    {"gemma", "gemma", 0, {{NULL}}},
    {"gemma2",
     "gemma2",
     SYNTH_POST_NORMS,
     {INT("attention.sliding_window", 5), REAL("attn_logit_softcapping", 1.5),
      REAL("final_logit_softcapping", 2)}},
    {"gemma3",
     "gemma3",
     SYNTH_POST_NORMS | SYNTH_HEAD_NORMS,
     {INT("attention.sliding_window", 6), INT("attention.sliding_window_pattern", 2),
      REAL("rope.freq_base_swa", 500), REAL("rope.scaling.factor", 8)}},
    {"gemma3, all of its layers with a window",
     "gemma3",
     SYNTH_POST_NORMS | SYNTH_HEAD_NORMS,
     {INT("attention.sliding_window", 6)}},
    {"phi3", "phi3", SYNTH_FUSED_QKV | SYNTH_FUSED_FFN, {INT("attention.sliding_window", 9)}},
    {"phi3 for long contexts",
     "phi3",
     SYNTH_FUSED_QKV | SYNTH_FUSED_FFN | SYNTH_LONGROPE | SYNTH_HALF_ROTATED,
     {INT("rope.scaling.original_context_length", 32), REAL("rope.scaling.attn_factor", 1.19)}},
    {"mistral3",
     "mistral3",
     0,
     {REAL("attention.temperature_scale", 0.4), REAL("rope.scaling.factor", 16),
      INT("rope.scaling.original_context_length", 6), REAL("rope.scaling.yarn_log_multiplier", 0.5)}},
    {"granite",
     "granite",
     SYNTH_OTHER_BIASES,
     {REAL("embedding_scale", 3), REAL("residual_scale", 0.6), REAL("attention.scale", 0.3),
      REAL("logit_scale", 4)}},
    {"olmo2", "olmo2", SYNTH_WIDE_NORMS | SYNTH_POST_NORMS | SYNTH_NO_PRE_NORMS, {{NULL}}},
    {"olmo2 with windows",
     "olmo2",
     SYNTH_WIDE_NORMS | SYNTH_POST_NORMS | SYNTH_NO_PRE_NORMS,
     {INT("attention.sliding_window", 5), INT("attention.sliding_window_pattern", 2),
      REAL("rope.scaling.factor", 4)}},
    {"smollm3", "smollm3", 0, {{NULL}}},
    {"exaone", "exaone", SYNTH_OTHER_BIASES, {{NULL}}},
    {"internlm2", "internlm2", 0, {{NULL}}},
    {"xverse", "xverse", 0, {{NULL}}},
    {"ernie4_5", "ernie4_5", SYNTH_QKV_BIASES | SYNTH_OTHER_BIASES, {{NULL}}},
    {"minicpm", "minicpm", 0, {REAL("embedding_scale", 5)}},
    {"chatglm",
     "chatglm",
     SYNTH_FUSED_QKV | SYNTH_FUSED_FFN | SYNTH_QKV_BIASES | SYNTH_HALF_ROTATED,
     {{NULL}}},
    {"glm4", "glm4", SYNTH_FUSED_FFN | SYNTH_QKV_BIASES | SYNTH_HALF_ROTATED | SYNTH_POST_NORMS, {{NULL}}},
    {"mixtral", "llama", SYNTH_EXPERTS, {{NULL}}},
    {"qwen3moe", "qwen3moe", SYNTH_EXPERTS | SYNTH_HEAD_NORMS, {{NULL}}},
    {"olmoe", "olmoe", SYNTH_EXPERTS | SYNTH_WIDE_NORMS, {{NULL}}},
    {"granitemoe",
     "granitemoe",
     SYNTH_EXPERTS,
     {REAL("embedding_scale", 3), REAL("residual_scale", 0.6), REAL("attention.scale", 0.3),
      REAL("logit_scale", 4)}},
    {"gpt-oss",
     "gpt-oss",
     SYNTH_EXPERTS | SYNTH_QKV_BIASES | SYNTH_OTHER_BIASES | SYNTH_EXPERT_BIASES | SYNTH_ROUTER_BIAS |
         SYNTH_SINKS | SYNTH_OTHER_FFN_NORM,
     {INT("attention.sliding_window", 5), REAL("rope.scaling.factor", 16),
      INT("rope.scaling.original_context_length", 6)}},
    {"llama with every bias", "llama", SYNTH_QKV_BIASES | SYNTH_OTHER_BIASES, {{NULL}}},
};

const size_t n_synth_archs = sizeof synth_archs / sizeof *synth_archs;
