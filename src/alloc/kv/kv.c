/* The KV region (alloc/kv/kv.h): sequences, with the same length in all groups of layers. Pages of a group
 * are managed in group.c. Every change first runs the steps that can fail in all groups, and only then
 * changes tables. */
#include "alloc/kv/kv.h"

#include <stdio.h>
#include <string.h>

#include "alloc/kv/state.h"
#include "core/mem.h"
#include "core/status.h"

/* -- creation -- */

/* The group of layer `index`, or n_groups if no layer before it is like it. */
static int find_group(const tsr_kv *kv, const tsr_kv_spec *spec, int index)
{
    for (int i = 0; i < index; i++)
        if (kv->group_of[i] >= 0 && tsr_kv_alike(&spec->layers[i], &spec->layers[index]))
            return kv->group_of[i];
    return kv->n_groups;
}

static tsr_status make_groups(tsr_kv *kv, tsr_runtime *rt, const tsr_kv_spec *spec)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < kv->n_layers; i++) {
        const tsr_kv_layer *layer = &spec->layers[i];
        int g = find_group(kv, spec, i);
        if (!layer->kv_heads) {
            kv->group_of[i] = -1;
            continue;
        }
        if (g == TSR_KV_MAX_GROUPS)
            return tsr_fail(TSR_ERR_UNSUPPORTED, "layers have more than %d different windows and ratios",
                            TSR_KV_MAX_GROUPS);
        kv->rows[i] = tsr_kv_rows_of(layer, kv->type_k, kv->type_v);
        kv->group_of[i] = g;
        if (g < kv->n_groups)
            continue;
        kv->n_groups++; /* counted before opening, so that a failure closes it too */
        TSR_TRY(tsr_kv_group_open(&kv->groups[g], rt, spec, layer));
    }
    TSR_TRY(tsr_kv_states_open(&kv->states, rt, spec));
    if (kv->n_groups == 0 && !tsr_kv_states_any(&kv->states))
        return tsr_fail(TSR_ERR_UNSUPPORTED, "KV region: no layer has KV heads or states");
out:
    return status;
}

static void describe_kv(const tsr_tracked *tracked, char *text, size_t size)
{
    const tsr_kv *kv = TSR_TRACKED_OBJECT(tracked, tsr_kv);
    snprintf(text, size, "of %lld tokens in %d layers", (long long)kv->n_ctx, kv->n_layers);
}

static size_t live_bytes(const tsr_tracked *tracked, int device)
{
    return tsr_kv_reserved_bytes(TSR_TRACKED_OBJECT(tracked, tsr_kv), device);
}

const tsr_tracked *tsr_kv_tracked(const tsr_kv *kv)
{
    return &kv->tracked;
}

static const tsr_tracked_kind kv_kind = {"KV region", describe_kv, live_bytes};

tsr_status tsr_kv_create_spec(tsr_runtime *rt, const tsr_kv_spec *given, tsr_kv **kv_out)
{
    tsr_status status = TSR_OK;
    tsr_kv *kv = NULL;
    tsr_kv_spec spec = *given;
    spec.page_tokens = spec.page_tokens ? spec.page_tokens : TSR_KV_PAGE_TOKENS;

    TSR_TRY(tsr_kv_spec_check(rt, &spec));
    TSR_TRY(TSR_NEW(&kv, "a KV region"));
    kv->rt = rt;
    kv->n_devices = rt->n_devices;
    kv->n_layers = spec.n_layers;
    kv->n_seq_max = spec.n_seq_max;
    kv->page_tokens = spec.page_tokens;
    kv->n_ctx = spec.n_ctx;
    kv->type_k = spec.type_k;
    kv->type_v = spec.type_v;
    TSR_TRY(tsr_mem_array((size_t)kv->n_layers, sizeof *kv->rows, "KV layers", &kv->rows));
    TSR_TRY(tsr_mem_array((size_t)kv->n_layers, sizeof *kv->group_of, "KV layers", &kv->group_of));
    TSR_TRY(tsr_mem_array((size_t)kv->n_seq_max, sizeof *kv->lengths, "KV sequences", &kv->lengths));
    TSR_TRY(make_groups(kv, rt, &spec));
    tsr_track(&rt->tracked, &kv->tracked, &kv_kind);
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
    tsr_untrack(&kv->tracked);
    for (int g = 0; g < kv->n_groups; g++)
        tsr_kv_group_close(&kv->groups[g]);
    tsr_kv_states_close(&kv->states);
    tsr_mem_free(kv->lengths);
    tsr_mem_free(kv->group_of);
    tsr_mem_free(kv->rows);
    tsr_mem_free(kv);
}

