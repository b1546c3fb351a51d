/* The inputs of the ops that use a KV region or recurrent states, as sessions and the public tsr_kv_inputs
 * fill them: which sequence and position each token has, and where the pages and states of its sequence
 * are. */
#ifndef TSR_GRAPH_KV_INPUTS_H
#define TSR_GRAPH_KV_INPUTS_H

#include <tsr/ops.h>

#include "alloc/kv/kv.h"
#include "graph/graph.h"

/* The inputs of a step with the states of its sequences (tsr_state_index), both I32. */
typedef struct tsr_state_inputs {
    tsr_tensor *rows; /* [3, rows] tsr_state_row */
    tsr_tensor *next; /* [n_tokens, 1] */
} tsr_state_inputs;

/* Owned by its graph. All inputs are I32. */
struct tsr_kv_inputs {
    tsr_graph *graph;
    tsr_kv_inputs *next; /* of the graph */
    tsr_kv *kv;
    int64_t n_tokens;
    int64_t max_rows;                           /* most sequences of a step */
    tsr_tensor *page_tables[TSR_KV_MAX_GROUPS]; /* of each group: [max pages of a sequence, max_rows] */
    tsr_tensor *seq_row;                        /* [n_tokens, 1] the row of each token's sequence */
    tsr_tensor *position;                       /* [n_tokens, 1] */
    tsr_state_inputs states;                    /* NULLs without recurrent layers */

    /* The step that is being prepared. */
    int n_rows;
    int32_t *row_of_seq;            /* [n_seq_max]; -1: none */
    int32_t *row_seqs, *row_tokens; /* [max_rows] sequence, and number of tokens, of each row */
    int32_t *row_lengths;           /* [max_rows] tokens of the sequence before the step */
    int32_t *seq_rows, *positions;  /* [n_tokens] */
    int32_t *next_in_seq;           /* [n_tokens] the next token of the same sequence; -1: none */
    tsr_state_row *state_rows;      /* [max_rows] */
};

/* Fill in the inputs for tokens that their sequences have already, the others being unchanged. Those that the
 * compiled graph does not read are skipped. */
tsr_status tsr_kv_inputs_set(tsr_kv_inputs *inputs, const int32_t *seqs, const int32_t *positions);

/* Whether there are inputs of this graph for a step with rows of x, and a KV layer `layer` with heads.
 * Otherwise the graph's failure is recorded. */
bool tsr_kv_inputs_check(tsr_graph *graph, const char *op, const tsr_kv_inputs *inputs, int layer,
                         const tsr_tensor *x);

/* Whether the inputs are of this graph, and the layer has the states `state` .. `state` + n - 1. Otherwise
 * the graph's failure is recorded. */
bool tsr_kv_inputs_check_states(tsr_graph *graph, const char *op, const tsr_kv_inputs *inputs, int layer,
                                int state, int n, const tsr_tensor *x);

/* The page table of a KV layer. */
static inline tsr_tensor *tsr_kv_inputs_table(const tsr_kv_inputs *inputs, int layer)
{
    return inputs->page_tables[tsr_kv_group_of(inputs->kv, layer)];
}

#endif
