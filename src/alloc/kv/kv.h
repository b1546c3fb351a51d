/* The KV region: keys and values of all sequences, in pages.
 *
 * Layers with the same window and the same ratio (tsr_kv_layer) are a group: a key is that of `ratio`
 * positions together, 1 in most layers. A page holds page_tokens keys of one sequence for every layer of its
 * group, those of page_positions = page_tokens * ratio consecutive positions. A group has one region of pages
 * per device and one page table per sequence. The table is the same on all devices: all hold the same tokens,
 * each its own heads and layers, so a page number means the same positions everywhere. The address of page p
 * of a group on a device is base + p * page_bytes. Page i of a sequence holds its positions from
 * i * page_positions on.
 *
 * Groups whose layers see all positions keep all pages of a sequence; groups with a window keep the last
 * pages. A token sees window - 1 positions before it, so with n_batch tokens at a time the pages of the last
 * window - 1 + n_batch positions are enough. A group holds no more, and reuses older pages for the next
 * tokens. This number is kept even when fewer tokens are added at a time, so a sequence can be cut by up to
 * n_batch tokens and continued. Any other cut is to length 0, or needs keep_all.
 *
 * Each group has one region of address space per device, reserved for all pages at creation and charged at
 * that full size (planned bytes are allocated bytes). Memory is committed as pages are first used, in the
 * order of their numbers. Growing never moves or copies a page. Free pages are reused before new pages are
 * committed, so the committed bytes are the high-water mark of pages in use, until tsr_kv_compact() moves
 * pages together and decommits the rest.
 *
 * Pages are reference-counted, so a fork shares all pages of its parent without a copy. A sequence that
 * continues inside a shared page first gets a copy of the page (on every device); full pages stay shared.
 *
 *     tsr_kv_create_spec(rt, &spec, &kv);
 *     if (tsr_kv_append(kv, seq, n_tokens) != TSR_OK) ...            (makes room for the next n positions)
 *     const int32_t *table = tsr_kv_pages(kv, group, seq, &span);    (for tsr_kv_index.page_table)
 *     tsr_kv_view view;
 *     tsr_kv_view_of(kv, device, layer, &view);                      (once, when a program is compiled)
 *     ... run programs that write positions length - n .. length - 1 and attend to their layers' windows ...
 *     tsr_kv_trim(kv, seq, shorter);
 *     tsr_kv_remove(kv, seq);
 *
 * After creation no function here allocates; only commits and page copies reach a device. One thread at a
 * time may use a region. No program that uses the region may run during trim, remove, fork or compact. During
 * append programs may be in flight, on devices that run them before all that is launched later: a page that
 * append reuses is written by a later program only. */
#ifndef TSR_ALLOC_KV_KV_H
#define TSR_ALLOC_KV_KV_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/kv.h>

#include "alloc/kv/spec.h"
#include "core/op.h"
#include "core/runtime.h"

/* Make the region. Groups are numbered in the order of their first layers; at most TSR_KV_MAX_GROUPS. `rt`
 * must outlive the region. TSR_ERR_MEMORY names the device and the bytes. */
tsr_status tsr_kv_create_spec(tsr_runtime *rt, const tsr_kv_spec *spec, tsr_kv **kv_out);

/* The region among the runtime's objects. */
const tsr_tracked *tsr_kv_tracked(const tsr_kv *kv);

/* TSR_ERR_INVALID: the region is NULL, or there is no such sequence. */
tsr_status tsr_kv_check_seq(const tsr_kv *kv, int seq);

/* Addresses of a layer's keys and values on a device; n_heads 0 and base NULL: the device holds none. Valid
 * as long as the region. Only pages of page tables may be accessed, because other pages may not be
 * committed. */
void tsr_kv_view_of(const tsr_kv *kv, int device, int layer, tsr_kv_view *view_out);

/* Address of a part of a recurrent layer's states on a device; base NULL: the device has nothing of it. Valid
 * as long as the region. */