/* -- sequences -- */

tsr_status tsr_kv_check_seq(const tsr_kv *kv, int seq)
{
    if (!kv)
        return tsr_fail(TSR_ERR_INVALID, "the KV region is NULL");
    if (seq < 0 || seq >= kv->n_seq_max)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d does not exist; the KV region has sequences 0 to %d",
                        seq, kv->n_seq_max - 1);
    return TSR_OK;
}

bool tsr_kv_fits(const tsr_kv *kv, int seq, int64_t n_tokens)
{
    if (seq < 0 || seq >= kv->n_seq_max || n_tokens < 0 || n_tokens > kv->n_ctx - kv->lengths[seq])
        return false;
    for (int g = 0; g < kv->n_groups && n_tokens > 0; g++) {
        tsr_kv_growth growth = tsr_kv_group_growth(&kv->groups[g], seq, kv->lengths[seq], n_tokens);
        if (!tsr_kv_group_fits(&kv->groups[g], &growth))
            return false;
    }
    return true;
}

static tsr_status fail_full(const tsr_kv_group *group, const tsr_kv_growth *growth)
{
    return tsr_fail(
        TSR_ERR_FULL,
        "sequence %d needs %d more KV page%s of %lld tokens, %d of %d are free; remove or shorten "
        "a sequence, or set a larger n_ctx",
        growth->seq, growth->n_wanted, tsr_plural(growth->n_wanted), (long long)group->page_positions,
        tsr_kv_group_n_free(group), group->n_pages);
}

tsr_status tsr_kv_append(tsr_kv *kv, int seq, int64_t n_tokens)
{
    tsr_status status = TSR_OK;
    tsr_kv_growth growth[TSR_KV_MAX_GROUPS];
    int32_t slot = -1;
    int n_prepared = 0;

    TSR_TRY(tsr_kv_check_seq(kv, seq));
    int64_t length = kv->lengths[seq];
    if (n_tokens < 0)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d cannot be lengthened by %lld tokens; pass 0 or more",
                        seq, (long long)n_tokens);
    if (n_tokens == 0)
        goto out;
    if (n_tokens > kv->n_ctx - length)
        return tsr_fail(
            TSR_ERR_FULL,
            "sequence %d has %lld token%s; %lld more exceed the context of %lld; set a larger n_ctx", seq,
            (long long)length, tsr_plural(length), (long long)n_tokens, (long long)kv->n_ctx);
    for (int g = 0; g < kv->n_groups; g++) {
        growth[g] = tsr_kv_group_growth(&kv->groups[g], seq, length, n_tokens);
        if (!tsr_kv_group_fits(&kv->groups[g], &growth[g]))
            return fail_full(&kv->groups[g], &growth[g]);
    }
    for (; n_prepared < kv->n_groups; n_prepared++)
        TSR_TRY(tsr_kv_group_prepare(&kv->groups[n_prepared], &growth[n_prepared]));
    if (tsr_kv_states_any(&kv->states)) {
        TSR_TRY(tsr_kv_states_prepare(&kv->states, seq, &slot));
        tsr_kv_states_append(&kv->states, seq, slot);
    }
    for (int g = 0; g < kv->n_groups; g++)
        tsr_kv_group_grow(&kv->groups[g], &growth[g]);
    kv->lengths[seq] += n_tokens;
out:
    for (int g = 0; g < n_prepared && status != TSR_OK; g++)
        tsr_kv_group_unprepare(&kv->groups[g]);
    return status;
}

