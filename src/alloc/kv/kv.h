/* The KV region: keys and values of all sequences, in pages.
 *
 * A page holds page_tokens consecutive positions of one sequence, for every layer of a group. Layers that see
 * as many positions (tsr_kv_layer.window) are a group: its pages lie together, and it has one page table per
 * sequence, the same on all devices: they hold the same tokens, each its own heads and layers, so a page
 * number means the same positions everywhere. Where page p of a group lies on a device: base + p *
 * page_bytes. Page i of a sequence holds its positions from i * page_tokens on, in every group.
 *
 * Groups whose layers see all positions keep all pages of a sequence; those with a window keep the last ones.
 * The next token sees window - 1 positions before it, so with n_batch tokens at a time the pages of the last
 * window - 1 + n_batch positions are enough; no more are ever held, and those behind them go to the next
 * tokens. They are kept even when fewer tokens are added at once, so a sequence can be cut back by up to
 * n_batch tokens and go on; further back only to nothing, or never if keep_all is set.
 *
 * Each group has one region of address space per device, reserved for all pages when it is made and charged
 * at that full size (what was planned is what is taken); memory is committed as pages are first used, in
 * order of their numbers. Growing never moves or copies anything. Pages that become free are used again
 * before new ones are, so what is committed is the high-water mark of pages in use, until tsr_kv_compact()
 * moves pages together and gives the rest back.
 *
 * Pages are counted by reference, so a fork shares all of its parent's pages at no cost. A sequence that
 * continues inside a shared page gets a copy of it first (on every device); full pages stay shared.
 *
 *     tsr_kv_create(rt, &config, &kv);
 *     if (tsr_kv_append(kv, seq, n_tokens) != TSR_OK) ...            (makes room for the next n positions)
 *     const int32_t *table = tsr_kv_pages(kv, group, seq, &span);    (for tsr_kv_index.page_table)
 *     tsr_kv_view view;
 *     tsr_kv_view_of(kv, device, layer, &view);                      (once, when a program is compiled)
 *     ... run programs that write positions length - n .. length - 1 and attend to what their layers see ...
 *     tsr_kv_trim(kv, seq, shorter);
 *     tsr_kv_remove(kv, seq);
 *
 * After creation nothing here allocates, and only commits and page copies reach a device. One thread at a
 * time, and no program that uses the region may run during append, trim, remove, fork or compact. */
#ifndef TSR_ALLOC_KV_KV_H
#define TSR_ALLOC_KV_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/kv/config.h"
#include "core/op.h"
#include "core/runtime.h"

typedef struct tsr_kv tsr_kv;

/* Make the region. Groups are counted in the order in which their first layers come, at most
 * TSR_KV_MAX_GROUPS. `rt` must outlive it. TSR_ERR_MEMORY names the device and the bytes. */
tsr_status tsr_kv_create(tsr_runtime *rt, const tsr_kv_config *config, tsr_kv **kv_out);
void tsr_kv_destroy(tsr_kv *kv); /* NULL is fine */

/* Where a layer's keys and values lie on a device; n_heads 0 and base NULL if it holds none. Stays valid as
 * long as the region. Pages beyond the committed ones must not be touched: use only those of page tables. */
void tsr_kv_view_of(const tsr_kv *kv, int device, int layer, tsr_kv_view *view_out);

/* Tokens of a sequence, 0 <= seq < n_seq_max; all are empty at first. */
int64_t tsr_kv_length(const tsr_kv *kv, int seq);

int tsr_kv_n_groups(const tsr_kv *kv);
int tsr_kv_group_of(const tsr_kv *kv, int layer);
int64_t tsr_kv_window(const tsr_kv *kv, int group); /* 0: its layers see all positions */

/* Page numbers of a sequence in a group, of which [first, end) are set; end is ceil(length / page_tokens), at
 * most tsr_kv_max_pages() = ceil(n_ctx / page_tokens). Valid until the sequence changes. */
const int32_t *tsr_kv_pages(const tsr_kv *kv, int group, int seq, tsr_kv_span *span_out);
int tsr_kv_max_pages(const tsr_kv *kv);

/* Whether append(seq, n_tokens) would find enough pages. */
bool tsr_kv_fits(const tsr_kv *kv, int seq, int64_t n_tokens);

/* Lengthen a sequence by n_tokens >= 0 positions, whose contents are undefined until they are written. The
 * pages of the new positions belong to this sequence alone afterwards. A program over more than n_batch new
 * positions would miss what the first of them see through a window.
 * TSR_ERR_FULL: too few free pages, or longer than n_ctx. TSR_ERR_MEMORY: a device could not commit memory.
 * Another status: copying a shared page failed. Nothing has changed then, in this or any other sequence. */
