/* The sums of the local all-reduce; see reduce.h.
 *
 * Each function processes sixteen elements at a time in two vectors of eight, then the rest one by one.
 * Vector types are explicit since compilers vectorise the wrong loop here. Each function is compiled once
 * per instruction set. Every variant gives the same bits: integer sums have no order, float sums are in
 * rank order per element (those of BF16 parts in f32, rounded once), and conversions round as in
 * core/quant/fixed.h and core/quant/half.h. */
#include "comm/reduce.h"

#include <stddef.h>
#include <string.h>

#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "core/mem.h"

enum { LANES = 8, STEP = 2 * LANES };

/* Vectors loaded from arrays, aligned like their elements. */
typedef int64_t i64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t u64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef double f64_vector __attribute__((vector_size(64), aligned(8), may_alias));
typedef float f32_vector __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t u32_vector __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t u16_vector __attribute__((vector_size(16), aligned(2), may_alias));

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

/* Eight bfloat16 as f32. */
ALWAYS_INLINE void widen(const uint16_t *part, f32_vector *out)
{
    *out = (f32_vector)(__builtin_convertvector(*(const u16_vector *)part, u32_vector) << 16);
}

/* Round to the nearest bfloat16, as tsr_f32_to_bf16() does. */
ALWAYS_INLINE void round_to_bf16(f32_vector *value)
{
    u32_vector bits = (u32_vector)*value;
    u32_vector is_nan = (u32_vector)((bits & 0x7fffffffu) > 0x7f800000u);
    u32_vector rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    *value = (f32_vector)(((is_nan & (bits | 0x400000u)) | (~is_nan & rounded)) & 0xffff0000u);
}

/* Unsigned, since signed overflow is undefined. Sums of a model do not overflow, but a benchmark that adds
 * the same buffers in place repeatedly does. */
ALWAYS_INLINE void sum_step_exact(const void *const *parts, int n_parts, int64_t i, i64_vector sum[2])
{
    const int64_t *part = (const int64_t *)parts[0] + i;
    sum[0] = *(const i64_vector *)part;
    sum[1] = *(const i64_vector *)(part + LANES);
    for (int j = 1; j < n_parts; j++) {
        part = (const int64_t *)parts[j] + i;
        sum[0] = (i64_vector)((u64_vector)sum[0] + *(const u64_vector *)part);
        sum[1] = (i64_vector)((u64_vector)sum[1] + *(const u64_vector *)(part + LANES));
    }
}

ALWAYS_INLINE void load_floats(tsr_reduce_type type, const void *part, int64_t i, f32_vector values[2])
{
    if (type == TSR_REDUCE_BF16) {
        widen((const uint16_t *)part + i, &values[0]);
        widen((const uint16_t *)part + i + LANES, &values[1]);
    } else {
        values[0] = *(const f32_vector *)((const float *)part + i);
        values[1] = *(const f32_vector *)((const float *)part + i + LANES);
    }
}

/* Float sums: the value that add() stores, as f32. */
ALWAYS_INLINE void sum_step_floats(tsr_reduce_type type, const void *const *parts, int n_parts, int64_t i,
                                   f32_vector sum[2])
{
    load_floats(type, parts[0], i, sum);
    for (int j = 1; j < n_parts; j++) {
        f32_vector part[2];
        load_floats(type, parts[j], i, part);
        sum[0] += part[0];
        sum[1] += part[1];
    }
    for (int h = 0; h < 2 && type == TSR_REDUCE_BF16; h++)
        round_to_bf16(&sum[h]);
}

ALWAYS_INLINE int64_t sum_one_exact(const void *const *parts, int n_parts, int64_t i)
{
    uint64_t sum = ((const uint64_t *)parts[0])[i];
    for (int j = 1; j < n_parts; j++)
        sum += ((const uint64_t *)parts[j])[i];
    return (int64_t)sum;
}

ALWAYS_INLINE float part_at(tsr_reduce_type type, const void *part, int64_t i)
{
    return type == TSR_REDUCE_BF16 ? tsr_bf16_to_f32(((const uint16_t *)part)[i]) : ((const float *)part)[i];
}

ALWAYS_INLINE float sum_one_float(tsr_reduce_type type, const void *const *parts, int n_parts, int64_t i)
{
    float sum = part_at(type, parts[0], i);
    for (int j = 1; j < n_parts; j++)
        sum += part_at(type, parts[j], i);
    return type == TSR_REDUCE_BF16 ? tsr_bf16_to_f32(tsr_f32_to_bf16(sum)) : sum;
}