tsr_status tsr_kv_commit_ahead(tsr_kv *kv, const int64_t *longer)
{
    tsr_status status = TSR_OK;
    int n_prepared = 0;
    for (; n_prepared < kv->n_groups; n_prepared++) {
        tsr_kv_group *group = &kv->groups[n_prepared];
        int64_t n_wanted = 0;
        for (int s = 0; s < kv->n_seq_max; s++)
            if (longer[s] > kv->lengths[s])
                n_wanted += tsr_kv_group_demand(group, s, kv->lengths[s], longer[s]);
        TSR_TRY(tsr_kv_group_commit_ahead(group, n_wanted));
    }
out:
    for (int g = 0; g < n_prepared && status != TSR_OK; g++)
        tsr_kv_group_unprepare(&kv->groups[g]);
    return status;
}

tsr_status tsr_kv_own(tsr_kv *kv, int group, int seq, int64_t begin, int64_t end)
{
    tsr_status status = TSR_OK;
    tsr_kv_group *g = &kv->groups[group];
    TSR_TRY(tsr_kv_check_seq(kv, seq));
    if (begin < (int64_t)g->first[seq] * g->page_positions || end > kv->lengths[seq])
        return tsr_fail(
            TSR_ERR_INVALID,
            "sequence %d: positions %lld to %lld have no pages; it has %lld tokens, and pages from "
            "position %lld on",
            seq, (long long)begin, (long long)end - 1, (long long)kv->lengths[seq],
            (long long)g->first[seq] * (long long)g->page_positions);
    for (int i = (int)(begin / g->page_positions); i < tsr_kv_pages_for(g->page_positions, end); i++) {
        tsr_kv_growth copy;
        if (!tsr_kv_group_copy(g, seq, i, &copy))
            continue;
        if (!tsr_kv_group_fits(g, &copy))
            return fail_full(g, &copy);
        TSR_TRY(tsr_kv_group_prepare(g, &copy));
        tsr_kv_group_grow(g, &copy);
    }
out:
    return status;
}

void tsr_kv_begin_call(tsr_kv *kv)
{
    kv->states.call_number++;
}

void tsr_kv_finish_step(tsr_kv *kv)
{
    if (tsr_kv_states_any(&kv->states))
        tsr_kv_states_finish(&kv->states, kv->lengths);
}

static int64_t least_of_window(const tsr_kv_group *group, int64_t first)
{
    return first > 0 ? first * group->page_positions + group->window - 1 : 0;
}

bool tsr_kv_keeps(const tsr_kv *kv, int seq, int64_t longer, int64_t length)
{
    for (int g = 0; g < kv->n_groups && length > 0; g++) {
        const tsr_kv_group *group = &kv->groups[g];
        const tsr_kv_growth growth =
            tsr_kv_group_growth(group, seq, kv->lengths[seq], longer - kv->lengths[seq]);
        if (least_of_window(group, growth.first) > length)
            return false;
    }
    return true;
}

/* The shortest length, other than 0, that the windows allow. */
static int64_t least_of_windows(const tsr_kv *kv, int seq)
{
    int64_t length = 0;
    for (int g = 0; g < kv->n_groups && seq >= 0 && seq < kv->n_seq_max; g++) {
        const tsr_kv_group *group = &kv->groups[g];
        length = TSR_MAX(length, least_of_window(group, group->first[seq]));
    }
    return length;
}

bool tsr_kv_can_trim(const tsr_kv *kv, int seq, int64_t length)
{
    if (seq < 0 || seq >= kv->n_seq_max || length < 0 || length > kv->lengths[seq])
        return false;
    if (length == 0 || length == kv->lengths[seq])
        return true;
    return length >= least_of_windows(kv, seq) &&
           (!tsr_kv_states_any(&kv->states) || tsr_kv_states_have(&kv->states, seq, length));
}

int64_t tsr_kv_min_length(const tsr_kv *kv, int seq)
{
    int64_t length = kv ? least_of_windows(kv, seq) : 0;
    if (!kv || seq < 0 || seq >= kv->n_seq_max || !tsr_kv_states_any(&kv->states))
        return length;
    int64_t least = tsr_kv_states_least(&kv->states, seq);
    return least >= length ? least : kv->lengths[seq];
}

