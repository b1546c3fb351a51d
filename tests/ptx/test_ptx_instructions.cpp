/* PTX written by hand, one instruction or idea at a time; expected values are worked out from the text of the
 * PTX ISA. A kernel stores a word per lane into `out`. */
#include "ptx.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

using namespace ptx;

struct Result {
    uint32_t out[64];
    std::string error, reported;
};

/* Run `body` with registers %r, %rd, %f, %rs, %p of ten each; %rd0 is the address of the lane's word, %r0 the
 * lane. Words of `in` are at `out` + 256. Memory begins at 0x1000. */
static Result run(const std::string &body, unsigned threads = 32, const std::string &variables = "",
                  unsigned blocks = 1)
{
    Result r = {};
    uint32_t memory[128] = {};
    uint8_t written[512] = {};
    for (int k = 0; k < 64; k++)
        memory[64 + k] = (uint32_t)(100 + k);
    memset(written + 256, 1, 252); /* the last word was not written */
    Memory global;
    global.segments.push_back({0x1000, sizeof memory, (uint8_t *)memory, written});
    const std::string text =
        ".entry test(.param .u64 out)\n{\n.reg .pred %p<10>;\n.reg .b16 %rs<10>;\n.reg .f32 %f<10>;\n"
        ".reg .b32 %r<20>;\n.reg .b64 %rd<10>;\n" +
        variables +
        "ld.param.u64 %rd9, [out];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %rd8, %r0, 4;\n"
        "add.s64 %rd0, %rd9, %rd8;\n" +
        body + "\nret;\n}\n.global .align 2 .b8 bytes[6] = {1, 2, 3, 4, 5, 6};\n";
    const uint64_t address = 0x1000;
    Launch launch;
    launch.block[0] = threads;
    launch.grid[0] = blocks;
    launch.memory = &global;
    launch.parameters.resize(8);
    memcpy(launch.parameters.data(), &address, 8);
    launch.report = [&](const char *what) { r.reported += what; };
    launch.pause = [] { throw Error("nothing to wait for"); };
    try {
        std::shared_ptr<Kernel> kernel = decode(parse(text, 0));
        launch.kernel = kernel.get();
        for (unsigned b = 0; b < blocks; b++)
            run_block(launch, b);
    } catch (const Error &error) {
        r.error = error.what();
    }
    memcpy(r.out, memory, sizeof r.out);
    return r;
}

/* The word of lane 3 that an instruction puts into %r1. */
static uint32_t value(const std::string &body)
{
    const Result r = run(body + "\nst.global.u32 [%rd0], %r1;");
    assert_string_equal(r.error.c_str(), "");
    assert_string_equal(r.reported.c_str(), "");
    return r.out[3];
}

static uint32_t float_value(const std::string &body)
{
    return value(body + "\nmov.b32 %r1, %f1;");
}

static void integers_are_computed_as_the_isa_says(void **)
{
    assert_int_equal(value("add.s32 %r1, %r0, -5;"), (uint32_t)-2);
    assert_int_equal(value("sub.s32 %r1, %r0, 5;"), (uint32_t)-2);
    assert_int_equal(value("mul.lo.s32 %r1, %r0, -7;"), (uint32_t)-21);
    assert_int_equal(value("mad.lo.s32 %r1, %r0, 10, 4;"), 34);
    assert_int_equal(value("mul.wide.s32 %rd1, %r0, -1; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1;"),
                     ~0u);
    assert_int_equal(
        value("mul.wide.u32 %rd1, 0x80000000, 6; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1;"), 3);
    assert_int_equal(value("mov.u32 %r2, -7; div.s32 %r1, %r2, 2;"), (uint32_t)-3); /* towards zero */
    assert_int_equal(value("mov.u32 %r2, -7; rem.s32 %r1, %r2, 2;"), (uint32_t)-1);
    assert_int_equal(value("mov.u32 %r2, -7; div.u32 %r1, %r2, 2;"), 0x7ffffffc);
    assert_int_equal(value("mov.u32 %r2, -7; min.s32 %r1, %r2, 2;"), (uint32_t)-7);
    assert_int_equal(value("mov.u32 %r2, -7; max.u32 %r1, %r2, 2;"), (uint32_t)-7);
    assert_int_equal(value("neg.s32 %r1, %r0;"), (uint32_t)-3);
    assert_int_equal(value("mov.u16 %rs1, -2; cvt.u64.u16 %rd1, %rs1; cvt.u32.u64 %r1, %rd1;"), 0xfffe);
}

