/* Dependencies in a lowered graph, and the live bytes after a part of it has run.
 *
 * The live bytes depend on the set of instructions that have run, not on their order, so a search can go
 * from set to set (search.c). Live values are those that emit/layout.c gives bytes of the arena, including
 * values written in place over an operand. */
#include <string.h>

#include "core/mem.h"
#include "graph/order/search.h"

/* -- dependencies -- */

/* One pass over the graph in the order as lowered that finds dependencies. Runs twice: to count, then to
 * write. */
typedef struct links {
    tsr_order_search *s;
    int *definer;         /* [n_values] the last instruction that made the value somewhere, -1 = none */
    int *earlier_definer; /* [n_instrs] the previous one that made the same value, on other devices */
    int *last_kv;         /* [n_kv_layers] the last instruction on that layer's KV pages, -1 = none */
    int n_kv_layers;
    bool write;
} links;

static void wait_for(links *l, int i, int other)
{
    if (other < 0)
        return;
    if (l->write)
        l->s->successors[l->s->successor_at[other]++] = i;
    else {
        l->s->successor_at[other]++;
        l->s->n_waits[i]++;
    }
}

static bool touches_kv(const tsr_instr *instr)
{
    return instr->kind == TSR_OP_KV_WRITE || instr->kind == TSR_OP_ATTENTION;
}

/* Link instruction i to all instructions that it must come after. */
static void link_instr(links *l, int i, int last_collective)
{
    const tsr_lowered *low = l->s->low;
    const tsr_instr *instr = &low->instrs[i];
    bool partial = instr->out >= 0 && low->values[instr->out].sharding == TSR_SHARDING_PARTIAL;
    for (int k = 0; k < instr->n_in; k++)
        for (int j = l->definer[instr->in[k]]; j >= 0; j = l->earlier_definer[j])
            wait_for(l, i, j);
    if (instr->collective >= 0 || partial)
        wait_for(l, i, last_collective);
    if (touches_kv(instr)) {
        wait_for(l, i, l->last_kv[instr->args->layer]);
        l->last_kv[instr->args->layer] = i;
    }
    if (instr->out >= 0) {
        l->earlier_definer[i] = l->definer[instr->out];
        l->definer[instr->out] = i;
    }
}

static void link_all(links *l)
{
    const tsr_lowered *low = l->s->low;
    int last_collective = -1;
    memset(l->definer, -1, (size_t)low->n_values * sizeof(int));
    memset(l->last_kv, -1, (size_t)l->n_kv_layers * sizeof(int));
    for (int i = 0; i < low->n_instrs; i++) {
        link_instr(l, i, last_collective);
        if (low->instrs[i].collective >= 0)
            last_collective = i;
    }
}

static tsr_status find_dependencies(tsr_order_search *s)
{
    tsr_status status = TSR_OK;
    const tsr_lowered *low = s->low;
    size_t n = (size_t)low->n_instrs;
    links l = {.s = s};
    for (int i = 0; i < low->n_instrs; i++)
        if (touches_kv(&low->instrs[i]))
            l.n_kv_layers = TSR_MAX(l.n_kv_layers, low->instrs[i].args->layer + 1);
    TSR_TRY(tsr_mem_array((size_t)low->n_values, sizeof(int), "an order of ops", &l.definer));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "an order of ops", &l.earlier_definer));
    TSR_TRY(tsr_mem_array((size_t)l.n_kv_layers, sizeof(int), "an order of ops", &l.last_kv));
    TSR_TRY(tsr_mem_array(n, sizeof(int), "an order of ops", &s->n_waits));
    TSR_TRY(tsr_mem_array(n + 1, sizeof(int), "an order of ops", &s->successor_at));
    link_all(&l);
    int total = 0; /* counts become starts; writing a list moves its start to its end */
    for (int i = 0; i < low->n_instrs; i++) {
        int count = s->successor_at[i];
        s->successor_at[i] = total;
        total += count;
    }
    TSR_TRY(tsr_mem_array((size_t)total, sizeof(int), "an order of ops", &s->successors));
    l.write = true;
    link_all(&l);
    memmove(s->successor_at + 1, s->successor_at, n * sizeof(int));
    s->successor_at[0] = 0;
out:
    tsr_mem_free(l.definer);
    tsr_mem_free(l.earlier_definer);
    tsr_mem_free(l.last_kv);
    return status;
}

/* -- live bytes -- */

static size_t at(const tsr_order_search *s, int value, int d)
{
    return (size_t)value * (size_t)s->n_devices + (size_t)d;
}

static bool is_kept(const tsr_value *value)
{
    return value->flags & (TSR_TENSOR_INPUT | TSR_TENSOR_OUTPUT);
}

/* The number of operands of an instruction that are the value. */
static int n_reads(const tsr_instr *instr, int value)
{
    int n = 0;
    for (int k = 0; k < instr->n_in; k++)
        n += instr->in[k] == value;
    return n;
}

/* Whether the life of operand k on device d ends with `instr`. */
static bool dies_with(const tsr_order_search *s, const tsr_instr *instr, int k, int d)
{
    int value = instr->in[k];
    return !is_kept(&s->low->values[value]) && s->n_uses[at(s, value, d)] == n_reads(instr, value);
}