tsr_status tsr_kv_trim(tsr_kv *kv, int seq, int64_t length)
{
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_kv_check_seq(kv, seq));
    int64_t old_length = kv->lengths[seq], least = least_of_windows(kv, seq);
    if (length < 0 || length > old_length)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d of %lld token%s cannot be cut to %lld; pass 0 to %lld",
                        seq, (long long)old_length, tsr_plural(old_length), (long long)length,
                        (long long)old_length);
    if (length > 0 && length < least)
        return tsr_fail(TSR_ERR_INVALID,
                        "sequence %d of %lld tokens cannot be cut to %lld: layers with a sliding window no "
                        "longer have the positions before; cut it to %lld or more, or to 0, or set "
                        "swa_full",
                        seq, (long long)old_length, (long long)length, (long long)least);
    if (!tsr_kv_can_trim(kv, seq, length))
        return tsr_fail(
            TSR_ERR_INVALID,
            "sequence %d of %lld tokens cannot be cut to %lld: the states of recurrent layers or compressed "
            "positions are known behind %lld tokens only; cut it to %lld or to 0",
            seq, (long long)old_length, (long long)length, (long long)tsr_kv_min_length(kv, seq),
            (long long)tsr_kv_min_length(kv, seq));
    for (int g = 0; g < kv->n_groups; g++)
        tsr_kv_group_cut(&kv->groups[g], seq, old_length, length);
    if (tsr_kv_states_any(&kv->states) && length < old_length)
        tsr_kv_states_cut(&kv->states, seq, length);
    kv->lengths[seq] = length;
out:
    return status;
}

tsr_status tsr_kv_remove(tsr_kv *kv, int seq)
{
    return tsr_kv_trim(kv, seq, 0);
}

tsr_status tsr_kv_fork(tsr_kv *kv, int from, int to)
{
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_kv_check_seq(kv, from));
    TSR_TRY(tsr_kv_check_seq(kv, to));
    if (kv->lengths[to] > 0)
        return tsr_fail(TSR_ERR_INVALID, "sequence %d holds %lld token%s; remove it before it becomes a fork",
                        to, (long long)kv->lengths[to], tsr_plural(kv->lengths[to]));
    for (int g = 0; g < kv->n_groups && from != to; g++)
        tsr_kv_group_fork(&kv->groups[g], from, to, kv->lengths[from]);
    if (tsr_kv_states_any(&kv->states) && from != to) {
        tsr_kv_finish_step(kv);
        tsr_kv_states_fork(&kv->states, from, to);
    }
    kv->lengths[to] = kv->lengths[from];
out:
    return status;
}

tsr_status tsr_kv_compact(tsr_kv *kv)
{
    tsr_status status = TSR_OK;
    if (!kv)
        return tsr_kv_check_seq(kv, 0);
    for (int g = 0; g < kv->n_groups; g++) {
        tsr_status own = tsr_kv_group_compact(&kv->groups[g], kv->lengths);
        status = status == TSR_OK ? own : status;
    }
    if (tsr_kv_states_any(&kv->states)) {
        tsr_status own = tsr_kv_states_compact(&kv->states);
        status = status == TSR_OK ? own : status;
    }
    return status;
}

/* -- another split -- */

/* Whether both regions have the same groups and page numbers, and `kv` is empty. */
static bool can_adopt(const tsr_kv *kv, const tsr_kv *from)
{
    bool same = kv->n_groups == from->n_groups && kv->n_seq_max == from->n_seq_max &&
                kv->states.n_slots == from->states.n_slots && kv->states.n_touched == 0;
    for (int g = 0; g < kv->n_groups && same; g++) {
        const tsr_kv_group *mine = &kv->groups[g], *other = &from->groups[g];
        same = mine->window == other->window && mine->ratio == other->ratio && mine->kept == other->kept &&
               mine->n_pages == other->n_pages && mine->n_touched == 0;
    }
    return same;
}

