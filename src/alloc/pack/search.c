/* Exact packing: is there a packing of at most `capacity` bytes?
 *
 * In a packing with the smallest sum of offsets every item is at 0 or directly on another one (up to
 * alignment and fixed items), and can be placed after everything below it. So each unplaced item has one
 * lowest offset that the placed items leave free, and one decision: place it there, or *skip* it until an
 * item that is placed below raises its offset. The decision can be made for any item under which no unplaced
 * item fits. The search decides where the choice is nearly forced, and backtracks as soon as a section
 * (search_infer.c) cannot end below the capacity.
 *
 *   - Placed items may separate the others into components that share no step. Each component is packed on
 *     its own; a dead end in one backtracks to the placement that made the component, past the others.
 *   - Whether a component can be packed depends only on its items, their offsets and which are skipped. Dead
 *     ends are remembered by a hash of this state, across attempts. (128 bits: a false match is less likely
 *     than a fault of the machine.)
 *   - Of equal items with equal lives only one is tried at an offset.
 *   - Hard problems are hard because of an early mistake, so attempts are short, in various orders (Luby,
 *     Sinclair, Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993; exact.c).
 *
 * Canonical packings, section inference and decomposition are ideas of Moffitt, "MiniMalloc: A Lightweight
 * Memory Allocator for Hardware-Accelerated Machine Learning" (ASPLOS 2023). The stack is explicit: its depth
 * is the number of items. */
#include "alloc/pack/search.h"

#include <string.h>

#include "core/mem.h"

enum { NONE = TSR_PACK_NONE };

/* -- changes and undo -- */

static void change(tsr_pack_search *s, int item, bool skipped, int64_t offset)
{
    s->changes[s->n_changes++] = (tsr_pack_change){item, s->skipped[item], s->offset[item]};
    s->skipped[item] = skipped;
    s->offset[item] = offset;
}

static void undo_changes(tsr_pack_search *s, int n_changes)
{
    while (s->n_changes > n_changes) {
        const tsr_pack_change *c = &s->changes[--s->n_changes];
        s->skipped[c->item] = c->skipped;
        s->offset[c->item] = c->offset;
    }
}

/* Raise the items that overlap the frame's new item, and write the component's other items to the top of the
 * lists, sorted. Returns their number. */
static int place(tsr_pack_search *s, tsr_pack_frame *f, int item)
{
    const int *list = s->lists + f->component.list;
    int *rest = s->lists + s->lists_used;
    int64_t top = s->offset[item] + s->size[item];
    int n = 0, n_raised = 0;

    f->placed = item;
    for (int t = s->first[item]; t + 1 < s->end[item]; t++)
        s->n_crossing[t]--;
    for (int i = 0; i < f->component.n; i++) {
        int other = list[i];
        if (other == item)
            continue;
        if (s->fixed[other] || s->offset[other] >= top || !tsr_pack_search_meet(s, item, other)) {
            rest[n++] = other;
            continue;
        }
        change(s, other, false, tsr_pack_clear_of_fixed(s->work, s->id[other], top));
        int at = n_raised++;
        for (; at > 0 && tsr_pack_search_before(s, other, s->moved[at - 1]); at--)
            s->moved[at] = s->moved[at - 1];
        s->moved[at] = other;
    }
    int total = n + n_raised;
    for (int at = total; n_raised > 0;) {
        bool raised = n == 0 || tsr_pack_search_before(s, rest[n - 1], s->moved[n_raised - 1]);
        rest[--at] = raised ? s->moved[--n_raised] : rest[--n];
    }
    return total;
}

static void unplace(tsr_pack_search *s, tsr_pack_frame *f)
{
    if (f->placed == NONE)
        return;
    for (int t = s->first[f->placed]; t + 1 < s->end[f->placed]; t++)
        s->n_crossing[t]++;
    undo_changes(s, f->change);
    s->lists_used = f->lists_used;
    s->n_components = f->n_components;
    f->placed = NONE;
}

