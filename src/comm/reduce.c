/* The sums of the local all-reduce; see reduce.h.
 *
 * Each function walks the elements sixteen at a time in two vectors of eight (the compilers' vector types:
 * left to themselves they vectorise the wrong loop here) and finishes one by one. It is compiled once per
 * instruction set, which differ in how many instructions a vector of eight takes. Every variant gives the
 * same bits: integer sums have no order, float sums are taken in rank order per element, and the conversion
 * rounds as core/fixed.h says. */
#include "comm/reduce.h"

#include <stddef.h>
#include <string.h>

#include "core/fixed.h"

enum { LANES = 8, STEP = 2 * LANES };

/* Vectors as they lie in arrays, aligned like their elements. */
typedef int64_t i64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t u64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef double f64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef float f32_vector __attribute__((vector_size(32), aligned(4), may_alias));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* *out = f32(sum), rounded like tsr_fixed_to_f32(). AVX2 and older cannot convert 64-bit integers, so the
 * halves are put into the mantissas of 2^84 (with the sign bit flipped) and 2^52; the subtraction is exact,
 * and the addition rounds once, as the conversion instruction would. */
ALWAYS_INLINE void convert(const i64_vector *sum, f32_vector *out)
{
    u64_vector bits = (u64_vector)*sum;
    f64_vector low = (f64_vector)((bits & 0xffffffffu) | 0x4330000000000000u);
    f64_vector high = (f64_vector)((bits >> 32) ^ 0x4530000080000000u);
    f64_vector value = (high - 0x1.00000801p84 /* 2^84 + 2^63 + 2^52 */) + low;
    *out = __builtin_convertvector(value * (1.0 / TSR_FIXED_ONE), f32_vector);
}

ALWAYS_INLINE void sum_step_exact(const void *const *parts, int n_parts, int64_t i, i64_vector sum[2])
{
    const int64_t *part = (const int64_t *)parts[0] + i;
    sum[0] = *(const i64_vector *)part;
    sum[1] = *(const i64_vector *)(part + LANES);
    for (int j = 1; j < n_parts; j++) {
        part = (const int64_t *)parts[j] + i;
        sum[0] += *(const i64_vector *)part;
        sum[1] += *(const i64_vector *)(part + LANES);
    }
}

ALWAYS_INLINE void sum_step_f32(const void *const *parts, int n_parts, int64_t i, f32_vector sum[2])
{
    const float *part = (const float *)parts[0] + i;
    sum[0] = *(const f32_vector *)part;
    sum[1] = *(const f32_vector *)(part + LANES);
    for (int j = 1; j < n_parts; j++) {
        part = (const float *)parts[j] + i;
        sum[0] += *(const f32_vector *)part;
        sum[1] += *(const f32_vector *)(part + LANES);
    }
}

ALWAYS_INLINE int64_t sum_one_exact(const void *const *parts, int n_parts, int64_t i)
{
    int64_t sum = ((const int64_t *)parts[0])[i];
    for (int j = 1; j < n_parts; j++)
        sum += ((const int64_t *)parts[j])[i];
    return sum;
}

ALWAYS_INLINE float sum_one_f32(const void *const *parts, int n_parts, int64_t i)
{
    float sum = ((const float *)parts[0])[i];
    for (int j = 1; j < n_parts; j++)
        sum += ((const float *)parts[j])[i];
    return sum;
}

ALWAYS_INLINE void finish(bool exact, const void *const *parts, int n_parts, const float *residual, float *y,
                          int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        f32_vector value[2];
        if (exact) {
            i64_vector sum[2];
            sum_step_exact(parts, n_parts, i, sum);
            convert(&sum[0], &value[0]);
            convert(&sum[1], &value[1]);
        } else {
            sum_step_f32(parts, n_parts, i, value);
        }
        if (residual) {
            value[0] += *(const f32_vector *)(residual + i);
            value[1] += *(const f32_vector *)(residual + i + LANES);
        }
        *(f32_vector *)(y + i) = value[0];
        *(f32_vector *)(y + i + LANES) = value[1];
    }
    for (; i < end; i++) {
        float value =
            exact ? tsr_fixed_to_f32(sum_one_exact(parts, n_parts, i)) : sum_one_f32(parts, n_parts, i);
        y[i] = residual ? value + residual[i] : value;
    }
}

ALWAYS_INLINE void add(bool exact, const void *const *parts, int n_parts, void *sum, int64_t begin,
                       int64_t end)
{
    int64_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        if (exact) {
            i64_vector total[2];
            sum_step_exact(parts, n_parts, i, total);
            *(i64_vector *)((int64_t *)sum + i) = total[0];
            *(i64_vector *)((int64_t *)sum + i + LANES) = total[1];
        } else {
            f32_vector total[2];
            sum_step_f32(parts, n_parts, i, total);
            *(f32_vector *)((float *)sum + i) = total[0];
            *(f32_vector *)((float *)sum + i + LANES) = total[1];
        }
    }
    for (; i < end; i++) {
        if (exact)
            ((int64_t *)sum)[i] = sum_one_exact(parts, n_parts, i);
        else
            ((float *)sum)[i] = sum_one_f32(parts, n_parts, i);
    }
}

/* The four functions compiled for one instruction set. Not with target_clones: its resolvers run before the
 * sanitizers' runtimes are up. */
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
    }

DEFINE_VARIANT(generic, )

#if defined(__x86_64__)
DEFINE_VARIANT(avx2, __attribute__((target("avx2"))))
DEFINE_VARIANT(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))))
#endif

/* [0] EXACT, [1] F32 */
typedef struct variant {
    const char *isa;
    tsr_reducer reducers[2];
} variant;

#define VARIANT(isa)                               \
    {                                              \
#isa,                                      \
        {                                          \
            {finish_exact_##isa, add_exact_##isa}, \
            {                                      \
                finish_f32_##isa, add_f32_##isa    \
            }                                      \
        }                                          \
    }

static bool runs_here(const char *isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2");
#endif
    return strcmp(isa, "generic") == 0;
}

bool tsr_reducer_select(const char *isa, tsr_reduce_type type, tsr_reducer *reducer_out)
{
    static const variant variants[] = {
#if defined(__x86_64__)
        VARIANT(avx512),
        VARIANT(avx2),
#endif
        VARIANT(generic),
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if ((isa && strcmp(isa, variants[i].isa) != 0) || !runs_here(variants[i].isa))
            continue;
        *reducer_out = variants[i].reducers[type == TSR_REDUCE_EXACT ? 0 : 1];
        return true;
    }
    return false;
}
