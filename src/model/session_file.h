/* Files of saved sequences: what lies in one, for the code that writes and reads it and for tests.
 *
 *     header       tsr_saved_header, then per sequence a tsr_saved_sequence
 *     checksum     u64 of all of that
 *     pages        of the sequences in their order: tsr_kv_page_bytes() bytes as tsr_kv_page_get() gives
 * them, then a u64 checksum seeded with the page's number in the file, counted from 0
 *
 * Everything is little-endian, like GGUF. Pages hold all heads, so nothing in a file tells how the model was
 * split when it was written. A page that a sequence shares with one before it is stored once. */
#ifndef TSR_MODEL_SESSION_FILE_H
#define TSR_MODEL_SESSION_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "model/session.h"

enum { TSR_SAVED_VERSION = 1 };

#define TSR_SAVED_MAGIC UINT64_C(0x0a31564b52535489) /* "\x89TSRKV1\n": neither text nor GGUF */

typedef struct tsr_saved_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_sequences;
    uint64_t model; /* fingerprint: two files of the same model have the same, other models another one */
    uint64_t page_bytes;
    uint32_t page_tokens;
    uint32_t type_k, type_v; /* tsr_type */
    uint32_t reserved;       /* 0 */
} tsr_saved_header;

typedef struct tsr_saved_sequence {
    int32_t id;
    int32_t parent; /* a sequence before it in the file whose first `shared` tokens it shares; -1: none */
    int64_t shared; /* whole pages, or all of the sequence */
    int64_t length; /* tokens */
} tsr_saved_sequence;

/* FNV-1a (Fowler, Noll, Vo) over 64-bit words instead of bytes, the last one padded with zeros: any change of
 * one word changes it. */
uint64_t tsr_checksum(uint64_t seed, const void *bytes, size_t n);

/* Of the architecture, the shapes and types of all tensors, and the first bytes of each. */
uint64_t tsr_model_fingerprint(const tsr_model *model);

/* What the header of a file of this session's sequences says, n_sequences aside. */
tsr_saved_header tsr_saved_header_of(const tsr_session *session);

/* Pages of a sequence that lie in the file: from *first_out on. */
int tsr_saved_pages(const tsr_saved_sequence *sequence, int page_tokens, int *first_out);

#endif
