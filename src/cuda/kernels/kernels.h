/* The launchers of the CUDA kernels: one per op of core/op.h.
 *
 * A launcher enqueues its kernels on the stream of `s` and returns. It never waits, allocates or reads device
 * memory, so it may be captured into a graph. The stream's device is current. Only launches fail
 * (TSR_ERR_DEVICE, TSR_ERR_DEVICE_LOST); tsr_cuda_op_check() refuses unsupported ops beforehand. Empty ops
 * (no rows, no tokens) launch nothing.
 *
 * The order of sums. A result is the same for one token or many and for any division of rows, heads and
 * granules, because every output's operations and their order follow from the op's fields alone:
 *
 *   mul_mat   F16 and BF16: mul_mat/half.cuh. Quantized types: mul_mat/q_chunk.cuh. F32: a granule's
 *             elements are cut into chunks of 256, counted from its first element, and a chunk into 32
 *             octets of 8 elements. An octet is a chain of fused multiply-adds, first to last. A chunk is
 *             the sum of its octets as a binary tree over neighbours: pairs, pairs of pairs, and so on. A
 *             granule is its chunks added in order, then rounded to fixed point (EXACT). A sum in f32 (not
 *             partial, or reduce F32, which promises no independence of the split) takes each chunk as a
 *             granule: chunk c goes to strand c % 4, a strand is added in order, and the strands as (0 + 1)
 *             + (2 + 3).
 *   attention Positions are cut into groups of 256, counted from position 0. A group has its own top score,
 *             sum of weights and output; groups are merged into the result, in order, as the online softmax
 *             does (Milakov and Gimelshein, arXiv:1805.02867), by one block or by a second kernel after many.
 *             Inside a group F16 and BF16 caches have the order of attention/halves.cuh, Q8_0 and Q4_0 caches
 *             that of attention/codes.cuh. All others have two segments of 128 that are merged like groups,
 *             positions in order.
 *             More keys are groups behind those of the op's own.
 *   heads     as F32 of mul_mat, for all types of weights.
 *   experts   common quantized types: experts/experts_q.cuh. All others: experts/experts.cuh; a granule's
 *             lanes are 16 for down, 32 for gate and up.
 *   select    a product is one chain over the elements of a key; weighted products are added head by head.
 *   recurrence  over the rows of a state: recurrent/recurrence.cu.
 *   rows      rms_norm, softmax and, granule by granule, sum_squares add 512 strided strands, then the
 *             strands as a binary tree. */
#ifndef TSR_CUDA_KERNELS_KERNELS_H
#define TSR_CUDA_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "core/op.h"
#include "core/status.h"

TSR_BEGIN_DECLS

/* Properties of a card that a launcher's choices (never its results) depend on. */
typedef struct tsr_cuda_props {
    int n_sms;
    int compute_capability; /* 10 * major + minor */
    size_t shared_bytes;    /* most shared memory of a block */
    bool early;             /* kernels may start early: TSR_LAUNCH_EARLY (launch.h) */
} tsr_cuda_props;

/* Device memory for the ops of programs, zeroed before each step: 4 KiB, so that no driver rounds it. */
enum { TSR_CUDA_COUNTERS = 1023 };

typedef struct tsr_cuda_words {
    int fault;
    uint32_t counters[TSR_CUDA_COUNTERS]; /* of blocks (tsr_is_last_of()) */
} tsr_cuda_words;

/* A launcher's stream, scratch memory and words. */
typedef struct tsr_cuda_stream {
    cudaStream_t stream;
    int *fault;   /* device memory: range faults are atomicMax'd into it as op_index + 1 */
    int op_index; /* of the op in its program */
    void *scratch;
    size_t scratch_bytes; /* device memory, 256-byte aligned, used by one op at a time */
    const tsr_cuda_props *props;
    bool sibling; /* the op may run beside the product that was launched before it (tsr_cuda_is_sibling) */
    uint32_t *counters; /* TSR_CUDA_COUNTERS zeros, which each op leaves so; NULL: there are none */
} tsr_cuda_stream;

/* Load the code of all kernels onto the current device, so that no launch loads code. *early_out: whether
 * all of it has what TSR_LAUNCH_EARLY (launch.h) needs. The architecture decides for which nvcc compiled it,
 * which may be older than the GPU's. */
tsr_status tsr_cuda_kernels_load(bool *early_out);

/* Whether the build has machine code for GPUs of this compute capability (90 = 9.0). Otherwise the driver
 * compiles every kernel when it is loaded, for minutes in all, unless its cache has them. */
bool tsr_cuda_kernels_are_native(int compute_capability);

/* Whether the kernels support this op (types, head_dim); TSR_ERR_UNSUPPORTED names the unsupported part.
 * Collectives are not computed by kernels: TSR_ERR_UNSUPPORTED too. */
tsr_status tsr_cuda_op_check(const tsr_op *op);

/* Scratch memory with which the op is fastest; with less it is slower. */
size_t tsr_cuda_op_scratch(const tsr_op *op);

/* Call the launcher of op->kind. `op` has passed tsr_cuda_op_check(). */
tsr_status tsr_cuda_op_launch(const tsr_op *op, const tsr_cuda_stream *s);

