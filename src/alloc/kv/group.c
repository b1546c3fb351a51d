/* Page tables, reference counts and the free list of one group of layers (alloc/kv/group.h).
 *
 * The page allocator is a stack of returned pages plus a counter of touched pages. Taking and returning a
 * page is O(1). The counter moves only when the stack is empty, so the committed part grows only when more
 * pages are in use than ever before.
 *
 * Tables are indexed by position even if a window has dropped the pages before `first`: kernels find position
 * p at page_table[p / page_positions] in every group, and read only positions inside the window. */
#include "alloc/kv/group.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"

/* -- creation -- */

static tsr_status make_tables(tsr_kv_group *group)
{
    tsr_status status = TSR_OK;
    size_t n_seq = (size_t)group->n_seq_max, n_pages = (size_t)group->n_pages, n_entries;

    if (!tsr_mul_size(n_seq, (size_t)group->max_pages, &n_entries))
        return tsr_fail(TSR_ERR_MEMORY,
                        "page tables of %d sequences exceed the address space; lower n_seq_max or n_ctx",
                        group->n_seq_max);
    TSR_TRY(tsr_mem_array(n_seq, sizeof *group->first, "KV sequences", &group->first));
    TSR_TRY(tsr_mem_array(n_entries, sizeof *group->tables, "KV page tables", &group->tables));
    TSR_TRY(tsr_mem_array(n_pages, sizeof *group->references, "KV page references", &group->references));
    TSR_TRY(tsr_mem_array(n_pages, sizeof *group->returned, "free KV pages", &group->returned));
out:
    return status;
}

tsr_status tsr_kv_group_open(tsr_kv_group *group, tsr_runtime *rt, const tsr_kv_spec *spec,
                             const tsr_kv_layer *layer)
{
    tsr_status status = TSR_OK;
    size_t n_devices = (size_t)rt->n_devices;
    const int64_t window = layer->window, ratio = tsr_kv_ratio(layer), positions = spec->page_tokens * ratio;
    *group = (tsr_kv_group){.window = window,
                            .ratio = ratio,
                            .kept = window > 0 && !spec->keep_all ? window - 1 + spec->n_batch : 0,
                            .n_seq_max = spec->n_seq_max,
                            .n_pages = (int)tsr_kv_n_pages(spec, window, ratio),
                            .max_pages = tsr_kv_pages_for(positions, spec->n_ctx),
                            .page_positions = positions};
    TSR_TRY(make_tables(group));
    TSR_TRY(tsr_mem_array(n_devices, sizeof *group->regions, "KV regions", &group->regions));
    TSR_TRY(
        tsr_mem_array(n_devices, sizeof *group->committed_before, "KV regions", &group->committed_before));
    while (group->n_devices < rt->n_devices) {
        int d = group->n_devices++; /* counted before opening, so that a failure closes it too */
        TSR_TRY(tsr_kv_region_open(&group->regions[d], rt->devices[d], spec, layer, group->n_pages));
    }
out:
    return status;
}

void tsr_kv_group_close(tsr_kv_group *group)
{
    for (int d = 0; d < group->n_devices; d++)
        tsr_kv_region_close(&group->regions[d]);
    tsr_mem_free(group->committed_before);
    tsr_mem_free(group->regions);
    tsr_mem_free(group->returned);
    tsr_mem_free(group->references);
    tsr_mem_free(group->tables);
    tsr_mem_free(group->first);
    *group = (tsr_kv_group){0};
}

/* -- pages -- */

/* The page that the next take_page() returns. */
static int peek_page(const tsr_kv_group *group)
{
    return group->n_returned > 0 ? group->returned[group->n_returned - 1] : group->n_touched;
}

static int take_page(tsr_kv_group *group)
{
    int page = peek_page(group);
    if (group->n_returned > 0)
        group->n_returned--;
    else
        group->n_touched++;
    group->references[page] = 1;
    return page;
}

static void share_page(tsr_kv_group *group, int page)
{
    if (++group->references[page] == 2)
        group->n_shared++;
}