static void bits_are_moved_and_counted(void **)
{
    assert_int_equal(value("not.b32 %r1, %r0;"), ~3u);
    assert_int_equal(value("and.b32 %r1, %r0, 6;"), 2);
    assert_int_equal(value("xor.b32 %r1, %r0, 6;"), 5);
    assert_int_equal(value("shl.b32 %r1, %r0, 31;"), 0x80000000);
    assert_int_equal(value("shl.b32 %r1, %r0, 32;"), 0); /* amounts above the width are clamped to it */
    assert_int_equal(value("mov.u32 %r2, -8; shr.s32 %r1, %r2, 1;"), (uint32_t)-4);
    assert_int_equal(value("mov.u32 %r2, -8; shr.s32 %r1, %r2, 40;"), ~0u);
    assert_int_equal(value("mov.u32 %r2, -8; shr.u32 %r1, %r2, 40;"), 0);
    assert_int_equal(value("popc.b32 %r1, %r0;"), 2);
    assert_int_equal(value("brev.b32 %r1, %r0;"), 0xc0000000);
    assert_int_equal(value("bfind.shiftamt.u32 %r1, %r0;"), 30);
    assert_int_equal(value("mov.u32 %r2, 0; bfind.shiftamt.u32 %r1, %r2;"), ~0u);
    /* a's low 4 bits into b at bit 8 */
    assert_int_equal(value("mov.u32 %r2, 0xab; mov.u32 %r3, -1; bfi.b32 %r1, %r2, %r3, 8, 4;"), 0xfffffbff);
    assert_int_equal(
        value("mov.u64 %rd1, 5; mov.u64 %rd2, 1; bfi.b64 %rd3, %rd1, %rd2, 32, 32; shr.u64 %rd4, "
              "%rd3, 32; cvt.u32.u64 %r1, %rd4;"),
        5);
    /* bytes 7..0 of {b, a}; bit 3 of a nibble: the sign of the byte, eight times */
    const std::string two = "mov.u32 %r2, 0x83828180; mov.u32 %r3, 0x07060504; ";
    assert_int_equal(value(two + "prmt.b32 %r1, %r2, %r3, 0x7531;"), 0x07058381);
    assert_int_equal(value(two + "prmt.b32 %r1, %r2, %r3, 0xc830;"), 0x00ff8380);
    assert_int_equal(value(two + "shf.l.wrap.b32 %r1, %r2, %r3, 8;"),
                     0x06050483); /* of {b, a}, the upper word */
    assert_int_equal(value(two + "shf.l.wrap.b32 %r1, %r2, %r3, -32;"), 0x07060504); /* modulo 32 */
}

static void floats_are_rounded_as_asked(void **)
{
    /* 1 + 2^-24 is a tie and goes to even; below it, .rm and .rn differ */
    assert_int_equal(float_value("mov.f32 %f2, 0f33800000; add.rn.f32 %f1, %f2, 0f3F800000;"), 0x3f800000);
    const std::string towards_zero = "add.rz.f32 %f1, %f2, %f3;"; /* 1 + 2^-24 (1 + 2^-23), and the limits */
    assert_int_equal(float_value("mov.f32 %f2, 0f33800001; mov.f32 %f3, 0f3F800000; " + towards_zero),
                     0x3f800000);
    assert_int_equal(float_value("mov.f32 %f2, 0fB3800001; mov.f32 %f3, 0fBF800000; " + towards_zero),
                     0xbf800000);
    assert_int_equal(float_value("mov.f32 %f2, 0fB0800000; mov.f32 %f3, 0f3F800000; " + towards_zero),
                     0x3f7fffff);
    assert_int_equal(float_value("mov.f32 %f2, 0f7F7FFFFF; mov.f32 %f3, 0f7F7FFFFF; " + towards_zero),
                     0x7f7fffff);
    assert_int_equal(float_value("mov.f32 %f2, 0f33800001; fma.rn.f32 %f1, %f2, 0f3F800000, 0f3F800000;"),
                     0x3f800001);
    assert_int_equal(float_value("mov.f32 %f2, 0f33800001; fma.rm.f32 %f1, %f2, 0f3F800000, 0f3F800000;"),
                     0x3f800000);
    /* 1 - 2^-26 downwards */
    assert_int_equal(float_value("mov.f32 %f2, 0fB2800000; fma.rm.f32 %f1, %f2, 0f3F800000, 0f3F800000;"),
                     0x3f7fffff);
    /* one rounding: (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24 */
    assert_int_equal(float_value("mov.f32 %f2, 0f3F800800; fma.rn.f32 %f1, %f2, %f2, 0fBF801000;"),
                     0x33800000);
    assert_int_equal(float_value("mov.f32 %f2, 0f3F800000; div.rn.f32 %f1, %f2, 0f40400000;"), 0x3eaaaaab);
    assert_int_equal(float_value("mov.f32 %f2, 0f40400000; rcp.rn.f32 %f1, %f2;"), 0x3eaaaaab);
    assert_int_equal(float_value("mov.f32 %f2, 0f40000000; sqrt.rn.f32 %f1, %f2;"), 0x3fb504f3);
    assert_int_equal(float_value("mov.f32 %f2, 0f40400000; ex2.approx.ftz.f32 %f1, %f2;"), 0x41000000);
    assert_int_equal(float_value("mov.f32 %f2, 0fC3000000; ex2.approx.ftz.f32 %f1, %f2;"),
                     0); /* 2^-128: subnormal */
    assert_int_equal(float_value("mov.f32 %f2, 0fFF800000; ex2.approx.ftz.f32 %f1, %f2;"), 0);
    assert_int_equal(float_value("mov.f32 %f2, 0f7F800000; rcp.approx.ftz.f32 %f1, %f2;"), 0);
}

