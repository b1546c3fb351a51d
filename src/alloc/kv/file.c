/* Saving and restoring sequences of the KV region (alloc/kv/kv.h): the saved span, whole pages, restoring. */
#include <string.h>

#include "alloc/kv/kv.h"
#include "alloc/kv/state.h"
#include "core/mem.h"
#include "core/status.h"

/* -- the saved span -- */

/* The first page of the shortest span that a file may have, and of the longest. The longest includes the
 * positions that the last token saw, so that a loaded sequence can be cut by the last token to compute its
 * logits again. */
static int last_first(const tsr_kv_group *group, int64_t length)
{
    return tsr_kv_group_first_seen(group, length);
}

static int least_first(const tsr_kv_group *group, int64_t length)
{
    return tsr_kv_group_first_seen(group, length - 1);
}

tsr_kv_span tsr_kv_saved_span(const tsr_kv *kv, int group, int seq)
{
    tsr_kv_span span;
    (void)tsr_kv_pages(kv, group, seq, &span);
    span.first = TSR_MAX(span.first, least_first(&kv->groups[group], kv->lengths[seq]));
    return span;
}

bool tsr_kv_saved_valid(const tsr_kv *kv, int group, int64_t length, int64_t first)
{
    return first >= least_first(&kv->groups[group], length) &&
           first <= last_first(&kv->groups[group], length);
}

/* -- restoring -- */

static tsr_status check_saved(const tsr_kv *kv, int seq, const tsr_kv_saved *saved)
{
    bool good = seq >= 0 && seq < kv->n_seq_max && kv->lengths[seq] == 0 && saved->parent < kv->n_seq_max &&
                saved->parent != seq && saved->length >= 0 && saved->shared >= 0 &&
                saved->shared <= saved->length;
    for (int g = 0; g < kv->n_groups && good; g++)
        good = tsr_kv_saved_valid(kv, g, saved->length, saved->first[g]);
    if (!good)
        return tsr_fail(TSR_ERR_INVALID,
                        "sequence %d cannot be restored with %lld token%s; it must be empty, and the saved "
                        "sequence complete",
                        seq, (long long)saved->length, tsr_plural(saved->length));
    if (saved->length > kv->n_ctx)
        return tsr_fail(TSR_ERR_FULL,
                        "%lld tokens of a sequence exceed the context of %lld; set a larger n_ctx",
                        (long long)saved->length, (long long)kv->n_ctx);
    return TSR_OK;
}

static tsr_kv_origin origin_in(const tsr_kv *kv, int g, const tsr_kv_saved *saved)
{
    const int64_t page_positions = kv->groups[g].page_positions;
    int end = tsr_kv_pages_for(page_positions, saved->length);
    return (tsr_kv_origin){.span = {saved->first[g], end},
                           .parent = saved->parent,
                           .shared =
                               saved->shared == saved->length ? end : (int)(saved->shared / page_positions),
                           .parent_length = tsr_kv_length(kv, saved->parent)};
}

tsr_status tsr_kv_restore(tsr_kv *kv, int seq, const tsr_kv_saved *saved)
{
    tsr_status status = TSR_OK;
    tsr_kv_origin origins[TSR_KV_MAX_GROUPS];
    int32_t slot = -1;
    int n_prepared = 0;
    TSR_TRY(check_saved(kv, seq, saved));
    for (; n_prepared < kv->n_groups; n_prepared++) {
        origins[n_prepared] = origin_in(kv, n_prepared, saved);
        TSR_TRY(tsr_kv_group_prepare_restore(&kv->groups[n_prepared], &origins[n_prepared]));
    }
    if (tsr_kv_states_any(&kv->states) && saved->length > 0) {
        TSR_TRY(tsr_kv_states_prepare(&kv->states, seq, &slot));
        tsr_kv_states_restore(&kv->states, seq, slot, saved->length);
    }
    for (int g = 0; g < kv->n_groups; g++)
        tsr_kv_group_restore(&kv->groups[g], seq, &origins[g]);
    kv->lengths[seq] = saved->length;
out:
    for (int g = 0; g < n_prepared && status != TSR_OK; g++)
        tsr_kv_group_unprepare(&kv->groups[g]);
    return status;
}

/* -- whole pages -- */

size_t tsr_kv_page_bytes(const tsr_kv *kv, int group)
{
    return kv->groups[group].regions[0].whole_bytes;
}

static tsr_status find_page(const tsr_kv *kv, int group, int seq, int index, int32_t *page_out)
{
    tsr_kv_span span;
    const int32_t *pages = tsr_kv_pages(kv, group, seq, &span);
    if (!pages || index < span.first || index >= span.end)
        return tsr_fail(TSR_ERR_INVALID,
                        "sequence %d of %lld token%s has no KV page %d; it has %d page%s from %d on", seq,
                        (long long)tsr_kv_length(kv, seq), tsr_plural(tsr_kv_length(kv, seq)), index,
                        span.end - span.first, tsr_plural(span.end - span.first), span.first);
    *page_out = pages[index];
    return TSR_OK;
}

/* A whole page is stored head by head; clear each head's rows behind the first n_rows. */
static void clear_behind(const tsr_kv *kv, int group, int64_t n_rows, unsigned char *bytes)
{
    for (int i = 0; i < kv->n_layers; i++)
        for (int part = 0; part < 2 && kv->group_of[i] == group; part++) {
            size_t row = part == 0 ? kv->rows[i].k_bytes : kv->rows[i].v_bytes;
            size_t head = row * (size_t)kv->page_tokens, kept = row * (size_t)n_rows;
            for (int64_t h = 0; h < kv->rows[i].n_heads; h++, bytes += head)
                memset(bytes + kept, 0, head - kept);
        }
}

tsr_status tsr_kv_page_get(const tsr_kv *kv, int group, int seq, int index, unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    int32_t page;
    TSR_TRY(find_page(kv, group, seq, index, &page));
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_get_page(&kv->groups[group].regions[d], page, bytes));
    const int64_t page_positions = kv->groups[group].page_positions;
    int64_t left = kv->lengths[seq] - (int64_t)index * page_positions;
    if (left < page_positions)
        clear_behind(kv, group, left / kv->groups[group].ratio, bytes);
out:
    return status;
}

tsr_status tsr_kv_page_put(tsr_kv *kv, int group, int seq, int index, const unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    int32_t page;
    TSR_TRY(find_page(kv, group, seq, index, &page));
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_put_page(&kv->groups[group].regions[d], page, bytes));
out:
    return status;
}

/* -- states -- */

size_t tsr_kv_state_bytes(const tsr_kv *kv)
{
    return tsr_kv_states_any(&kv->states) ? kv->states.regions[0].whole_bytes : 0;
}

tsr_status tsr_kv_state_get(const tsr_kv *kv, int seq, unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_get_page(&kv->states.regions[d], kv->states.seqs[seq].end.slot, bytes));
out:
    return status;
}

tsr_status tsr_kv_state_put(tsr_kv *kv, int seq, const unsigned char *bytes)
{
    tsr_status status = TSR_OK;
    for (int d = 0; d < kv->n_devices; d++)
        TSR_TRY(tsr_kv_region_put_page(&kv->states.regions[d], kv->states.seqs[seq].end.slot, bytes));
out:
    return status;
}
