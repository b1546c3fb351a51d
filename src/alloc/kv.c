/* Page tables, reference counts and the free list of the KV region (alloc/kv.h).
 *
 * The page allocator is a stack of returned pages plus a counter of pages never used: taking and returning
 * one is O(1), and the counter moves only when the stack is empty, so the committed part grows only when more
 * pages are in use than ever before.
 *
 * append() does what can fail first (page count, commit, copy) and only then changes tables; up to that point
 * the pages it will take are only looked at. */
#include "alloc/kv.h"

#include <stdio.h>
#include <string.h>

#include "alloc/kv_region.h"
#include "core/mem.h"
#include "core/status.h"

typedef struct sequence {
    int64_t length;
    int32_t *pages; /* [max_pages] */
} sequence;

struct tsr_kv {
    tsr_live live;
    int n_devices, n_layers, n_seq_max, n_pages, max_pages;
    int page_tokens;
    int64_t head_dim, n_ctx;
    tsr_type type_k, type_v;
    int64_t *n_heads;         /* [n_layers] KV heads, on all devices */
    tsr_kv_region *regions;   /* [n_devices] */
    size_t *committed_before; /* [n_devices] scratch of append() */

    sequence *sequences; /* [n_seq_max] */
    int32_t *tables;     /* [n_seq_max][max_pages], what sequences point into */
    int32_t *references; /* [n_pages] sequences that use the page */
    int32_t *returned;   /* [n_pages] stack of free pages that were used before */
    int n_returned;
    int n_touched; /* pages ever used: 0 .. n_touched - 1 */
    int n_shared;  /* pages with more than one reference */
};

static int pages_for(const tsr_kv *kv, int64_t n_tokens)
{
    return (int)((n_tokens + kv->page_tokens - 1) / kv->page_tokens);
}

static int n_free(const tsr_kv *kv)
{
    return kv->n_returned + kv->n_pages - kv->n_touched;
}

/* ---- creation ---- */

static bool type_fits(tsr_type type)
{
    return type == TSR_TYPE_F32 || type == TSR_TYPE_F16 || type == TSR_TYPE_BF16 || type == TSR_TYPE_Q8_0 ||
           type == TSR_TYPE_Q4_0;
}

static tsr_status check_type(const char *what, tsr_type type, int64_t head_dim)
{
    if (!type_fits(type))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s %s: KV is stored as F32, F16, BF16, Q8_0 or Q4_0", what,
                        tsr_type_name(type));
    int64_t block = tsr_type_block_elems(type);
    if (head_dim % block != 0)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s %s has blocks of %lld elements, and head_dim %lld is no multiple of that; use F16 or "
            "BF16",
            what, tsr_type_name(type), (long long)block, (long long)head_dim);
    return TSR_OK;
}

static tsr_status check_layer(const tsr_runtime *rt, const tsr_kv_config *config, int index)
{
    const tsr_kv_layer *layer = &config->layers[index];
    const tsr_shard_map *map = layer->kv_heads;
    if (!map || map->n_devices != rt->n_devices || map->extent < 1)
        return tsr_fail(TSR_ERR_INVALID,
                        "KV layer %d: needs a map of at least one KV head over the runtime's %d devices",
                        index, rt->n_devices);
    for (int d = 0; d < rt->n_devices; d++)
        if (tsr_shard_map_count(map, d) > 0 && !(layer->devices >> d & 1))
            return tsr_fail(TSR_ERR_INVALID,
                            "KV layer %d: its map gives heads to device %s, which does not hold the layer",
                            index, rt->devices[d]->name);
    return TSR_OK;
}

static tsr_status check_config(const tsr_runtime *rt, const tsr_kv_config *config)
{
    tsr_status status = TSR_OK;
    if (config->n_layers < 1 || config->head_dim < 1 || config->n_ctx < 1 || config->n_seq_max < 1 ||
        config->page_tokens < 1)
        return tsr_fail(
            TSR_ERR_INVALID,
            "KV region: %d layers, head_dim %lld, n_ctx %lld, %d sequences, pages of %d tokens; each "
            "must be at least 1",
            config->n_layers, (long long)config->head_dim, (long long)config->n_ctx, config->n_seq_max,
            config->page_tokens);
    TSR_TRY(check_type("type_k", config->type_k, config->head_dim));
    TSR_TRY(check_type("type_v", config->type_v, config->head_dim));
    /* Page numbers and positions are int32. */
    int64_t slack = (int64_t)config->n_seq_max * (config->page_tokens - 1);
    if (config->n_ctx > INT32_MAX || slack > INT32_MAX || config->n_ctx + slack > INT32_MAX)
        return tsr_fail(TSR_ERR_INVALID, "KV region: n_ctx %lld for %d sequences is beyond 2^31 tokens",
                        (long long)config->n_ctx, config->n_seq_max);
    for (int i = 0; i < config->n_layers; i++)
        TSR_TRY(check_layer(rt, config, i));
out:
    return status;
}

