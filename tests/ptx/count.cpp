/* Counting what a launch does: instructions by class, the sectors that its loads ask for, conflicts of shared
 * memory. */
#include "warp.h"

#include <algorithm>

namespace ptx
{

namespace
{

/* Memory is fetched in sectors of 32 bytes. */
void count_global(Counts &c, std::vector<std::pair<uint64_t, uint64_t>> &ranges)
{
    uint64_t end = 0, sector_end = 0;
    std::sort(ranges.begin(), ranges.end());
    for (auto [from, to] : ranges) {
        c.bytes += to > std::max(from, end) ? to - std::max(from, end) : 0;
        end = std::max(end, to);
        const uint64_t first = std::max(from / 32, sector_end), last = (to + 31) / 32;
        c.sectors += last > first ? last - first : 0;
        sector_end = std::max(sector_end, last);
    }
}

/* 32 banks of 4 bytes; a wavefront reads one word of each. Lanes that ask for the same word share it. */
void count_shared(Counts &c, const std::vector<std::pair<uint64_t, uint64_t>> &ranges)
{
    std::vector<uint64_t> words;
    size_t of_bank[32] = {};
    for (auto [from, to] : ranges)
        for (uint64_t word = from / 4; word * 4 < to; word++)
            words.push_back(word);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (uint64_t word : words)
        of_bank[word % 32]++;
    c.wavefronts += *std::max_element(of_bank, of_bank + 32);
    c.ideal += (words.size() + 31) / 32;
}

} // namespace

void count_access(Warp &w, const Instr &i, const uint64_t *at, size_t n)
{
    Counts *c = w.block->launch->counts;
    if (c == NULL)
        return;
    std::vector<std::pair<uint64_t, uint64_t>> global, shared;
    for (uint32_t left = w.active; left != 0; left &= left - 1) {
        const uint64_t address = at[__builtin_ctz(left)];
        const bool windowed = i.space == GENERIC && address >= SHARED_WINDOW;
        if (i.space == SHARED || windowed)
            shared.push_back({address, address + n});
        else if (i.counted == LOAD_GLOBAL || i.counted == ASYNC)
            global.push_back({address, address + n});
    }
    count_global(*c, global);
    if (!shared.empty())
        count_shared(*c, shared);
}

void Counts::add(const Counts &other)
{
    const uint64_t *from = (const uint64_t *)&other;
    uint64_t *to = (uint64_t *)this;
    for (size_t k = 0; k < sizeof *this / sizeof *to; k++)
        to[k] += from[k];
}

} // namespace ptx