/* The placed item led to a dead end: undo the placement, and skip the item and its equals. */
static void skip_placed(tsr_pack_search *s, tsr_pack_frame *f)
{
    const int *list = s->lists + f->component.list;
    int item = f->placed;

    unplace(s, f);
    for (int i = 0; i < f->component.n; i++) {
        int other = list[i];
        if (!s->skipped[other] && s->offset[other] == s->offset[item] && s->size[other] == s->size[item] &&
            s->first[other] == s->first[item] && s->end[other] == s->end[item] &&
            s->work->alignment[s->id[other]] == s->work->alignment[s->id[item]])
            change(s, other, true, s->offset[other]);
    }
    f->change = s->n_changes;
    f->checked = true;
    f->failed = !tsr_pack_search_infer(s, list, f->component.n);
}

/* -- components -- */

/* splitmix64's finaliser (https://prng.di.unimi.it/splitmix64.c). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void set_key(const tsr_pack_search *s, tsr_pack_component *c)
{
    c->key[0] = c->key[1] = 0;
    for (int i = 0; i < c->n; i++) {
        int item = s->lists[c->list + i];
        uint64_t state = (uint64_t)item * 2 + s->skipped[item];
        uint64_t z = mix((uint64_t)s->offset[item] + mix(state * UINT64_C(0x9e3779b97f4a7c15)));
        c->key[0] += z;
        c->key[1] += mix(z + UINT64_C(0x9e3779b97f4a7c15));
    }
}

static uint64_t *memo_of(tsr_pack_search *s, const tsr_pack_component *c)
{
    return s->memo[c->key[0] & (s->n_memo - 1)];
}

static bool is_dead_end(tsr_pack_search *s, const tsr_pack_component *c)
{
    return !memcmp(memo_of(s, c), c->key, sizeof c->key);
}

static bool all_fixed(const tsr_pack_search *s, const int *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!s->fixed[list[i]])
            return false;
    return true;
}

/* Add n items of the lists as a component before `next`; returns the new head. */
static int add_component(tsr_pack_search *s, int list, int n, int creator, int next)
{
    if (all_fixed(s, s->lists + list, n))
        return next;
    s->components[s->n_components] =
        (tsr_pack_component){.list = list, .n = n, .creator = creator, .next = next};
    set_key(s, &s->components[s->n_components]);
    return s->n_components++;
}

/* Split the n items that place() left into components before `next`; returns the head. */
static int split(tsr_pack_search *s, int n, int creator, int next)
{
    int placed = s->frames[creator].placed, list = s->lists_used;
    s->lists_used += n;
    for (int t = s->first[placed]; t + 1 < s->end[placed] && n > 0; t++) {
        if (s->n_crossing[t] > 0)
            continue;
        int n_left = 0, n_right = 0;
        for (int i = 0; i < n; i++) {
            int item = s->lists[list + i];
            if (s->end[item] <= t + 1)
                s->lists[list + n_left++] = item;
            else
                s->moved[n_right++] = item;
        }
        memcpy(s->lists + list + n_left, s->moved, (size_t)n_right * sizeof *s->moved);
        next = add_component(s, list, n_left, creator, next);
        list += n_left;
        n = n_right;
    }
    return add_component(s, list, n, creator, next);
}

/* -- the search -- */

static void push(tsr_pack_search *s, int depth, int component)
{
    const tsr_pack_component *c = &s->components[component];
    s->frames[depth] = (tsr_pack_frame){.component = *c,
                                        .placed = NONE,
                                        .first_change = s->n_changes,
                                        .change = s->n_changes,
                                        .lists_used = s->lists_used,
                                        .n_components = s->n_components,
                                        .checked = c->creator == depth - 1 && depth > 0};
}

/* Backtrack from an exhausted frame to the placement that made its component. */
static int backtrack(tsr_pack_search *s, int depth)
{
    const tsr_pack_component *c = &s->frames[depth].component;
    int creator = c->creator;
    memcpy(memo_of(s, c), c->key, sizeof c->key);
    for (; depth > creator; depth--) {
        unplace(s, &s->frames[depth]);
        undo_changes(s, s->frames[depth].first_change);
    }
    return creator;
}

/* Whether the stacks have room for one more placement. At worst they grow with the square of the number of
 * items; stacks of large problems are smaller than that, and a search that would outgrow them gives up. */
