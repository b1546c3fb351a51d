/* A warp: lanes that are at the same instruction run together, those that parted wait in frames until they
 * meet; and what passes between lanes. */
#include "warp.h"

#include <stdarg.h>

#include <algorithm>

namespace ptx
{

void fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw Error(text);
}

std::string place(const Warp &w, const Instr &i)
{
    return w.kernel->name + ", line " + std::to_string(i.line) + ", block " + std::to_string(w.block->index) +
           ", warp " + std::to_string(w.number);
}

void report(const Warp &w, const Instr &i, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    w.block->launch->report((place(w, i) + ": " + text).c_str());
}

/* -- between lanes -- */

namespace
{

/* "shfl.sync", "vote.sync", "bar.warp.sync": every executing lane is in the mask, and every lane of the mask
 * executes. Lanes that parted are together as early as can be, so a lane of the mask that is elsewhere would
 * not come. */
void check_mask(const Warp &w, const Instr &i, const uint32_t *masks)
{
    for (uint32_t left = w.active; left != 0; left &= left - 1) {
        const uint32_t mask = masks[__builtin_ctz(left)];
        if ((mask & ~w.active) != 0 || !(mask >> __builtin_ctz(left) & 1))
            fail("%s, lane %d: mask 0x%x, while lanes 0x%x execute", place(w, i).c_str(), __builtin_ctz(left),
                 mask, w.active);
    }
}

/* The formulas of "shfl.sync". at: d, [p], a, b, c, mask. */
enum Shuffle { UP, DOWN, BUTTERFLY, INDEX };
template <Shuffle KIND> void shuffle(Warp &w, const Instr &i)
{
    const int k = i.count; /* results */
    const uint32_t *a = in<uint32_t>(w, i, k), *b = in<uint32_t>(w, i, k + 1), *c = in<uint32_t>(w, i, k + 2);
    uint32_t result[LANES], valid = 0;
    check_mask(w, i, in<uint32_t>(w, i, k + 3));
    for (int lane = 0; lane < LANES; lane++) {
        const int value = (int)(b[lane] & 31), limit = (int)(c[lane] & 31),
                  segment = (int)(c[lane] >> 8 & 31);
        const int most = (lane & segment) | (limit & ~segment), least = lane & segment;
        int from = KIND == UP          ? lane - value
                   : KIND == DOWN      ? lane + value
                   : KIND == BUTTERFLY ? lane ^ value
                                       : least | (value & ~segment);
        const bool inside = KIND == UP ? from >= most : from <= most;
        from = inside ? from : lane;
        if ((w.active >> lane & 1) && !(w.active >> from & 1))
            fail("%s, lane %d: a value of lane %d, which does not execute", place(w, i).c_str(), lane, from);
        result[lane] = a[from];
        valid |= (uint32_t)inside << lane;
    }
    each(w, out<uint32_t>(w, i, 0), [&](int l) { return result[l]; });
    if (k == 2)
        set_predicate(w, i, 1, valid);
}

void ballot(Warp &w, const Instr &i)
{
    const uint32_t bits = *in<uint32_t>(w, i, 1) & w.active, *masks = in<uint32_t>(w, i, 2);
    check_mask(w, i, masks);
    each(w, out<uint32_t>(w, i, 0), [&](int l) { return bits & masks[l]; });
}

void vote_all(Warp &w, const Instr &i)
{
    const uint32_t bits = *in<uint32_t>(w, i, 1), *masks = in<uint32_t>(w, i, 2);
    uint32_t result = 0;
    check_mask(w, i, masks);
    for (int l = 0; l < LANES; l++)
        result |= (uint32_t)((bits & masks[l]) == masks[l]) << l;
    set_predicate(w, i, 0, result);
}

void vote_any(Warp &w, const Instr &i)
{
    const uint32_t bits = *in<uint32_t>(w, i, 1) & w.active, *masks = in<uint32_t>(w, i, 2);
    uint32_t result = 0;
    check_mask(w, i, masks);
    for (int l = 0; l < LANES; l++)
        result |= (uint32_t)((bits & masks[l]) != 0) << l;
    set_predicate(w, i, 0, result);
}

/* "redux.sync.max.u32" and min: the largest or smallest of the mask's lanes. */
template <bool LARGEST> void reduce(Warp &w, const Instr &i)
{
    const uint32_t *a = in<uint32_t>(w, i, 1), *masks = in<uint32_t>(w, i, 2);
    uint32_t result[LANES];
    check_mask(w, i, masks);
    for (int l = 0; l < LANES; l++) {
        result[l] = LARGEST ? 0 : UINT32_MAX;
        for (int from = 0; from < LANES; from++)
            if (masks[l] >> from & 1)
                result[l] = LARGEST ? std::max(result[l], a[from]) : std::min(result[l], a[from]);
    }
    each(w, out<uint32_t>(w, i, 0), [&](int l) { return result[l]; });
}

void warp_barrier(Warp &w, const Instr &i)
{
    check_mask(w, i, in<uint32_t>(w, i, 0));
    w.syncs++;
}

} // namespace