static tsr_status make_tables(tsr_kv *kv)
{
    tsr_status status = TSR_OK;
    size_t n_seq = (size_t)kv->n_seq_max, n_pages = (size_t)kv->n_pages, n_entries;

    if (!tsr_mul_size(n_seq, (size_t)kv->max_pages, &n_entries))
        return tsr_fail(TSR_ERR_MEMORY, "page tables of %d sequences exceed the address space",
                        kv->n_seq_max);
    TSR_TRY(tsr_mem_array(n_seq, sizeof *kv->sequences, "KV sequences", &kv->sequences));
    TSR_TRY(tsr_mem_array(n_entries, sizeof *kv->tables, "KV page tables", &kv->tables));
    TSR_TRY(tsr_mem_array(n_pages, sizeof *kv->references, "KV page references", &kv->references));
    TSR_TRY(tsr_mem_array(n_pages, sizeof *kv->returned, "free KV pages", &kv->returned));
    for (size_t s = 0; s < n_seq; s++)
        kv->sequences[s].pages = kv->tables + s * (size_t)kv->max_pages;
out:
    return status;
}

static void describe_kv(const tsr_live *live, char *text, size_t size)
{
    const tsr_kv *kv = TSR_LIVE_OBJECT(live, tsr_kv);
    snprintf(text, size, "of %lld tokens in %d layers", (long long)kv->n_ctx, kv->n_layers);
}

static size_t live_bytes(const tsr_live *live, int device)
{
    return tsr_kv_reserved_bytes(TSR_LIVE_OBJECT(live, tsr_kv), device);
}

static const tsr_live_kind kv_kind = {"KV region", describe_kv, live_bytes};

tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *given, tsr_kv **kv_out)
{
    tsr_status status = TSR_OK;
    tsr_kv *kv = NULL;
    tsr_kv_config config = *given;
    config.page_tokens = config.page_tokens ? config.page_tokens : TSR_KV_PAGE_TOKENS;

    TSR_TRY(check_config(rt, &config));
    TSR_TRY(tsr_mem_array(1, sizeof *kv, "a KV region", &kv));
    kv->n_layers = config.n_layers;
    kv->n_seq_max = config.n_seq_max;
    kv->page_tokens = config.page_tokens;
    kv->head_dim = config.head_dim;
    kv->n_ctx = config.n_ctx;
    kv->type_k = config.type_k;
    kv->type_v = config.type_v;
    kv->n_pages =
        (int)((config.n_ctx + (int64_t)config.n_seq_max * (config.page_tokens - 1)) / config.page_tokens);
    kv->max_pages = pages_for(kv, config.n_ctx);
    TSR_TRY(make_tables(kv));
    TSR_TRY(tsr_mem_array((size_t)kv->n_layers, sizeof *kv->n_heads, "KV layers", &kv->n_heads));
    for (int i = 0; i < kv->n_layers; i++)
        kv->n_heads[i] = config.layers[i].kv_heads->extent;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *kv->regions, "KV regions", &kv->regions));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *kv->committed_before, "KV regions",
                          &kv->committed_before));
    while (kv->n_devices < rt->n_devices) {
        int d = kv->n_devices++; /* counted before it opens, so that a failure closes it too */
        TSR_TRY(tsr_kv_region_open(&kv->regions[d], rt->devices[d], &config, kv->n_pages));
    }
    tsr_live_add(rt, &kv->live, &kv_kind);
    *kv_out = kv;
    kv = NULL; /* now the caller's */
out:
    tsr_kv_destroy(kv);
    return status;
}

void tsr_kv_destroy(tsr_kv *kv)
{
    if (!kv)
        return;
    tsr_live_remove(&kv->live);
    for (int d = 0; d < kv->n_devices; d++)
        tsr_kv_region_close(&kv->regions[d]);
    tsr_mem_free(kv->committed_before);
    tsr_mem_free(kv->regions);
    tsr_mem_free(kv->n_heads);
    tsr_mem_free(kv->returned);
    tsr_mem_free(kv->references);
    tsr_mem_free(kv->tables);
    tsr_mem_free(kv->sequences);
    tsr_mem_free(kv);
}

/* ---- pages ---- */

