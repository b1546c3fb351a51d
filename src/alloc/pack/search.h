/* Inside the packer: the exact search for a packing of at most N bytes (search.c explains it).
 *
 * One search object serves many capacities of one problem: dead ends proven for one capacity help with the
 * next. */
#ifndef TSR_ALLOC_PACK_SEARCH_H
#define TSR_ALLOC_PACK_SEARCH_H

#include "alloc/pack/work.h"

enum { TSR_PACK_NONE = -1 };

typedef enum tsr_pack_answer {
    TSR_PACK_FOUND,      /* offset_out is written */
    TSR_PACK_IMPOSSIBLE, /* proven: no packing is that small */
    TSR_PACK_GAVE_UP     /* the budget ended before an answer */
} tsr_pack_answer;

/* A set of unplaced items that share no step with other unplaced items: packed independently. */
typedef struct tsr_pack_component {
    int list, n;     /* lists[list .. list + n): its items, by offset and rank */
    int creator;     /* frame whose placement split it off */
    int next;        /* component to pack after this one, TSR_PACK_NONE: none */
    uint64_t key[2]; /* hash of its state, for remembering dead ends */
} tsr_pack_component;

/* A decision on the stack: the item of one component that is placed next. */
typedef struct tsr_pack_frame {
    tsr_pack_component component;
    int placed;                   /* item placed now, TSR_PACK_NONE: none */
    int first_change, change;     /* length of the trail when pushed, and before `placed` was placed */
    int lists_used, n_components; /* when pushed */
    bool failed;                  /* nothing is left to try */
    bool checked;                 /* the inferences are valid for this component */
} tsr_pack_frame;

typedef struct tsr_pack_change {
    int item;
    bool skipped;
    int64_t offset;
} tsr_pack_change;

typedef struct tsr_pack_key {
    double value[3]; /* compared first, second, third; larger comes first */
    int item;
} tsr_pack_key;

typedef struct tsr_pack_search {
    const tsr_pack_work *work;
    int n; /* items with bytes; arrays are indexed by their number, in the order of the work */
    int n_sections;
    int *id;            /* [n] number in the work */
    int *first, *end;   /* [n] sections of the item's life */
    int64_t *size;      /* [n] */
    bool *fixed;        /* [n] */
    tsr_pack_key *keys; /* [n] scratch */
    int *rank;          /* [n] order at equal offsets in this run */
    int64_t *offset;    /* [n] of a placed item; otherwise the lowest that placed items leave free */
    bool *skipped;      /* [n] decided: not at `offset` but above an item that is not placed yet */
    int64_t *release;   /* [n] inferred: the item's lowest possible offset */
    int *schedule;      /* [n] scratch: items by release */
    int *moved;         /* [n] scratch */
    int64_t *height;    /* [n_sections] inferred: the lowest end of everything in the section */
    int64_t *latest; /* [n_sections] scratch: highest possible start of the section's lowest unplaced item */
    int *n_lowest;   /* [n_sections] scratch: number of items that can be the lowest */
    int *n_crossing; /* [n_sections] unplaced items that are live in this section and the next */
    int64_t capacity;

    tsr_pack_frame *frames;         /* [n + 1] */
    tsr_pack_component *components; /* [2n + 1] a stack */
    int n_components;
    int *lists; /* [most_lists] a stack of the item lists of components */
    int lists_used, most_lists;
    tsr_pack_change *changes; /* [most_changes] the trail: values to restore when backtracking */
    int n_changes, most_changes;
    uint64_t (*memo)[2]; /* [n_memo] keys of states that are dead ends for memo_capacity */
    size_t n_memo;       /* a power of two */
    int64_t memo_capacity;
} tsr_pack_search;

/* Larger problems are not searched: a single dive takes seconds. */
enum { TSR_PACK_SEARCH_MOST_ITEMS = 8192 };

/* `work` is borrowed. A zeroed value may be freed. */
tsr_status tsr_pack_search_init(const tsr_pack_work *work, tsr_pack_search *search_out);
void tsr_pack_search_free(tsr_pack_search *search);

/* Search offsets with every item's end at most `capacity`, trying at most `most_nodes` placements. Attempts,
 * counted from 0, differ in the order of trying. offset_out[work->n] is written if a packing is found. */
tsr_pack_answer tsr_pack_search_run(tsr_pack_search *search, int64_t capacity, int attempt,
                                    int64_t most_nodes, tsr_pack_budget *budget, int64_t *offset_out);

/* -- the parts of it -- */

/* The rule for choosing the next item to decide on. */
typedef enum tsr_pack_choice {
    TSR_PACK_BY_SECTION, /* in the section with the fewest choices */
    TSR_PACK_BY_OFFSET   /* in a section with one choice, otherwise the lowest item */
} tsr_pack_choice;

/* Ranks for an attempt (search_init.c). */
void tsr_pack_search_rank(tsr_pack_search *search, int attempt);

/* Infers releases and heights of n unplaced items, sorted by offset and rank; false: they cannot fit
 * (search_infer.c). */
bool tsr_pack_search_infer(tsr_pack_search *search, const int *list, int n);

/* The item to decide on, after tsr_pack_search_infer() of the same component; TSR_PACK_NONE: the component
 * cannot be packed. */
int tsr_pack_search_choose(tsr_pack_search *search, const int *list, int n, tsr_pack_choice choice);

static inline bool tsr_pack_search_before(const tsr_pack_search *s, int a, int b)
{
    return s->offset[a] < s->offset[b] || (s->offset[a] == s->offset[b] && s->rank[a] < s->rank[b]);
}

static inline bool tsr_pack_search_meet(const tsr_pack_search *s, int a, int b)
{
    return (s->first[a] < s->end[b]) & (s->first[b] < s->end[a]);
}

#endif
