/* Setting up the exact search: items and sections, memory, and the order of an attempt. */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/search.h"
#include "core/mem.h"
#include "core/status.h"

enum { N_ORDERS = 3 };
enum { MOST_LISTS = 1 << 23, MOST_CHANGES = 1 << 21 }; /* 32 MiB each; few pages are touched */
enum { MEMO_PER_ITEM = 512, MOST_MEMO = 1 << 17 };     /* at most 2 MiB; more helps no known problem */

static int compare_keys(const void *a, const void *b)
{
    const tsr_pack_key *x = a, *y = b;
    for (int i = 0; i < 3; i++)
        if (x->value[i] != y->value[i])
            return x->value[i] > y->value[i] ? -1 : 1;
    return x->item - y->item;
}

/* A factor of at least 1, in steps that are exact in binary. The largest excess over 1 is 0.1 at first,
 * doubles every 24 attempts up to 3.2, and then starts again at 0.1. The first attempts have factor 1. */
static double disturbance(int attempt, int item)
{
    uint64_t n_steps = UINT64_C(103) << TSR_MIN(attempt / 24 % 8, 5);
    uint64_t z = ((uint64_t)attempt << 32 | (uint64_t)item) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return 1 + (attempt < N_ORDERS ? 0.0 : (double)((z ^ z >> 31) % n_steps) / 1024);
}

/* Contention (bytes live at the same time), duration and area in three sequences, as minimalloc combines
 * them (Moffitt, "MiniMalloc", ASPLOS 2023). Later attempts repeat these with noise, because restarting is
 * faster than undoing an early mistake. */
void tsr_pack_search_rank(tsr_pack_search *s, int attempt)
{
    enum { CONTENTION, DURATION, AREA };
    static const int orders[N_ORDERS][3] = {
        {DURATION, AREA, CONTENTION}, {CONTENTION, AREA, DURATION}, {CONTENTION, DURATION, AREA}};
    const tsr_pack_work *w = s->work;

    for (int i = 0; i < s->n; i++) {
        double duration = (double)w->duration[s->id[i]], noise = disturbance(attempt, i);
        double values[3] = {(double)w->contention[s->id[i]], duration, (double)s->size[i] * duration};
        for (int v = 0; v < 3; v++)
            s->keys[i].value[v] = values[orders[attempt % N_ORDERS][v]] * noise;
        s->keys[i].item = i;
    }
    qsort(s->keys, (size_t)s->n, sizeof *s->keys, compare_keys);
    for (int k = 0; k < s->n; k++)
        s->rank[s->keys[k].item] = k;
}

static tsr_status allocate(tsr_pack_search *s)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)s->work->n, n_sections = (size_t)s->work->n_steps + 1;

    TSR_TRY(tsr_mem_array(n, sizeof *s->id, "packing", &s->id));
    TSR_TRY(tsr_mem_array(n, sizeof *s->first, "packing", &s->first));
    TSR_TRY(tsr_mem_array(n, sizeof *s->end, "packing", &s->end));
    TSR_TRY(tsr_mem_array(n, sizeof *s->size, "packing", &s->size));
    TSR_TRY(tsr_mem_array(n, sizeof *s->fixed, "packing", &s->fixed));
    TSR_TRY(tsr_mem_array(n, sizeof *s->keys, "packing", &s->keys));
    TSR_TRY(tsr_mem_array(n, sizeof *s->rank, "packing", &s->rank));
    TSR_TRY(tsr_mem_array(n, sizeof *s->offset, "packing", &s->offset));
    TSR_TRY(tsr_mem_array(n, sizeof *s->skipped, "packing", &s->skipped));
    TSR_TRY(tsr_mem_array(n, sizeof *s->release, "packing", &s->release));
    TSR_TRY(tsr_mem_array(n, sizeof *s->schedule, "packing", &s->schedule));
    TSR_TRY(tsr_mem_array(n, sizeof *s->moved, "packing", &s->moved));
    TSR_TRY(tsr_mem_array(n_sections, sizeof *s->height, "packing", &s->height));
    TSR_TRY(tsr_mem_array(n_sections, sizeof *s->latest, "packing", &s->latest));
    TSR_TRY(tsr_mem_array(n_sections, sizeof *s->n_lowest, "packing", &s->n_lowest));
    TSR_TRY(tsr_mem_array(n_sections, sizeof *s->n_crossing, "packing", &s->n_crossing));
    TSR_TRY(tsr_mem_array(n + 1, sizeof *s->frames, "packing", &s->frames));
    TSR_TRY(tsr_mem_array(2 * n + 1, sizeof *s->components, "packing", &s->components));
    s->most_lists = (int)TSR_MIN(n * (n + 1) / 2 + n, (size_t)MOST_LISTS);
    s->most_changes = (int)TSR_MIN(n * (n + 3), (size_t)MOST_CHANGES);
    TSR_TRY(tsr_mem_array((size_t)s->most_lists, sizeof *s->lists, "packing", &s->lists));
    TSR_TRY(tsr_mem_array((size_t)s->most_changes, sizeof *s->changes, "packing", &s->changes));
    TSR_TRY(tsr_mem_array(s->n_memo, sizeof *s->memo, "packing", &s->memo));
