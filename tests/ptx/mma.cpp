/* mma.sync: products of matrix fragments, by the layouts of "Matrix Fragments for mma.m16n8k16 with floating
 * point type", "... mma.m16n8k16 with integer type" and "... mma.m16n8k32". A lane is 4 g + t.
 *
 * The ISA leaves the order and the rounding of floating point sums open: here products are exact and added in
 * rising order of k to c in double precision, and the sum is rounded once. Integer sums wrap, as without
 * .satfinite. */
#include "warp.h"

#include <string.h>

namespace ptx
{

namespace
{

void all_lanes(const Warp &w, const Instr &i)
{
    if (w.active != 0xffffffffu)
        fail("%s: mma.sync with only lanes 0x%x of the warp", place(w, i).c_str(), w.active);
}

double number(uint32_t bits, bool is_bfloat)
{
    uint32_t whole = (bits & 0xffff) << 16;
    float x;
    if (!is_bfloat) {
        const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
        if (exponent == 0) {
            x = (float)fraction * 0x1p-24f;
            return bits & 0x8000 ? -x : x;
        }
        whole = (bits & 0x8000) << 16 | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    }
    memcpy(&x, &whole, sizeof x);
    return x;
}

/* Operands: d 0 to 3, a 4 to 7, b 8 and 9, c 10 to 13. */
template <bool BFLOAT> void product_16(Warp &w, const Instr &i)
{
    double a[16][16], b[16][8], sum[16][8];
    all_lanes(w, i);
    for (int l = 0; l < LANES; l++) {
        const int g = l / 4, t = l % 4;
        for (int k = 0; k < 8; k++) /* a[k]: two to a register */
            a[g + (k / 2 % 2 != 0 ? 8 : 0)][2 * t + k % 2 + (k >= 4 ? 8 : 0)] =
                number(in<uint32_t>(w, i, 4 + k / 2)[l] >> 16 * (k % 2), BFLOAT);
        for (int k = 0; k < 4; k++)
            b[2 * t + k % 2 + (k >= 2 ? 8 : 0)][g] =
                number(in<uint32_t>(w, i, 8 + k / 2)[l] >> 16 * (k % 2), BFLOAT);
        for (int k = 0; k < 4; k++)
            sum[g + (k >= 2 ? 8 : 0)][2 * t + k % 2] = in<float>(w, i, 10 + k)[l];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                sum[row][column] += a[row][k] * b[k][column];
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < 4; k++)
            out<float>(w, i, k)[l] = (float)sum[l / 4 + (k >= 2 ? 8 : 0)][2 * (l % 4) + k % 2];
}

/* K = 16: a in 2 registers, b in 1; K = 32: in 4 and 2. Four elements of 8 bits to a register; A: those of a,
 * signed or not. */
template <int K, typename A> void product_8(Warp &w, const Instr &i)
{
    const int a_at = 4, b_at = 4 + K / 8, c_at = b_at + K / 16;
    int32_t a[16][K], b[K][8];
    uint32_t sum[16][8];
    all_lanes(w, i);
    for (int l = 0; l < LANES; l++) {
        const int g = l / 4, t = l % 4;
        for (int k = 0; k < K / 2; k++)
            a[g + (k / 4 % 2 != 0 ? 8 : 0)][4 * t + k % 4 + (k >= 8 ? 16 : 0)] =
                (A)(in<uint32_t>(w, i, a_at + k / 4)[l] >> 8 * (k % 4));
        for (int k = 0; k < K / 4; k++)
            b[4 * t + k % 4 + (k >= 4 ? 16 : 0)][g] =
                (int8_t)(in<uint32_t>(w, i, b_at + k / 4)[l] >> 8 * (k % 4));
        for (int k = 0; k < 4; k++)
            sum[g + (k >= 2 ? 8 : 0)][2 * t + k % 2] = in<uint32_t>(w, i, c_at + k)[l];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++)
                sum[row][column] += (uint32_t)(a[row][k] * b[k][column]);
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < 4; k++)
            out<uint32_t>(w, i, k)[l] = sum[l / 4 + (k >= 2 ? 8 : 0)][2 * (l % 4) + k % 2];
}

} // namespace

Run find_mma(const std::string &opcode)
{
    const std::string sync = "mma.sync.aligned.";
    if (opcode == sync + "m16n8k16.row.col.f32.f16.f16.f32")
        return product_16<false>;
    if (opcode == sync + "m16n8k16.row.col.f32.bf16.bf16.f32")
        return product_16<true>;
    if (opcode == sync + "m16n8k16.row.col.s32.s8.s8.s32")
        return product_8<16, int8_t>;
    if (opcode == sync + "m16n8k32.row.col.s32.s8.s8.s32")
        return product_8<32, int8_t>;
    if (opcode == sync + "m16n8k32.row.col.s32.u8.s8.s32")
        return product_8<32, uint8_t>;
    return NULL;
}

} // namespace ptx