void tsr_kv_state_view_of(const tsr_kv *kv, int device, int layer, int part, tsr_state_view *view_out);

/* The states of a layer (0 also for a layer that does not exist), and the bytes of one on a device. */
int tsr_kv_n_states(const tsr_kv *kv, int layer);
size_t tsr_kv_state_bytes_on(const tsr_kv *kv, int device, int layer, int state);

/* Whether there are recurrent layers, and the slots of a sequence for a step that append() has made room
 * for. */
bool tsr_kv_has_states(const tsr_kv *kv);
tsr_state_row tsr_kv_state_row(const tsr_kv *kv, int seq);

/* The size of a layer's keys and values. */
const tsr_kv_rows *tsr_kv_layer_rows(const tsr_kv *kv, int layer);

/* The most tokens of a program; fewer than 2^31 with windows only. */
int64_t tsr_kv_max_step(const tsr_kv *kv);

tsr_runtime *tsr_kv_runtime(const tsr_kv *kv);
int tsr_kv_n_seqs(const tsr_kv *kv); /* n_seq_max */

int tsr_kv_n_groups(const tsr_kv *kv);
int tsr_kv_group_of(const tsr_kv *kv, int layer);           /* -1: no layer with KV heads */
int64_t tsr_kv_window(const tsr_kv *kv, int group);         /* 0: its layers see all positions */
int64_t tsr_kv_page_positions(const tsr_kv *kv, int group); /* positions of a page */
int64_t tsr_kv_ratio_of(const tsr_kv *kv, int group);       /* positions of a key */

/* The page table of a sequence in a group. Entries [first, end) are set; end is ceil(length /
 * page_positions), at most tsr_kv_max_pages() = ceil(n_ctx / page_positions). Valid until the sequence
 * changes. */
const int32_t *tsr_kv_pages(const tsr_kv *kv, int group, int seq, tsr_kv_span *span_out);
int tsr_kv_max_pages(const tsr_kv *kv, int group);

/* Whether append(seq, n_tokens) would find enough pages. */
bool tsr_kv_fits(const tsr_kv *kv, int seq, int64_t n_tokens);

/* Lengthen a sequence by n_tokens >= 0 positions. Their contents are undefined until written, and their pages
 * are not shared. A program over more than n_batch new positions would miss positions in the windows of the
 * first new positions. TSR_ERR_FULL: too few free pages, or longer than n_ctx. TSR_ERR_MEMORY: a device could
 * not commit memory. Another status: copying a shared page failed. A failure changes no sequence. */
tsr_status tsr_kv_append(tsr_kv *kv, int seq, int64_t n_tokens);

/* Commit the pages with which sequences get longer[n_seq_max] tokens, however few at a time, as far as there
 * are pages: a device may wait for its programs before it commits memory, and append() then has nothing to
 * commit. TSR_ERR_MEMORY as tsr_kv_append(), and nothing is committed. */
tsr_status tsr_kv_commit_ahead(tsr_kv *kv, const int64_t *longer);

/* Make the pages of positions [begin, end) of a sequence in a group its own, since a program writes to them:
 * pages that are shared are copied. TSR_ERR_INVALID: the group has no such pages. Otherwise as
 * tsr_kv_append(). */
tsr_status tsr_kv_own(tsr_kv *kv, int group, int seq, int64_t begin, int64_t end);

/* With recurrent layers: a call is one or more steps, and appends to a sequence between two of them belong to
 * one step. begin_call() marks the lengths that trim() can go back to; finish_step() says that the step has
 * run, so that its states count. Without recurrent layers neither changes anything. */
void tsr_kv_begin_call(tsr_kv *kv);
void tsr_kv_finish_step(tsr_kv *kv);

/* Whether trim() can cut a sequence to `length`. Without recurrent layers every length from
 * tsr_kv_min_length() on is possible; with them only that length and the present one, and, before
 * finish_step(), the length before the step. */