tsr_status tsr_cuda_get_rows(const tsr_op_get_rows *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_rms_norm(const tsr_op_rms_norm *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_sum_squares(const tsr_op_sum_squares *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_rms_scale(const tsr_op_rms_scale *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_mul_mat(const tsr_op_mul_mat *op, const tsr_cuda_stream *s);
size_t tsr_cuda_mul_mat_scratch(const tsr_op_mul_mat *op);
/* Products of the same activations with whole sums, none of which writes what another reads or writes; glu:
 * of[0] is its gate and of[1] its up, which share a launch, and it writes nothing that they read or write,
 * but for an equal y; heads: all are queries, keys and values; norm: its y are the activations, and nothing
 * overwrites its x; sum: of[0] is alone, with partial sums that stay where they are. */
enum { TSR_CUDA_PRODUCTS = 3 };

/* The ropes of queries and keys and the write of these keys to the cache, none of which overwrites what
 * another reads (tsr_cuda_fuse_rope_kv()). */
typedef struct tsr_cuda_rope_kv_ops {
    const tsr_op_rope *q; /* NULL: no queries */
    const tsr_op_rope *k;
    const tsr_op_kv_write *write;
    int n_ops; /* 2 or 3; 0: no such ops */
} tsr_cuda_rope_kv_ops;

typedef struct tsr_cuda_products {
    int n;
    const tsr_op_mul_mat *of[TSR_CUDA_PRODUCTS];
    const tsr_op_glu *glu;        /* NULL: none */
    tsr_cuda_rope_kv_ops heads;   /* tsr_cuda_fuse_products() says which */
    const tsr_op_rms_norm *norm;  /* that makes the activations; NULL: they are there */
    const tsr_op_all_reduce *sum; /* of the partial sums of of[0], which are all; NULL: none */
    int first; /* products in the launches before this one, of which the very first stores the norm's y */
} tsr_cuda_products;

/* Whether the blocks of one launch can have both: weights of one type and stride, and whole sums. */
bool tsr_cuda_share_a_launch(const tsr_op_mul_mat *one, const tsr_op_mul_mat *other);

/* The first *n_out of them, in one launch for each run of products that may share it (and one more where
 * activations are quantized by another kernel first). Launches do not wait for each other. Same bits as one
 * after another. *n_out, with TSR_OK: all if the kernels can; otherwise those of the runs before the first
 * that cannot, or none where heads come after them. */
tsr_status tsr_cuda_mul_mats(const tsr_cuda_products *p, const tsr_cuda_stream *s, int *n_out);
tsr_status tsr_cuda_mul_heads(const tsr_op_mul_heads *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_rope(const tsr_op_rope *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_kv_write(const tsr_op_kv_write *op, const tsr_cuda_stream *s);
/* Both ropes (q may be NULL) and the write of the second rope's keys, where tsr_cuda_fuse_rope_kv() (fuse.h)
 * allows it. Same bits. */
tsr_status tsr_cuda_rope_kv(const tsr_op_rope *q, const tsr_op_rope *k, const tsr_op_kv_write *write,
                            const tsr_cuda_stream *s);
tsr_status tsr_cuda_attention(const tsr_op_attention *op, const tsr_cuda_stream *s);
size_t tsr_cuda_attention_scratch(const tsr_op_attention *op);
tsr_status tsr_cuda_select(const tsr_op_select *op, const tsr_cuda_stream *s);
size_t tsr_cuda_select_scratch(const tsr_op_select *op, int64_t n_tokens); /* of n_tokens in one round */
tsr_status tsr_cuda_conv(const tsr_op_conv *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_recurrence(const tsr_op_recurrence *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_compress(const tsr_op_compress *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_stream_weights(const tsr_op_stream_weights *op, const tsr_cuda_stream *s);
enum { TSR_CUDA_MIX_THREADS = 128 }; /* elements of a stream in a block */
tsr_status tsr_cuda_stream_mix(const tsr_op_stream_mix *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_glu(const tsr_op_glu *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_add(const tsr_op_add *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_scale(const tsr_op_scale *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_softcap(const tsr_op_softcap *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_gate(const tsr_op_gate *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_softmax(const tsr_op_softmax *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_argmax(const tsr_op_argmax *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_top_k(const tsr_op_top_k *op, const tsr_cuda_stream *s);
size_t tsr_cuda_top_k_scratch(const tsr_op_top_k *op, int64_t n_rows); /* of n_rows in one round */
tsr_status tsr_cuda_copy(const tsr_op_copy *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_route(const tsr_op_route *op, const tsr_cuda_stream *s);
tsr_status tsr_cuda_experts_glu(const tsr_op_experts_glu *op, const tsr_cuda_stream *s);
size_t tsr_cuda_experts_glu_scratch(const tsr_op_experts_glu *op);
/* The kernel before it in the stream is that of experts_glu or a later one, so that the routing is complete
 * when this one may start (TSR_LAUNCH_EARLY), before it waits. */
tsr_status tsr_cuda_experts_down(const tsr_op_experts_down *op, const tsr_cuda_stream *s);
size_t tsr_cuda_experts_down_scratch(const tsr_op_experts_down *op);

/* The sum of ranks' partials, as in src/comm/reduce.h on the host: y[i] = f32(sum over j of parts[j][i]) (+
 * residual[i]), i < n, parts in order (the order matters for floats only). All pointers are readable from the
 * stream's device (own, peer or mapped memory). y may equal residual. */
enum { TSR_CUDA_MAX_PARTS = 64 };

typedef struct tsr_cuda_reduction {
    tsr_reduce_type type;
    int n_parts;
    const void *parts[TSR_CUDA_MAX_PARTS]; /* int64 (EXACT), float or bfloat16 elements */
    const float *residual;                 /* NULL = none */
    float *y;
    int64_t n;
} tsr_cuda_reduction;

/* With `norm` the rows of the sum are normalised, too: norm->x is reduction->y, and norm->y overlaps nothing
 * but, element by element, y or the residual. Same bits as tsr_cuda_rms_norm() afterwards. */
tsr_status tsr_cuda_reduce(const tsr_cuda_reduction *reduction, const tsr_op_rms_norm *norm,
                           const tsr_cuda_stream *s);

TSR_END_DECLS

#endif