tsr_status tsr_kv_adopt(tsr_kv *kv, const tsr_kv *from)
{
    tsr_status status = TSR_OK;
    if (!can_adopt(kv, from))
        return tsr_fail(TSR_ERR_INVALID, "KV pages can be taken over only by a new region of the same size");
    for (int g = 0; g < kv->n_groups; g++)
        TSR_TRY(tsr_kv_group_adopt(&kv->groups[g], &from->groups[g]));
    if (tsr_kv_states_any(&kv->states))
        TSR_TRY(tsr_kv_states_adopt(&kv->states, &from->states));
    memcpy(kv->lengths, from->lengths, (size_t)kv->n_seq_max * sizeof *kv->lengths);
out:
    return status;
}

size_t tsr_kv_adopt_bytes(const tsr_kv *from, const tsr_kv_layer *layers, const tsr_device *device)
{
    size_t total = 0, page_tokens = (size_t)from->page_tokens;
    for (int g = 0; g < from->n_groups; g++) {
        size_t page = 0;
        for (int l = 0; l < from->n_layers; l++) {
            if (from->group_of[l] != g)
                continue;
            size_t n_rows = (size_t)tsr_kv_heads_on(&layers[l], device->index) * page_tokens;
            page += tsr_align_up(n_rows * from->rows[l].k_bytes, TSR_KV_PART_ALIGNMENT) +
                    tsr_align_up(n_rows * from->rows[l].v_bytes, TSR_KV_PART_ALIGNMENT);
        }
        total += tsr_align_up(page * (size_t)from->groups[g].n_touched, device->granularity);
    }
    if (tsr_kv_states_any(&from->states))
        total += tsr_kv_states_adopt_bytes(&from->states, layers, device);
    return total;
}

/* -- queries -- */

void tsr_kv_view_of(const tsr_kv *kv, int device, int layer, tsr_kv_view *view_out)
{
    const tsr_kv_region *region = &kv->groups[kv->group_of[layer]].regions[device];
    const tsr_kv_part *part = &region->parts[layer];
    const tsr_kv_rows *rows = &kv->rows[layer];
    *view_out = (tsr_kv_view){
        .base = part->n_heads > 0 ? region->base : NULL,
        .page_bytes = region->page_bytes,
        .k_offset = part->k_offset,
        .v_offset = rows->v_in_k ? part->k_offset : part->v_offset,
        .k_row_bytes = rows->k_bytes,
        .v_row_bytes = rows->v_in_k ? rows->k_bytes : rows->v_bytes,
        .type_k = kv->type_k,
        .type_v = kv->type_v,
        .n_heads = part->n_heads,
        .page_tokens = kv->page_tokens,
        .k_dim = rows->k_dim,
        .v_dim = rows->v_dim,
        .v_in_k = rows->v_in_k,
        .ratio = kv->groups[kv->group_of[layer]].ratio,
    };
}

void tsr_kv_state_view_of(const tsr_kv *kv, int device, int layer, int part, tsr_state_view *view_out)
{
    const tsr_kv_region *region = &kv->states.regions[device];
    const tsr_kv_part *p = &region->parts[kv->states.first_part[layer] + part];
    *view_out = (tsr_state_view){.slot_elems = (int64_t)(region->page_bytes / sizeof(float))};
    if (p->n_heads > 0)
        view_out->base = (float *)(void *)(region->base + p->k_offset);
}

int tsr_kv_n_states(const tsr_kv *kv, int layer)
{
    return layer >= 0 && layer < kv->n_layers ? kv->states.n_parts[layer] : 0;
}

size_t tsr_kv_state_bytes_on(const tsr_kv *kv, int device, int layer, int state)
{
    return kv->states.regions[device].parts[kv->states.first_part[layer] + state].k_bytes;
}

bool tsr_kv_has_states(const tsr_kv *kv)
{
    return tsr_kv_states_any(&kv->states);
}

tsr_state_row tsr_kv_state_row(const tsr_kv *kv, int seq)
{
    const tsr_kv_state *state = &kv->states.seqs[seq];
    return (tsr_state_row){.read = state->end.slot, .write = state->written, .first = -1};
}

const tsr_kv_rows *tsr_kv_layer_rows(const tsr_kv *kv, int layer)
{
    return &kv->rows[layer];
}

