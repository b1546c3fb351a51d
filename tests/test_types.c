/* Element types: traits, half floats over their whole range, and the quantized blocks against a second
 * reading of the format, in double, one element at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/types.h>

#include "core/quant/half.h"
#include "support/quant_bounds.h"
#include "support/random.h"
#include "support/weight_types.h"

static const tsr_type float_types[] = {WEIGHT_TYPES};
enum { N_FLOAT_TYPES = sizeof float_types / sizeof float_types[0] };

/* -- traits -- */

static void traits_are_those_of_the_format(void **state)
{
    (void)state;
    const struct {
        tsr_type type;
        const char *name;
        int64_t elems;
        size_t bytes;
    } expected[] = {
        {TSR_TYPE_F32, "F32", 1, 4},
        {TSR_TYPE_F16, "F16", 1, 2},
        {TSR_TYPE_BF16, "BF16", 1, 2},
        {TSR_TYPE_Q8_0, "Q8_0", 32, 34},
        {TSR_TYPE_Q4_0, "Q4_0", 32, 18},
        {TSR_TYPE_Q4_K, "Q4_K", 256, 144},
        {TSR_TYPE_Q5_K, "Q5_K", 256, 176},
        {TSR_TYPE_Q6_K, "Q6_K", 256, 210},
        {TSR_TYPE_I32, "I32", 1, 4},
        {TSR_TYPE_I64, "I64", 1, 8},
        {TSR_TYPE_Q4_1, "Q4_1", 32, 20},
        {TSR_TYPE_Q5_0, "Q5_0", 32, 22},
        {TSR_TYPE_Q5_1, "Q5_1", 32, 24},
        {TSR_TYPE_Q2_K, "Q2_K", 256, 84},
        {TSR_TYPE_Q3_K, "Q3_K", 256, 110},
        {TSR_TYPE_IQ4_NL, "IQ4_NL", 32, 18},
        {TSR_TYPE_IQ4_XS, "IQ4_XS", 256, 136},
        {TSR_TYPE_MXFP4, "MXFP4", 32, 17},
        {TSR_TYPE_IQ1_S, "IQ1_S", 256, 50},
        {TSR_TYPE_IQ1_M, "IQ1_M", 256, 56},
        {TSR_TYPE_IQ2_XXS, "IQ2_XXS", 256, 66},
        {TSR_TYPE_IQ2_XS, "IQ2_XS", 256, 74},
        {TSR_TYPE_IQ2_S, "IQ2_S", 256, 82},
        {TSR_TYPE_IQ3_XXS, "IQ3_XXS", 256, 98},
        {TSR_TYPE_IQ3_S, "IQ3_S", 256, 110},
        {TSR_TYPE_TQ1_0, "TQ1_0", 256, 54},
        {TSR_TYPE_TQ2_0, "TQ2_0", 256, 66},
        {TSR_TYPE_NVFP4, "NVFP4", 64, 36},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        tsr_type type = TSR_TYPE_F32;
        assert_true(tsr_type_known(expected[i].type));
        assert_string_equal(tsr_type_name(expected[i].type), expected[i].name);
        assert_int_equal(tsr_type_block_elems(expected[i].type), expected[i].elems);
        assert_int_equal(tsr_type_block_bytes(expected[i].type), expected[i].bytes);
        assert_int_equal(tsr_type_row_bytes(expected[i].type, 1024),
                         1024 / expected[i].elems * expected[i].bytes);
        assert_int_equal(tsr_type_parse(expected[i].name, &type), TSR_OK);
        assert_int_equal(type, expected[i].type);
    }
}

static void unknown_types_are_refused(void **state)
{
    (void)state;
    const int unknown[] = {-1, 4, 9, 15, 25, 31, 38, 41, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_false(tsr_type_known(unknown[i]));
        assert_string_equal(tsr_type_name((tsr_type)unknown[i]), "?");
        assert_int_equal(tsr_type_block_elems((tsr_type)unknown[i]), 0);
        assert_int_equal(tsr_type_block_bytes((tsr_type)unknown[i]), 0);
        assert_int_equal(tsr_type_row_bytes((tsr_type)unknown[i], 256), 0);
    }
}

