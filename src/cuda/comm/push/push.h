/* One-shot all-reduces that push: each device writes its part into the inbox of every other device, then
 * reads only its own inbox. One kernel, and one way over the link: a pulling kernel (reduce.cu) announces
 * that its part is ready and then reads the others' parts, which is three ways. Over PCIe writes are posted
 * as well, while a read is a round trip. The inboxes are in the devices' memory, or, for GPUs without peer
 * access, in pinned host memory, where the kernels differ in nothing but the addresses.
 *
 * Words. A part travels in words of 8 bytes. A word that is EMPTY (all bits set) has not arrived. No part has
 * such a word: exact partials, which stay above -2^57, are stored with all bits but the sign inverted, and of
 * a word of NaNs one bit is changed. A reader polls each word until it is not empty, uses the value and
 * stores EMPTY. Words are stored and loaded with relaxed order and system scope: a naturally aligned access
 * of 8 bytes is never torn, and since a word is its own flag nothing has to be ordered with it.
 *
 * Narrow words. A large exact part has two sums in a word, the low words of core/quant/wire.h. If one of the
 * two is wide, a second word follows in the other half of the region, with the bits from 31 on of both. The
 * first word says so: a reader knows what to wait for. Neither is EMPTY: a low word is never 2^30, the high
 * bits of a sum are never -2^31, and words are stored with the bits inverted that make EMPTY of these.
 *
 * Regions. An inbox has a region for each of two sides, each writer and each block. The k-th round of a block
 * with a device uses side k % 2. A message with more words than a region takes goes in several rounds.
 *
 * Reuse. In each round a block announces itself to its counterparts (device_barrier.h), sends its words and,
 * when it has its sums, waits for their announcements. The announcement of round k follows, by a release, the
 * stores of EMPTY of round k - 1. So a writer that has passed round k may write into the side of round k - 1
 * again, as round k + 1 does. A release waits until the stores before it are acknowledged; as the
 * announcement comes first, none of these is a word of its round. A device without a part announces itself
 * like the others: when the kernel ends all participants have come, as after a barrier.
 *
 * All blocks must be resident, and the number of rounds follows from values that the participants share, as
 * for a kernel with a barrier. */
#ifndef TSR_CUDA_COMM_PUSH_PUSH_H
#define TSR_CUDA_COMM_PUSH_PUSH_H

#include "cuda/comm/device_barrier.h"

TSR_BEGIN_DECLS

/* The words that one block can receive in a round, from all devices together: two devices send each other a
 * row of 8192 exact partials in one round. */
enum { TSR_CUDA_INBOX_WORDS = 16384 };

typedef struct tsr_cuda_push {
    tsr_cuda_barrier barrier;
    uint64_t contributors;               /* one bit per device that has a part */
    int64_t region;                      /* words of a region */
    int64_t row;                         /* elements of a round; 0: as many as suit the message */
    bool narrow;                         /* exact parts in narrow words; row is 0 */
    uint64_t *inbox[TSR_CUDA_MAX_PEERS]; /* [device][side][writer][block][word] */
} tsr_cuda_push;

/* Words of a region where `n_devices` devices have inboxes, and of an inbox. */
static inline int64_t tsr_cuda_push_region(int n_devices)
{
    return TSR_CUDA_INBOX_WORDS / n_devices;
}

static inline int64_t tsr_cuda_push_inbox(int n_devices, int max_blocks)
{
    return 2 * tsr_cuda_push_region(n_devices) * n_devices * max_blocks;
}

/* The elements of a round for a message whose rows of `row` elements a norm reads (0: none): a row where a
 * block can receive it in one round, else 0. Then a message is divided in the same way with and without its
 * norm, and the devices that have the norm next can normalise rows in the same kernel. */
static inline int64_t tsr_cuda_push_row(int n_devices, tsr_reduce_type type, int64_t row)
{
    return type == TSR_REDUCE_EXACT && row <= tsr_cuda_push_region(n_devices) ? row : 0;
}

/* The all-reduce, with the norm of its rows (of push->row elements) unless it is NULL; as
 * tsr_cuda_barrier_reduce(), to the bit. Device barrier.self reads reduction->parts[part] only; part -1: it
 * has none. */
tsr_status tsr_cuda_push_reduce(const tsr_cuda_push *push, const tsr_cuda_reduction *reduction, int part,
                                const tsr_op_rms_norm *norm, const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