Run find_lanes(const Statement &s, Instr &i)
{
    const std::string kind = s.words.size() > 2 ? s.words[2] : "";
    if (s.words[0] == "bar" && s.words[1] == "warp") {
        i.counted = LANE;
        return warp_barrier;
    }
    if (s.words[0] == "redux" && s.words.back() == "u32") {
        i.counted = LANE;
        return kind == "max" ? reduce<true> : kind == "min" ? reduce<false> : NULL;
    }
    if (s.words[0] != "shfl" && s.words[0] != "vote")
        return NULL;
    i.counted = LANE;
    i.count = s.operands[0].kind == Operand::VECTOR ? 2 : 1;
    if (s.words[0] == "vote")
        return kind == "ballot" ? ballot : kind == "all" ? vote_all : kind == "any" ? vote_any : NULL;
    return kind == "up"     ? shuffle<UP>
           : kind == "down" ? shuffle<DOWN>
           : kind == "bfly" ? shuffle<BUTTERFLY>
           : kind == "idx"  ? shuffle<INDEX>
                            : NULL;
}

/* -- control -- */

namespace
{

void branch(Warp &w, const Instr &i, uint32_t taken)
{
    Frame &top = w.frames.back();
    const int next = top.pc + 1;
    if (taken == top.mask) {
        top.pc = i.target;
    } else if (taken == 0) {
        top.pc = next;
    } else {
        const uint32_t others = top.mask & ~taken;
        top.pc = i.meet;
        w.frames.push_back({next, i.meet, others});
        w.frames.push_back({i.target, i.meet, taken});
        if (w.block->launch->counts != NULL)
            w.block->launch->counts->divergent++;
    }
}

void leave(Warp &w, uint32_t lanes)
{
    w.live &= ~lanes;
    w.frames.back().pc++;
    for (Frame &frame : w.frames)
        frame.mask &= ~lanes;
    while (!w.frames.empty() && w.frames.back().mask == 0)
        w.frames.pop_back();
}

/* "bar.sync": the warp waits as a whole, so lanes that parted must not come to it apart. */
void arrive(Warp &w, const Instr &i, uint32_t lanes)
{
    if (lanes != w.live)
        fail("%s: lanes 0x%x at a barrier, but not all of 0x%x", place(w, i).c_str(), lanes, w.live);
    w.predicate = 0xffffffffu;
    if (i.control == BARRIER_AND) {
        w.predicate = (*in<uint32_t>(w, i, 2) & lanes) == lanes ? 0xffffffffu : 0;
    }
    w.state = Warp::AT_BARRIER;
}

} // namespace

void run_warp(Warp &w)
{
    const std::vector<Instr> &code = w.kernel->code;
    Counts *counts = w.block->launch->counts;
    w.state = Warp::READY;
    while (w.state == Warp::READY) {
        if (w.frames.empty()) {
            w.state = Warp::DONE;
            break;
        }
        Frame &top = w.frames.back();
        if (top.pc == top.meet) {
            w.frames.pop_back();
            continue;
        }
        if (top.pc >= (int)code.size())
            fail("%s runs past its end", w.kernel->name.c_str());
        const Instr &i = code[(size_t)top.pc];
        w.kernel->reached[(size_t)top.pc] = true;
        w.active = top.mask;
        if (i.guard >= 0)
            w.active &= *(const uint32_t *)(w.registers + i.guard) ^ (i.guard_not ? 0xffffffffu : 0);
        if (counts != NULL) {
            counts->instructions[i.counted]++;
            counts->lanes += (uint64_t)__builtin_popcount(w.active);
        }
        if (i.control == BRANCH) {
            branch(w, i, w.active);
        } else if (i.control == EXIT) {
            leave(w, w.active);
        } else {
            if (w.active != 0) {
                if (i.control == PLAIN)
                    i.run(w, i);
                else if (i.control == PAUSE)
                    w.state = Warp::PAUSED;
                else
                    arrive(w, i, w.active);
            }
            if (i.control == PLAIN || i.control == PAUSE || w.active == 0)
                top.pc++;
        }
    }
}

} // namespace ptx