ALWAYS_INLINE void finish(tsr_reduce_type type, const void *const *parts, int n_parts, const float *residual,
                          float *y, int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        f32_vector value[2];
        if (type == TSR_REDUCE_EXACT) {
            i64_vector sum[2];
            sum_step_exact(parts, n_parts, i, sum);
            convert(&sum[0], &value[0]);
            convert(&sum[1], &value[1]);
        } else {
            sum_step_floats(type, parts, n_parts, i, value);
        }
        if (residual) {
            value[0] += *(const f32_vector *)(residual + i);
            value[1] += *(const f32_vector *)(residual + i + LANES);
        }
        *(f32_vector *)(y + i) = value[0];
        *(f32_vector *)(y + i + LANES) = value[1];
    }
    for (; i < end; i++) {
        float value = type == TSR_REDUCE_EXACT ? tsr_fixed_to_f32(sum_one_exact(parts, n_parts, i))
                                               : sum_one_float(type, parts, n_parts, i);
        y[i] = residual ? value + residual[i] : value;
    }
}

/* Sixteen sums, in the parts' own type. */
ALWAYS_INLINE void add_step(tsr_reduce_type type, const void *const *parts, int n_parts, void *sum, int64_t i)
{
    if (type == TSR_REDUCE_EXACT) {
        i64_vector total[2];
        sum_step_exact(parts, n_parts, i, total);
        *(i64_vector *)((int64_t *)sum + i) = total[0];
        *(i64_vector *)((int64_t *)sum + i + LANES) = total[1];
        return;
    }
    f32_vector total[2];
    sum_step_floats(type, parts, n_parts, i, total);
    for (int h = 0; h < 2; h++) {
        if (type == TSR_REDUCE_BF16)
            *(u16_vector *)((uint16_t *)sum + i + h * LANES) =
                __builtin_convertvector((u32_vector)total[h] >> 16, u16_vector);
        else
            *(f32_vector *)((float *)sum + i + h * LANES) = total[h];
    }
}

ALWAYS_INLINE void add(tsr_reduce_type type, const void *const *parts, int n_parts, void *sum, int64_t begin,
                       int64_t end)
{
    int64_t i = begin;
    for (; i + STEP <= end; i += STEP)
        add_step(type, parts, n_parts, sum, i);
    for (; i < end; i++) {
        if (type == TSR_REDUCE_EXACT)
            ((int64_t *)sum)[i] = sum_one_exact(parts, n_parts, i);
        else if (type == TSR_REDUCE_F32)
            ((float *)sum)[i] = sum_one_float(type, parts, n_parts, i);
        else
            ((uint16_t *)sum)[i] = tsr_f32_to_bf16(sum_one_float(type, parts, n_parts, i));
    }
}

/* The two functions of one type, compiled for one instruction set. target_clones is not used: its
 * resolvers run before the sanitizers' runtimes are initialised. */
#define DEFINE_TYPE(isa, attribute, name, type)                                                              \
    attribute static void finish_##name##_##isa(const void *const *parts, int n_parts,                       \
                                                const float *residual, float *y, int64_t begin, int64_t end) \
    {                                                                                                        \
        finish(type, parts, n_parts, residual, y, begin, end);                                               \
    }                                                                                                        \
    attribute static void add_##name##_##isa(const void *const *parts, int n_parts, void *sum,               \
                                             int64_t begin, int64_t end)                                     \
    {                                                                                                        \
        add(type, parts, n_parts, sum, begin, end);                                                          \
    }

#define DEFINE_VARIANT(isa, attribute)                   \
    DEFINE_TYPE(isa, attribute, exact, TSR_REDUCE_EXACT) \
    DEFINE_TYPE(isa, attribute, f32, TSR_REDUCE_F32)     \
    DEFINE_TYPE(isa, attribute, bf16, TSR_REDUCE_BF16)

DEFINE_VARIANT(generic, )

#if defined(__x86_64__)
DEFINE_VARIANT(avx2, __attribute__((target("avx2"))))
DEFINE_VARIANT(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))))
#endif

/* Indexed by tsr_reduce_type. */
typedef struct variant {
    const char *isa;
    tsr_reducer reducers[3];
} variant;

#define VARIANT(isa)                                                                  \
    {                                                                                 \
#isa,                                                                         \
        {                                                                             \
            {finish_exact_##isa, add_exact_##isa}, {finish_f32_##isa, add_f32_##isa}, \
            {                                                                         \
                finish_bf16_##isa, add_bf16_##isa                                     \
            }                                                                         \
        }                                                                             \
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
        *reducer_out = variants[i].reducers[type];
        return true;
    }
    return false;
}

/* One row piece at a time. */
void tsr_gather_parts(const tsr_collective_desc *desc, tsr_device_set devices, int64_t at, int64_t end,
                      float *whole)
{
    while (at < end) {
        const int64_t row = at / desc->n, row_begin = row * desc->n;
        const int64_t from = at - row_begin, to = TSR_MIN(end - row_begin, desc->n);
        TSR_FOR_DEVICES(d, devices) {
            const int64_t width = desc->begin[d + 1] - desc->begin[d];
            const int64_t begin = TSR_MAX(from, desc->begin[d]), stop = TSR_MIN(to, desc->begin[d + 1]);
            if (begin < stop)
                memcpy(whole + row_begin + begin,
                       (const float *)desc->partial[d] + row * width + (begin - desc->begin[d]),
                       (size_t)(stop - begin) * sizeof(float));
        }
        at = row_begin + to;
    }
}