static bool has_room(const tsr_pack_search *s, const tsr_pack_frame *f)
{
    return s->lists_used + f->component.n <= s->most_lists &&
           s->n_changes + 2 * f->component.n <= s->most_changes;
}

/* Place an item at its offset. *next_out is the head of the components to pack next, or NONE. False: a dead
 * end. */
static bool try_item(tsr_pack_search *s, int depth, int item, int *next_out)
{
    tsr_pack_frame *f = &s->frames[depth];
    int waiting = f->component.next, n = place(s, f, item);
    if (!tsr_pack_search_infer(s, s->lists + s->lists_used, n))
        return false;
    *next_out = split(s, n, depth, waiting);
    for (int c = *next_out; c != waiting; c = s->components[c].next)
        if (is_dead_end(s, &s->components[c]))
            return false;
    return true;
}

static int choose(tsr_pack_search *s, tsr_pack_frame *f, tsr_pack_choice choice)
{
    const int *list = s->lists + f->component.list;
    if (f->placed != NONE)
        skip_placed(s, f);
    if (f->failed || (!f->checked && !tsr_pack_search_infer(s, list, f->component.n)))
        return NONE;
    return tsr_pack_search_choose(s, list, f->component.n, choice);
}

/* Start with all items unplaced, in one component. */
static void start(tsr_pack_search *s, int64_t capacity, int attempt)
{
    if (capacity > s->memo_capacity)
        memset(s->memo, 0, s->n_memo * sizeof *s->memo);
    s->memo_capacity = s->capacity = capacity;
    s->n_changes = s->n_components = s->lists_used = 0;
    tsr_pack_search_rank(s, attempt);
    memset(s->n_crossing, 0, (size_t)s->n_sections * sizeof *s->n_crossing);
    for (int i = 0; i < s->n; i++) {
        int id = s->id[i], at = i;
        for (int t = s->first[i]; t + 1 < s->end[i]; t++)
            s->n_crossing[t]++;
        s->skipped[i] = false;
        s->offset[i] = s->fixed[i] ? s->work->fixed_at[id] : tsr_pack_clear_of_fixed(s->work, id, 0);
        for (; at > 0 && tsr_pack_search_before(s, i, s->lists[at - 1]); at--)
            s->lists[at] = s->lists[at - 1];
        s->lists[at] = i;
    }
    s->lists_used = s->n;
}

static void write_offsets(const tsr_pack_search *s, int64_t *offset_out)
{
    for (int i = 0; i < s->work->n; i++)
        offset_out[i] = tsr_pack_empty_offset(s->work, i);
    for (int i = 0; i < s->n; i++)
        offset_out[s->id[i]] = s->offset[i];
}

tsr_pack_answer tsr_pack_search_run(tsr_pack_search *s, int64_t capacity, int attempt, int64_t most_nodes,
                                    tsr_pack_budget *budget, int64_t *offset_out)
{
    enum { NODES_PER_LOOK_AT_THE_CLOCK = 8 };
    tsr_pack_choice choice = attempt / 3 % 2 ? TSR_PACK_BY_OFFSET : TSR_PACK_BY_SECTION;
    int depth = 0;

    start(s, capacity, attempt);
    int next = add_component(s, 0, s->n, NONE, NONE);
    if (next == NONE) {
        write_offsets(s, offset_out);
        return TSR_PACK_FOUND;
    }
    push(s, 0, next);
    for (int64_t n_nodes = 0; depth >= 0;) {
        if (!has_room(s, &s->frames[depth]))
            return TSR_PACK_GAVE_UP;
        int item = choose(s, &s->frames[depth], choice);
        if (item == NONE) {
            depth = backtrack(s, depth);
            continue;
        }
        bool look = budget->nodes == 0 || n_nodes % NODES_PER_LOOK_AT_THE_CLOCK == 0;
        if (n_nodes == most_nodes || (look && tsr_pack_budget_is_over(budget)))
            return TSR_PACK_GAVE_UP;
        n_nodes++;
        budget->nodes--;
        if (!try_item(s, depth, item, &next))
            continue;
        if (next == NONE) {
            write_offsets(s, offset_out);
            return TSR_PACK_FOUND;
        }
        push(s, ++depth, next);
    }
    return TSR_PACK_IMPOSSIBLE;
}
