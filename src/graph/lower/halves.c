/* Interleaving the halves of a graph (halves.h). */
#include "graph/lower/halves.h"

#include <string.h>

#include "core/mem.h"

typedef struct weaving {
    tsr_lowered *low;
    tsr_instr *instrs; /* in the new order */
    int n;
    int *sum_of; /* [n_values] the place of the ALL_REDUCE `beside` that makes it and has no JOIN yet; -1 */
    int *number; /* [n_collectives] in the new order; -1: not met yet */
    int n_numbers;
} weaving;

static bool is_sum_of_several(const tsr_instr *instr)
{
    return instr->kind == TSR_OP_ALL_REDUCE && tsr_device_set_count(instr->devices) > 1;
}

/* Before what reads the sum. The JOIN reads what the sum reads, too, so that nothing is written over it. A
 * sum that nothing has followed needs no JOIN. */
static void join(weaving *w, int value)
{
    tsr_instr *sum = &w->instrs[w->sum_of[value]];
    w->sum_of[value] = -1;
    if (sum == &w->instrs[w->n - 1]) {
        sum->beside = false;
        return;
    }
    tsr_instr *instr = &w->instrs[w->n++];
    *instr = (tsr_instr){.kind = TSR_OP_JOIN,
                         .name = sum->name,
                         .in = {value},
                         .n_in = sum->n_in,
                         .out = -1,
                         .devices = sum->devices,
                         .collective = sum->collective};
    if (sum->n_in > 1)
        instr->in[1] = sum->in[1];
}

static void append(weaving *w, const tsr_instr *instr)
{
    for (int k = 0; k < instr->n_in; k++)
        if (w->sum_of[instr->in[k]] >= 0)
            join(w, instr->in[k]);
    tsr_instr *copy = &w->instrs[w->n];
    *copy = *instr;
    if (copy->collective >= 0) {
        int *number = &w->number[copy->collective];
        *number = *number < 0 ? w->n_numbers++ : *number;
        copy->collective = *number;
    }
    copy->beside = is_sum_of_several(copy);
    if (copy->beside)
        w->sum_of[copy->out] = w->n;
    w->n++;
}

static void weave(weaving *w, int n_first)
{
    const int n = w->low->n_instrs;
    int next[2] = {0, n_first};
    const int end[2] = {n_first, n};
    for (int half = 0; next[0] < end[0] || next[1] < end[1]; half = !half)
        for (bool ended = false; !ended && next[half] < end[half]; next[half]++) {
            ended = is_sum_of_several(&w->low->instrs[next[half]]);
            append(w, &w->low->instrs[next[half]]);
        }
    for (int v = 0; v < w->low->n_values; v++) /* sums that nothing reads */
        if (w->sum_of[v] >= 0)
            join(w, v);
}

tsr_status tsr_halves_interleave(tsr_lowered *lowered, int n_first)
{
    tsr_status status = TSR_OK;
    weaving w = {.low = lowered};
    const size_t n_values = (size_t)lowered->n_values,
                 n_collectives = (size_t)TSR_MAX(lowered->n_collectives, 1);
    const int capacity = lowered->n_instrs + lowered->n_all_reduces;
    TSR_TRY(tsr_mem_array((size_t)capacity, sizeof *w.instrs, "graph instructions", &w.instrs));
    TSR_TRY(tsr_mem_array(n_values, sizeof(int), "sums of a graph", &w.sum_of));
    TSR_TRY(tsr_mem_array(n_collectives, sizeof(int), "collectives of a graph", &w.number));
    memset(w.sum_of, -1, n_values * sizeof(int));
    memset(w.number, -1, n_collectives * sizeof(int));
    weave(&w, n_first);
    tsr_mem_free(lowered->instrs);
    lowered->instrs = w.instrs;
    lowered->n_instrs = w.n;
    lowered->instrs_capacity = capacity;
    w.instrs = NULL;
out:
    tsr_mem_free(w.instrs);
    tsr_mem_free(w.sum_of);
    tsr_mem_free(w.number);
    return status;
}
