/* The end of a launch that computes queries, keys or values: rotation, and the write of keys and values to
 * the cache. So a decode step has no kernel for them. Same bits as the separate ops, whose functions it uses.
 * Weights of several types take a launch each, since a kernel for several types would spill registers.
 *
 * Both elements of a pair are among the sixteen rows of a set. Interleaved pairs are neighbours. Otherwise
 * the elements are half a head apart, and a set is eight rows and the same eight of the other half, as gate
 * and up are in launch_of.cuh. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_LAUNCH_HEADS_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_LAUNCH_HEADS_CUH

#include "cuda/kernels/encode.cuh"
#include "cuda/kernels/kv.cuh"
#include "cuda/kernels/mul_mat/launch_of.cuh"
#include "cuda/kernels/rope.cuh"

/* The row of a set whose element is paired with that of row nth. */
TSR_DEVICE int tsr_launch_paired(const tsr_launch_of &l, int nth)
{
    return l.half > 0 ? nth ^ 8 : nth ^ 1;
}

/* The row of the matrix that is row nth of the set which begins at `first`. */
TSR_DEVICE int tsr_launch_row(const tsr_launch_of &l, int first, int nth)
{
    return l.half > 0 && nth >= 8 ? first + l.half + nth - 8 : first + nth;
}

/* Store the sum of a row of this block's matrix, if it is there (`here`). `other`: the sum of the paired row.
 * Where the cache is quantized, all lanes of a warp call it for 32 neighbouring rows of a token. */
TSR_DEVICE void tsr_launch_store_head(const tsr_launch_of &l, int token, int row, bool here, float sum,
                                      float other)
{
    const int matrix = tsr_launch_index(l), which = l.role + matrix;
    const tsr_launch_matrix &m = l.m[matrix];
    const tsr_kv_view &kv = l.write.kv;
    const tsr_kv_index &index = l.write.index;
    const int64_t dim = which < 2 ? l.rope[which].head_dim : kv.v_dim;
    const tsr_quotient head = tsr_divide(here ? row : 0, dim);
    float value = sum;
    if (here && (which == 2 || l.rope[which].x != l.rope[which].y))
        static_cast<float *>(m.y)[token * m.y_stride + row] = sum;
    if (which < 2) {
        value = tsr_rope_element(l.rope[which], token, head.rest, sum, other);
        if (here)
            l.rope[which].y[token * m.n_rows + row] = value;
    }
    if (which == 0)
        return;
    const tsr_kv_place place = tsr_kv_find(kv, index, index.seq_row[token], index.position[token], head.of);
    tsr_encode_value(which == 1 ? kv.type_k : kv.type_v, value, here,
                     which == 1 ? tsr_kv_key(kv, place) : tsr_kv_value(kv, place),
                     head.rest / TSR_ENCODE_GROUP, head.rest % TSR_ENCODE_GROUP);
}

/* Whether neighbouring rows are quantized together. */
static inline bool tsr_launch_quantizes(const tsr_cuda_products *p)
{
    const tsr_type k = p->heads.n_ops > 0 ? p->heads.write->kv.type_k : TSR_TYPE_F32,
                   v = p->heads.n_ops > 0 ? p->heads.write->kv.type_v : TSR_TYPE_F32;
    return k == TSR_TYPE_Q8_0 || k == TSR_TYPE_Q4_0 || v == TSR_TYPE_Q8_0 || v == TSR_TYPE_Q4_0;
}

#endif