static void signs_and_nans_are_as_the_isa_says(void **)
{
    assert_int_equal(float_value("mov.f32 %f2, 0f80000000; max.f32 %f1, %f2, 0f00000000;"), 0); /* +0 > -0 */
    assert_int_equal(float_value("mov.f32 %f2, 0f00000000; min.f32 %f1, %f2, 0f80000000;"), 0x80000000);
    assert_int_equal(float_value("mov.f32 %f2, 0f7FC00000; max.f32 %f1, %f2, 0f3F800000;"), 0x3f800000);
    assert_int_equal(float_value("mov.f32 %f2, 0f3F800000; copysign.f32 %f1, 0f80000000, %f2;"), 0xbf800000);
    assert_int_equal(float_value("mov.f32 %f2, 0fBF800000; abs.f32 %f1, %f2;"), 0x3f800000);
    assert_int_equal(float_value("mov.f32 %f2, 0f7FC00000; cvt.sat.f32.f32 %f1, %f2;"), 0);
    static const struct {
        const char *compare;
        uint32_t nan, less;
    } cases[] = {{"eq", 0, 0},  {"lt", 0, 1},  {"le", 0, 1},  {"gt", 0, 0},  {"ge", 0, 0},
                 {"neu", 1, 1}, {"ltu", 1, 1}, {"leu", 1, 1}, {"geu", 1, 0}, {"num", 0, 1}};
    for (const auto &c : cases) {
        const std::string rest =
            std::string("setp.") + c.compare + ".f32 %p1, %f2, 0f40000000; selp.u32 %r1, 1, 0, %p1;";
        assert_int_equal(value("mov.f32 %f2, 0f7FC00000; " + rest), c.nan);
        assert_int_equal(value("mov.f32 %f2, 0f3F800000; " + rest), c.less);
    }
}

static void conversions_round_and_saturate(void **)
{
    assert_int_equal(
        value("mov.u32 %r2, 0x1ff; cvt.u16.u32 %rs1, %r2; cvt.s16.s8 %rs2, %rs1; cvt.u32.u16 %r1, %rs2;"),
        0xffff);
    assert_int_equal(value("mov.f32 %f2, 0f40200000; cvt.rni.s64.f32 %rd1, %f2; cvt.u32.u64 %r1, %rd1;"),
                     2); /* 2.5 */
    assert_int_equal(value("mov.f32 %f2, 0fC0200000; cvt.rzi.s32.f32 %r1, %f2;"), (uint32_t)-2);
    assert_int_equal(value("mov.f32 %f2, 0f7F800000; cvt.rzi.s32.f32 %r1, %f2;"), 0x7fffffff); /* clamped */
    assert_int_equal(value("mov.f32 %f2, 0f7FC00000; cvt.rzi.s32.f32 %r1, %f2;"), 0);
    assert_int_equal(float_value("mov.f32 %f2, 0f40600000; cvt.rni.f32.f32 %f1, %f2;"), 0x40800000); /* 3.5 */
    assert_int_equal(float_value("mov.u32 %r2, 16777217; cvt.rn.f32.u32 %f1, %r2;"), 0x4b800000);
    assert_int_equal(float_value("mov.u16 %rs1, -2; cvt.rn.f32.s16 %f1, %rs1;"), 0xc0000000);
    assert_int_equal(float_value("mov.u16 %rs1, 0x3555; cvt.f32.f16 %f1, %rs1;"), 0x3eaaa000);
    assert_int_equal(float_value("mov.u16 %rs1, 0x0001; cvt.f32.f16 %f1, %rs1;"), 0x33800000); /* 2^-24 */
    const std::string half = "cvt.rn.f16.f32 %rs1, %f2; cvt.u32.u16 %r1, %rs1;";
    assert_int_equal(value("mov.f32 %f2, 0f3EAAAAAB; " + half), 0x3555);
    assert_int_equal(value("mov.f32 %f2, 0f477FF000; " + half), 0x7c00); /* 65520 rounds to infinity */
    assert_int_equal(value("mov.f32 %f2, 0f477FEFFF; " + half), 0x7bff);
    assert_int_equal(value("mov.f32 %f2, 0f33000000; " + half), 0); /* 2^-25 is a tie with 0 */
    assert_int_equal(value("mov.f32 %f2, 0f33000001; " + half), 1);
    assert_int_equal(value("mov.f32 %f2, 0f3F808000; cvt.rn.bf16.f32 %rs1, %f2; cvt.u32.u16 %r1, %rs1;"),
                     0x3f80);
    assert_int_equal(value("mov.f32 %f2, 0f3F818000; cvt.rn.bf16.f32 %rs1, %f2; cvt.u32.u16 %r1, %rs1;"),
                     0x3f82);
    /* two at a time, the first operand above */
    const std::string pair = "mov.f32 %f2, 0f3F818000; mov.f32 %f3, 0fBF800000; ";
    assert_int_equal(value(pair + "cvt.rn.f16x2.f32 %r1, %f2, %f3;"), 0x3c0cbc00);
    assert_int_equal(value(pair + "cvt.rn.bf16x2.f32 %r1, %f2, %f3;"), 0x3f82bf80);
    assert_int_equal(value("mov.u32 %r2, 0x64ff6401; mov.u32 %r3, 0xe480e480; add.rn.f16x2 %r1, %r2, %r3;"),
                     0x57f0d7f0); /* 1279 - 1152, 1025 - 1152 */
    assert_int_equal(value("mov.u32 %r2, 0x437f4301; mov.u32 %r3, 0x3f803f80; mov.u32 %r4, 0xc300c380; "
                           "fma.rn.bf16x2 %r1, %r2, %r3, %r4;"),
                     0x42fec2fe); /* 255 - 128, 129 - 256 */
    assert_int_equal(value("mov.u32 %r2, 0x3f813f81; mov.u32 %r3, 0x3f803f81; mov.u32 %r4, 0x2e800000; "
                           "fma.rn.bf16x2 %r1, %r2, %r3, %r4;"),
                     0x3f813f82); /* 1.0078125, and its square rounded */
    assert_int_equal(value("mov.u16 %rs1, 1; mov.u16 %rs2, 2; mov.b32 %r1, {%rs1, %rs2};"), 0x20001);
    assert_int_equal(value("mov.u32 %r2, 0x20001; mov.b32 {%rs1, %rs2}, %r2; cvt.u32.u16 %r1, %rs2;"), 2);
}

