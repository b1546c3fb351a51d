/* Inside the choice of an order: what depends on what, what is alive, and the search of one segment. */
#ifndef TSR_GRAPH_ORDER_SEARCH_H
#define TSR_GRAPH_ORDER_SEARCH_H

#include "graph/lower/lowered.h"

/* Instructions [first, end) as lowered: every order runs all before them before, and all after them after.
 * So segments are put in order one by one. */
typedef struct tsr_segment {
    int first, end;
    uint64_t devices; /* that run something of it */
} tsr_segment;

/* A place on the search's path. */
typedef struct tsr_order_frame {
    int next;        /* instruction to try next */
    int chosen;      /* instruction that is run from here, -1 = none */
    bool was_free;   /* running it took no bytes */
    uint64_t key[2]; /* of the set of instructions that were run before */
} tsr_order_frame;

typedef struct tsr_order_search {
    const tsr_lowered *low;
    int n_devices;

    /* Dependencies: instruction i waits for n_waits[i] others; successors[successor_at[i] ...) wait for i. */
    int *n_waits, *successor_at, *successors;

    /* What is alive after the instructions that were run so far. */
    bool *done;    /* [n_instrs] */
    size_t *bytes; /* [n_values][n_devices] in the arena, 0: not there */
    int *n_uses;   /* [n_values][n_devices] operands that still read it */
    size_t *live;  /* [n_devices] bytes alive */

    /* The search of a segment. */
    size_t *limit;           /* [n_devices] bytes that may be alive at once */
    tsr_order_frame *frames; /* [n_instrs + 1] */
    uint64_t (*dead)[2];     /* [n_dead] keys of sets from which the limit cannot be kept */
    size_t n_dead;           /* a power of two, at most TSR_ORDER_DEAD_ENDS */
    int64_t budget;          /* steps that may still be tried */
} tsr_order_search;

enum { TSR_ORDER_DEAD_ENDS = 1 << 12, TSR_ORDER_BUDGET = 1 << 16 };

typedef enum tsr_order_answer {
    TSR_ORDER_FOUND,
    TSR_ORDER_IMPOSSIBLE, /* proven: no order of the segment keeps the limits */
    TSR_ORDER_GAVE_UP     /* the budget was spent */
} tsr_order_answer;

/* Nothing was run yet; what the caller fills in is alive. (state.c) */
tsr_status tsr_order_search_init(const tsr_runtime *rt, const tsr_lowered *lowered, tsr_order_search *s);
void tsr_order_search_free(tsr_order_search *s); /* a zeroed value is fine */

/* What is alive on device d while instruction i runs there, and after it, if it ran now. */
void tsr_order_effect(const tsr_order_search *s, int i, int d, size_t *during_out, size_t *after_out);

/* Run an instruction, and take back the one that ran last. */
void tsr_order_run(tsr_order_search *s, int i);
void tsr_order_take_back(tsr_order_search *s, int i);

/* Whether everything that instruction i waits for has run, but not itself. */
static inline bool tsr_order_is_ready(const tsr_order_search *s, int i)
{
    return !s->done[i] && s->n_waits[i] == 0;
}

/* Looks for an order of a segment that keeps s->limit on every device, of all such the one that runs
 * earlier instructions first. All before the segment has run; so it is again afterwards. `order_out` has
 * room for the segment. (search.c) */
tsr_order_answer tsr_order_find(tsr_order_search *s, const tsr_segment *segment, int *order_out);

#endif
