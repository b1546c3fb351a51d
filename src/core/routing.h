/* The routing of a step: the experts that its tokens use in a mixture-of-experts layer. Written by ROUTE,
 * read by the ops over experts.
 *
 * A *slot* is one use of an expert by a token: slot t * n_used + j is token t's j-th expert. The ops work
 * expert by expert, so that an expert's weights are read once however many tokens use it; so the slots are
 * also listed by expert. A routing is one activation of 4-byte words, whose size depends on the numbers of
 * tokens and experts alone, so its memory is planned like any other. */
#ifndef TSR_CORE_ROUTING_H
#define TSR_CORE_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/experts.h>

/* Lower bound of the sum of selected probabilities, which avoids a division by zero (modeling_deepseek.py
 * of huggingface.co/deepseek-ai/DeepSeek-V3). */
#define TSR_ROUTE_LEAST_SUM 1e-20f

typedef struct tsr_routing {
    int64_t n_tokens, n_used, n_experts;
    int32_t *expert;    /* [n_tokens][n_used], the likeliest first */
    float *weight;      /* [n_tokens][n_used] */
    int32_t *order;     /* [n_tokens * n_used] slots by expert, ascending inside one */
    int32_t *begin;     /* [n_experts + 1] slots of expert e are order[begin[e]] .. order[begin[e + 1] - 1] */
    int32_t *touched;   /* [*n_touched] experts with any slot, ascending; room for n_experts */
    int32_t *n_touched; /* [1] */
    bool weigh_inputs;  /* weights are factors of the experts' inputs instead of their results */
} tsr_routing;

/* 4-byte words of a routing. */
static inline int64_t tsr_routing_words(int64_t n_tokens, int64_t n_used, int64_t n_experts)
{
    return 3 * n_tokens * n_used + 2 * n_experts + 2;
}

/* The routing stored in `memory`, which has tsr_routing_words() words. */
static inline tsr_routing tsr_routing_at(void *memory, int64_t n_tokens, int64_t n_used, int64_t n_experts)
{
    const int64_t n_slots = n_tokens * n_used;
    int32_t *words = (int32_t *)memory;
    tsr_routing r = {n_tokens, n_used, n_experts, NULL, NULL, NULL, NULL, NULL, NULL, false};
    r.expert = words;
    r.weight = (float *)(words + n_slots);
    r.order = words + 2 * n_slots;
    r.begin = words + 3 * n_slots;
    r.touched = r.begin + n_experts + 1;
    r.n_touched = r.touched + n_experts;
    return r;
}

#endif