static void lanes_part_and_meet(void **)
{
    /* lanes below 8 go round a loop lane times; all are together again at the vote */
    const Result r =
        run("mov.u32 %r1, 0; mov.u32 %r2, 0;\nsetp.lt.u32 %p1, %r0, 8;\n@!%p1 bra $OUT;\n$LOOP:\n"
            "setp.ge.u32 %p2, %r2, %r0;\n@%p2 bra $OUT;\nadd.s32 %r1, %r1, 10;\nadd.s32 %r2, %r2, 1;\n"
            "bra.uni $LOOP;\n$OUT:\nvote.sync.ballot.b32 %r3, %p1, -1;\nadd.s32 %r1, %r1, %r3;\n"
            "st.global.u32 [%rd0], %r1;");
    assert_string_equal(r.error.c_str(), "");
    for (uint32_t lane = 0; lane < 32; lane++)
        assert_int_equal(r.out[lane], (lane < 8 ? 10 * lane : 0) + 0xff);
}

static void some_lanes_return(void **)
{
    const Result r = run("setp.ge.u32 %p1, %r0, 4;\n@%p1 ret;\nmov.u32 %r1, 7;\nst.global.u32 [%rd0], %r1;");
    assert_string_equal(r.error.c_str(), "");
    assert_int_equal(r.out[3], 7);
    assert_int_equal(r.out[4], 0);
}

static void shuffles_move_values_between_lanes(void **)
{
    const std::string rest = " selp.u32 %r2, 100, 0, %p1; add.s32 %r1, %r1, %r2;";
    assert_int_equal(value("shfl.sync.bfly.b32 %r1|%p1, %r0, 5, 31, -1;" + rest), 106);
    assert_int_equal(value("shfl.sync.idx.b32 %r1|%p1, %r0, 9, 31, -1;" + rest), 109);
    assert_int_equal(value("shfl.sync.idx.b32 %r1|%p1, %r0, 9, 0x1c03, -1;" + rest),
                     101); /* segments of 4: 9 % 4 */
    assert_int_equal(value("shfl.sync.up.b32 %r1|%p1, %r0, 2, 0, -1;" + rest), 101);
    assert_int_equal(value("shfl.sync.up.b32 %r1|%p1, %r0, 4, 0, -1;" + rest), 3); /* below lane 0: its own */
    assert_int_equal(value("shfl.sync.down.b32 %r1|%p1, %r0, 28, 31, -1;" + rest), 131);
    assert_int_equal(value("shfl.sync.down.b32 %r1|%p1, %r0, 29, 31, -1;" + rest), 3);
    const std::string parted =
        "setp.lt.u32 %p1, %r0, 16;\n@!%p1 bra $OUT;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, ";
    assert_string_equal(run(parted + "0xffff;\n$OUT:\n").error.c_str(), "");
    assert_non_null(strstr(run(parted + "-1;\n$OUT:\n").error.c_str(), "mask 0xffffffff"));
}

