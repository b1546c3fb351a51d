/* *sum += the checksum (core/checksum.h) of bytes[n]; one thread per word, one addition per warp. */
#include "core/checksum.h"
#include "cuda/memory/checksum.h"
#include "cuda/kernels/common.cuh"

/* Word `place`, filled up with zeros past the end; bytes need not be aligned. */
TSR_DEVICE uint64_t checksum_load(const unsigned char *bytes, int64_t n, int64_t place, bool aligned)
{
    const int64_t at = place * 8;
    uint64_t word = 0;
    if (aligned && at + 8 <= n) {
        word = *reinterpret_cast<const uint64_t *>(bytes + at);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++)
            word |= (uint64_t)bytes[at + i] << 8 * i; /* GPUs and their hosts are little-endian */
    }
    return word;
}

static __global__ void checksum_kernel(const unsigned char *bytes, int64_t n, unsigned long long *sum)
{
    const bool aligned = (uintptr_t)bytes % 8 == 0;
    const int64_t n_words = (n + 7) / 8;
    unsigned long long mine = 0;
    for (int64_t place = tsr_flat_begin(); place < n_words; place += tsr_flat_step())
        mine += tsr_checksum_word(checksum_load(bytes, n, place, aligned), (uint64_t)place);
    for (int mask = TSR_WARP / 2; mask > 0; mask /= 2)
        mine += __shfl_xor_sync(TSR_ALL_LANES, mine, mask);
    if (threadIdx.x % TSR_WARP == 0)
        atomicAdd(sum, mine);
}

extern "C" tsr_status tsr_cuda_checksum_launch(const void *bytes, size_t n, uint64_t *sum,
                                               const tsr_cuda_stream *s)
{
    return tsr_cuda_result(TSR_LAUNCH(checksum_kernel, tsr_flat_grid((int64_t)(n + 7) / 8, s),
                                      dim3(TSR_FLAT_THREADS), 0, s->stream,
                                      static_cast<const unsigned char *>(bytes), (int64_t)n,
                                      reinterpret_cast<unsigned long long *>(sum)),
                           "checksum_kernel");
}
