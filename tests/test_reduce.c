/* The arithmetic of collectives: every instruction set's variant against plain loops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/narrow.h"
#include "comm/reduce.h"
#include "core/quant/fixed.h"
#include "core/quant/half.h"
#include "core/quant/wire.h"
#include "support/tiny_kernels.h"

static const char *const reducer_isas[] = {"generic", "avx2", "avx512"};

static void the_conversion_is_that_of_the_number_format(void **state)
{
    (void)state;
    enum { N = 200003 };
    int64_t *sums = malloc(N * sizeof *sums);
    float *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) {
        uint64_t bits = tiny_hash(7, (uint64_t)i);
        sums[i] = (int64_t)bits >> (i % 64); /* every magnitude, both signs */
        if (i % 5 == 0)                      /* next to a tie of either rounding */
            sums[i] = ((int64_t)1 << (i % 62)) + ((int64_t)1 << (i / 62 % 62)) + i % 3 - 1;
    }
    sums[0] = INT64_MAX, sums[1] = INT64_MIN, sums[2] = 0, sums[3] = -1;
    const void *parts[] = {sums};
    for (int v = 0; v < 3; v++) {
        tsr_reducer reducer;
        if (!tsr_reducer_select(reducer_isas[v], TSR_REDUCE_EXACT, &reducer)) {
            print_message("no %s on this machine\n", reducer_isas[v]);
            continue;
        }
        memset(y, 0, N * sizeof *y);
        reducer.finish(parts, 1, NULL, y, 0, N);
        for (int i = 0; i < N; i++) {
            float expected = tsr_fixed_to_f32(sums[i]);
            assert_memory_equal(&y[i], &expected, sizeof expected);
        }
    }
    free(sums);
    free(y);
}

/* Sums of three parts against plain loops, over ranges that begin and end anywhere; nothing else is
 * written. */
static void every_variant_adds_the_same(void **state)
{
    (void)state;
    enum { N = 200, PARTS = 3 };
    int64_t exact[PARTS][N];
    float f32[PARTS][N], residual[N];
    for (int i = 0; i < N; i++) {
        residual[i] = tiny_partial_f32(99, i);
        for (uint64_t j = 0; j < PARTS; j++) {
            exact[j][i] = tiny_partial_i64(j, i);
            f32[j][i] = tiny_partial_f32(j, i);
        }
    }
    const void *exact_parts[] = {exact[0], exact[1], exact[2]}, *f32_parts[] = {f32[0], f32[1], f32[2]};
    for (int v = 0; v < 3; v++)
        for (int begin = 0; begin < 40; begin += 3)
            for (int end = begin; end <= N; end += 7) {
                tsr_reducer of_exact, of_f32;
                int64_t sum[N] = {0};
                float sum_f32[N] = {0}, y[N] = {0}, y_f32[N];
                if (!tsr_reducer_select(reducer_isas[v], TSR_REDUCE_EXACT, &of_exact) ||
                    !tsr_reducer_select(reducer_isas[v], TSR_REDUCE_F32, &of_f32))
                    continue;
                memcpy(y_f32, residual, sizeof y_f32); /* in place */
                of_exact.add(exact_parts, PARTS, sum, begin, end);
                of_exact.finish(exact_parts, PARTS, residual, y, begin, end);
                of_f32.add(f32_parts, PARTS, sum_f32, begin, end);
                of_f32.finish(f32_parts, PARTS, y_f32, y_f32, begin, end);
                for (int i = 0; i < N; i++) {
                    bool inside = i >= begin && i < end;
                    int64_t total = exact[0][i] + exact[1][i] + exact[2][i];
                    float total_f32 = f32[0][i] + f32[1][i] + f32[2][i];
                    assert_true(sum[i] == (inside ? total : 0));
                    assert_true(y[i] == (inside ? tsr_fixed_to_f32(total) + residual[i] : 0.0f));
                    assert_true(sum_f32[i] == (inside ? total_f32 : 0.0f));
                    assert_true(y_f32[i] == (inside ? total_f32 + residual[i] : residual[i]));
                }
            }
}

/* The f32 sum of bfloat16 parts in order, rounded once: as add() leaves it and as finish() hands it on, with
 * infinities, NaN, ties and sums that are too large among the values. */
static void bfloat16_is_added_in_f32_and_rounded_once(void **state)
{
    (void)state;
    enum { N = 4099, PARTS = 5 };
    static uint16_t part[PARTS][N], sum[N];
    static float residual[N], y[N];
    const void *parts[PARTS];
    for (int j = 0; j < PARTS; j++) {
        parts[j] = part[j];
        for (int i = 0; i < N; i++) { /* every pattern of 16 bits may come, small exponents more often */
            uint16_t bits = (uint16_t)tiny_hash((uint64_t)j, (uint64_t)i);
            part[j][i] = i % 4 ? (uint16_t)((bits & 0x83ff) | 0x3c00) : bits;
            residual[i] = i % 4 ? tiny_partial_f32(99, i) : 0.0f;
        }
    }
    for (int v = 0; v < 3; v++) {
        tsr_reducer reducer;
        if (!tsr_reducer_select(reducer_isas[v], TSR_REDUCE_BF16, &reducer))
            continue;
        for (int n_parts = 1; n_parts <= PARTS; n_parts += 2) {
            reducer.add(parts, n_parts, sum, 0, N);
            reducer.finish(parts, n_parts, residual, y, 0, N);
            for (int i = 0; i < N; i++) {
                float total = tsr_bf16_to_f32(part[0][i]);
                for (int j = 1; j < n_parts; j++)
                    total += tsr_bf16_to_f32(part[j][i]);
                float rounded = tsr_bf16_to_f32(tsr_f32_to_bf16(total));
                assert_true(isnan(total) ? isnan(tsr_bf16_to_f32(sum[i])) : sum[i] == tsr_f32_to_bf16(total));
                assert_true(isnan(total) ? isnan(y[i]) : y[i] == rounded + residual[i]);
            }
        }
    }
}