static void votes_are_of_the_active_lanes(void **)
{
    assert_int_equal(value("setp.lt.u32 %p1, %r0, 5; vote.sync.ballot.b32 %r1, %p1, -1;"), 31);
    assert_int_equal(
        value("setp.lt.u32 %p1, %r0, 32; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;"), 1);
    assert_int_equal(
        value("setp.lt.u32 %p1, %r0, 31; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;"), 0);
    assert_int_equal(
        value("setp.eq.u32 %p1, %r0, 31; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;"), 1);
    assert_int_equal(
        value("setp.eq.u32 %p1, %r0, 32; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;"), 0);
}

static void the_largest_and_smallest_of_the_masks_lanes_are_found(void **)
{
    assert_int_equal(value("xor.b32 %r2, %r0, 9; redux.sync.max.u32 %r1, %r2, -1;"), 31);
    assert_int_equal(value("sub.s32 %r2, %r0, 5; redux.sync.max.u32 %r1, %r2, -1;"), 0xffffffffu);
    const std::string halves =
        "and.b32 %r2, %r0, 16; mov.u32 %r3, 0xffff; shl.b32 %r4, %r3, %r2; redux.sync.max.u32 %r1, %r0, %r4;";
    assert_int_equal(value(halves), 15);
    assert_int_equal(value("sub.s32 %r2, %r0, 5; redux.sync.min.u32 %r1, %r2, -1;"), 0);
    assert_int_equal(value("xor.b32 %r2, %r0, 64; redux.sync.min.u32 %r1, %r2, -1;"), 64);
    assert_non_null(strstr(run("redux.sync.max.u32 %r1, %r0, 0xff;").error.c_str(), "mask 0xff"));
}

static void barriers_wait_for_all_warps(void **)
{
    /* each warp reads what the other wrote before the barrier */
    const char *shared = ".shared .align 4 .b8 s[256];\n";
    const std::string exchange =
        "mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.s32 %r4, %r2, %r3; st.shared.u32 [%r4], %r0;\n"
        "%sxor.b32 %r5, %r3, 128; add.s32 %r6, %r2, %r5; ld.shared.u32 %r1, [%r6];\n"
        "st.global.u32 [%rd0], %r1;";
    std::string with = exchange, without = exchange;
    with.replace(with.find("%s"), 2, "bar.sync 0;\n");
    without.replace(without.find("%s"), 2, "");
    Result r = run(with, 64, shared);
    assert_string_equal(r.error.c_str(), "");
    assert_string_equal(r.reported.c_str(), "");
    for (uint32_t k = 0; k < 64; k++)
        assert_int_equal(r.out[k], k ^ 32);
    assert_non_null(strstr(run(without, 64, shared).reported.c_str(), "was not written"));
    r = run("setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $OUT;\nbar.sync 0;\n$OUT:\n");
    assert_non_null(strstr(r.error.c_str(), "at a barrier, but not all"));
    r = run("setp.lt.u32 %p1, %r0, 32;\n@%p1 ret;\nbar.sync 0;", 64);
    assert_non_null(strstr(r.reported.c_str(), "have returned"));
    r = run("setp.lt.u32 %p1, %r0, 63; bar.red.and.pred %p2, 0, %p1; selp.u32 %r1, 1, 2, %p2; st.global.u32 "
            "[%rd0], %r1;",
            64);
    assert_int_equal(r.out[0], 2);
}

/* What is reported of lanes that store to their word, and after `between` load the word at xor `distance`
 * bytes. */
static std::string report_of_exchange(const std::string &store, const std::string &between, int distance)
{
    const Result r = run("mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.s32 %r4, %r2, %r3; mov.u32 %r7, 77;\n"
                         "st.shared.u32 [%r4], %r7;\nbar.sync 0;\n" +
                             store + ";\n" + between + ";\nxor.b32 %r5, %r3, " + std::to_string(distance) +
                             "; add.s32 %r6, %r2, %r5; ld.shared.u32 %r1, [%r6];",
                         64, ".shared .align 4 .b8 s[256];\n");
    assert_string_equal(r.error.c_str(), "");
    return r.reported;
}

static void races_in_shared_memory_are_reported(void **)
{
    const std::string store = "st.shared.u32 [%r4], %r0", block = "bar.sync 0", warp = "bar.warp.sync -1",
                      none = "mov.u32 %r8, 0";
    assert_string_equal(report_of_exchange(store, block, 128).c_str(), ""); /* between warps */
    assert_non_null(strstr(report_of_exchange(store, warp, 128).c_str(), "without a barrier"));
    assert_string_equal(report_of_exchange(store, warp, 4).c_str(), ""); /* between lanes */
    assert_string_equal(report_of_exchange(store, none, 0).c_str(), ""); /* a lane's own word */
    const std::string lanes = report_of_exchange(store, none, 4);
    assert_non_null(strstr(lanes.c_str(),
                           "block 0, warp 0: thread 0 reads byte 4 of shared memory that thread "
                           "1 wrote, without a barrier"));
    /* all load the first word, then lane 0 stores to it */
    const std::string load = "ld.shared.u32 %r9, [%r2]";
    assert_non_null(strstr(report_of_exchange(load, store, 0).c_str(), "and others read"));
    assert_string_equal(report_of_exchange(load + ";\n" + block, store, 0).c_str(), "");
    /* all lanes store to one word: another value each, or the same */
    assert_non_null(
        strstr(report_of_exchange("st.shared.u32 [%r2], %r0", block, 0).c_str(), "writes byte 0"));
    assert_string_equal(report_of_exchange("st.shared.u32 [%r2], 5", block, 0).c_str(), "");
    /* bytes of one word belong to different lanes */
    assert_string_equal(
        report_of_exchange("add.s32 %r8, %r2, %r0; st.shared.u8 [%r8], %r0", block, 0).c_str(), "");
}

