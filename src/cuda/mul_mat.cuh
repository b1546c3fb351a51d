/* The op as mul_mat's kernels want it, and who multiplies what: one launcher per class of type and number of
 * tokens, called by mul_mat.cu. Within a class every number of tokens gives the same bits for a token. */
#ifndef TSR_CUDA_MUL_MAT_CUH
#define TSR_CUDA_MUL_MAT_CUH

#include "cuda/quant.cuh"

/* Tokens up to which mul_mat is bound by reading the weights, and elements of K that are one sum before
 * chunks are added in order (kernels.h). */
enum { MUL_MAT_FEW_TOKENS = 8, MUL_MAT_CHUNK = 256 };

struct mul_mat_args {
    const unsigned char *w;
    size_t w_stride;
    const float *x;
    int64_t x_stride;
    void *y; /* int64 if exact, else float */
    int64_t y_stride;
    int64_t n_rows, k, n_tokens;
    int64_t granule; /* of an f32 sum: a chunk */
    float limit;
    bool exact, narrow, wide_w, wide_x;
    tsr_fault_word fault;
};

/* F32, F16, BF16: at most MUL_MAT_FEW_TOKENS tokens (mul_mat_vec.cu), and more (mul_mat_tile.cu). */
tsr_status mul_mat_plain_few(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s);
tsr_status mul_mat_plain_many(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s);

/* Quantized types, any number of tokens (mul_mat_q.cu). */
tsr_status mul_mat_quantized(tsr_type type, const mul_mat_args &a, const tsr_cuda_stream *s);

#endif
