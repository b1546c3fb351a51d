/* One launch of several products of the same activations (tsr_cuda_products): each block works on one of the
 * matrices. Or on two, gate and up of an FFN: the eight upper rows of a tile of sixteen are gate's, the lower
 * up's, so that the lanes which have a row's sum of the one have the same row's sum of the other. */
#ifndef TSR_CUDA_KERNELS_MUL_MAT_LAUNCH_OF_CUH
#define TSR_CUDA_KERNELS_MUL_MAT_LAUNCH_OF_CUH

#include <limits.h>

#include "cuda/kernels/glu.cuh"

/* A matrix, its results, and the blocks that compute them. */
struct tsr_launch_matrix {
    const unsigned char *w, *w_end; /* no byte outside is read */
    void *y;
    int64_t y_stride, n_rows;
    int first_block, n_blocks;
};

/* A norm whose result the activations are, if there is one. Each block normalises what it multiplies, and
 * block 0 stores it as well, unless an earlier launch did. */
struct tsr_launch_norm {
    const float *x; /* NULL: there is none */
    const float *weight;
    float eps;
    float *y; /* NULL: it is not stored */
};

struct tsr_launch_of {
    tsr_launch_matrix m[TSR_CUDA_PRODUCTS]; /* those that are not there have first_block INT_MAX */
    bool glu;                               /* m[0] and m[1] are gate and up; all blocks are m[0]'s */
    tsr_glu_kind kind;
    float limit;
    float *glu_y; /* [n_tokens][n_rows] */
    /* What the sum of partial sums gives, [n_tokens][n_rows]; NULL: partial sums are stored. */
    float *sum_y;
    const float *residual; /* NULL: none */
    tsr_launch_norm norm;  /* of the activations */
    /* m[0] and those after it are queries, keys and values, from number `role` on (launch_heads.cuh). */
    bool heads;
    int role;
    int half;            /* rows between the upper and the lower eight of a set; 0: eight */
    tsr_op_rope rope[2]; /* of queries and keys */
    tsr_op_kv_write write;
};

/* The number of this block's matrix. */
TSR_DEVICE int tsr_launch_index(const tsr_launch_of &l)
{
    int i = 0;
    TSR_UNROLL
    for (int j = 1; j < TSR_CUDA_PRODUCTS; j++)
        i += (int)blockIdx.x >= l.m[j].first_block;
    return i;
}

TSR_DEVICE const tsr_launch_matrix &tsr_launch_matrix_of(const tsr_launch_of &l)
{
    return l.m[tsr_launch_index(l)];
}

/* Store a row's sums of gate and up, and what the FFN makes of them. */
TSR_DEVICE void tsr_launch_store_glu(const tsr_launch_of &l, int64_t token, int64_t row, float gate, float up)
{
    static_cast<float *>(l.m[0].y)[token * l.m[0].y_stride + row] = gate;
    static_cast<float *>(l.m[1].y)[token * l.m[1].y_stride + row] = up;
    l.glu_y[token * l.m[0].n_rows + row] =
        tsr_glu_activation(l.kind, gate, l.limit) * tsr_glu_factor(l.kind, up, l.limit);
}

/* Store what the sum of one device's partial sums of a row gives; the rows are those of m[0]. */
TSR_DEVICE void tsr_launch_store_sum(const tsr_launch_of &l, int64_t token, int64_t row, float sum)
{
    const int64_t at = token * l.m[0].n_rows + row;
    l.sum_y[at] = l.residual ? sum + l.residual[at] : sum;
}

/* All but the blocks. */
static inline tsr_launch_of tsr_launch_of_products(const tsr_cuda_products *p)
{
    tsr_launch_of l = {};
    for (int i = 0; i < TSR_CUDA_PRODUCTS; i++) {
        l.m[i].first_block = INT_MAX;
        if (i >= p->n)
            continue;
        l.m[i].w = static_cast<const unsigned char *>(p->of[i]->w);
        l.m[i].w_end = l.m[i].w + (size_t)(p->of[i]->n_rows - 1) * p->of[i]->w_stride +
                       tsr_type_row_bytes(p->of[i]->type, p->of[i]->k);
        l.m[i].y = p->of[i]->y;
        l.m[i].y_stride = p->of[i]->y_stride;
        l.m[i].n_rows = p->of[i]->n_rows;
    }
    if (p->glu) {
        l.glu = true;
        l.kind = p->glu->kind;
        l.limit = p->glu->limit;
        l.glu_y = p->glu->y;
    }
    if (p->sum) {
        l.sum_y = p->sum->y;
        l.residual = p->sum->residual;
    }
    if (p->norm)
        l.norm = {p->norm->x, p->norm->weight, p->norm->eps, p->first > 0 ? NULL : p->norm->y};
    if (p->heads.n_ops > 0) {
        l.heads = true;
        l.role = p->first;
        l.half = p->heads.q->interleaved ? 0 : (int)p->heads.q->head_dim / 2;
        l.rope[0] = *p->heads.q;
        l.rope[1] = *p->heads.k;
        l.write = *p->heads.write;
    }
    return l;
}

/* Deal blocks to the matrices, at most `most`, and one for every `rows` rows at most, such that the most rows
 * of a block are as few as possible. The value is their number. Of rows in halves of heads, blocks that take
 * a head together are dealt: then a block's next turn has the same place in another head. */
static inline unsigned tsr_launch_deal(tsr_launch_of *l, int n, int64_t rows, int64_t most)
{
    int64_t turns[TSR_CUDA_PRODUCTS] = {}, all = 0, blocks = 0;
    const int dealt = l->glu ? 1 : n, together = l->half > 0 ? l->half / (int)rows : 1;
    rows = l->half > 0 ? 2 * l->half : rows;
    most /= together;
    for (int i = 0; i < dealt; i++) {
        turns[i] = (l->m[i].n_rows + rows - 1) / rows;
        all += turns[i];
    }
    for (int i = 0; i < dealt; i++)
        blocks += l->m[i].n_blocks = all <= most ? (int)turns[i] : 1;
    for (; blocks < most && blocks < all; blocks++) {
        int next = 0;
        for (int i = 1; i < dealt; i++)
            if (turns[i] * l->m[next].n_blocks > turns[next] * l->m[i].n_blocks)
                next = i;
        l->m[next].n_blocks++;
    }
    for (int i = 0, first = 0; i < dealt; first += l->m[i++].n_blocks) {
        l->m[i].n_blocks *= together;
        l->m[i].first_block = first;
    }
    return (unsigned)(blocks * together);
}

/* Bits that differ in the addresses of the matrices. */
static inline size_t tsr_launch_apart(const tsr_cuda_products *p)
{
    size_t apart = 0;
    for (int i = 1; i < p->n; i++)
        apart |= (uintptr_t)p->of[i]->w ^ (uintptr_t)p->of[0]->w;
    return apart;
}

#endif
