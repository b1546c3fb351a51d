/* A group of layers of the KV region (alloc/kv/kv.h): the pool of its pages and the page tables of all
 * sequences. A sequence has the same length in every group. The steps that can fail are separate from the
 * steps that change tables, so that the region can run the first for all groups before the second for any
 * group. */
#ifndef TSR_ALLOC_KV_GROUP_H
#define TSR_ALLOC_KV_GROUP_H

#include "alloc/kv/region.h"
#include "core/runtime.h"

typedef struct tsr_kv_group {
    int64_t window; /* positions that its layers see; 0: all */
    int64_t ratio;  /* positions with one key together */
    int64_t kept;   /* the last `kept` positions of a sequence keep their pages; 0: all do */
    int n_devices, n_seq_max, n_pages, max_pages;
    int64_t page_positions;   /* of a page: ratio times spec.page_tokens */
    tsr_kv_region *regions;   /* [n_devices] */
    size_t *committed_before; /* [n_devices] scratch of prepare() */

    int32_t *tables;     /* [n_seq_max][max_pages] */
    int32_t *first;      /* [n_seq_max] pages before this one were dropped */
    int32_t *references; /* [n_pages] sequences that use the page */
    int32_t *returned;   /* [n_pages] stack of free pages that were used before */
    int n_returned;
    int n_touched; /* pages ever used: 0 .. n_touched - 1 */
    int n_shared;  /* pages with more than one reference */
} tsr_kv_group;

/* The changes to a sequence's pages when it grows. */
typedef struct tsr_kv_growth {
    int seq, first; /* pages before `first` are dropped */
    int old_end;    /* end of its pages before growing */
    int begin, end; /* new pages */
    int copied;     /* the shared page to copy first, since the new tokens begin in it; -1: none */
    int n_wanted;   /* pages taken, the copy included */
    int n_new;      /* of these, never used before */
} tsr_kv_growth;

/* The group of a layer. The spec must be valid. tsr_kv_group_close() accepts the group even after a
 * failure. */
tsr_status tsr_kv_group_open(tsr_kv_group *group, tsr_runtime *rt, const tsr_kv_spec *spec,
                             const tsr_kv_layer *layer);
void tsr_kv_group_close(tsr_kv_group *group);

static inline int tsr_kv_pages_for(int64_t page_positions, int64_t n_tokens)
{
    return (int)((n_tokens + page_positions - 1) / page_positions);
}

static inline int32_t *tsr_kv_group_table(const tsr_kv_group *group, int seq)
{
    return group->tables + (size_t)seq * (size_t)group->max_pages;
}

static inline int tsr_kv_group_n_free(const tsr_kv_group *group)
{
    return group->n_returned + group->n_pages - group->n_touched;
}

/* The first page with a position that the token at position `length` sees. */
int tsr_kv_group_first_seen(const tsr_kv_group *group, int64_t length);

/* The growth from `length` by n_tokens >= 1. */
tsr_kv_growth tsr_kv_group_growth(const tsr_kv_group *group, int seq, int64_t length, int64_t n_tokens);
bool tsr_kv_group_fits(const tsr_kv_group *group, const tsr_kv_growth *growth);

/* The growth that only makes page `index` of a sequence its own. False: the page is not shared. */
bool tsr_kv_group_copy(const tsr_kv_group *group, int seq, int index, tsr_kv_growth *growth_out);

/* Commit the new pages of a growth that fits, and make the copy. A failure or unprepare() restores the state
 * before. grow() then changes the table. */
tsr_status tsr_kv_group_prepare(tsr_kv_group *group, const tsr_kv_growth *growth);
void tsr_kv_group_unprepare(tsr_kv_group *group);
void tsr_kv_group_grow(tsr_kv_group *group, const tsr_kv_growth *growth);

/* The most pages of the pool that growing from `length` to `longer` has taken, and not returned, at any time,
 * however few tokens it adds at a time. */
int tsr_kv_group_demand(const tsr_kv_group *group, int seq, int64_t length, int64_t longer);

/* Commit what is missing of n_wanted free pages; unprepare() undoes it. */
tsr_status tsr_kv_group_commit_ahead(tsr_kv_group *group, int64_t n_wanted);

/* Return the pages behind the new length. Length 0 also resets `first`. */
void tsr_kv_group_cut(tsr_kv_group *group, int seq, int64_t old_length, int64_t length);

/* Make the empty sequence dst share the pages of src. */
void tsr_kv_group_fork(tsr_kv_group *group, int src, int dst, int64_t length);

/* Give the empty sequence `seq` the pages of `span`. Pages before `shared` that `parent` has are shared with
 * it, the others are new. prepare_restore() commits the new pages (TSR_ERR_FULL, TSR_ERR_MEMORY); unprepare()
 * undoes it. */
typedef struct tsr_kv_origin {
    tsr_kv_span span;
    int parent, shared; /* -1: none; pages */
    int64_t parent_length;
} tsr_kv_origin;

tsr_status tsr_kv_group_prepare_restore(tsr_kv_group *group, const tsr_kv_origin *origin);
void tsr_kv_group_restore(tsr_kv_group *group, int seq, const tsr_kv_origin *origin);

/* tsr_kv_compact() and tsr_kv_adopt() for one group; lengths[n_seq_max] are the lengths of the sequences. */
tsr_status tsr_kv_group_compact(tsr_kv_group *group, const int64_t *lengths);
tsr_status tsr_kv_group_adopt(tsr_kv_group *group, const tsr_kv_group *from);

#endif