static void names_parse_in_any_case(void **state)
{
    (void)state;
    tsr_type type = TSR_TYPE_F32;
    assert_int_equal(tsr_type_parse("q4_k", &type), TSR_OK);
    assert_int_equal(type, TSR_TYPE_Q4_K);
    assert_int_equal(tsr_type_parse("Bf16", &type), TSR_OK);
    assert_int_equal(type, TSR_TYPE_BF16);
    assert_int_equal(tsr_type_parse("Q9_9", &type), TSR_ERR_NOT_FOUND);
    assert_int_equal(type, TSR_TYPE_BF16);
    assert_non_null(strstr(tsr_last_error(), "Q9_9"));
    assert_non_null(strstr(tsr_last_error(), "Q8_0"));
    assert_int_equal(tsr_type_parse("", &type), TSR_ERR_NOT_FOUND);
    assert_int_equal(tsr_type_parse(NULL, &type), TSR_ERR_INVALID);
}

static void row_bytes_checks_blocks_and_overflow(void **state)
{
    (void)state;
    assert_int_equal(tsr_type_row_bytes(TSR_TYPE_Q8_0, 0), 0);
    assert_int_equal(tsr_type_row_bytes(TSR_TYPE_Q8_0, -32), 0);
    assert_int_equal(tsr_type_row_bytes(TSR_TYPE_Q8_0, 33), 0);
    assert_int_equal(tsr_type_row_bytes(TSR_TYPE_I64, INT64_MAX), 0);
    assert_int_equal(tsr_type_row_bytes(TSR_TYPE_F32, INT64_MAX), 0);
}

/* -- half floats -- */

/* The value a half stands for, by the definition in IEEE 754: infinity and NaN aside. */
static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void every_half_widens_exactly(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffff; half++) {
        float value = tsr_f16_to_f32((uint16_t)half);
        if ((half & 0x7c00) == 0x7c00 && (half & 0x3ff)) {
            assert_true(isnan(value));
            assert_int_equal(tsr_f32_bits(value) & 0x80400000, (half & 0x8000) << 16 | 0x400000);
        } else if ((half & 0x7c00) == 0x7c00) {
            assert_true(isinf(value) && (value < 0) == (half > 0x7fff));
        } else {
            assert_true((double)value == half_value((uint16_t)half));
            assert_int_equal(signbit(value) != 0, half > 0x7fff);
        }
    }
}

static void every_half_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffff; half++) {
        bool nan16 = (half & 0x7c00) == 0x7c00 && (half & 0x3ff);
        assert_int_equal(tsr_f32_to_f16(tsr_f16_to_f32((uint16_t)half)), nan16 ? half | 0x200 : half);
        bool nan_b = (half & 0x7f80) == 0x7f80 && (half & 0x7f);
        assert_int_equal(tsr_f32_to_bf16(tsr_bf16_to_f32((uint16_t)half)), nan_b ? half | 0x40 : half);
    }
}

