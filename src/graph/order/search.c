/* The search for an order of one segment within given bytes.
 *
 * Depth first over the instructions that can run next, in the order as lowered, so that the first order
 * found is the nearest to the order as lowered. The remaining problem depends only on the set of
 * instructions that have run, so a set that is a dead end is remembered by a hash (128 bits: a false match
 * is less likely than a fault of the machine). An instruction that adds no live bytes can run immediately:
 * any instruction that could run before it can run after it, with no more live bytes. So if running it leads
 * to a dead end, every other choice does too. */
#include <string.h>

#include "core/mem.h"
#include "graph/order/search.h"

enum { DEAD_ENDS_PER_INSTR = 16 };

/* splitmix64's finaliser (https://prng.di.unimi.it/splitmix64.c). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Add an instruction to the set of a key. Keys of different segments cannot be confused, because `dead` is
 * cleared per segment. */
static void extend_key(const uint64_t *key, int i, uint64_t *key_out)
{
    uint64_t z = mix(((uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15));
    key_out[0] = key[0] + z;
    key_out[1] = key[1] + mix(z + UINT64_C(0x9e3779b97f4a7c15));
}

static uint64_t *dead_of(tsr_order_search *s, const uint64_t *key)
{
    return s->dead[key[0] & (s->n_dead - 1)];
}

/* Whether an instruction can run now; *free_out: it adds no live bytes on any device. */
static bool fits(const tsr_order_search *s, int i, bool *free_out)
{
    *free_out = true;
    TSR_FOR_DEVICES(d, s->low->instrs[i].devices) {
        size_t during, after;
        tsr_order_effect(s, i, d, &during, &after);
        if (during > s->limit[d])
            return false;
        *free_out = *free_out && after <= s->live[d];
    }
    return true;
}

/* Run the next possible instruction and descend, unless the resulting set is a known dead end. */
static bool descend(tsr_order_search *s, const tsr_segment *segment, int depth)
{
    tsr_order_frame *f = &s->frames[depth];
    while (f->next < segment->end) {
        tsr_order_frame *below = f + 1;
        int i = f->next++;
        bool is_free;
        if (!tsr_order_is_ready(s, i) || !fits(s, i, &is_free))
            continue;
        s->budget--;
        extend_key(f->key, i, below->key);
        if (memcmp(dead_of(s, below->key), below->key, sizeof below->key)) {
            tsr_order_run(s, i);
            f->chosen = i;
            f->was_free = is_free;
            below->next = segment->first;
            below->chosen = -1;
            return true;
        }
        if (is_free)
            f->next = segment->end;
    }
    return false;
}

/* Undo the frame's instruction after a dead end. */
static void ascend(tsr_order_search *s, const tsr_segment *segment, int depth)
{
    tsr_order_frame *f = &s->frames[depth];
    tsr_order_take_back(s, f->chosen);
    if (f->was_free)
        f->next = segment->end;
    f->chosen = -1;
}

tsr_order_answer tsr_order_find(tsr_order_search *s, const tsr_segment *segment, int *order_out)
{
    tsr_order_answer answer = TSR_ORDER_IMPOSSIBLE;
    int depth = 0, n = segment->end - segment->first;

    for (s->n_dead = 1; s->n_dead < TSR_MIN((size_t)n * DEAD_ENDS_PER_INSTR, (size_t)TSR_ORDER_DEAD_ENDS);)
        s->n_dead *= 2;
    memset(s->dead, 0, s->n_dead * sizeof *s->dead);
    s->frames[0] = (tsr_order_frame){.next = segment->first, .chosen = -1};
    while (depth >= 0 && depth < n && s->budget > 0) {
        if (descend(s, segment, depth)) {
            depth++;
            continue;
        }
        memcpy(dead_of(s, s->frames[depth].key), s->frames[depth].key, sizeof s->frames[depth].key);
        if (--depth >= 0)
            ascend(s, segment, depth);
    }
    if (depth == n)
        answer = TSR_ORDER_FOUND;
    else if (depth >= 0)
        answer = TSR_ORDER_GAVE_UP;
    while (--depth >= 0) {
        if (answer == TSR_ORDER_FOUND)
            order_out[depth] = s->frames[depth].chosen;
        tsr_order_take_back(s, s->frames[depth].chosen);
    }
    return answer;
}
