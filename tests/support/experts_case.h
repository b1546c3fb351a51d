/* A mixture of experts as route, experts_glu and experts_down see it on any device: random weights, tokens
 * and logits, ops over a shard of it, and what they come to by their definitions (core/op.h), in double.
 * Where weights and activations are, and how they get there, is the device's test's business. */
#ifndef TSR_TESTS_EXPERTS_CASE_H
#define TSR_TESTS_EXPERTS_CASE_H

#include <stdbool.h>

#include <tsr/types.h>

#include "core/op.h"

typedef struct experts_setup {
    tsr_type gate, up, down;
    int64_t n_embd, n_ff, n_experts, n_used, n_tokens;
    int64_t granule; /* columns */
    tsr_glu_kind glu;
    bool normalize;
    tsr_gating gating;
    bool biased;                     /* gate, up and down have biases, and a router's choices */
    int x_bits;                      /* of activations beside quantized weights; 0: 16 */
    int64_t n_groups, n_groups_used; /* of experts; 0: none */
    bool scaled;                     /* the biases of the choice are factors on the weights, too */
    bool weigh_inputs;
} experts_setup;

typedef struct experts_matrix {
    tsr_type type;
    int64_t n_rows, k;
    size_t row_bytes, expert_bytes;
    unsigned char *bytes; /* [n_experts][n_rows] rows, dense */
    float *decoded;       /* [n_experts][n_rows][k] */
    int x_bits;
    double product_error; /* what the device's products with one weight are off by, relatively; 0 until set */
} experts_matrix;

/* Ways to choose experts, in order:
 * - 3 of 8 in 2 of 4 groups, by sigmoids and biases;
 * - 8 of 256 in 4 of 8 groups, the same, as in DeepSeek V3;
 * - 6 of 160 in 3 of 40 groups, by the largest probability of a softmax as in DeepSeek V2;
 * - 2 of 12 in one of 4 groups, by sigmoids alone;
 * - 3 of 12 by the root of softplus and biases;
 * - 3 of 12 in one of 2 groups by the root of softplus, a single token;
 * - 3 of 12 with a factor for each expert, as in Gemma 4;
 * - one of 16 by sigmoids that are factors of its input, as in Llama 4; 2 of 5, with biases, a few tokens. */
enum { EXPERTS_N_CHOICES = 9 };
extern const experts_setup experts_case_choices[EXPERTS_N_CHOICES];

enum { EXPERTS_GATE, EXPERTS_UP, EXPERTS_DOWN, EXPERTS_MATRICES };

typedef struct experts_case {
    experts_setup s;
    experts_matrix m[EXPERTS_MATRICES];
    float *x, *logits;             /* [n_tokens][n_embd], [n_tokens][n_experts] */
    float *bias[EXPERTS_MATRICES]; /* [n_experts][n_rows] */
    float *choice_bias;            /* [n_experts] */
    int32_t *expert;               /* [n_tokens * n_used], the definition's choice and weights */
    double *weight;
} experts_case;

/* What one device holds: of experts [expert_begin, expert_end) columns [column_begin, column_end). */
typedef struct experts_shard {
    int64_t expert_begin, expert_end, column_begin, column_end;
} experts_shard;

/* Where a device has the matrices and biases of all experts. */
typedef struct experts_memory {
    const float *bias[EXPERTS_MATRICES];
    const unsigned char *data[EXPERTS_MATRICES];
    size_t expert_stride[EXPERTS_MATRICES];
} experts_memory;

/* Its last expert but one (of more than two) is chosen by no token where n_used allows it. */
experts_case experts_case_create(experts_setup s, uint64_t seed);
void experts_case_destroy(experts_case *c);

/* Choose again after the caller has changed c->logits. */
void experts_case_choose(experts_case *c);

bool experts_case_is_touched(const experts_case *c, int64_t expert);

experts_shard experts_case_whole(const experts_case *c);
int64_t experts_case_slots(const experts_case *c);

/* The ops over a shard. Pointers are the device's; the routing is that of all experts. Biases of down belong
 * to as large a part of the shard's experts as it has of the columns. */
tsr_op experts_case_route_op(const experts_case *c, const float *logits, const float *choice_bias,
                             void *routing_words);

/* A table for route, [n_tokens][n_used], and the ids of the tokens: the experts `expert` of a routing, each
 * moved by `shift`. */
void experts_case_table(const experts_case *c, const int32_t *expert, int shift, int32_t *table,
                        int32_t *ids);

tsr_op experts_case_glu_op(const experts_case *c, experts_shard shard, const experts_memory *memory,
                           tsr_routing routing, const float *x, float *y);
tsr_op experts_case_down_op(const experts_case *c, experts_shard shard, const experts_memory *memory,
                            tsr_routing routing, const float *hidden, tsr_reduce_type reduce, void *y);

/* Fail unless all of the routing (in host memory) is what it should be: experts, slots and touched experts
 * exactly, weights to 2e-6 relatively, and NaN where they should be. */
void experts_case_check_routing(const experts_case *c, const tsr_routing *routing);

/* Fail unless y [n_slots][shard's columns], or y [n_tokens][n_embd] of `hidden`, is within what roundings of
 * f32 sums and of activations to 15 or 8 bits allow. `weight`: of the slots, as the device made them. */
void experts_case_check_glu(const experts_case *c, experts_shard shard, const float *y);
void experts_case_check_down(const experts_case *c, experts_shard shard, const float *hidden,
                             const float *weight, tsr_reduce_type reduce, const void *y);

/* Fail unless `twice` is `once` and as much again: to the bit where sums are exact, else as nearly as they
 * are rounded. */
void experts_case_check_twice(tsr_reduce_type reduce, int64_t n, const void *once, const void *twice);

/* Logits that a router should never give: equal ones, infinite ones, NaN. Row `index` of n, false past the
 * last. */
bool experts_case_strange_logits(int index, int64_t n, float *x);

/* For them: a router of that index, among all experts or groups of them; false past the last. */
bool experts_case_strange_router(int index, int64_t n_tokens, experts_setup *out);

#endif