/* Integers at and next to every power of two, of both signs, up to the range. */
static void every_sum_is_the_same_on_the_wire(void **state)
{
    (void)state;
    for (int bit = 0; bit <= TSR_FIXED_SUM_BITS; bit++)
        for (int64_t near = -2; near <= 2; near++)
            for (int sign = -1; sign <= 1; sign += 2) {
                const int64_t sum = sign * (((int64_t)1 << bit) + near);
                const uint32_t low = tsr_wire_low(sum), middle = tsr_wire_middle(sum),
                               top = tsr_wire_top(sum);
                const bool wide = tsr_wire_is_wide(sum), large = tsr_wire_is_large(sum);
                assert_true(wide == (bit >= 31 || llabs((long long)sum) >= 1 << 30));
                assert_true(!large || bit >= 37);
                /* planes that a sum does not need may hold anything */
                assert_true(tsr_wire_sum(low, wide ? middle : 0xff, large ? top : 0xabcdef) == sum);
            }
}

/* Sums of up to 64 processes, with a block of each kind: all small, at the edge of what fits a word, and at
 * the range. `log2` and the processes' parts say which edge. */
static int64_t narrow_part(int kind, int log2, int process, int n_processes, int64_t i)
{
    const int64_t edge = (int64_t)1 << (31 - log2),
                  most = (((int64_t)1 << TSR_FIXED_SUM_BITS) - 256) / n_processes;
    const int64_t random = (int64_t)tiny_hash((uint64_t)process, (uint64_t)i);
    switch (kind) {
    case 0:
        return random >> (33 + log2); /* of 31 - log2 bits */
    case 1:
        return i % 2 ? edge - 1 : -edge; /* these fit */
    case 2:
        return i % 256 == process && i % 2 ? edge : i % 2 ? edge - 1 : -edge - (process == 0);
    case 3:
        return i % 2 ? most : -most;
    default:
        return (int64_t)(random % most) >> (i % 50);
    }
}

static void sums_between_processes_fit_words(void **state)
{
    (void)state;
    enum { N = 5 * 2 * TSR_NARROW_BLOCK + 77, MOST_PROCESSES = 64 };
    static const int counts[] = {2, 3, 5, 64};
    static int64_t part[N], sum[N], restored[N];
    static uint32_t words[TSR_NARROW_WORDS], own[TSR_NARROW_WORDS], highs[N + TSR_NARROW_BLOCK],
        own_highs[N + TSR_NARROW_BLOCK];
    const int64_t n_blocks = tsr_narrow_blocks(N);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const int n = counts[c], log2 = tsr_narrow_log2(n);
        int64_t n_wide = 0;
        memset(sum, 0, sizeof sum);
        memset(words, 0, sizeof words);
        memset(highs, 0, sizeof highs);
        for (int pass = 0; pass < 2; pass++) { /* low words, high words */
            for (int p = 0; p < n; p++) {
                for (int64_t i = 0; i < N; i++) {
                    part[i] = narrow_part((int)(i / TSR_NARROW_BLOCK % 5), log2, p, n, i);
                    sum[i] += pass == 0 ? part[i] : 0;
                }
                for (int64_t b = 0; b < n_blocks; b += 3) { /* in pieces, as threads do it */
                    const int64_t to = b + 3 < n_blocks ? b + 3 : n_blocks;
                    if (pass == 0)
                        tsr_narrow_low(part + b * TSR_NARROW_BLOCK, N, log2, b, to, own);
                    else
                        tsr_narrow_high(part + b * TSR_NARROW_BLOCK, words, N, log2, b, to, own_highs);
                }
                for (int64_t i = 0; i < (pass == 0 ? tsr_narrow_words(N) : n_wide * TSR_NARROW_BLOCK); i++)
                    *(pass == 0 ? &words[i] : &highs[i]) += pass == 0 ? own[i] : own_highs[i];
            }
            n_wide = tsr_narrow_wide(words, N, n_blocks);
            assert_int_equal(n_wide, 6); /* kinds 2 to 4 of two rounds; the last, short block is of kind 0 */
        }
        for (int64_t begin = 0, end; begin < N; begin = end) {
            end = begin + 300 < N ? begin + 300 : N;
            tsr_narrow_sums(words, highs, N, log2, begin, end, restored + begin);
        }
        assert_memory_equal(restored, sum, sizeof sum);
    }
}

static void unknown_instruction_sets_are_refused(void **state)
{
    (void)state;
    tsr_reducer none;
    assert_false(tsr_reducer_select("abacus", TSR_REDUCE_EXACT, &none));
    assert_true(tsr_reducer_select(NULL, TSR_REDUCE_F32, &none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_conversion_is_that_of_the_number_format),
        cmocka_unit_test(every_variant_adds_the_same),
        cmocka_unit_test(bfloat16_is_added_in_f32_and_rounded_once),
        cmocka_unit_test(every_sum_is_the_same_on_the_wire),
        cmocka_unit_test(sums_between_processes_fit_words),
        cmocka_unit_test(unknown_instruction_sets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