/* 64 threads store `word`, which the first of them or all then load. */
static std::string report_of_global(const std::string &store, const std::string &between,
                                    const std::string &load)
{
    const Result r = run("mov.u32 %r2, 0; st.global.u32 [%rd0], %r2;\nbar.sync 0;\n" + store + ";\n" +
                             between + ";\n" + load + ";",
                         64);
    assert_string_equal(r.error.c_str(), "");
    return r.reported;
}

static void races_in_global_memory_are_reported(void **)
{
    const std::string block = "bar.sync 0", warp = "bar.warp.sync -1", none = "mov.u32 %r8, 0",
                      first = "ld.global.u32 %r1, [%rd9]", own = "ld.global.u32 %r1, [%rd0]",
                      add = "ld.global.u32 %r3, [%rd9]; add.s32 %r3, %r3, 1; st.global.u32 [%rd9], %r3",
                      atomic = "atom.global.add.u32 %r3, [%rd9], 1", store = "st.global.u32 [%rd0], 7";
    assert_string_equal(report_of_global(store, none, own).c_str(), "");
    assert_string_equal(report_of_global(store, block, first).c_str(), "");
    assert_non_null(
        strstr(report_of_global(store, none, first).c_str(),
               "reads byte 0 of global memory that thread 0 of block 0 wrote, without a barrier"));
    assert_non_null(strstr(report_of_global(store, warp, first).c_str(), "thread 32 reads"));
    assert_non_null(strstr(report_of_global(store, none, atomic).c_str(), "reads byte 0"));
    /* an addition that other threads' additions may overwrite */
    assert_non_null(strstr(report_of_global(add, none, none).c_str(), "global memory"));
    assert_string_equal(report_of_global(atomic, block, first).c_str(), "");
    /* all store one value; each stores a byte of its own */
    assert_string_equal(report_of_global("st.global.u32 [%rd9], 7", none, none).c_str(), "");
    assert_string_equal(
        report_of_global("cvt.u64.u32 %rd1, %r0; add.s64 %rd1, %rd9, %rd1; st.global.u8 [%rd1], %r0", none,
                         none)
            .c_str(),
        "");
}

/* The first of two blocks stores a word per thread, and the second one loads that of thread 33. */
static std::string report_of_blocks(const std::string &after_store, const std::string &atomic,
                                    const std::string &before_load)
{
    const Result r = run(
        "mov.u32 %r1, %ctaid.x; setp.ne.s32 %p1, %r1, 0; setp.eq.s32 %p2, %r1, 0;\n"
        "setp.ne.s32 %p3, %r0, 0;\n@%p1 bra $STORED;\nst.global.u32 [%rd0], %r0;\n$STORED:\n" +
            after_store + ";\n@%p3 bra $COUNTED;\natom." + atomic + " %r2, [%rd9+256], 1000;\n$COUNTED:\n" +
            before_load + ";\n@%p2 bra $OUT;\nld.global.u32 %r3, [%rd9+132];\n$OUT:\n",
        64, "", 2);
    assert_string_equal(r.error.c_str(), "");
    return r.reported;
}

static void atomics_with_release_and_acquire_order_blocks(void **)
{
    const std::string barrier = "bar.sync 0", none = "mov.u32 %r8, 0", ordered = "acq_rel.gpu.global.inc.u32",
                      relaxed = "global.add.u32";
    assert_string_equal(report_of_blocks(barrier, ordered, barrier).c_str(), "");
    for (const std::string &report :
         {report_of_blocks(none, ordered, barrier), report_of_blocks(barrier, relaxed, barrier),
          report_of_blocks(barrier, ordered, none)})
        assert_non_null(strstr(report.c_str(), "that thread 33 of block 0 wrote"));
}