static void drop_page(tsr_kv_group *group, int page)
{
    int left = --group->references[page];
    if (left == 1)
        group->n_shared--;
    if (left == 0)
        group->returned[group->n_returned++] = page;
}

static int pages_for(const tsr_kv_group *group, int64_t n_tokens)
{
    return tsr_kv_pages_for(group->page_positions, n_tokens);
}

/* -- growing -- */

int tsr_kv_group_first_seen(const tsr_kv_group *group, int64_t length)
{
    int64_t first = group->window > 0 ? length - group->window + 1 : 0;
    return (int)(TSR_MAX(first, 0) / group->page_positions);
}

/* Pages of [first, end) that only this sequence uses. */
static int count_own(const tsr_kv_group *group, const int32_t *table, int first, int end)
{
    int n = 0;
    for (int i = first; i < end; i++)
        n += group->references[table[i]] == 1;
    return n;
}

tsr_kv_growth tsr_kv_group_growth(const tsr_kv_group *group, int seq, int64_t length, int64_t n_tokens)
{
    const int32_t *table = tsr_kv_group_table(group, seq);
    int end = pages_for(group, length), at = (int)(length / group->page_positions),
        before = group->first[seq];
    int64_t behind = group->kept > 0 ? length + n_tokens - group->kept : 0;
    tsr_kv_growth g = {.seq = seq,
                       .first = TSR_MAX(before, (int)(TSR_MAX(behind, 0) / group->page_positions)),
                       .old_end = end,
                       .end = pages_for(group, length + n_tokens),
                       .copied = -1};
    g.begin = TSR_MAX(end, g.first);
    if (at < end && at >= g.first && group->references[table[at]] > 1)
        g.copied = table[at];
    g.n_wanted = g.end - g.begin + (g.copied >= 0);
    /* The copy comes first and cannot use a dropped page, since dropped pages must keep their contents until
     * the copy succeeds. */
    int n_dropped = count_own(group, table, before, TSR_MIN(g.first, end)), n_returned = group->n_returned;
    if (g.copied >= 0 && n_returned == 0)
        g.n_new = 1 + TSR_MAX(g.n_wanted - 1 - n_dropped, 0);
    else
        g.n_new = TSR_MAX(g.n_wanted - n_returned - n_dropped, 0);
    return g;
}

int tsr_kv_group_demand(const tsr_kv_group *group, int seq, int64_t length, int64_t longer)
{
    const int32_t *table = tsr_kv_group_table(group, seq);
    const int first = group->first[seq], end = pages_for(group, length), new_end = pages_for(group, longer);
    const int at = (int)(length / group->page_positions);
    const bool copies = at < end && group->references[table[at]] > 1;
    int most = new_end - first; /* that the sequence has at any time */
    if (group->kept > 0)
        most = TSR_MIN(most, pages_for(group, group->kept + group->page_positions - 1));
    /* Its own pages are taken again once they are dropped; shared ones are not. */
    return TSR_MIN(new_end - end + copies, TSR_MAX(most - count_own(group, table, first, end), copies));
}

bool tsr_kv_group_copy(const tsr_kv_group *group, int seq, int index, tsr_kv_growth *growth_out)
{
    const int page = tsr_kv_group_table(group, seq)[index], end = index + 1;
    *growth_out = (tsr_kv_growth){.seq = seq,
                                  .first = group->first[seq],
                                  .old_end = end,
                                  .begin = end,
                                  .end = end,
                                  .copied = page,
                                  .n_wanted = 1,
                                  .n_new = group->n_returned == 0};
    return group->references[page] > 1;
}

bool tsr_kv_group_fits(const tsr_kv_group *group, const tsr_kv_growth *growth)
{
    return growth->n_new <= group->n_pages - group->n_touched;
}

/* Commit n_new pages that were never used before. */
static tsr_status commit(tsr_kv_group *group, int n_new)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < group->n_devices; d++)
        group->committed_before[d] = group->regions[d].committed;
    for (int d = 0; d < group->n_devices && n_new > 0; d++)
        TSR_TRY(tsr_kv_region_commit(&group->regions[d], group->n_touched + n_new));
out:
    return status;
}