/* Rounding is monotonic, so it is right everywhere if it is right on both sides of each point half way
 * between two neighbours, and on the point itself. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint16_t half = 0; half < 0x7c00; half++) {
        double next = half == 0x7bff ? 65536.0 : half_value((uint16_t)(half + 1));
        float middle = (float)((half_value(half) + next) / 2); /* 12 significant bits: exact */
        uint16_t even = half & 1 ? (uint16_t)(half + 1) : half;
        assert_int_equal(tsr_f32_to_f16(middle), even);
        assert_int_equal(tsr_f32_to_f16(nextafterf(middle, 0)), half);
        assert_int_equal(tsr_f32_to_f16(nextafterf(middle, INFINITY)), half + 1);
        assert_int_equal(tsr_f32_to_f16(-middle), even | 0x8000);
    }
    assert_int_equal(tsr_f32_to_f16(FLT_MAX), 0x7c00);
    assert_int_equal(tsr_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(tsr_f32_to_f16(0x1p-149f), 0);
    assert_int_equal(tsr_f32_to_f16(-0x1p-149f), 0x8000);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7f80; half++) {
        float middle = tsr_f32_from_bits(half << 16 | 0x8000);
        uint32_t even = half & 1 ? half + 1 : half;
        assert_int_equal(tsr_f32_to_bf16(middle), even);
        assert_int_equal(tsr_f32_to_bf16(nextafterf(middle, 0)), half);
        assert_int_equal(tsr_f32_to_bf16(nextafterf(middle, INFINITY)), half + 1);
        assert_int_equal(tsr_f32_to_bf16(-middle), even | 0x8000);
    }
    /* A NaN whose payload is all in the lower half must not become an infinity. */
    assert_int_equal(tsr_f32_to_bf16(tsr_f32_from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(tsr_f32_to_f16(tsr_f32_from_bits(0xff800001)), 0xfe00);
}

/* -- a second reading of the block formats: value of element e of the block at b -- */

static double half_at(const uint8_t *b)
{
    uint16_t half = (uint16_t)(b[0] | b[1] << 8);
    return (half & 0x7c00) == 0x7c00 ? (half & 0x3ff    ? NAN
                                        : half & 0x8000 ? -INFINITY
                                                        : INFINITY)
                                     : half_value(half);
}

static double q8_0_value(const uint8_t *b, int e)
{
    return half_at(b) * (int8_t)b[2 + e];
}

static double q4_0_value(const uint8_t *b, int e)
{
    int nibble = e < 16 ? b[2 + e] % 16 : b[2 + e - 16] / 16;
    return half_at(b) * (nibble - 8);
}

/* The k-th 6-bit number of the packed scales: 0..7 scales, 8..15 minima. */
static int packed6(const uint8_t *packed, int k)
{
    int s = k % 8, row = k / 8 * 4; /* row: where that kind's four direct bytes start */
    if (s < 4)
        return packed[row + s] % 64;
    int low = row == 0 ? packed[8 + s - 4] % 16 : packed[8 + s - 4] / 16;
    return low + 16 * (packed[row + s - 4] / 64);
}

static double k_value(const uint8_t *b, int e, const uint8_t *quants, int fifth_bit)
{
    int s = e / 32;
    int byte = quants[e / 64 * 32 + e % 32];
    int quantum = (s % 2 ? byte / 16 : byte % 16) + 16 * fifth_bit;
    return half_at(b) * packed6(b + 4, s) * quantum - half_at(b + 2) * packed6(b + 4, 8 + s);
}

static double q4_k_value(const uint8_t *b, int e)
{
    return k_value(b, e, b + 16, 0);
}

static double q5_k_value(const uint8_t *b, int e)
{
    return k_value(b, e, b + 48, b[16 + e % 32] >> e / 32 & 1);
}

static double q6_k_value(const uint8_t *b, int e)
{
    int h = e / 128, r = e % 128;
    int low = b[64 * h + r % 64];
    int high = b[128 + 32 * h + r % 32];
    int quantum = (r < 64 ? low % 16 : low / 16) + 16 * (high >> r / 32 * 2 & 3);
    return half_at(b + 208) * (int8_t)b[192 + e / 16] * (quantum - 32);
}

/* Nibble e of sixteen bytes that hold elements 0..15 low and 16..31 high. */
static int nibble32(const uint8_t *q, int e)
{
    return e < 16 ? q[e] % 16 : q[e - 16] / 16;
}

static int bit_at(const uint8_t *bits, int e)
{
    return bits[e / 8] >> e % 8 & 1;
}

static double q4_1_value(const uint8_t *b, int e)
{
    return half_at(b) * nibble32(b + 4, e) + half_at(b + 2);
}

static double q5_0_value(const uint8_t *b, int e)
{
    return half_at(b) * (nibble32(b + 6, e) + 16 * bit_at(b + 2, e) - 16);
}

static double q5_1_value(const uint8_t *b, int e)
{
    return half_at(b) * (nibble32(b + 8, e) + 16 * bit_at(b + 4, e)) + half_at(b + 2);
}

/* The non-linear levels of ggml's 4-bit "i-quants". */
static double level(int nibble)
{
    static const double below[] = {127, 104, 83, 65, 49, 35, 22, 10},
                        above[] = {1, 13, 25, 38, 53, 69, 89, 113};
    return nibble < 8 ? -below[nibble] : above[nibble - 8];
}

static double iq4_nl_value(const uint8_t *b, int e)
{
    return half_at(b) * level(nibble32(b + 2, e));
}

static double iq4_xs_value(const uint8_t *b, int e)
{
    int s = e / 32, low = s % 2 ? b[4 + s / 2] / 16 : b[4 + s / 2] % 16;
    int high = (b[2] + 256 * b[3]) >> 2 * s & 3;
    return half_at(b) * (low + 16 * high - 32) * level(nibble32(b + 8 + 16 * s, e % 32));
}

/* E2M1: sign, two bits of exponent (bias 1), one of mantissa; exponent 0 is subnormal. */
static double mxfp4_value(const uint8_t *b, int e)
{
    int bits = nibble32(b + 1, e), exponent = bits / 2 % 4;
    double value = exponent ? ldexp(1 + bits % 2 * 0.5, exponent - 1) : bits % 2 * 0.5;
    return b[0] == 255 ? NAN : ldexp(bits < 8 ? value : -value, b[0] - 127);
}

static int two_bits(const uint8_t *q, int e)
{
    return q[e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3;
}

static double q2_k_value(const uint8_t *b, int e)
{
    return half_at(b + 80) * (b[e / 16] % 16) * two_bits(b + 16, e) - half_at(b + 82) * (b[e / 16] / 16);
}

static double q3_k_value(const uint8_t *b, int e)
{
    const uint8_t *scales = b + 96;
    int s = e / 16, low = s < 8 ? scales[s] % 16 : scales[s - 8] / 16;
    int high = scales[8 + s % 4] >> s / 4 * 2 & 3;
    int quantum = two_bits(b + 32, e) + 4 * (b[e % 32] >> e / 32 & 1);
    return half_at(b + 108) * (low + 16 * high - 32) * (quantum - 4);
}

static void quantized_blocks_decode_to_the_exact_value(void **state)
{
    (void)state;
    const struct {
        tsr_type type;
        double (*value)(const uint8_t *block, int element);
    } formats[] = {
        {TSR_TYPE_Q8_0, q8_0_value},  {TSR_TYPE_Q4_0, q4_0_value},     {TSR_TYPE_Q4_K, q4_k_value},
        {TSR_TYPE_Q5_K, q5_k_value},  {TSR_TYPE_Q6_K, q6_k_value},     {TSR_TYPE_Q4_1, q4_1_value},
        {TSR_TYPE_Q5_0, q5_0_value},  {TSR_TYPE_Q5_1, q5_1_value},     {TSR_TYPE_Q2_K, q2_k_value},
        {TSR_TYPE_Q3_K, q3_k_value},  {TSR_TYPE_IQ4_NL, iq4_nl_value}, {TSR_TYPE_IQ4_XS, iq4_xs_value},
        {TSR_TYPE_MXFP4, mxfp4_value}};
    enum { N_BLOCKS = 300 };
    uint64_t seed = 1;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        size_t bytes = tsr_type_block_bytes(formats[f].type);
        int elems = (int)tsr_type_block_elems(formats[f].type);
        uint8_t *storage = malloc(bytes * N_BLOCKS + 1);
        uint8_t *blocks = storage + 1; /* any alignment will do */
        float *decoded = malloc(sizeof *decoded * N_BLOCKS * (size_t)elems);
        for (size_t i = 0; i < bytes * N_BLOCKS; i++)
            blocks[i] = (uint8_t)random_u64(&seed);
        assert_int_equal(tsr_type_to_f32(formats[f].type, blocks, decoded, (int64_t)elems * N_BLOCKS),
                         TSR_OK);
        for (int b = 0; b < N_BLOCKS; b++) {
            for (int e = 0; e < elems; e++) {
                float expected = (float)formats[f].value(blocks + (size_t)b * bytes, e);
                float got = decoded[b * elems + e];
                if (!(got == expected || (isnan(got) && isnan(expected))))
                    fail_msg("%s block %d element %d: %a, not %a", tsr_type_name(formats[f].type), b, e,
                             (double)got, (double)expected);
            }
        }
        free(decoded);
        free(storage);
    }
}

/* -- encoding -- */

static void encoding_stays_within_each_types_bound(void **state)
{
    (void)state;
    enum { N = 256 * 40 };
    float *x = malloc(sizeof *x * N), *back = malloc(sizeof *back * N);
    uint8_t *blocks = malloc(sizeof *x * N);
    uint64_t seed = 2;
    for (int i = 0; i < N;
         i++) { /* blocks of very different sizes, some one-sided, some with an outlier, one zero */
        int block = i / 256;
        double value = random_uniform(&seed) * ldexp(1, block % 20 - 10);
        if (block % 3 == 1)
            value = block % 2 ? fabs(value) : -fabs(value);
        if (i % 97 == 0)
            value *= 50;
        x[i] = block == 7 ? 0.0f : (float)value;
    }
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        int elems = (int)tsr_type_block_elems(float_types[t]);
        assert_int_equal(tsr_type_from_f32(float_types[t], x, blocks, N), TSR_OK);
        assert_int_equal(tsr_type_to_f32(float_types[t], blocks, back, N), TSR_OK);
        for (int i = 0; i < N; i++) {
            double bound = quant_error_bound(float_types[t], x + i / elems * elems, i % elems);
            if (!(fabs((double)back[i] - (double)x[i]) <= bound))
                fail_msg("%s element %d: %g came back as %g, more than %g away",
                         tsr_type_name(float_types[t]), i, (double)x[i], (double)back[i], bound);
        }
    }
    free(blocks);
    free(back);
    free(x);
}