tsr_status tsr_kv_append(tsr_kv *kv, int seq, int64_t n_tokens);

/* The shortest length but 0 that trim() would cut a sequence to. */
int64_t tsr_kv_min_length(const tsr_kv *kv, int seq);

/* Shorten to `length` tokens (0 <= length <= the current one). TSR_ERR_INVALID also where a group with a
 * window no longer has what the next token would see: see tsr_kv_min_length(). */
tsr_status tsr_kv_trim(tsr_kv *kv, int seq, int64_t length);

/* Make it empty. */
tsr_status tsr_kv_remove(tsr_kv *kv, int seq);

/* Make the empty sequence dst a copy of src, which shares its pages. */
tsr_status tsr_kv_fork(tsr_kv *kv, int src, int dst);

/* Move the pages in use to the lowest numbers and give the memory behind them back to the devices. Page
 * tables change; contents do not. Where a page cannot be copied or memory cannot be given back, the status
 * says so and what was reached by then holds: nothing is lost, and less memory is returned. */
tsr_status tsr_kv_compact(tsr_kv *kv);

/* Make the new, empty region `kv` hold what `from` holds: the same sequences in pages of the same numbers,
 * shared as they are there. Both were made with one config but for the devices of the layers. What each
 * device lacks is copied from those that have it; `from` stays as it is. Blocks. On failure `kv` can only be
 * destroyed: TSR_ERR_MEMORY if a device cannot commit memory, or a device's own status. */
tsr_status tsr_kv_adopt(tsr_kv *kv, const tsr_kv *from);

/* The committed bytes of a device after a region with these layers took over `from`. */
size_t tsr_kv_adopt_bytes(const tsr_kv *from, const tsr_kv_layer *layers, const tsr_device *device);

/* Make the empty sequence `seq` hold `length` tokens whose pages' contents are undefined: of group g those
 * from first[g] on. Of those the ones that lie in the first `shared` tokens (whole pages, or all of it) and
 * that `parent` has are parent's. parent -1: it shares nothing. The spans must be what tsr_kv_saved_span()
 * can give. Errors as tsr_kv_append(). */
typedef struct tsr_kv_saved {
    int64_t length, shared;
    int parent;
    int32_t first[TSR_KV_MAX_GROUPS];
} tsr_kv_saved;

tsr_status tsr_kv_restore(tsr_kv *kv, int seq, const tsr_kv_saved *saved);

/* What a file keeps of a sequence in a group: what the next token sees, and the one before it would. Any
 * region with the same layers has room for that, whatever its n_batch. */
tsr_kv_span tsr_kv_saved_span(const tsr_kv *kv, int group, int seq);

/* Whether pages from `first` on can be a saved span of a sequence of this length. */
bool tsr_kv_saved_valid(const tsr_kv *kv, int group, int64_t length, int64_t first);

/* A page as no split shows it, for files: per layer of the group the keys of all heads,
 * [heads][page_tokens][head_dim] in the KV types, then the values, nothing between. Of the last page of a
 * sequence the positions that it does not reach are zero bytes, so that equal sequences are equal bytes.
 * `index` counts the sequence's pages from 0. Blocks. TSR_ERR_INVALID: there is no such page. put() writes
 * the page for every sequence that shares it. */
size_t tsr_kv_page_bytes(const tsr_kv *kv, int group);
tsr_status tsr_kv_page_get(const tsr_kv *kv, int group, int seq, int index, unsigned char *bytes);
tsr_status tsr_kv_page_put(tsr_kv *kv, int group, int seq, int index, const unsigned char *bytes);

/* Counts of pages: in all; not used; used; used by more than one sequence; committed by what is used. */
typedef struct tsr_kv_stats {
    int n_pages, n_free, n_used, n_shared, n_touched;
} tsr_kv_stats;

tsr_kv_stats tsr_kv_group_stats(const tsr_kv *kv, int group);
tsr_kv_stats tsr_kv_stats_of(const tsr_kv *kv); /* of all groups together */

/* Bytes of a device's region: reserved (= charged to TSR_MEMORY_KV), those of them that are of groups with a
 * window, and committed so far. */
size_t tsr_kv_reserved_bytes(const tsr_kv *kv, int device);
size_t tsr_kv_windowed_bytes(const tsr_kv *kv, int device);
size_t tsr_kv_committed_bytes(const tsr_kv *kv, int device);

#endif