out:
    return status;
}

/* The section of every step. Between two ends of lives the set of live items only grows, so a new section
 * starts only where a life starts after another has ended. No section's set contains another's. */
static int find_sections(const tsr_pack_work *w, int *section_of)
{
    int section = 0;
    bool ended = false;
    for (int t = 0; t < w->n_steps; t++)
        section_of[t] = 0;
    for (int i = 0; i < w->n; i++)
        section_of[w->upper[i]] = 1;
    for (int t = 0; t < w->n_steps; t++) {
        ended = ended || section_of[t];
        if (ended && w->first_at[t + 1] > w->first_at[t]) {
            section++;
            ended = false;
        }
        section_of[t] = section;
    }
    return section + 1;
}

tsr_status tsr_pack_search_init(const tsr_pack_work *w, tsr_pack_search *search_out)
{
    tsr_status status = TSR_OK;
    tsr_pack_search s = {.work = w};

    for (s.n_memo = 1; s.n_memo < TSR_MIN((size_t)w->n * MEMO_PER_ITEM, (size_t)MOST_MEMO);)
        s.n_memo *= 2;
    TSR_TRY(allocate(&s));
    s.n_sections = find_sections(w, s.n_crossing); /* scratch here: every run resets n_crossing */
    for (int i = 0; i < w->n; i++) {
        if (w->size[i] == 0)
            continue;
        s.id[s.n] = i;
        s.size[s.n] = w->size[i];
        s.fixed[s.n] = w->fixed_at[i] != TSR_PACK_FREE;
        s.first[s.n] = s.n_crossing[w->lower[i]];
        s.end[s.n] = s.n_crossing[w->upper[i] - 1] + 1;
        s.n++;
    }
    *search_out = s;
    memset(&s, 0, sizeof s);
out:
    tsr_pack_search_free(&s);
    return status;
}

void tsr_pack_search_free(tsr_pack_search *s)
{
    tsr_mem_free(s->memo);
    tsr_mem_free(s->changes);
    tsr_mem_free(s->lists);
    tsr_mem_free(s->components);
    tsr_mem_free(s->frames);
    tsr_mem_free(s->n_crossing);
    tsr_mem_free(s->n_lowest);
    tsr_mem_free(s->latest);
    tsr_mem_free(s->height);
    tsr_mem_free(s->moved);
    tsr_mem_free(s->schedule);
    tsr_mem_free(s->release);
    tsr_mem_free(s->skipped);
    tsr_mem_free(s->offset);
    tsr_mem_free(s->rank);
    tsr_mem_free(s->keys);
    tsr_mem_free(s->fixed);
    tsr_mem_free(s->size);
    tsr_mem_free(s->end);
    tsr_mem_free(s->first);
    tsr_mem_free(s->id);
    memset(s, 0, sizeof *s);
}