static void memory_is_checked(void **)
{
    assert_string_equal(run("st.global.u32 [%rd0+380], %r0;").error.c_str(), "");
    assert_non_null(strstr(run("st.global.u32 [%rd0+388], %r0;").error.c_str(), "outside of global memory"));
    assert_non_null(strstr(run("ld.global.u32 %r1, [%rd0+-4];").error.c_str(), "outside of global memory"));
    assert_int_equal(value("ld.global.nc.u16 %rs1, [bytes+4]; cvt.u32.u16 %r1, %rs1;"), 0x0605);
    assert_non_null(
        strstr(run("mov.u64 %rd1, bytes; ld.global.u16 %rs1, [%rd1+6];").error.c_str(), "outside"));
    assert_non_null(strstr(run("mov.u64 %rd1, bytes; st.global.u16 [%rd1], %rs1;").error.c_str(), "outside"));
    assert_non_null(strstr(run("mov.u64 %rd1, words;").error.c_str(), "unknown name words"));
    assert_non_null(strstr(run("ld.global.u64 %rd1, [%rd0+256];").error.c_str(), "not aligned"));
    assert_non_null(strstr(run("ld.global.u32 %r1, [%rd0];").reported.c_str(), "not written"));
    assert_non_null(
        strstr(run("ld.shared.u32 %r1, [%r0];").error.c_str(), "outside of the block's shared memory"));
    assert_int_equal(value("ld.global.u32 %r1, [%rd0+256];"), 103);
    assert_int_equal(value("ld.global.v2.u32 {%r2, %r1}, [%rd9+264];"), 103);
    assert_int_equal(
        value(
            "mov.u32 %r2, -2; st.global.u32 [%rd0], %r2; ld.global.s8 %rs1, [%rd0]; cvt.u32.u16 %r1, %rs1;"),
        0xfffe);
    assert_int_equal(value("mov.u32 %r2, -2; st.global.u32 [%rd0], %r2; ld.global.u8 %r1, [%rd0];"), 0xfe);
    assert_int_equal(value("mov.u32 %r2, -2; st.global.u16 [%rd9+256], %r2; bar.warp.sync -1; ld.global.u32 "
                           "%r1, [%rd9+256];"),
                     0xfffe);
}

static void atomics_add_up(void **)
{
    Result r = run("atom.global.add.u32 %r1, [%rd9+256], 2; st.global.u32 [%rd0], %r1;\n"
                   "ld.global.u32 %r2, [%rd9+256]; @%p0 bra $OUT;\n$OUT:\n");
    assert_int_equal(r.out[0], 100);
    assert_int_equal(r.out[31], 162);
    assert_int_equal(value("atom.global.max.s32 %r2, [%rd9+256], %r0; ld.global.u32 %r1, [%rd9+256];"), 100);
    /* 100, 101, 102, 0, 1, ... */
    assert_int_equal(value("atom.acq_rel.gpu.global.inc.u32 %r1, [%rd9+256], 102;"), 0);
}

static void async_copies_arrive_at_their_wait(void **)
{
    const char *shared = ".shared .align 16 .b8 s[1024];\n";
    const std::string copy =
        "mov.u32 %r2, s; shl.b32 %r3, %r0, 4; add.s32 %r4, %r2, %r3;\nadd.s64 %rd1, %rd9, 256;\n"
        "cp.async.cg.shared.global [%r4], [%rd1], 16;\ncp.async.commit_group;\n"
        "add.s64 %rd1, %rd9, 272; add.s32 %r5, %r4, 512;\n"
        "cp.async.cg.shared.global [%r5], [%rd1], 16;\ncp.async.commit_group;\n";
    const std::string first = "ld.shared.u32 %r1, [%r4+4]; st.global.u32 [%rd0], %r1;";
    const std::string second = "ld.shared.u32 %r1, [%r5+4]; st.global.u32 [%rd0], %r1;";
    assert_non_null(strstr(run(copy + first, 32, shared).reported.c_str(), "not written"));
    Result r = run(copy + "cp.async.wait_group 1;\n" + first, 32, shared);
    assert_string_equal(r.reported.c_str(), "");
    assert_int_equal(r.out[3], 101);
    assert_non_null(
        strstr(run(copy + "cp.async.wait_group 1;\n" + second, 32, shared).reported.c_str(), "not written"));
    r = run(copy + "cp.async.wait_group 0;\n" + second, 32, shared);
    assert_string_equal(r.reported.c_str(), "");
    assert_int_equal(r.out[3], 105);
    /* what another lane copied is complete after that lane's wait and a barrier of the warp */
    const std::string wait = "cp.async.wait_group 0;\n", sync = "bar.warp.sync -1;\n",
                      others = "xor.b32 %r4, %r4, 16;\n" + first;
    assert_string_equal(run(copy + wait + sync + others, 32, shared).reported.c_str(), "");
    assert_non_null(strstr(run(copy + wait + others, 32, shared).reported.c_str(), "thread 0 reads byte 20"));
}

static void generic_addresses_reach_shared_memory(void **)
{
    const Result r =
        run("mov.u32 %r2, s; cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd2, %rd1; add.s64 %rd2, %rd2, %rd8;\n"
            "st.u32 [%rd2], %r0; ld.u32 %r1, [%rd2]; st.u32 [%rd0], %r1;",
            32, ".shared .align 4 .b8 s[128];\n");
    assert_string_equal(r.error.c_str(), "");
    assert_int_equal(r.out[3], 3);
}