int64_t tsr_kv_length(const tsr_kv *kv, int seq)
{
    return kv && seq >= 0 && seq < kv->n_seq_max ? kv->lengths[seq] : 0;
}

tsr_runtime *tsr_kv_runtime(const tsr_kv *kv)
{
    return kv->rt;
}

int tsr_kv_n_seqs(const tsr_kv *kv)
{
    return kv->n_seq_max;
}

int64_t tsr_kv_max_step(const tsr_kv *kv)
{
    int64_t most = INT32_MAX;
    for (int g = 0; g < kv->n_groups; g++)
        if (kv->groups[g].kept > 0)
            most = TSR_MIN(most, kv->groups[g].kept - kv->groups[g].window + 1);
    return most;
}

int tsr_kv_n_groups(const tsr_kv *kv)
{
    return kv->n_groups;
}

int tsr_kv_group_of(const tsr_kv *kv, int layer)
{
    return layer >= 0 && layer < kv->n_layers ? kv->group_of[layer] : -1;
}

int64_t tsr_kv_window(const tsr_kv *kv, int group)
{
    return kv->groups[group].window;
}

int64_t tsr_kv_ratio_of(const tsr_kv *kv, int group)
{
    return kv->groups[group].ratio;
}

int64_t tsr_kv_page_positions(const tsr_kv *kv, int group)
{
    return kv->groups[group].page_positions;
}

const int32_t *tsr_kv_pages(const tsr_kv *kv, int group, int seq, tsr_kv_span *span_out)
{
    *span_out = (tsr_kv_span){0};
    if (seq < 0 || seq >= kv->n_seq_max)
        return NULL;
    span_out->first = kv->groups[group].first[seq];
    span_out->end = tsr_kv_pages_for(kv->groups[group].page_positions, kv->lengths[seq]);
    return tsr_kv_group_table(&kv->groups[group], seq);
}

int tsr_kv_max_pages(const tsr_kv *kv, int group)
{
    return kv->groups[group].max_pages;
}

tsr_kv_stats tsr_kv_group_stats(const tsr_kv *kv, int group)
{
    const tsr_kv_group *g = &kv->groups[group];
    int n_free = tsr_kv_group_n_free(g);
    return (tsr_kv_stats){g->n_pages, n_free, g->n_pages - n_free, g->n_shared, g->n_touched};
}

tsr_kv_stats tsr_kv_stats_of(const tsr_kv *kv)
{
    tsr_kv_stats sum = {0};
    for (int g = 0; g < kv->n_groups; g++) {
        tsr_kv_stats one = tsr_kv_group_stats(kv, g);
        sum.n_pages += one.n_pages;
        sum.n_free += one.n_free;
        sum.n_used += one.n_used;
        sum.n_shared += one.n_shared;
        sum.n_touched += one.n_touched;
    }
    return sum;
}

static bool is_device(const tsr_kv *kv, int device)
{
    return kv && device >= 0 && device < kv->n_devices;
}

size_t tsr_kv_reserved_bytes(const tsr_kv *kv, int device)
{
    size_t bytes = 0;
    if (!is_device(kv, device))
        return 0;
    for (int g = 0; g < kv->n_groups; g++)
        bytes += kv->groups[g].regions[device].reserved;
    return tsr_kv_states_any(&kv->states) ? bytes + kv->states.regions[device].reserved : bytes;
}

size_t tsr_kv_windowed_bytes(const tsr_kv *kv, int device)
{
    size_t bytes = 0;
    if (!is_device(kv, device))
        return 0;
    for (int g = 0; g < kv->n_groups; g++)
        bytes += kv->groups[g].window > 0 ? kv->groups[g].regions[device].reserved : 0;
    return bytes;
}

size_t tsr_kv_committed_bytes(const tsr_kv *kv, int device)
{
    size_t bytes = 0;
    if (!is_device(kv, device))
        return 0;
    for (int g = 0; g < kv->n_groups; g++)
        bytes += kv->groups[g].regions[device].committed;
    return tsr_kv_states_any(&kv->states) ? bytes + kv->states.regions[device].committed : bytes;
}