/* More bits, less error: on plain data the types must come in this order, with room between them. */
static void wider_types_are_more_accurate(void **state)
{
    (void)state;
    enum { N = 256 * 16 };
    const tsr_type by_width[] = {TSR_TYPE_TQ2_0, TSR_TYPE_IQ2_S, TSR_TYPE_IQ3_S, TSR_TYPE_Q4_0, TSR_TYPE_Q4_K,
                                 TSR_TYPE_Q5_K,  TSR_TYPE_Q6_K,  TSR_TYPE_Q8_0,  TSR_TYPE_BF16, TSR_TYPE_F16};
    static float x[N], back[N];
    static uint8_t blocks[4 * N];
    uint64_t seed = 3;
    for (int i = 0; i < N; i++)
        x[i] = (float)(random_uniform(&seed) + random_uniform(&seed) + random_uniform(&seed));
    double previous = 1;
    for (size_t t = 0; t < sizeof by_width / sizeof by_width[0]; t++) {
        double error = 0, norm = 0;
        assert_int_equal(tsr_type_from_f32(by_width[t], x, blocks, N), TSR_OK);
        assert_int_equal(tsr_type_to_f32(by_width[t], blocks, back, N), TSR_OK);
        for (int i = 0; i < N; i++) {
            error += pow((double)back[i] - (double)x[i], 2);
            norm += pow((double)x[i], 2);
        }
        double relative = sqrt(error / norm);
        assert_true(relative < 0.95 * previous);
        previous = relative;
    }
}