/* The page that the (i + 1)-th take from now would give. */
static int peek_page(const tsr_kv *kv, int i)
{
    return i < kv->n_returned ? kv->returned[kv->n_returned - 1 - i] : kv->n_touched + i - kv->n_returned;
}

static int take_page(tsr_kv *kv)
{
    int page = peek_page(kv, 0);
    if (kv->n_returned > 0)
        kv->n_returned--;
    else
        kv->n_touched++;
    kv->references[page] = 1;
    return page;
}

static void share_page(tsr_kv *kv, int page)
{
    if (++kv->references[page] == 2)
        kv->n_shared++;
}

static void drop_page(tsr_kv *kv, int page)
{
    int left = --kv->references[page];
    if (left == 1)
        kv->n_shared--;
    if (left == 0)
        kv->returned[kv->n_returned++] = page;
}

/* ---- sequences ---- */

static tsr_status check_seq(const tsr_kv *kv, int seq)
{
    if (seq < 0 || seq >= kv->n_seq_max)
        return tsr_fail(TSR_ERR_INVALID, "there is no sequence %d; the KV region has %d", seq, kv->n_seq_max);
    return TSR_OK;
}

/* Whether the position after the last one lies in a page that other sequences see too. */
static bool ends_in_shared_page(const tsr_kv *kv, const sequence *s)
{
    return s->length % kv->page_tokens != 0 && kv->references[s->pages[s->length / kv->page_tokens]] > 1;
}

/* Pages to take for n_tokens more. */
static int pages_wanted(const tsr_kv *kv, const sequence *s, int64_t n_tokens)
{
    if (n_tokens == 0)
        return 0;
    return pages_for(kv, s->length + n_tokens) - pages_for(kv, s->length) + ends_in_shared_page(kv, s);
}

bool tsr_kv_fits(const tsr_kv *kv, int seq, int64_t n_tokens)
{
    if (seq < 0 || seq >= kv->n_seq_max || n_tokens < 0)
        return false;
    const sequence *s = &kv->sequences[seq];
    return n_tokens <= kv->n_ctx - s->length && pages_wanted(kv, s, n_tokens) <= n_free(kv);
}

/* Commit what taking `wanted` pages needs, and copy the shared last page to the first of them. On failure the
 * devices are as before. */
static tsr_status prepare_pages(tsr_kv *kv, const sequence *s, int wanted)
{
    tsr_status status = TSR_OK;
    int n_new = TSR_MAX(wanted - kv->n_returned, 0);
    int d;

    for (d = 0; d < kv->n_devices; d++)
        kv->committed_before[d] = kv->regions[d].committed;
    for (d = 0; d < kv->n_devices && n_new > 0; d++)
        TSR_TRY(tsr_kv_region_commit(&kv->regions[d], kv->n_touched + n_new));
    if (ends_in_shared_page(kv, s))
        for (d = 0; d < kv->n_devices; d++)
            TSR_TRY(tsr_kv_region_copy_page(&kv->regions[d], peek_page(kv, 0),
                                            s->pages[s->length / kv->page_tokens]));
out:
    if (status != TSR_OK)
        for (d = 0; d < kv->n_devices; d++)
            tsr_kv_region_shrink(&kv->regions[d], kv->committed_before[d]);
    return status;
}

tsr_status tsr_kv_append(tsr_kv *kv, int seq, int64_t n_tokens)
{
    tsr_status status = TSR_OK;

    TSR_TRY(check_seq(kv, seq));
    sequence *s = &kv->sequences[seq];
    if (n_tokens < 0)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d cannot be lengthened by %lld tokens", seq,
                        (long long)n_tokens);
    if (n_tokens == 0)
        goto out;
    if (n_tokens > kv->n_ctx - s->length)
        return tsr_fail(
            TSR_ERR_FULL,
            "sequence %d has %lld tokens; %lld more exceed the context of %lld; open with a larger "
            "n_ctx",
            seq, (long long)s->length, (long long)n_tokens, (long long)kv->n_ctx);
    int wanted = pages_wanted(kv, s, n_tokens);
    if (wanted > n_free(kv))
        return tsr_fail(
            TSR_ERR_FULL,
            "sequence %d needs %d more KV pages of %d tokens, %d of %d are free; remove or shorten a "
            "sequence, or open with a larger n_ctx",
            seq, wanted, kv->page_tokens, n_free(kv), kv->n_pages);
    TSR_TRY(prepare_pages(kv, s, wanted));

    if (ends_in_shared_page(kv, s)) {
        int32_t *last = &s->pages[s->length / kv->page_tokens];
        int copy = take_page(kv); /* before the drop: prepare_pages() copied to the page it gives now */
        drop_page(kv, *last);
        *last = copy;
        wanted--;
    }
    int n = pages_for(kv, s->length);
    for (int i = 0; i < wanted; i++)
        s->pages[n + i] = take_page(kv);
    s->length += n_tokens;
