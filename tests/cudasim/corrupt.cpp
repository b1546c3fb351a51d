/* Writes to a peer's memory that arrive wrong: the memory that a kernel may damage is remembered when it
 * starts and compared when it has ended, and one bit is turned over in every allocation that it changed. */
#include "sim.h"

#include <algorithm>

namespace cudasim
{

static bool may_damage(uint32_t owners, const Region &region)
{
    bool device_memory = region.kind == Region::MALLOC || region.kind == Region::VMM;
    return device_memory && (owners >> region.device & 1);
}

void note_before(Grid &grid)
{
    Machine &m = machine();
    const uint32_t owners = m.corrupt[grid.op->body->device];
    if (owners == 0)
        return;
    for (const auto &[va, region] : m.regions) {
        size_t length = 0;
        if (!may_damage(owners, region))
            continue;
        const unsigned char *view = host_view((const void *)va, region.size, &length);
        if (view != NULL)
            grid.before[va].assign(view, view + std::min(length, region.size));
    }
}

void damage_written(Grid &grid)
{
    for (const auto &[va, before] : grid.before) {
        size_t length = 0;
        unsigned char *now =
            region_of((const void *)va) != NULL ? host_view((const void *)va, before.size(), &length) : NULL;
        if (now == NULL || length < before.size())
            continue;
        auto [was, is] = std::mismatch(before.begin(), before.end(), now);
        if (was != before.end())
            *is ^= 0x10;
    }
}

} // namespace cudasim
