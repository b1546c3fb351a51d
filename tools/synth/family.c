/* The table of architectures. Factors that stretch a context are given where all models of an architecture
 * have the same. */
#include "synth/family.h"

#include <string.h>

#include "options.h"

#define BIASES   SYNTH_QKV_BIASES
#define NORMS    SYNTH_HEAD_NORMS
#define RENAMED  SYNTH_RENAMED_NORM
#define SIGMOIDS (SYNTH_SIGMOIDS | SYNTH_CHOICE_BIAS)
#define SHARED   SYNTH_SHARED_EXPERT
#define DELTA    (NORMS | RENAMED | SYNTH_GATED_QUERIES)
#define GATE_UP  SYNTH_FUSED_GATE_UP

/* clang-format off */
static const synth_family families[] = {
    /*                                                     window, factor, context, rotated, period */
    {"llama", 0,                                                  0,    0,       0,       0,      0},
    {"qwen3", NORMS,                                              0,    0,       0,       0,      0},
    {"qwen3moe", NORMS,                                           0,    0,       0,       0,      0},
    {"qwen3vlmoe", NORMS,                                         0,    0,       0,       0,      0},
    {"qwen3next", DELTA | SHARED | SYNTH_SHARED_GATE | SYNTH_FUSED_ALPHA_BETA,
                                                                  0,    0,       0,       4,      4},
    {"qwen35", DELTA,                                             0,    0,       0,       4,      4},
    {"qwen35moe", DELTA | SHARED | SYNTH_SHARED_GATE,             0,    0,       0,       4,      4},
    {"seed_oss", BIASES | RENAMED,                                0,    0,       0,       0,      0},
    {"gemma3", NORMS | SYNTH_POST_NORMS,                       1024,    8,       0,       0,      0},
    {"gemma4", NORMS | SYNTH_POST_NORMS | SYNTH_OUTPUT_SCALE | GATE_UP | SYNTH_DENSE_TOO,
                                                                  0,    0,       0,       0,      6},
    {"gpt-oss", BIASES | RENAMED | SYNTH_OUTPUT_BIAS | SYNTH_SINKS | SYNTH_EXPERT_BIASES,
                                                                128,   32,    4096,       0,      0},
    {"glm4moe", BIASES | RENAMED | SIGMOIDS | SHARED,             0,    0,       0,       2,      0},
    {"deepseek2", SIGMOIDS | SHARED,                              0,    0,       0,       0,      0},
    {"mistral4", SHARED | GATE_UP,                                0,    0,       0,       0,      0},
    {"minimax-m2", SIGMOIDS | SYNTH_WIDE_NORMS,                   0,    0,       0,       2,      0},
    {"hunyuan-moe", NORMS | SHARED,                               0,    0,       0,       0,      0},
    {"bailingmoe2", NORMS | SIGMOIDS | SHARED | SYNTH_FUSED_QKV,  0,    0,       0,       2,      0},
    {"exaone4", NORMS | SYNTH_POST_NORMS | SYNTH_NO_PRE_NORMS,    0,    0,       0,       0,      4},
    {"afmoe", NORMS | SIGMOIDS | SHARED | SYNTH_ELEMENT_GATE | SYNTH_POST_NORMS,
                                                                  0,    0,       0,       0,      4},
    {"llama4", SHARED,                                            0,    0,       0,       0,      0},
    {"step35", NORMS | SIGMOIDS | SHARED | SYNTH_HEAD_GATE | SYNTH_FULL_FIRST,
                                                                  0,    0,       0,       0,      4},
};
/* clang-format on */

const synth_family *synth_family_of(const synth_shape *shape)
{
    for (int i = 0; i < TOOL_COUNT(families); i++)
        if (strcmp(families[i].architecture, shape->architecture) == 0)
            return &families[i];
    return &families[0];
}

bool synth_has(const synth_shape *shape, unsigned part)
{
    return ((shape->parts | synth_family_of(shape)->parts) & part) != 0;
}

synth_heads synth_heads_of(const synth_shape *s, int layer)
{
    const int period = synth_family_of(s)->period;
    synth_heads h = {.n_head = s->n_head, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    const bool whole = period == 0 || layer >= s->n_layers ||
                       layer % period == (synth_has(s, SYNTH_FULL_FIRST) ? 0 : period - 1);
    if (whole)
        return h;
    h.recurrent = s->delta.n_key_heads > 0;
    h.windowed = !h.recurrent;
    if (h.recurrent)
        return (synth_heads){.recurrent = true,
                             .n_head = s->delta.n_value_heads,
                             .n_head_kv = s->delta.n_key_heads,
                             .head_dim = s->delta.head_dim};
    h.n_head = s->window.n_head ? s->window.n_head : h.n_head;
    h.n_head_kv = s->window.n_head_kv ? s->window.n_head_kv : h.n_head_kv;
    h.head_dim = s->window.head_dim ? s->window.head_dim : h.head_dim;
    return h;
}
