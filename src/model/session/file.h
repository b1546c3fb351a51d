/* Files of saved sequences: their contents, for the code that writes and reads them and for tests.
 *
 *     header       tsr_saved_header, then per sequence a tsr_saved_sequence
 *     checksum     u64 of all of that
 *     pages        of the sequences in their order, of each group after group, in each from the first page
 *                  on: what tsr_kv_page_get() gives, then a u64 checksum seeded with the page's number in
 *                  the file, counted from 0
 *
 * Everything is little-endian, like GGUF. Pages hold all heads, so nothing in a file tells how the model was
 * split when it was written. A page that a sequence shares with one before it is stored once. Of layers with
 * a window there is what tsr_kv_saved_span() says, the same whether or not the session kept more. */
#ifndef TSR_MODEL_SESSION_FILE_H
#define TSR_MODEL_SESSION_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "model/session/session.h"

enum { TSR_SAVED_VERSION = 2 };

#define TSR_SAVED_MAGIC UINT64_C(0x0a31564b52535489) /* "\x89TSRKV1\n": neither text nor GGUF */

/* Layers that see as many positions (alloc/kv/kv.h). */
typedef struct tsr_saved_group {
    uint64_t window; /* 0: all */
    uint64_t page_bytes;
} tsr_saved_group;

typedef struct tsr_saved_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_sequences;
    uint64_t model; /* fingerprint: two files of the same model have the same, other models another one */
    uint32_t page_tokens;
    uint32_t n_groups;
    uint32_t type_k, type_v;                   /* tsr_type */
    tsr_saved_group groups[TSR_KV_MAX_GROUPS]; /* [n_groups], the rest 0 */
} tsr_saved_header;

typedef struct tsr_saved_sequence {
    int32_t id;
    int32_t parent; /* a sequence before it in the file whose first `shared` tokens it shares; -1: none */
    int64_t shared; /* whole pages, or all of the sequence */
    int64_t length; /* tokens */
    int32_t first[TSR_KV_MAX_GROUPS]; /* [n_groups] pages before it are not kept, the rest 0 */
} tsr_saved_sequence;

/* What the header of a file of this session's sequences says, n_sequences aside. */
tsr_saved_header tsr_saved_header_of(const tsr_session *session);

/* What the header of a file of this session's sequences says of a sequence, its relatives aside. */
tsr_saved_sequence tsr_saved_sequence_of(const tsr_session *session, int seq);

/* The pages of sequence `index` in a group. Pages that it shares with its parent are stored with the parent
 * only. */
tsr_kv_span tsr_saved_span(const tsr_saved_header *header, const tsr_saved_sequence *sequences,
                           uint32_t index, uint32_t group);
bool tsr_saved_is_shared(const tsr_saved_header *header, const tsr_saved_sequence *sequences, uint32_t index,
                         uint32_t group, int page);

/* The largest page. */
size_t tsr_saved_page_bytes(const tsr_saved_header *header);

#endif