out:
    return status;
}

tsr_status tsr_kv_trim(tsr_kv *kv, int seq, int64_t length)
{
    tsr_status status = TSR_OK;

    TSR_TRY(check_seq(kv, seq));
    sequence *s = &kv->sequences[seq];
    if (length < 0 || length > s->length)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d of %lld tokens cannot be cut to %lld", seq,
                        (long long)s->length, (long long)length);
    int n_kept = pages_for(kv, length);
    for (int i = pages_for(kv, s->length); i-- > n_kept;)
        drop_page(kv, s->pages[i]); /* from the end, so that the lowest page lies on top of the stack */
    s->length = length;
out:
    return status;
}

tsr_status tsr_kv_remove(tsr_kv *kv, int seq)
{
    return tsr_kv_trim(kv, seq, 0);
}

tsr_status tsr_kv_fork(tsr_kv *kv, int src, int dst)
{
    tsr_status status = TSR_OK;

    TSR_TRY(check_seq(kv, src));
    TSR_TRY(check_seq(kv, dst));
    const sequence *from = &kv->sequences[src];
    sequence *to = &kv->sequences[dst];
    if (to->length > 0)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d holds %lld tokens; remove it before it becomes a fork",
                        dst, (long long)to->length);
    int n = pages_for(kv, from->length);
    memcpy(to->pages, from->pages, (size_t)n * sizeof *to->pages);
    for (int i = 0; i < n; i++)
        share_page(kv, to->pages[i]);
    to->length = from->length;
out:
    return status;
}

/* ---- compaction ---- */

/* Copy pages in use from the top to free ones at the bottom. moved[page] is where a page that moved lies now;
 * entries of others are not looked at. */
static tsr_status move_down(tsr_kv *kv, int32_t *moved)
{
    tsr_status status = TSR_OK;
    for (int low = 0, high = kv->n_touched - 1;;) {
        while (low < high && kv->references[low] > 0)
            low++;
        while (low < high && kv->references[high] == 0)
            high--;
        if (low >= high)
            break;
        for (int d = 0; d < kv->n_devices; d++)
            TSR_TRY(tsr_kv_region_copy_page(&kv->regions[d], low, high));
        kv->references[low] = kv->references[high];
        kv->references[high] = 0;
        moved[high] = low;
    }
out:
    return status;
}

/* Tables name pages that have moved: those are free now, others in use are not. */
static void follow_moves(tsr_kv *kv, const int32_t *moved)
{
    for (int s = 0; s < kv->n_seq_max; s++) {
        sequence *q = &kv->sequences[s];
        for (int i = 0; i < pages_for(kv, q->length); i++)
            if (kv->references[q->pages[i]] == 0)
                q->pages[i] = moved[q->pages[i]];
    }
}

/* Free pages below the highest one in use, the lowest on top of the stack; those above were never touched. */
static void collect_free(tsr_kv *kv)
{
    while (kv->n_touched > 0 && kv->references[kv->n_touched - 1] == 0)
        kv->n_touched--;
    kv->n_returned = 0;
    for (int page = kv->n_touched; page-- > 0;)
        if (kv->references[page] == 0)
            kv->returned[kv->n_returned++] = page;
}

tsr_status tsr_kv_compact(tsr_kv *kv)
{
    /* The stack is made anew afterwards, and has an entry per page. */
    tsr_status status = move_down(kv, kv->returned);
    follow_moves(kv, kv->returned);
    collect_free(kv);
    for (int d = 0; d < kv->n_devices; d++) {
        tsr_status own = tsr_kv_region_trim(&kv->regions[d], kv->n_touched);
        status = status == TSR_OK ? own : status;
    }
    return status;
}

/* ---- another split ---- */

tsr_status tsr_kv_take_over(tsr_kv *kv, const tsr_kv *from)
{
    tsr_status status = TSR_OK;
    size_t n_pages = (size_t)kv->n_pages;
    if (kv->n_pages != from->n_pages || kv->n_seq_max != from->n_seq_max || kv->n_touched > 0)
        return tsr_fail(TSR_ERR_INVALID, "KV pages can be taken over only by a new region of the same size");
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_commit(&kv->regions[d], from->n_touched));
    TSR_TRY(
        tsr_kv_regions_move(kv->regions, from->regions, kv->n_devices, from->references, from->n_touched));
    memcpy(kv->tables, from->tables, (size_t)kv->n_seq_max * (size_t)kv->max_pages * sizeof *kv->tables);
    for (int s = 0; s < kv->n_seq_max; s++)
        kv->sequences[s].length = from->sequences[s].length;
    memcpy(kv->references, from->references, n_pages * sizeof *kv->references);
    memcpy(kv->returned, from->returned, n_pages * sizeof *kv->returned);
    kv->n_returned = from->n_returned;
    kv->n_touched = from->n_touched;
    kv->n_shared = from->n_shared;
