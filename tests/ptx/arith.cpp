/* Arithmetic of single lanes: a table from opcodes, as nvcc writes them, to functions. The rounding is that
 * of the host's default environment, to nearest even, where an opcode says .rn or nothing; results of .approx
 * are the correctly rounded values, as the ISA bounds the errors of approximations and leaves their bits
 * open. NaNs are the host's: the ISA's canonical NaN would differ from the simulation's in bits without a
 * meaning. */
#include "warp.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <unordered_map>

namespace ptx
{

namespace
{

template <class D, class A, class F> Run one(F)
{
    return [](Warp &w, const Instr &i) {
        const A *a = in<A>(w, i, 1);
        each(w, out<D>(w, i, 0), [=](int l) { return F()(a[l]); });
    };
}

template <class D, class A, class B, class F> Run two(F)
{
    return [](Warp &w, const Instr &i) {
        const A *a = in<A>(w, i, 1);
        const B *b = in<B>(w, i, 2);
        each(w, out<D>(w, i, 0), [=](int l) { return F()(a[l], b[l]); });
    };
}

template <class D, class A, class C, class F> Run three(F)
{
    return [](Warp &w, const Instr &i) {
        const A *a = in<A>(w, i, 1), *b = in<A>(w, i, 2);
        const C *c = in<C>(w, i, 3);
        each(w, out<D>(w, i, 0), [=](int l) { return F()(a[l], b[l], c[l]); });
    };
}

template <class A, class F> Run compare(F)
{
    return [](Warp &w, const Instr &i) {
        const A *a = in<A>(w, i, 1), *b = in<A>(w, i, 2);
        uint32_t bits = 0;
        for (int l = 0; l < LANES; l++)
            bits |= (uint32_t)F()(a[l], b[l]) << l;
        set_predicate(w, i, 0, bits);
    };
}

template <class F> Run predicates(F)
{
    return [](Warp &w, const Instr &i) {
        const uint32_t a = *in<uint32_t>(w, i, 1), b = *in<uint32_t>(w, i, 2);
        set_predicate(w, i, 0, F()(a, b));
    };
}

template <class T> Run select()
{
    return [](Warp &w, const Instr &i) {
        const T *a = in<T>(w, i, 1), *b = in<T>(w, i, 2);
        const uint32_t p = *in<uint32_t>(w, i, 3);
        each(w, out<T>(w, i, 0), [=](int l) { return p >> l & 1 ? a[l] : b[l]; });
    };
}

float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float flush(float x) /* .ftz */
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* a b + c rounded towards minus infinity: the product is exact in double precision, and the error of the sum
 * there (Knuth's two-sum) tells on which side of the exact value the rounded one is. */
float fma_down(float a, float b, float c)
{
    const float nearest = fmaf(a, b, c);
    const double p = (double)a * b, s = p + c, v = s - p, error = (p - (s - v)) + (c - v);
    if (!isfinite(nearest))
        return nearest;
    return nearest > s || (nearest == s && error < 0) ? nextafterf(nearest, -INFINITY) : nearest;
}

float add_toward_zero(float a, float b)
{
    const float nearest = a + b;
    if (isinf(nearest) && isfinite(a) && isfinite(b))
        return copysignf(FLT_MAX, nearest);
    return nearest < 0 ? -fma_down(1, -a, -b) : fma_down(1, a, b);
}

float half_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return bits_float(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0)
        return copysignf((float)fraction * 0x1p-24f, bits_float(sign));
    return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To nearest even: rintf does it in units of the last place that the result has. */
uint16_t float_half(float x)
{
    const uint16_t sign = (uint16_t)(float_bits(x) >> 16 & 0x8000);
    const float size = fabsf(x);
    if (isnan(x))
        return 0x7fff; /* canonical */
    if (size >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14f)
        return (uint16_t)(sign | (int)rintf(size * 0x1p24f));
    const uint32_t bits = float_bits(size) - (112u << 23);
    return (uint16_t)(sign | ((bits + 0xfff + (bits >> 13 & 1)) >> 13));
}

uint16_t float_bfloat(float x)
{
    const uint32_t bits = float_bits(x);
    return isnan(x) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Of the upper halves. The sum is rounded to odd first, so that rounding again changes nothing. */
uint16_t bfloat_fma(uint32_t a, uint32_t b, uint32_t c)
{
    const auto number = [](uint32_t x) { return (double)bits_float(x & 0xffff0000u); };
    const double sum = number(a) * number(b) + number(c);
    const float nearest = (float)sum;
    if (isfinite(nearest) && nearest != sum && (float_bits(nearest) & 1) == 0)
        return float_bfloat(nextafterf(nearest, nearest < sum ? INFINITY : -INFINITY));
    return float_bfloat(nearest);
}

/* "cvt": out of range clamps, NaN gives 0. */
int64_t clamp(float x, double low, double high, int64_t lowest, int64_t highest)
{
    return isnan(x) ? 0 : x <= low ? lowest : x >= high ? highest : (int64_t)x;
}

/* Zeros are ordered, -0 below +0; a NaN gives the other operand. */
float larger(float a, float b)
{
    return isnan(a) ? b : isnan(b) ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) /* "prmt", default mode */
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = selector >> 4 * i & 15;
        uint32_t byte = (uint32_t)(bytes >> 8 * (nibble & 7)) & 0xff;
        if (nibble & 8)
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

uint32_t reverse(uint32_t a)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (a >> i & 1) << (31 - i);
    return r;
}

using Table = std::unordered_map<std::string, Run>;

template <class U> void add_bits(Table &t, const std::string &b)
{
    using I = uint32_t;
    t["mov." + b] = one<U, U>([](U a) { return a; });
    t["not." + b] = one<U, U>([](U a) { return ~a; });
    t["and." + b] = two<U, U, U>([](U a, U c) { return a & c; });
    t["or." + b] = two<U, U, U>([](U a, U c) { return a | c; });
    t["xor." + b] = two<U, U, U>([](U a, U c) { return a ^ c; });
    t["shl." + b] = two<U, U, I>([](U a, I n) { return n < 8 * sizeof(U) ? a << n : 0; });
    t["selp." + b] = select<U>();
}

/* An integer type T of nvcc's name `n`; U is the unsigned one, W twice as wide. */
template <class T, class U, class W> void add_integer(Table &t, const std::string &n)
{
    using I = uint32_t;
    const T none = (T)-1; /* of a division by 0, which the ISA leaves open */
    (void)none;
    t["mov." + n] = one<T, T>([](T a) { return a; });
    t["selp." + n] = select<T>();
    t["add." + n] = two<T, U, U>([](U a, U b) { return a + b; });
    t["sub." + n] = two<T, U, U>([](U a, U b) { return a - b; });
    t["neg." + n] = one<T, U>([](U a) { return 0 - a; });
    t["abs." + n] = one<T, T>([](T a) { return a < 0 ? (T)(0 - (U)a) : a; });
    t["mul.lo." + n] = two<T, U, U>([](U a, U b) { return (U)((uint64_t)a * b); });
    t["mad.lo." + n] = three<T, U, U>([](U a, U b, U c) { return (U)((uint64_t)a * b + c); });
    t["mul.wide." + n] = two<W, T, T>([](T a, T b) { return (W)a * (W)b; });
    t["mul.hi." + n] = two<T, T, T>([](T a, T b) { return (T)((W)((W)a * (W)b) >> 8 * sizeof(T)); });
    t["div." + n] = two<T, T, T>([](T a, T b) {
        return b == 0 ? (T)-1 : b == (T)-1 && (T)-1 < 0 ? (T)(0 - (U)a) : (T)(a / b);
    });
    t["rem." + n] = two<T, T, T>([](T a, T b) {
        return b == 0 ? a : b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b);
    });
    t["min." + n] = two<T, T, T>([](T a, T b) { return a < b ? a : b; });
    t["max." + n] = two<T, T, T>([](T a, T b) { return a > b ? a : b; });
    t["shr." + n] = two<T, T, I>([](T a, I s) {
        return a >> (s < 8 * sizeof(T) - 1 ? s : 8 * sizeof(T) - 1) >> (s > 8 * sizeof(T) - 1 && (T)-1 > 0);
    });
    t["setp.eq." + n] = compare<T>([](T a, T b) { return a == b; });
    t["setp.ne." + n] = compare<T>([](T a, T b) { return a != b; });
    t["setp.lt." + n] = compare<T>([](T a, T b) { return a < b; });
    t["setp.le." + n] = compare<T>([](T a, T b) { return a <= b; });
    t["setp.gt." + n] = compare<T>([](T a, T b) { return a > b; });
    t["setp.ge." + n] = compare<T>([](T a, T b) { return a >= b; });
}

/* The second letter u of a comparison: true as well where an operand is NaN. */
template <class T> void add_float(Table &t, const std::string &n)
{
    t["mov." + n] = one<T, T>([](T a) { return a; });
    t["selp." + n] = select<T>();
    t["add.rn." + n] = two<T, T, T>([](T a, T b) { return a + b; });
    t["sub.rn." + n] = two<T, T, T>([](T a, T b) { return a - b; });
    t["mul.rn." + n] = two<T, T, T>([](T a, T b) { return a * b; });
    t["div.rn." + n] = two<T, T, T>([](T a, T b) { return a / b; });
    t["fma.rn." + n] = three<T, T, T>([](T a, T b, T c) {
        return std::is_same<T, float>::value ? (T)fmaf((float)a, (float)b, (float)c) : (T)fma(a, b, c);
    });
    t["rcp.rn." + n] = one<T, T>([](T a) { return 1 / a; });
    t["setp.eq." + n] = compare<T>([](T a, T b) { return a == b; });
    t["setp.lt." + n] = compare<T>([](T a, T b) { return a < b; });
    t["setp.le." + n] = compare<T>([](T a, T b) { return a <= b; });
    t["setp.gt." + n] = compare<T>([](T a, T b) { return a > b; });
    t["setp.ge." + n] = compare<T>([](T a, T b) { return a >= b; });
    t["setp.neu." + n] = compare<T>([](T a, T b) { return !(a == b); });
    t["setp.ltu." + n] = compare<T>([](T a, T b) { return !(a >= b); });
    t["setp.leu." + n] = compare<T>([](T a, T b) { return !(a > b); });
    t["setp.gtu." + n] = compare<T>([](T a, T b) { return !(a <= b); });
    t["setp.geu." + n] = compare<T>([](T a, T b) { return !(a < b); });
    t["setp.num." + n] = compare<T>([](T a, T b) { return a == a && b == b; });
    t["setp.nan." + n] = compare<T>([](T a, T b) { return a != a || b != b; });
}

void add_single(Table &t) /* of f32 alone */
{
    using F = float;
    using I = uint32_t;
    t["neg.f32"] = one<I, I>([](I a) { return a ^ 0x80000000u; });
    t["abs.f32"] = one<I, I>([](I a) { return a & 0x7fffffffu; });
    t["copysign.f32"] = two<I, I, I>([](I a, I b) { return (a & 0x80000000u) | (b & 0x7fffffffu); });
    t["min.f32"] = two<F, F, F>([](F a, F b) { return -larger(-a, -b); });
    t["max.f32"] = two<F, F, F>([](F a, F b) { return larger(a, b); });
    t["fma.rm.f32"] = three<F, F, F>([](F a, F b, F c) { return fma_down(a, b, c); });
    t["add.rz.f32"] = two<F, F, F>([](F a, F b) { return add_toward_zero(a, b); });
    t["sqrt.rn.f32"] = one<F, F>([](F a) { return sqrtf(a); });
    t["rcp.approx.ftz.f32"] = one<F, F>([](F a) { return flush(1 / flush(a)); });
    t["ex2.approx.ftz.f32"] = one<F, F>([](F a) { return ex2(a); });
}

void add_conversions(Table &t)
{
    using F = float;
    using I = uint32_t;
    using L = uint64_t;
    using H = uint16_t;
    t["cvt.u32.u64"] = one<I, L>([](L a) { return (I)a; });
    t["cvt.u64.u16"] = one<L, H>([](H a) { return (L)a; });
    t["cvt.u64.u32"] = one<L, I>([](I a) { return (L)a; });
    t["cvt.s64.s32"] = one<L, I>([](I a) { return (L)(int64_t)(int32_t)a; });
    t["cvt.s64.s32/8"] = one<L, L>([](L a) { return (L)(int64_t)(int32_t)a; }); /* of a wider register */
    t["cvt.u16.u32"] = one<H, I>([](I a) { return (H)a; });
    t["cvt.u32.u16"] = one<I, H>([](H a) { return (I)a; });
    t["cvt.s32.s16"] = one<I, H>([](H a) { return (I)(int32_t)(int16_t)a; });
    t["cvt.s16.s8/2"] = one<H, H>([](H a) { return (H)(int8_t)a; });
    t["cvt.f32.f16"] = one<F, H>([](H a) { return half_float(a); });
    t["cvt.rn.f16.f32"] = one<H, F>([](F a) { return float_half(a); });
    t["cvt.rn.bf16.f32"] = one<H, F>([](F a) { return float_bfloat(a); });
    t["cvt.rn.f16x2.f32"] = two<I, F, F>([](F a, F b) { return (I)float_half(a) << 16 | float_half(b); });
    t["cvt.rn.bf16x2.f32"] =
        two<I, F, F>([](F a, F b) { return (I)float_bfloat(a) << 16 | float_bfloat(b); });
    t["add.rn.f16x2"] =
        two<I, I, I>([](I a, I b) { /* binary32 is wide enough to round twice */
                                    return (I)float_half(half_float((H)(a >> 16)) + half_float((H)(b >> 16)))
                                               << 16 |
                                           float_half(half_float((H)a) + half_float((H)b));
        });
    t["fma.rn.bf16x2"] = three<I, I, I>(
        [](I a, I b, I c) { return (I)bfloat_fma(a, b, c) << 16 | bfloat_fma(a << 16, b << 16, c << 16); });
    t["cvt.rn.f32.s16"] = one<F, int16_t>([](int16_t a) { return (F)a; });
    t["cvt.rn.f32.s32"] = one<F, int32_t>([](int32_t a) { return (F)a; });
    t["cvt.rn.f32.u32"] = one<F, I>([](I a) { return (F)a; });
    t["cvt.rn.f32.s64"] = one<F, int64_t>([](int64_t a) { return (F)a; });
    t["cvt.rn.f32.f64"] = one<F, double>([](double a) { return (F)a; });
    t["cvt.rn.f64.s64"] = one<double, int64_t>([](int64_t a) { return (double)a; });
    t["cvt.sat.f32.f32"] = one<F, F>([](F a) { return a >= 1 ? 1 : a > 0 ? a : 0; });
    t["cvt.rni.f32.f32"] = one<F, F>([](F a) { return rintf(a); });
    t["cvt.rzi.s32.f32"] =
        one<int32_t, F>([](F a) { return clamp(a, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX); });
    t["cvt.rni.s64.f32"] =
        one<int64_t, F>([](F a) { return clamp(rintf(a), -0x1p63, 0x1p63, INT64_MIN, INT64_MAX); });
}

/* "bfi": the low bits of a, as many as d says, into b from bit c on; bits past the width are dropped. */
template <typename I> void insert_bits(Warp &w, const Instr &i)
{
    constexpr uint32_t WIDTH = 8 * sizeof(I);
    const I *a = in<I>(w, i, 1), *b = in<I>(w, i, 2);
    const uint32_t *c = in<uint32_t>(w, i, 3), *d = in<uint32_t>(w, i, 4);
    each(w, out<I>(w, i, 0), [=](int l) {
        const uint32_t at = c[l] & 0xff, length = d[l] & 0xff;
        const I low = length >= WIDTH ? (I) ~(I)0 : (I)(((I)1 << length) - 1);
        const I field = at >= WIDTH ? 0 : (I)(low << at);
        return (I)((b[l] & ~field) | (at >= WIDTH ? 0 : (I)(a[l] << at) & field));
    });
}

void add_rest(Table &t)
{
    using I = uint32_t;
    t["mov.pred"] = predicates([](I a, I) { return a; });
    t["not.pred"] = predicates([](I a, I) { return ~a; });
    t["and.pred"] = predicates([](I a, I b) { return a & b; });
    t["or.pred"] = predicates([](I a, I b) { return a | b; });
    t["xor.pred"] = predicates([](I a, I b) { return a ^ b; });
    t["setp.eq.b32"] = compare<I>([](I a, I b) { return a == b; });
    t["setp.eq.b64"] = compare<uint64_t>([](uint64_t a, uint64_t b) { return a == b; });
    t["prmt.b32"] = three<I, I, I>([](I a, I b, I c) { return permute(a, b, c); });
    t["shf.l.wrap.b32"] =
        three<I, I, I>([](I a, I b, I c) { return (I)(((uint64_t)b << 32 | a) << c % 32 >> 32); });
    t["popc.b32"] = one<I, I>([](I a) { return (I)__builtin_popcount(a); });
    t["brev.b32"] = one<I, I>([](I a) { return reverse(a); });
    /* "bfind": the shift that brings the highest bit to position 31; -1 where there is none. */
    t["bfind.shiftamt.u32"] = one<I, I>([](I a) { return a == 0 ? ~0u : (I)__builtin_clz(a); });
    t["bfi.b32"] = insert_bits<I>;
    t["bfi.b64"] = insert_bits<uint64_t>;
    /* Two halves and their whole, in the order of memory. */
    t["mov.b32.pack"] = two<I, uint16_t, uint16_t>([](I a, I b) { return a | b << 16; });
    t["mov.b64.pack"] = two<uint64_t, I, I>([](uint64_t a, uint64_t b) { return a | b << 32; });
    t["mov.b32.unpack"] = [](Warp &w, const Instr &i) {
        const I *a = in<I>(w, i, 2);
        each(w, out<uint16_t>(w, i, 0), [=](int l) { return a[l]; });
        each(w, out<uint16_t>(w, i, 1), [=](int l) { return a[l] >> 16; });
    };
    t["mov.b64.unpack"] = [](Warp &w, const Instr &i) {
        const uint64_t *a = in<uint64_t>(w, i, 2);
        each(w, out<I>(w, i, 0), [=](int l) { return a[l]; });
        each(w, out<I>(w, i, 1), [=](int l) { return a[l] >> 32; });
    };
}

} // namespace

float ex2(float x)
{
    return flush((float)exp2((double)flush(x)));
}

Run find_arithmetic(const std::string &opcode)
{
    static const Table table = [] {
        Table t;
        add_bits<uint16_t>(t, "b16");
        add_bits<uint32_t>(t, "b32");
        add_bits<uint64_t>(t, "b64");
        add_integer<uint16_t, uint16_t, uint32_t>(t, "u16");
        add_integer<uint32_t, uint32_t, uint64_t>(t, "u32");
        add_integer<uint64_t, uint64_t, unsigned __int128>(t, "u64");
        add_integer<int16_t, uint16_t, int32_t>(t, "s16");
        add_integer<int32_t, uint32_t, int64_t>(t, "s32");
        add_integer<int64_t, uint64_t, __int128>(t, "s64");
        add_float<float>(t, "f32");
        add_float<double>(t, "f64");
        add_single(t);
        add_conversions(t);
        add_rest(t);
        return t;
    }();
    auto found = table.find(opcode);
    return found != table.end() ? found->second : NULL;
}

} // namespace ptx