void tsr_kv_group_unprepare(tsr_kv_group *group)
{
    for (int d = 0; d < group->n_devices; d++)
        tsr_kv_region_shrink(&group->regions[d], group->committed_before[d]);
}

tsr_status tsr_kv_group_prepare(tsr_kv_group *group, const tsr_kv_growth *growth)
{
    tsr_status status = TSR_OK;
    TSR_TRY(commit(group, growth->n_new));
    for (int d = 0; d < group->n_devices && growth->copied >= 0; d++)
        TSR_TRY(tsr_kv_region_copy_page(&group->regions[d], peek_page(group), growth->copied));
out:
    if (status != TSR_OK)
        tsr_kv_group_unprepare(group);
    return status;
}

tsr_status tsr_kv_group_commit_ahead(tsr_kv_group *group, int64_t n_wanted)
{
    const int64_t n_new = TSR_MIN(n_wanted - group->n_returned, (int64_t)(group->n_pages - group->n_touched));
    tsr_status status = commit(group, (int)TSR_MAX(n_new, 0));
    if (status != TSR_OK)
        tsr_kv_group_unprepare(group);
    return status;
}

/* Drop the pages before `first`, the lowest last, so that it is taken next. */
static void advance(tsr_kv_group *group, int seq, int first, int end)
{
    int32_t *table = tsr_kv_group_table(group, seq);
    for (int i = TSR_MIN(first, end); i-- > group->first[seq];)
        drop_page(group, table[i]);
    group->first[seq] = first;
}

void tsr_kv_group_grow(tsr_kv_group *group, const tsr_kv_growth *growth)
{
    int32_t *table = tsr_kv_group_table(group, growth->seq);
    if (growth->copied >= 0) {
        int copy = take_page(group); /* before any drop: prepare() copied to this page */
        drop_page(group, growth->copied);
        table[growth->old_end - 1] = copy;
    }
    advance(group, growth->seq, growth->first, growth->old_end);
    for (int i = growth->begin; i < growth->end; i++)
        table[i] = take_page(group);
}

/* -- cutting and sharing -- */

void tsr_kv_group_cut(tsr_kv_group *group, int seq, int64_t old_length, int64_t length)
{
    const int32_t *table = tsr_kv_group_table(group, seq);
    int kept = TSR_MAX(pages_for(group, length), group->first[seq]);
    for (int i = pages_for(group, old_length); i-- > kept;)
        drop_page(group, table[i]); /* from the end, so that the lowest page is on top of the stack */
    if (length == 0)
        group->first[seq] = 0;
}

/* Share pages [first, end) of src with seq. */
static void share_pages(tsr_kv_group *group, int src, int seq, int first, int end)
{
    const int32_t *from = tsr_kv_group_table(group, src);
    int32_t *to = tsr_kv_group_table(group, seq);
    for (int i = first; i < end; i++) {
        to[i] = from[i];
        share_page(group, to[i]);
    }
}

void tsr_kv_group_fork(tsr_kv_group *group, int src, int dst, int64_t length)
{
    group->first[dst] = group->first[src];
    share_pages(group, src, dst, group->first[src], pages_for(group, length));
}

/* The pages of an origin that are shared with the parent. */
static tsr_kv_span shared_span(const tsr_kv_group *group, const tsr_kv_origin *o)
{
    tsr_kv_span none = {o->span.first, o->span.first};
    if (o->parent < 0)
        return none;
    tsr_kv_span s = {TSR_MAX(o->span.first, group->first[o->parent]),
                     TSR_MIN(TSR_MIN(o->span.end, o->shared), pages_for(group, o->parent_length))};
    return s.first < s.end ? s : none;
}

tsr_status tsr_kv_group_prepare_restore(tsr_kv_group *group, const tsr_kv_origin *origin)
{
    tsr_status status = TSR_OK;
    tsr_kv_span shared = shared_span(group, origin);
    int n = origin->span.end - origin->span.first - (shared.end - shared.first);
    if (n > tsr_kv_group_n_free(group))
        return tsr_fail(TSR_ERR_FULL,
                        "%d more KV page%s of %lld tokens needed, %d of %d free; remove or shorten a "
                        "sequence, or set a larger n_ctx",
                        n, tsr_plural(n), (long long)group->page_positions, tsr_kv_group_n_free(group),
                        group->n_pages);
    status = commit(group, TSR_MAX(n - group->n_returned, 0));
    if (status != TSR_OK)
        tsr_kv_group_unprepare(group);
    return status;
}