/* Lane 3 has c0 = (0, 6), and column 6 of b is in lanes 24 to 27, whose numbers add up to 102. */
static void products_of_fragments_are_summed(void **)
{
    const std::string start =
        "mov.u32 %r9, 0; mov.u32 %r2, 0x00000001; mov.u32 %r3, 0x00000200; shl.b32 %r4, %r0, 8;\n";
    /* a: 1 at (g, 4t), nothing in rows g + 8; b: the lane at (4t, g) */
    assert_int_equal(
        value(start + "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r1,%r5,%r6,%r7}, {%r2,%r9}, {%r0}, "
                      "{%r9,%r9,%r9,%r9};"),
        102);
    assert_int_equal(
        value(start + "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r5,%r1,%r6,%r7}, {%r2,%r9}, {%r0}, "
                      "{%r9,%r9,%r9,%r9};"),
        118);
    assert_int_equal(
        value(start + "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r5,%r6,%r1,%r7}, {%r2,%r9}, {%r0}, "
                      "{%r9,%r9,%r0,%r9};"),
        3);
    /* a: 1 at (g, 4t), 2 at (g, 17 + 4t); b: the lane at (4t, g) and at (17 + 4t, g) */
    assert_int_equal(
        value(start + "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1,%r5,%r6,%r7}, {%r2,%r9,%r3,%r9}, "
                      "{%r0,%r4}, {%r9,%r9,%r9,%r9};"),
        306);
    /* a: 255, or -1, at (g, 4t) */
    for (const char *type : {"u8", "s8"})
        assert_int_equal(value(start + "mov.u32 %r2, 255; mma.sync.aligned.m16n8k32.row.col.s32." + type +
                               ".s8.s32 {%r1,%r5,%r6,%r7}, {%r2,%r9,%r9,%r9}, {%r0,%r4}, {%r9,%r9,%r9,%r9};"),
                         strcmp(type, "u8") == 0 ? 255u * 102 : 0u - 102);
    /* the same in halves: 1 at (g, 2t), 2 at (g, 2t + 9), and 0.5 in c */
    for (const char *type : {"f16", "bf16"}) {
        const bool half = strcmp(type, "f16") == 0;
        const std::string halves =
            std::string("mov.u32 %r9, 0; mov.f32 %f2, 0f3F000000; mov.u32 %r2, ") +
            (half ? "0x3c00; mov.u32 %r3, 0x40000000; " : "0x3f80; mov.u32 %r3, 0x40000000; ") +
            "cvt.rn.f32.u32 %f3, %r0; cvt.rn." + type + ".f32 %rs1, %f3; mov.u16 %rs2, 0; " +
            "mov.b32 %r4, {%rs1, %rs2}; mov.b32 %r5, {%rs2, %rs1};\n" +
            "mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type + ".f32 ";
        const std::string rest = " {%r2,%r9,%r3,%r9}, {%r4,%r5}, {%f2,%f2,%f2,%f2};";
        assert_int_equal(float_value(halves + "{%f1,%f4,%f5,%f6}," + rest), 0x43994000); /* 306.5 */
        assert_int_equal(float_value(halves + "{%f4,%f5,%f1,%f6}," + rest), 0x3f000000);
    }
    const std::string parted =
        "@%p1 mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r1,%r5,%r6,%r7}, {%r2,%r9}, {%r0}, "
        "{%r9,%r9,%r9,%r9};";
    assert_non_null(strstr(run("setp.lt.u32 %p1, %r0, 9; " + parted).error.c_str(), "only lanes 0x1ff"));
}

static void unknown_instructions_are_refused(void **)
{
    assert_non_null(
        strstr(run("frobnicate.u32 %r1, %r0;").error.c_str(), "unknown instruction frobnicate.u32"));
    assert_non_null(strstr(run("mov.u32 %r1, %nosuch;").error.c_str(), "unknown name %nosuch"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_computed_as_the_isa_says),
        cmocka_unit_test(bits_are_moved_and_counted),
        cmocka_unit_test(floats_are_rounded_as_asked),
        cmocka_unit_test(signs_and_nans_are_as_the_isa_says),
        cmocka_unit_test(conversions_round_and_saturate),
        cmocka_unit_test(lanes_part_and_meet),
        cmocka_unit_test(some_lanes_return),
        cmocka_unit_test(shuffles_move_values_between_lanes),
        cmocka_unit_test(votes_are_of_the_active_lanes),
        cmocka_unit_test(the_largest_and_smallest_of_the_masks_lanes_are_found),
        cmocka_unit_test(barriers_wait_for_all_warps),
        cmocka_unit_test(races_in_shared_memory_are_reported),
        cmocka_unit_test(races_in_global_memory_are_reported),
        cmocka_unit_test(atomics_with_release_and_acquire_order_blocks),
        cmocka_unit_test(memory_is_checked),
        cmocka_unit_test(atomics_add_up),
        cmocka_unit_test(async_copies_arrive_at_their_wait),
        cmocka_unit_test(generic_addresses_reach_shared_memory),
        cmocka_unit_test(products_of_fragments_are_summed),
        cmocka_unit_test(unknown_instructions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
