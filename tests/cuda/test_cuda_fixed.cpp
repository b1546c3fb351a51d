/* The fixed point of kernels is that of the library, core/quant/fixed.h. Simulated kernels make two integers
 * of 32 bits, as on some cards; tests/ptx compares them with the kernels of cards that make one of 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include "core/quant/fixed.h"
#include "cuda/kernels/common.cuh"

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check(float value)
{
    bool bad = false;
    assert_true(tsr_fixed_of(value, tsr_fixed_limit(1), &bad) == tsr_fixed_from_f32(value));
    assert_false(bad);
}

/* Of each exponent, numbers with few and with many bits, among them those halfway between two integers. */
static void every_value_in_range_is_rounded_alike(void **)
{
    enum { PER_EXPONENT = 4096, LIMIT_EXPONENT = 127 + TSR_FIXED_SUM_BITS - TSR_FIXED_FRACTION_BITS };
    uint64_t random = 88172645463325252u;
    for (uint32_t exponent = 0; exponent < LIMIT_EXPONENT; exponent++)
        for (uint32_t i = 0; i < PER_EXPONENT; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            const uint32_t kept = 0x7fffffu << i % 24 & 0x7fffffu;
            check(of_bits(exponent << 23 | ((uint32_t)random & kept) | (uint32_t)(random >> 63) << 31));
        }
    const float least = tsr_fixed_limit(1) / 16777216.0f; /* that the limit differs from the next float by */
    check(tsr_fixed_limit(1) - least);
    check(least - tsr_fixed_limit(1));
}

static void others_are_reported(void **)
{
    const float limit = tsr_fixed_limit(56);
    const float others[] = {
        limit, -limit, 2 * limit, of_bits(0x7f800000), of_bits(0xff800000), of_bits(0x7fc00000)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool bad = false;
        assert_true(tsr_fixed_of(others[i], limit, &bad) == 0 && bad);
        assert_true(tsr_fixed_of(1.0f, limit, &bad) == (int64_t)1 << TSR_FIXED_FRACTION_BITS && bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_in_range_is_rounded_alike),
        cmocka_unit_test(others_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
