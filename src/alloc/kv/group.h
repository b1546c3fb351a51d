/* A group of layers of the KV region (alloc/kv/kv.h): the pool of its pages and the page tables of all
 * sequences, which have the same lengths in every group. What can fail comes first and apart from what
 * changes tables, so that the region can do the former for all groups before the latter for any. */
#ifndef TSR_ALLOC_KV_GROUP_H
#define TSR_ALLOC_KV_GROUP_H

#include "alloc/kv/region.h"
#include "core/runtime.h"

typedef struct tsr_kv_group {
    int64_t window; /* positions that its layers see; 0: all */
    int64_t kept;   /* so many last positions of a sequence keep their pages; 0: all do */
    int n_devices, n_seq_max, n_pages, max_pages;
    int64_t page_tokens;
    tsr_kv_region *regions;   /* [n_devices] */
    size_t *committed_before; /* [n_devices] scratch of prepare() */

    int32_t *tables;     /* [n_seq_max][max_pages] */
    int32_t *first;      /* [n_seq_max] pages before it are no longer there */
    int32_t *references; /* [n_pages] sequences that use the page */
    int32_t *returned;   /* [n_pages] stack of free pages that were used before */
    int n_returned;
    int n_touched; /* pages ever used: 0 .. n_touched - 1 */
    int n_shared;  /* pages with more than one reference */
} tsr_kv_group;

/* What lengthening a sequence does to its pages. */
typedef struct tsr_kv_growth {
    int seq, first; /* pages before `first` are dropped */
    int old_end;    /* behind those that it has */
    int begin, end; /* new pages */
    int copied;     /* the shared page that gets a copy first, since the new tokens begin in it; -1: none */
    int n_wanted;   /* pages taken, the copy included */
    int n_new;      /* of these, never used before */
} tsr_kv_growth;

/* The config has been checked. Leaves a group that tsr_kv_group_close() accepts even when it fails. */
tsr_status tsr_kv_group_open(tsr_kv_group *group, tsr_runtime *rt, const tsr_kv_config *config,
                             int64_t window);
void tsr_kv_group_close(tsr_kv_group *group);

static inline int tsr_kv_pages_for(int64_t page_tokens, int64_t n_tokens)
{
    return (int)((n_tokens + page_tokens - 1) / page_tokens);
}

static inline int32_t *tsr_kv_group_table(const tsr_kv_group *group, int seq)
{
    return group->tables + (size_t)seq * (size_t)group->max_pages;
}

static inline int tsr_kv_group_n_free(const tsr_kv_group *group)
{
    return group->n_returned + group->n_pages - group->n_touched;
}

/* The first page of which the token behind `length` sees something. */
int tsr_kv_group_first_seen(const tsr_kv_group *group, int64_t length);

/* n_tokens >= 1 more than `length`. */
tsr_kv_growth tsr_kv_group_growth(const tsr_kv_group *group, int seq, int64_t length, int64_t n_tokens);
bool tsr_kv_group_fits(const tsr_kv_group *group, const tsr_kv_growth *growth);

/* Commit what a growth that fits needs and make the copy; after a failure, and after unprepare(), all is as
 * before. grow() then changes the table. */
tsr_status tsr_kv_group_prepare(tsr_kv_group *group, const tsr_kv_growth *growth);
void tsr_kv_group_unprepare(tsr_kv_group *group);
void tsr_kv_group_grow(tsr_kv_group *group, const tsr_kv_growth *growth);

/* Forget the pages behind the new length; 0 forgets that pages before `first` were dropped, too. */
void tsr_kv_group_cut(tsr_kv_group *group, int seq, int64_t old_length, int64_t length);

/* Give the empty sequence dst the pages of src. */
void tsr_kv_group_fork(tsr_kv_group *group, int src, int dst, int64_t length);

/* Give the empty sequence `seq` pages [first, end), up to `shared` those of `parent` where it has them.
 * prepare_restore() commits what that takes: TSR_ERR_FULL, TSR_ERR_MEMORY; unprepare() takes it back. */
typedef struct tsr_kv_origin {
    tsr_kv_span span;
    int parent, shared; /* -1: none; pages */
    int64_t parent_length;
} tsr_kv_origin;

tsr_status tsr_kv_group_prepare_restore(tsr_kv_group *group, const tsr_kv_origin *origin);
void tsr_kv_group_restore(tsr_kv_group *group, int seq, const tsr_kv_origin *origin);

/* As tsr_kv_compact() and tsr_kv_adopt(); lengths[n_seq_max] are the sequences'. */
tsr_status tsr_kv_group_compact(tsr_kv_group *group, const int64_t *lengths);
tsr_status tsr_kv_group_adopt(tsr_kv_group *group, const tsr_kv_group *from);

#endif