out:
    return status;
}

/* ---- whole pages ---- */

size_t tsr_kv_page_bytes(const tsr_kv *kv)
{
    return kv->regions[0].whole_bytes;
}

static tsr_status find_page(const tsr_kv *kv, int seq, int index, int32_t *page_out)
{
    tsr_status status = TSR_OK;
    TSR_TRY(check_seq(kv, seq));
    const sequence *s = &kv->sequences[seq];
    if (index < 0 || index >= pages_for(kv, s->length))
        return tsr_fail(TSR_ERR_INVALID, "sequence %d of %lld tokens has no KV page %d", seq,
                        (long long)s->length, index);
    *page_out = s->pages[index];
out:
    return status;
}

/* Rows of a whole page lie head by head; clear what each head has behind its first n_tokens. */
static void clear_behind(const tsr_kv *kv, int64_t n_tokens, unsigned char *bytes)
{
    size_t rows[2] = {tsr_type_row_bytes(kv->type_k, kv->head_dim),
                      tsr_type_row_bytes(kv->type_v, kv->head_dim)};
    for (int i = 0; i < kv->n_layers; i++)
        for (int part = 0; part < 2; part++) {
            size_t head = rows[part] * (size_t)kv->page_tokens, kept = rows[part] * (size_t)n_tokens;
            for (int64_t h = 0; h < kv->n_heads[i]; h++, bytes += head)
                memset(bytes + kept, 0, head - kept);
        }
}

tsr_status tsr_kv_page_get(const tsr_kv *kv, int seq, int index, unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    int32_t page;
    TSR_TRY(find_page(kv, seq, index, &page));
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_get_page(&kv->regions[d], page, bytes));
    int64_t left = kv->sequences[seq].length - (int64_t)index * kv->page_tokens;
    if (left < kv->page_tokens)
        clear_behind(kv, left, bytes);
out:
    return status;
}

tsr_status tsr_kv_page_put(tsr_kv *kv, int seq, int index, const unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    int32_t page;
    TSR_TRY(find_page(kv, seq, index, &page));
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_put_page(&kv->regions[d], page, bytes));
out:
    return status;
}

/* ---- queries ---- */

void tsr_kv_view_of(const tsr_kv *kv, int device, int layer, tsr_kv_view *view_out)
{
    const tsr_kv_region *region = &kv->regions[device];
    const tsr_kv_part *part = &region->parts[layer];
    *view_out = (tsr_kv_view){
        .base = part->n_heads > 0 ? region->base : NULL,
        .page_bytes = region->page_bytes,
        .k_offset = part->k_offset,
        .v_offset = part->v_offset,
        .k_row_bytes = tsr_type_row_bytes(kv->type_k, kv->head_dim),
        .v_row_bytes = tsr_type_row_bytes(kv->type_v, kv->head_dim),
        .type_k = kv->type_k,
        .type_v = kv->type_v,
        .n_heads = part->n_heads,
        .head_dim = kv->head_dim,
        .page_tokens = kv->page_tokens,
    };
}

int64_t tsr_kv_length(const tsr_kv *kv, int seq)
{
    return seq >= 0 && seq < kv->n_seq_max ? kv->sequences[seq].length : 0;
}

const int32_t *tsr_kv_pages(const tsr_kv *kv, int seq, int *n_out)
{
    *n_out = pages_for(kv, tsr_kv_length(kv, seq));
    return seq >= 0 && seq < kv->n_seq_max ? kv->sequences[seq].pages : NULL;
}

int tsr_kv_max_pages(const tsr_kv *kv)
{
    return kv->max_pages;
}

tsr_kv_stats tsr_kv_stats_of(const tsr_kv *kv)
{
    return (tsr_kv_stats){kv->n_pages, n_free(kv), kv->n_pages - n_free(kv), kv->n_shared, kv->n_touched};
}

size_t tsr_kv_reserved_bytes(const tsr_kv *kv, int device)
{
    return device >= 0 && device < kv->n_devices ? kv->regions[device].reserved : 0;
}

size_t tsr_kv_committed_bytes(const tsr_kv *kv, int device)
{
    return device >= 0 && device < kv->n_devices ? kv->regions[device].committed : 0;
}
