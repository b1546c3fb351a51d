/* The sums of the local all-reduce; see reduce.h.
 *
 * One body per operation, written over blocks of constant length so that compilers vectorise it at any
 * optimisation level, and compiled once per instruction set. (Not with target_clones: its resolvers run
 * before the sanitizers' runtimes are up.) Every variant gives the same bits: integer sums have no order,
 * float sums are taken in rank order per element, and the conversion rounds as core/fixed.h says. */
#include "comm/reduce.h"

#include <stdbool.h>
#include <string.h>

#include "core/fixed.h"
#include "core/mem.h"

enum { BLOCK = 64 };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* (double)value, rounded to nearest like the conversion instruction that AVX2 and older lack. The halves of
 * the integer are put into the mantissas of 2^84 (with the sign bit flipped) and 2^52; the subtraction is
 * exact, so the addition rounds once. */
ALWAYS_INLINE double double_from_i64(int64_t value)
{
    uint64_t low_bits = ((uint64_t)value & 0xffffffffu) | 0x4330000000000000u;
    uint64_t high_bits = ((uint64_t)value >> 32) ^ 0x4530000080000000u;
    double low, high;
    memcpy(&low, &low_bits, sizeof low);
    memcpy(&high, &high_bits, sizeof high);
    return (high - 0x1.00000801p84 /* 2^84 + 2^63 + 2^52 */) + low;
}

ALWAYS_INLINE void sum_block_exact(const void *const *parts, int n_parts, int64_t begin, int n, int64_t *sum)
{
    const int64_t *first = (const int64_t *)parts[0] + begin;
    for (int i = 0; i < n; i++)
        sum[i] = first[i];
    for (int j = 1; j < n_parts; j++) {
        const int64_t *part = (const int64_t *)parts[j] + begin;
        for (int i = 0; i < n; i++)
            sum[i] += part[i];
    }
}

ALWAYS_INLINE void sum_block_f32(const void *const *parts, int n_parts, int64_t begin, int n, float *sum)
{
    const float *first = (const float *)parts[0] + begin;
    for (int i = 0; i < n; i++)
        sum[i] = first[i];
    for (int j = 1; j < n_parts; j++) {
        const float *part = (const float *)parts[j] + begin;
        for (int i = 0; i < n; i++)
            sum[i] += part[i];
    }
}

ALWAYS_INLINE void store_block(const float *value, const float *residual, float *y, int n)
{
    if (residual)
        for (int i = 0; i < n; i++)
            y[i] = value[i] + residual[i];
    else
        memcpy(y, value, (size_t)n * sizeof *y);
}

ALWAYS_INLINE void finish_block(bool exact, const void *const *parts, int n_parts, const float *residual,
                                float *y, int64_t begin, int n)
{
    float value[BLOCK];
    if (exact) {
        int64_t sum[BLOCK];
        sum_block_exact(parts, n_parts, begin, n, sum);
        for (int i = 0; i < n; i++)
            value[i] = (float)(double_from_i64(sum[i]) * (1.0 / TSR_FIXED_ONE));
    } else {
        sum_block_f32(parts, n_parts, begin, n, value);
    }
    store_block(value, residual ? residual + begin : NULL, y + begin, n);
}

ALWAYS_INLINE void finish(bool exact, const void *const *parts, int n_parts, const float *residual, float *y,
                          int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + BLOCK <= end; i += BLOCK)
        finish_block(exact, parts, n_parts, residual, y, i, BLOCK);
    if (i < end)
        finish_block(exact, parts, n_parts, residual, y, i, (int)(end - i));
}

ALWAYS_INLINE void add_block(bool exact, const void *const *parts, int n_parts, void *out, int64_t begin,
                             int n)
{
    unsigned char *to = out;
    if (exact) {
        int64_t sum[BLOCK];
        sum_block_exact(parts, n_parts, begin, n, sum);
        memcpy(to + (size_t)begin * sizeof *sum, sum, (size_t)n * sizeof *sum);
    } else {
        float sum[BLOCK];
        sum_block_f32(parts, n_parts, begin, n, sum);
        memcpy(to + (size_t)begin * sizeof *sum, sum, (size_t)n * sizeof *sum);
    }
}

ALWAYS_INLINE void add(bool exact, const void *const *parts, int n_parts, void *out, int64_t begin,
                       int64_t end)
{
    int64_t i = begin;
    for (; i + BLOCK <= end; i += BLOCK)
        add_block(exact, parts, n_parts, out, i, BLOCK);
    if (i < end)
        add_block(exact, parts, n_parts, out, i, (int)(end - i));
}

/* The four functions compiled for one instruction set. */
#define DEFINE_VARIANT(isa, attribute)                                                                     \
    attribute static void finish_exact_##isa(const void *const *parts, int n_parts, const float *residual, \
                                             float *y, int64_t begin, int64_t end)                         \
    {                                                                                                      \
        finish(true, parts, n_parts, residual, y, begin, end);                                             \
    }                                                                                                      \
    attribute static void finish_f32_##isa(const void *const *parts, int n_parts, const float *residual,   \
                                           float *y, int64_t begin, int64_t end)                           \
    {                                                                                                      \
        finish(false, parts, n_parts, residual, y, begin, end);                                            \
    }                                                                                                      \
    attribute static void add_exact_##isa(const void *const *parts, int n_parts, void *sum, int64_t begin, \
                                          int64_t end)                                                     \
    {                                                                                                      \
        add(true, parts, n_parts, sum, begin, end);                                                        \
    }                                                                                                      \
    attribute static void add_f32_##isa(const void *const *parts, int n_parts, void *sum, int64_t begin,   \
                                        int64_t end)                                                       \
    {                                                                                                      \
        add(false, parts, n_parts, sum, begin, end);                                                       \
    }                                                                                                      \
    static const tsr_reducer exact_##isa = {finish_exact_##isa, add_exact_##isa};                          \
    static const tsr_reducer f32_##isa = {finish_f32_##isa, add_f32_##isa};

DEFINE_VARIANT(generic, )

#if defined(__x86_64__)
DEFINE_VARIANT(avx2, __attribute__((target("avx2"))))
DEFINE_VARIANT(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))))
#endif

tsr_reducer tsr_reducer_select(tsr_reduce_type type)
{
    bool exact = type == TSR_REDUCE_EXACT;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return exact ? exact_avx512 : f32_avx512;
    if (__builtin_cpu_supports("avx2"))
        return exact ? exact_avx2 : f32_avx2;
#endif
    return exact ? exact_generic : f32_generic;
}