static void values_on_the_grid_come_back_unchanged(void **state)
{
    (void)state;
    float x[256], back[256];
    uint8_t blocks[4 * 256];
    const int levels[] = {[TSR_TYPE_Q8_0] = 127, [TSR_TYPE_Q4_0] = 8, [TSR_TYPE_Q6_K] = 32};
    const tsr_type types[] = {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0, TSR_TYPE_Q6_K};
    for (size_t t = 0; t < 3; t++) {
        int top = levels[types[t]];
        int unit = types[t] == TSR_TYPE_Q6_K ? 127 : 1; /* scales of Q6_K are 127 units of d here */
        for (int i = 0; i < 256; i++)
            x[i] = (float)(unit * (i % 16 == 0 ? -top : i * 37 % (2 * top) - top)) * 0.25f;
        assert_int_equal(tsr_type_from_f32(types[t], x, blocks, 256), TSR_OK);
        assert_int_equal(tsr_type_to_f32(types[t], blocks, back, 256), TSR_OK);
        assert_memory_equal(x, back, sizeof x);
    }
}

static void a_block_that_is_not_finite_becomes_nan(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN, FLT_MAX};
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        int elems = (int)tsr_type_block_elems(float_types[t]);
        if (elems == 1 || float_types[t] == TSR_TYPE_NVFP4) /* which has no NaN */
            continue;
        /* The largest float is no trouble for MXFP4, whose scale is a power of two. */
        for (size_t k = 0; k < (float_types[t] == TSR_TYPE_MXFP4 ? 3 : sizeof bad / sizeof bad[0]); k++) {
            for (int at = 0; at < elems; at += elems - 1) {
                float x[512] = {0}, back[512];
                uint8_t blocks[4 * 512];
                x[at] = bad[k];
                assert_int_equal(tsr_type_from_f32(float_types[t], x, blocks, 512), TSR_OK);
                assert_int_equal(tsr_type_to_f32(float_types[t], blocks, back, 512), TSR_OK);
                for (int i = 0; i < elems; i++)
                    assert_true(isnan(back[i]));
                for (int i = elems; i < 512; i++)
                    assert_true(back[i] == 0.0f);
            }
        }
    }
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    float x[64] = {0};
    uint8_t blocks[256] = {0};
    assert_int_equal(tsr_type_from_f32(TSR_TYPE_Q8_0, x, blocks, 33), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "Q8_0"));
    assert_int_equal(tsr_type_to_f32(TSR_TYPE_Q8_0, blocks, x, -32), TSR_ERR_INVALID);
    assert_int_equal(tsr_type_to_f32(TSR_TYPE_F32, NULL, x, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_type_from_f32(TSR_TYPE_F32, x, NULL, 1), TSR_ERR_INVALID);
    assert_int_equal(tsr_type_from_f32(TSR_TYPE_F32, NULL, NULL, 0), TSR_OK);
    assert_int_equal(tsr_type_to_f32(TSR_TYPE_I32, blocks, x, 1), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_type_from_f32(TSR_TYPE_I64, x, blocks, 1), TSR_ERR_UNSUPPORTED);
    assert_int_equal(tsr_type_to_f32((tsr_type)77, blocks, x, 1), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "77"));
}

