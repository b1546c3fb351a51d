/* Files of saved sequences: their contents, for the code that writes and reads them and for tests.
 *
 *     header       tsr_saved_header, then per sequence a tsr_saved_sequence
 *     checksum     u64 of the header and the sequences
 *     pages        by sequence, by group, by page number: the bytes of tsr_kv_page_get(), then a u64
 *                  checksum seeded with the page's number in the file, counted from 0; with recurrent
 *                  layers, behind the pages of a sequence that has tokens, the bytes of tsr_kv_state_get()
 *                  as one more page
 *
 * All numbers are little-endian, like those of GGUF. Pages hold all heads, so a file does not depend on the
 * split that it was written under. A page that a sequence shares with an earlier sequence is stored once. Of
 * layers with a window, the file has the pages of tsr_kv_saved_span(), even if the region has more. */
#ifndef TSR_ALLOC_KV_SAVED_H
#define TSR_ALLOC_KV_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/kv/kv.h"

enum { TSR_SAVED_VERSION = 4 };

#define TSR_SAVED_MAGIC UINT64_C(0x0a31564b52535489) /* "\x89TSRKV1\n": neither text nor GGUF */

/* A group of layers with the same window and ratio (alloc/kv/kv.h). */
typedef struct tsr_saved_group {
    uint64_t window; /* 0: all */
    uint64_t page_positions;
    uint64_t page_bytes;
} tsr_saved_group;

typedef struct tsr_saved_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_sequences;
    uint64_t model; /* the caller's number of the model; a session has its fingerprint here */
    uint32_t n_groups;
    uint32_t type_k, type_v;                   /* tsr_type */
    uint32_t zero;                             /* no bytes between the others: they are hashed */
    tsr_saved_group groups[TSR_KV_MAX_GROUPS]; /* [n_groups], the rest 0 */
    uint64_t state_bytes;                      /* of a sequence's recurrent layers; 0: none */
} tsr_saved_header;

typedef struct tsr_saved_sequence {
    int32_t id;
    int32_t parent; /* an earlier sequence in the file, whose first `shared` tokens this sequence shares;
                     * -1: none */
    int64_t shared; /* whole pages, or all of the sequence */
    int64_t length; /* tokens */
    int32_t first[TSR_KV_MAX_GROUPS]; /* [n_groups] first page that is kept, the rest 0 */
} tsr_saved_sequence;

/* Fill in the header of a file of this region's sequences, except n_sequences. */
tsr_saved_header tsr_saved_header_of(const tsr_kv *kv, uint64_t model);

/* Fill in the entry of a sequence of this region, except its relation to other sequences. */
tsr_saved_sequence tsr_saved_sequence_of(const tsr_kv *kv, int seq);

/* The pages of sequence `index` in a group. Pages shared with the parent are stored with the parent only. */
tsr_kv_span tsr_saved_span(const tsr_saved_header *header, const tsr_saved_sequence *sequences,
                           uint32_t index, uint32_t group);
bool tsr_saved_is_shared(const tsr_saved_header *header, const tsr_saved_sequence *sequences, uint32_t index,
                         uint32_t group, int page);

/* Bytes of the largest page; a state counts as a page. */
size_t tsr_saved_page_bytes(const tsr_saved_header *header);

/* The first exchange of saving and loading: processes with different sequences would not make the same
 * steps. */
tsr_status tsr_saved_agree_on(const tsr_kv *kv, const int *seqs, int n_seqs, tsr_status mine,
                              const char *what);

#endif
