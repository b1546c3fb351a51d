/* Races, by shadow words: who read a word last and who wrote it, and after how many barriers of the block
 * and of the warp. Two accesses of different threads to the same bytes, one of them a store, are a race
 * unless a barrier of the block, or bar.warp.sync between lanes of a warp, is between them ("Memory
 * Consistency Model": nothing else that kernels here use orders them). A store of the value that is there
 * already is none: all lanes may write the same. Of accesses to parts of a word only the last of each kind
 * is known.
 *
 * In global memory only atomics with release and acquire at one address order the blocks of a launch: what
 * a block stored before a barrier that precedes its atomic is visible behind the first barrier after a later
 * block's. Only stores are remembered: two threads
 * that both store another value, as where an atomic addition became a load and a store, or a load or an
 * atomic after another thread's store. A load before another's store is found when a launch runs in
 * falling order. */
#include "warp.h"

#include <algorithm>

namespace ptx
{

namespace
{

enum { WORD = 4 };

/* Which bytes of the word that begins at `word` belong to [at, at + n). */
uint8_t bytes_of(uint32_t word, uint32_t at, size_t n)
{
    const uint32_t begin = std::max(word, at), end = std::min(word + WORD, at + (uint32_t)n);
    return (uint8_t)(((1u << (end - begin)) - 1) << (begin - word));
}

bool is_race(const Warp &w, const Access &a, uint16_t thread, uint8_t mask)
{
    if (a.barriers != w.block->barriers + 1 || (a.mask & mask) == 0)
        return false;
    if (a.others == Access::WARPS || a.thread / LANES != w.number)
        return true;
    return a.syncs == w.syncs && (a.thread != thread || a.others == Access::LANES_OF_WARP);
}

void report_race(Warp &w, const Instr &i, const char *does, uint16_t thread, uint32_t word, const Access &a,
                 uint8_t mask, const char *did)
{
    report(w, i, "thread %u %s byte %u of shared memory that thread %u %s, without a barrier between them",
           thread, does, word + (unsigned)__builtin_ctz(a.mask & mask), a.thread, did);
}

void check_stored(Warp &w, const Instr &i, const char *does, int lane, const Stored &s, size_t word,
                  uint8_t mask)
{
    const uint16_t thread = (uint16_t)(w.number * LANES + (unsigned)lane);
    if (s.barriers == 0 || (s.mask & mask) == 0)
        return;
    if (s.block == w.block->index && (s.thread == thread || s.barriers != w.block->barriers + 1 ||
                                      (s.thread / LANES == w.number && s.syncs != w.syncs)))
        return;
    const auto seen = w.block->acquired.find(s.block);
    if (seen != w.block->acquired.end() && s.barriers <= seen->second.released &&
        seen->second.acquired < w.block->barriers)
        return;
    report(w, i,
           "thread %u %s byte %zu of global memory that thread %u of block %u wrote, without a barrier "
           "between them",
           thread, does, word * WORD + (unsigned)__builtin_ctz(s.mask & mask), s.thread, s.block);
}

} // namespace

void global_load(Warp &w, const Instr &i, int lane, const Segment &s, const uint8_t *bytes, size_t n)
{
    const uint32_t at = (uint32_t)(bytes - s.bytes);
    for (uint32_t word = at / WORD * WORD; word < at + n; word += WORD)
        check_stored(w, i, "reads", lane, s.stored.get()[word / WORD], word / WORD, bytes_of(word, at, n));
}

void global_store(Warp &w, const Instr &i, int lane, Segment &s, const uint8_t *bytes, size_t n)
{
    const uint32_t at = (uint32_t)(bytes - s.bytes);
    const uint16_t thread = (uint16_t)(w.number * LANES + (unsigned)lane);
    if (!s.stored)
        s.stored.reset((Stored *)calloc((s.size + WORD - 1) / WORD, sizeof(Stored)));
    for (uint32_t word = at / WORD * WORD; word < at + n; word += WORD) {
        const uint8_t mask = bytes_of(word, at, n);
        Stored &last = s.stored.get()[word / WORD];
        check_stored(w, i, "writes", lane, last, word / WORD, mask);
        last = {w.block->barriers + 1, w.syncs, (uint32_t)w.block->index, thread, mask};
    }
}

void global_order(Warp &w, Segment &s, uint64_t at)
{
    Block &b = *w.block;
    for (const Ordered &earlier : s.ordered)
        if (earlier.at == at && earlier.block != b.index)
            b.acquired[earlier.block] = {earlier.barriers, b.barriers};
    s.ordered.push_back({at, (uint32_t)b.index, b.barriers});
}

void shadow_load(Warp &w, const Instr &i, int lane, uint32_t at, size_t n)
{
    const uint16_t thread = (uint16_t)(w.number * LANES + (unsigned)lane);
    for (uint32_t word = at / WORD * WORD; word < at + n; word += WORD) {
        Shadow &shadow = w.block->shadow[word / WORD];
        const uint8_t mask = bytes_of(word, at, n);
        Access &read = shadow.read;
        if (is_race(w, shadow.write, thread, mask))
            report_race(w, i, "reads", thread, word, shadow.write, mask, "wrote");
        if (read.barriers != w.block->barriers + 1 || read.mask != mask)
            read = {w.block->barriers + 1, w.syncs, thread, mask, Access::NO_OTHERS};
        else if (read.thread / LANES != w.number)
            read.others = Access::WARPS;
        else if (read.syncs != w.syncs && read.others != Access::WARPS)
            read = {w.block->barriers + 1, w.syncs, thread, mask, Access::NO_OTHERS};
        else if (read.thread != thread && read.others == Access::NO_OTHERS)
            read.others = Access::LANES_OF_WARP;
    }
}

void shadow_store(Warp &w, const Instr &i, int lane, uint32_t at, size_t n)
{
    const uint16_t thread = (uint16_t)(w.number * LANES + (unsigned)lane);
    for (uint32_t word = at / WORD * WORD; word < at + n; word += WORD) {
        Shadow &shadow = w.block->shadow[word / WORD];
        const uint8_t mask = bytes_of(word, at, n);
        if (is_race(w, shadow.write, thread, mask))
            report_race(w, i, "writes", thread, word, shadow.write, mask, "wrote");
        else if (is_race(w, shadow.read, thread, mask))
            report_race(w, i, "writes", thread, word, shadow.read, mask,
                        shadow.read.others == Access::NO_OTHERS ? "read" : "and others read");
        shadow.write = {w.block->barriers + 1, w.syncs, thread, mask, Access::NO_OTHERS};
    }
}

} // namespace ptx