void tsr_kv_group_restore(tsr_kv_group *group, int seq, const tsr_kv_origin *origin)
{
    int32_t *table = tsr_kv_group_table(group, seq);
    tsr_kv_span shared = shared_span(group, origin);
    group->first[seq] = origin->span.first;
    if (shared.first < shared.end) /* otherwise there may be no parent and no table to point to */
        share_pages(group, origin->parent, seq, shared.first, shared.end);
    for (int i = origin->span.first; i < origin->span.end; i++)
        if (i < shared.first || i >= shared.end)
            table[i] = take_page(group);
}

/* -- compaction -- */

/* Copy pages in use from the top to free ones at the bottom. moved[page] is the new number of a moved page;
 * other entries are not read. */
static tsr_status move_down(tsr_kv_group *group, int32_t *moved)
{
    tsr_status status = TSR_OK;
    for (int low = 0, high = group->n_touched - 1;;) {
        while (low < high && group->references[low] > 0)
            low++;
        while (low < high && group->references[high] == 0)
            high--;
        if (low >= high)
            break;
        for (int d = 0; d < group->n_devices; d++)
            TSR_TRY(tsr_kv_region_copy_page(&group->regions[d], low, high));
        group->references[low] = group->references[high];
        group->references[high] = 0;
        moved[high] = low;
    }
out:
    return status;
}

/* Replace moved pages in tables: a moved page is free now, every other page in use is not. */
static void follow_moves(tsr_kv_group *group, const int64_t *lengths, const int32_t *moved)
{
    for (int s = 0; s < group->n_seq_max; s++) {
        int32_t *table = tsr_kv_group_table(group, s);
        for (int i = group->first[s]; i < pages_for(group, lengths[s]); i++)
            if (group->references[table[i]] == 0)
                table[i] = moved[table[i]];
    }
}

/* Stack the free pages below the highest page in use, the lowest on top; pages above count as never
 * touched. */
static void collect_free(tsr_kv_group *group)
{
    while (group->n_touched > 0 && group->references[group->n_touched - 1] == 0)
        group->n_touched--;
    group->n_returned = 0;
    for (int page = group->n_touched; page-- > 0;)
        if (group->references[page] == 0)
            group->returned[group->n_returned++] = page;
}

tsr_status tsr_kv_group_compact(tsr_kv_group *group, const int64_t *lengths)
{
    /* `returned` serves as scratch: it has an entry per page and is rebuilt afterwards. */
    tsr_status status = move_down(group, group->returned);
    follow_moves(group, lengths, group->returned);
    collect_free(group);
    for (int d = 0; d < group->n_devices; d++) {
        tsr_status own = tsr_kv_region_trim(&group->regions[d], group->n_touched);
        status = status == TSR_OK ? own : status;
    }
    return status;
}

/* -- another split -- */

tsr_status tsr_kv_group_adopt(tsr_kv_group *group, const tsr_kv_group *from)
{
    tsr_status status = TSR_OK;
    size_t n_pages = (size_t)group->n_pages, n_seq = (size_t)group->n_seq_max;
    for (int d = 0; d < group->n_devices; d++)
        TSR_TRY(tsr_kv_region_commit(&group->regions[d], from->n_touched));
    TSR_TRY(tsr_kv_regions_move(group->regions, from->regions, group->n_devices, from->references,
                                from->n_touched));
    memcpy(group->tables, from->tables, n_seq * (size_t)group->max_pages * sizeof *group->tables);
    memcpy(group->first, from->first, n_seq * sizeof *group->first);
    memcpy(group->references, from->references, n_pages * sizeof *group->references);
    memcpy(group->returned, from->returned, n_pages * sizeof *group->returned);
    group->n_returned = from->n_returned;
    group->n_touched = from->n_touched;
    group->n_shared = from->n_shared;
out:
    return status;
}
