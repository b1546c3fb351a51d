/* top_k: the largest elements of rows (core/op.h).
 *
 * An element becomes a key: 64 bits, in the order of the result, all different. A block sorts the keys of a
 * tile of 1024 elements in shared memory (a bitonic sort) and keeps the first k; the kept keys of all tiles
 * are the elements of the next launch, until one tile is left. Of a vocabulary of 128256 and k = 40 there are
 * 126 tiles, then 5, then 1. Keys of a round of rows are in scratch memory. */
#include "cuda/kernels/common.cuh"

enum { TOP_TILE = 1024, TOP_THREADS = TOP_TILE / 2 };

struct top_args {
    tsr_op_top_k op;
    int64_t first_row;    /* of the round */
    int64_t n, n_kept;    /* elements of a row: of x, then keys; keys that a tile keeps */
    const uint64_t *from; /* [rows of the round][n]; NULL: elements of x */
    uint64_t *to;         /* [rows of the round][tiles * n_kept]; NULL: the op's result */
};

/* Larger keys come first. 0 is no element. */
TSR_DEVICE uint64_t top_key(float value, uint32_t index)
{
    uint32_t bits;
    value = value == 0.0f ? 0.0f : value; /* both zeros are equal */
    memcpy(&bits, &value, sizeof bits);
    bits = !(value < INFINITY) ? UINT32_MAX : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (UINT32_MAX - index);
}

/* Sort the keys of a tile, the largest first. */
TSR_DEVICE void top_sort(uint64_t *key)
{
    for (int size = 2; size <= TOP_TILE; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            const int i = (int)threadIdx.x, low = i / step * 2 * step + i % step, high = low + step;
            __syncthreads();
            if ((key[low] < key[high]) == ((low & size) == 0)) {
                const uint64_t other = key[low];
                key[low] = key[high];
                key[high] = other;
            }
        }
    __syncthreads();
}

/* Grid: tiles, rows of the round. */
static __global__ void __launch_bounds__(TOP_THREADS) top_kernel(const top_args a)
{
    __shared__ uint64_t key[TOP_TILE];
    const int64_t row = blockIdx.y, first = (int64_t)blockIdx.x * TOP_TILE;
    const float *x = a.op.x + (a.first_row + row) * a.op.n;
    for (int i = threadIdx.x; i < TOP_TILE; i += TOP_THREADS) {
        const int64_t at = first + i;
        key[i] = at >= a.n ? 0 : a.from ? a.from[row * a.n + at] : top_key(x[at], (uint32_t)at);
    }
    top_sort(key);
    if (a.to) {
        uint64_t *to = a.to + (row * gridDim.x + blockIdx.x) * a.n_kept;
        for (int i = threadIdx.x; i < a.n_kept; i += TOP_THREADS)
            to[i] = key[i];
        return;
    }
    tsr_candidate *y = a.op.y + (a.first_row + row) * a.op.k;
    for (int i = threadIdx.x; i < a.op.k; i += TOP_THREADS) {
        const uint32_t index = UINT32_MAX - (uint32_t)key[i];
        if (key[i] == 0)
            y[i] = {-INFINITY, -1};
        else
            y[i] = {x[index], (int32_t)(a.op.first + index)};
    }
}

static int64_t tiles_of(int64_t n)
{
    return (n + TOP_TILE - 1) / TOP_TILE;
}

/* Keys of a row that the first launch keeps, and then the second: launches take turns with two buffers. */
static int64_t kept_first(const tsr_op_top_k *op)
{
    return tiles_of(op->n) > 1 ? tiles_of(op->n) * op->k : 0;
}

static int64_t kept_second(const tsr_op_top_k *op)
{
    return tiles_of(kept_first(op)) > 1 ? tiles_of(kept_first(op)) * op->k : 0;
}

extern "C" size_t tsr_cuda_top_k_scratch(const tsr_op_top_k *op, int64_t n_rows)
{
    return (size_t)(n_rows * (kept_first(op) + kept_second(op))) * sizeof(uint64_t);
}

/* `n_rows` rows from a->first_row on. */
static tsr_status top_rows(top_args *a, int64_t n_rows, const tsr_cuda_stream *s)
{
    tsr_status status = TSR_OK;
    uint64_t *const buffers[] = {static_cast<uint64_t *>(s->scratch),
                                 static_cast<uint64_t *>(s->scratch) + n_rows * kept_first(&a->op)};
    a->n = a->op.n;
    a->from = NULL;
    for (int i = 0; status == TSR_OK; i = 1 - i) {
        const int64_t n_tiles = tiles_of(a->n);
        a->to = n_tiles > 1 ? buffers[i] : NULL;
        status = tsr_cuda_result(TSR_LAUNCH(top_kernel, dim3((unsigned)n_tiles, (unsigned)n_rows),
                                            dim3(TOP_THREADS), 0, s->stream, *a),
                                 "top_kernel");
        if (!a->to)
            break;
        a->from = a->to;
        a->n = n_tiles * a->n_kept;
    }
    return status;
}

/* A round has as many rows as the scratch memory has room for (tsr_cuda_op_check(): at least one). */
extern "C" tsr_status tsr_cuda_top_k(const tsr_op_top_k *op, const tsr_cuda_stream *s)
{
    enum { MAX_ROWS = 65535 }; /* of a grid's second side */
    tsr_status status = TSR_OK;
    top_args a = {};
    const size_t row_bytes = tsr_cuda_top_k_scratch(op, 1);
    int64_t most = MAX_ROWS;
    if (row_bytes > 0 && (int64_t)(s->scratch_bytes / row_bytes) < most)
        most = (int64_t)(s->scratch_bytes / row_bytes);
    if (most < 1)
        return tsr_fail(TSR_ERR_INVALID, "top_k: %zu bytes of scratch memory; one row takes %zu",
                        s->scratch_bytes, row_bytes);
    a.op = *op;
    a.n_kept = op->k;
    for (; status == TSR_OK && a.first_row < op->n_rows; a.first_row += most)
        status = top_rows(&a, op->n_rows - a.first_row < most ? op->n_rows - a.first_row : most, s);
    return status;
}