/* An encoder that takes any entry of the right size would double the squares. */
static void code_books_keep_more_than_half_of_the_squares(void **state)
{
    (void)state;
    enum { N = 256 * 20 };
    static const tsr_type types[] = {CODE_TYPES};
    static float x[N], back[N];
    static uint8_t blocks[N];
    uint64_t seed = 3;
    for (int i = 0; i < N; i++)
        x[i] = (float)random_uniform(&seed);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double lost = 0, all = 0;
        assert_int_equal(tsr_type_from_f32(types[t], x, blocks, N), TSR_OK);
        assert_int_equal(tsr_type_to_f32(types[t], blocks, back, N), TSR_OK);
        for (int i = 0; i < N; i++) {
            lost += ((double)back[i] - (double)x[i]) * ((double)back[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
        if (!(lost < all / 2))
            fail_msg("%s: %g of the squares is lost", tsr_type_name(types[t]), lost / all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traits_are_those_of_the_format),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(names_parse_in_any_case),
        cmocka_unit_test(row_bytes_checks_blocks_and_overflow),
        cmocka_unit_test(every_half_widens_exactly),
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(quantized_blocks_decode_to_the_exact_value),
        cmocka_unit_test(encoding_stays_within_each_types_bound),
        cmocka_unit_test(code_books_keep_more_than_half_of_the_squares),
        cmocka_unit_test(wider_types_are_more_accurate),
        cmocka_unit_test(values_on_the_grid_come_back_unchanged),
        cmocka_unit_test(a_block_that_is_not_finite_becomes_nan),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