static bool is_in_place(const tsr_order_search *s, const tsr_instr *instr, int d)
{
    int first, end;
    tsr_instr_in_place(instr, &first, &end);
    for (int k = first; k < end; k++)
        if (s->bytes[at(s, instr->in[k], d)] && dies_with(s, instr, k, d))
            return true;
    return false;
}

void tsr_order_effect(const tsr_order_search *s, int i, int d, size_t *during_out, size_t *after_out)
{
    const tsr_instr *instr = &s->low->instrs[i];
    size_t made = instr->out >= 0 ? s->bytes[at(s, instr->out, d)] : 0, freed = 0;
    for (int k = 0; k < instr->n_in; k++) {
        bool again = false;
        for (int j = 0; j < k; j++)
            again = again || instr->in[j] == instr->in[k];
        if (!again && dies_with(s, instr, k, d))
            freed += s->bytes[at(s, instr->in[k], d)];
    }
    *during_out = s->live[d] + (is_in_place(s, instr, d) ? 0 : made);
    if (made && !is_kept(&s->low->values[instr->out]) && s->n_uses[at(s, instr->out, d)] == 0)
        freed += made; /* no instruction on this device reads the value */
    *after_out = s->live[d] + made - freed;
}

void tsr_order_run(tsr_order_search *s, int i)
{
    const tsr_instr *instr = &s->low->instrs[i];
    TSR_FOR_DEVICES(d, instr->devices) {
        size_t during;
        tsr_order_effect(s, i, d, &during, &s->live[d]);
        for (int k = 0; k < instr->n_in; k++)
            s->n_uses[at(s, instr->in[k], d)]--;
    }
    for (int k = s->successor_at[i]; k < s->successor_at[i + 1]; k++)
        s->n_waits[s->successors[k]]--;
    s->done[i] = true;
}

void tsr_order_take_back(tsr_order_search *s, int i)
{
    const tsr_instr *instr = &s->low->instrs[i];
    s->done[i] = false;
    for (int k = s->successor_at[i]; k < s->successor_at[i + 1]; k++)
        s->n_waits[s->successors[k]]++;
    TSR_FOR_DEVICES(d, instr->devices) {
        size_t during, after;
        for (int k = 0; k < instr->n_in; k++)
            s->n_uses[at(s, instr->in[k], d)]++;
        tsr_order_effect(s, i, d, &during, &after);
        s->live[d] -= after - s->live[d]; /* the effect is a difference: modulo 2^64 it may be negative */
    }
}

/* Find the bytes and readers of every value; inputs are live from start to end. */
static tsr_status find_values(const tsr_runtime *rt, tsr_order_search *s)
{
    tsr_status status = TSR_OK;
    const tsr_lowered *low = s->low;
    for (int v = 0; v < low->n_values; v++) {
        const tsr_value *value = &low->values[v];
        for (int d = 0; d < s->n_devices; d++) {
            if (value->sharding == TSR_SHARDING_PARTIAL || !tsr_device_set_has(value->devices, d))
                continue;
            TSR_TRY(tsr_value_bytes(rt, value, d, &s->bytes[at(s, v, d)]));
            s->live[d] += value->flags & TSR_TENSOR_INPUT ? s->bytes[at(s, v, d)] : 0;
        }
    }
    for (int i = 0; i < low->n_instrs; i++)
        for (int k = 0; k < low->instrs[i].n_in; k++)
            TSR_FOR_DEVICES(d, low->instrs[i].devices)
                s->n_uses[at(s, low->instrs[i].in[k], d)]++;
out:
    return status;
}

tsr_status tsr_order_search_init(const tsr_runtime *rt, const tsr_lowered *lowered, tsr_order_search *s)
{
    tsr_status status = TSR_OK;
    size_t n_devices = (size_t)rt->n_devices, n = (size_t)lowered->n_instrs;
    size_t n_places = (size_t)lowered->n_values * n_devices;

    *s = (tsr_order_search){.low = lowered, .n_devices = rt->n_devices, .budget = TSR_ORDER_BUDGET};
    TSR_TRY(tsr_mem_array(n, sizeof *s->done, "an order of ops", &s->done));
    TSR_TRY(tsr_mem_array(n_places, sizeof *s->bytes, "an order of ops", &s->bytes));
    TSR_TRY(tsr_mem_array(n_places, sizeof *s->n_uses, "an order of ops", &s->n_uses));
    TSR_TRY(tsr_mem_array(n_devices, sizeof *s->live, "an order of ops", &s->live));
    TSR_TRY(tsr_mem_array(n_devices, sizeof *s->limit, "an order of ops", &s->limit));
    TSR_TRY(tsr_mem_array(n + 1, sizeof *s->frames, "an order of ops", &s->frames));
    TSR_TRY(tsr_mem_array(TSR_ORDER_DEAD_ENDS, sizeof *s->dead, "an order of ops", &s->dead));
    TSR_TRY(find_dependencies(s));
    TSR_TRY(find_values(rt, s));
out:
    return status;
}

void tsr_order_search_free(tsr_order_search *s)
{
    tsr_mem_free(s->dead);
    tsr_mem_free(s->frames);
    tsr_mem_free(s->limit);
    tsr_mem_free(s->live);
    tsr_mem_free(s->n_uses);
    tsr_mem_free(s->bytes);
    tsr_mem_free(s->done);
    tsr_mem_free(s->successors);
    tsr_mem_free(s->successor_at);
    tsr_mem_free(s->n_waits);
    *s = (tsr_order_search){0};
}