bool tsr_kv_can_trim(const tsr_kv *kv, int seq, int64_t length);

/* Whether a sequence, once lengthened to `longer`, still has the pages to be cut to `length`. */
bool tsr_kv_keeps(const tsr_kv *kv, int seq, int64_t longer, int64_t length);

/* Copy all sequences of `from` to the new, empty region `kv`, with the same page numbers and the same
 * sharing. The specs of both regions may differ in the devices of the layers only. Heads that a device
 * lacks are copied from a device that has them; `from` is unchanged. Blocks. After a failure `kv` can only be
 * destroyed: TSR_ERR_MEMORY if a device cannot commit memory, or a device's own status. */
tsr_status tsr_kv_adopt(tsr_kv *kv, const tsr_kv *from);

/* The committed bytes of a device after a region with these layers has adopted `from`. */
size_t tsr_kv_adopt_bytes(const tsr_kv *from, const tsr_kv_layer *layers, const tsr_device *device);

/* Give the empty sequence `seq` the pages of `length` tokens, in group g from page first[g] on, with
 * undefined contents. Pages inside the first `shared` tokens (whole pages, or the whole sequence) are shared
 * with `parent` if it has them. parent -1: no page is shared. The spans must be possible results of
 * tsr_kv_saved_span(). Errors are those of tsr_kv_append(). */
typedef struct tsr_kv_saved {
    int64_t length, shared;
    int parent;
    int32_t first[TSR_KV_MAX_GROUPS];
} tsr_kv_saved;

tsr_status tsr_kv_restore(tsr_kv *kv, int seq, const tsr_kv_saved *saved);

/* The pages of a sequence in a group that a file keeps: the positions that the next token sees, and those
 * that the last token saw. Every region with the same layers has room for these, whatever its n_batch. */
tsr_kv_span tsr_kv_saved_span(const tsr_kv *kv, int group, int seq);

/* Whether pages from `first` on can be a saved span of a sequence of this length. */
bool tsr_kv_saved_valid(const tsr_kv *kv, int group, int64_t length, int64_t first);

/* A whole page, for files; its bytes do not depend on the split. Per layer of the group: the keys of all
 * heads, [heads][page_tokens][k_dim] in the KV types, then the values, without gaps. A head that several
 * devices hold is in the page once, and values inside keys are not in it again. Positions of the last
 * page behind the end of the sequence are zero bytes, so that equal sequences are equal bytes. `index` counts
 * the sequence's pages from 0. Blocks. TSR_ERR_INVALID: there is no such page. put() changes the page for
 * every sequence that shares it. */
size_t tsr_kv_page_bytes(const tsr_kv *kv, int group);
tsr_status tsr_kv_page_get(const tsr_kv *kv, int group, int seq, int index, unsigned char *bytes);
tsr_status tsr_kv_page_put(tsr_kv *kv, int group, int seq, int index, const unsigned char *bytes);

/* The same for the states of a sequence of at least one token, behind its last token; 0 bytes without
 * recurrent layers. */
size_t tsr_kv_state_bytes(const tsr_kv *kv);
tsr_status tsr_kv_state_get(const tsr_kv *kv, int seq, unsigned char *bytes);
tsr_status tsr_kv_state_put(tsr_kv *kv, int seq, const unsigned char *bytes);

/* Numbers of pages: all; free; in use; in use by several sequences; ever used and therefore committed. */
typedef struct tsr_kv_stats {
    int n_pages, n_free, n_used, n_shared, n_touched;
} tsr_kv_stats;

tsr_kv_stats tsr_kv_group_stats(const tsr_kv *kv, int group);
tsr_kv_stats tsr_kv_stats_of(const tsr_kv *kv); /* of all groups together */

/* The part of tsr_kv_reserved_bytes() of groups with a window. */
size_t tsr_kv_windowed_bytes(const tsr_kv *kv, int device);

#endif
