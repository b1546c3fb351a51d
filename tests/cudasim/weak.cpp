/* Weak memory: what one kernel stores, and what another then loads.
 *
 * On GPUs a plain store may stay in a buffer until its thread releases it (a store with release, a fence) or
 * the kernel ends, and a plain load may come from a cache that was filled before the data changed, until the
 * thread acquires (a load with acquire, a fence). With cudasim_config.weak both always happen: each kernel
 * has a view of the devices' memory of its own, which is in its place while one of the kernel's blocks runs.
 * A release hands what the kernel has stored to the memory that all share; an acquire brings the view up to
 * date, apart from bytes that the kernel has stored and not released. Ordered loads and stores see and change
 * the shared memory. Copies and the host run between kernels and see the shared memory only.
 *
 * What a kernel has stored and not released when it ends is seen by the kernels that start after it. It is
 * released when one of its device's kernels releases, when a kernel of another device starts, and before
 * anything that is no kernel: so whatever follows a kernel in a stream, or after the host has waited, sees
 * everything, but a kernel that runs meanwhile and waits for a flag does not.
 *
 * Threads of one kernel share a view, so missing fences between them are not found. Atomic functions act on
 * the view: they are for threads of one kernel. Allocations beyond `most_bytes` are strongly ordered, for the
 * sake of time. */
#include "sim.h"

#include <string.h>

#include <algorithm>

namespace cudasim
{

static const size_t most_bytes = (size_t)1 << 20;

static bool is_viewed(const Region &region)
{
    return (region.kind == Region::MALLOC || region.kind == Region::VMM) && region.size <= most_bytes;
}

static unsigned char *memory_of(const Region &region)
{
    size_t length;
    return host_view((const void *)region.va, region.size, &length);
}

static void copy_to(std::vector<unsigned char> &to, const Region &region)
{
    const unsigned char *memory = memory_of(region);
    to.assign(memory, memory + region.size);
}

/* The view of a region while it is in place; NULL: the region is not viewed. */
static View *view_of(const Region &region)
{
    Machine &m = machine();
    if (m.viewing == NULL || !is_viewed(region))
        return NULL;
    auto found = m.viewing->views.find(region.va);
    return found != m.viewing->views.end() && !found->second.shared.empty() ? &found->second : NULL;
}

/* What the device's earlier kernels did not release. */
static void see_late(const Device &device, uintptr_t va, View &view)
{
    auto late = device.late.find(va);
    if (late == device.late.end() || late->second.bytes.size() != view.mine.size())
        return;
    for (size_t i = 0; i < view.mine.size(); i++)
        if (late->second.is[i])
            view.mine[i] = view.before[i] = late->second.bytes[i];
}

static Device &device_of(const Grid &grid)
{
    return machine().devices[(size_t)grid.op->body->device];
}

/* Hand what the device's kernels that have ended stored to the memory that all share. */
static void release_late(Device &device)
{
    for (auto &[va, late] : device.late) {
        Region *region = region_of((const void *)va);
        if (region == NULL || region->va != va || late.bytes.size() != region->size)
            continue; /* freed meanwhile */
        View *view = view_of(*region);
        unsigned char *memory = memory_of(*region);
        for (size_t i = 0; i < region->size; i++) {
            if (!late.is[i])
                continue;
            if (view != NULL)
                view->shared[i] = late.bytes[i];
            if (view == NULL)
                memory[i] = late.bytes[i];
            else if (memory[i] == view->before[i])
                memory[i] = view->before[i] = late.bytes[i];
        }
    }
    device.late.clear();
}

void view_enter(Grid &grid)
{
    Machine &m = machine();
    if (!m.config.weak)
        return;
    if (grid.views.empty()) /* it starts */
        for (Device &device : m.devices)
            if (&device != &device_of(grid))
                release_late(device);
    for (const auto &[va, region] : m.regions) {
        if (!is_viewed(region))
            continue;
        View &view = grid.views[va];
        copy_to(view.shared, region);
        if (view.mine.empty()) {
            view.mine = view.before = view.shared;
            see_late(device_of(grid), va, view);
        }
        memcpy(memory_of(region), view.mine.data(), view.mine.size());
    }
    m.viewing = &grid;
}

void view_leave()
{
    Machine &m = machine();
    for (const auto &[va, region] : m.regions) {
        View *view = view_of(region);
        if (view == NULL)
            continue;
        copy_to(view->mine, region);
        memcpy(memory_of(region), view->shared.data(), view->shared.size());
        view->shared.clear();
    }
    m.viewing = NULL;
}

/* What the device's kernels that have ended stored into the region and did not release; NULL: nothing. */
static Late *late_of(const Region &region)
{
    auto &all = device_of(*machine().viewing).late;
    auto late = all.find(region.va);
    return late != all.end() && late->second.bytes.size() == region.size ? &late->second : NULL;
}

/* Bytes [begin, end) of a region, or those of them that neither the kernel nor one before it on its device
 * has stored into and not released. */
static void load(const Region &region, View &view, unsigned char *memory, size_t begin, size_t end)
{
    const Late *late = late_of(region);
    for (size_t i = begin; i < end; i++)
        if (memory[i] == view.before[i] && !(late != NULL && late->is[i]))
            memory[i] = view.before[i] = view.shared[i];
}

static void store(const Region &, View &view, unsigned char *memory, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (memory[i] != view.before[i])
            view.shared[i] = view.before[i] = memory[i];
}

static void for_all(void (*work)(const Region &region, View &view, unsigned char *memory, size_t begin,
                                 size_t end))
{
    for (const auto &[va, region] : machine().regions) {
        View *view = view_of(region);
        unsigned char *memory = memory_of(region);
        if (view != NULL && (memcmp(view->before.data(), view->shared.data(), region.size) != 0 ||
                             memcmp(view->before.data(), memory, region.size) != 0))
            work(region, *view, memory, 0, region.size);
    }
}

void view_end(Grid &grid)
{
    Device &device = device_of(grid);
    for (auto &[va, view] : grid.views) {
        Region *region = region_of((const void *)va);
        if (region == NULL || region->va != va || view.mine.size() != region->size)
            continue; /* freed meanwhile */
        if (view.mine == view.before)
            continue;
        Late &late = device.late[va];
        if (late.bytes.size() != region->size)
            late = {std::vector<unsigned char>(region->size), std::vector<bool>(region->size)};
        for (size_t i = 0; i < region->size; i++)
            if (view.mine[i] != view.before[i]) {
                late.bytes[i] = view.mine[i];
                late.is[i] = true;
            }
    }
    grid.views.clear();
}

void view_release_all()
{
    for (Device &device : machine().devices)
        release_late(device);
}

} // namespace cudasim

using namespace cudasim;

void cudasim_release()
{
    if (machine().viewing == NULL)
        return;
    release_late(device_of(*machine().viewing));
    for_all(store);
}

void cudasim_acquire()
{
    if (machine().viewing != NULL)
        for_all(load);
}

static void on_bytes(const volatile void *address, size_t bytes, bool stored)
{
    Region *region = machine().viewing != NULL ? region_of((const void *)address) : NULL;
    View *view = region != NULL ? view_of(*region) : NULL;
    if (view == NULL)
        return;
    size_t begin = (uintptr_t)address - region->va, end = std::min(begin + bytes, region->size);
    unsigned char *memory = memory_of(*region);
    if (!stored) {
        load(*region, *view, memory, begin, end);
        return;
    }
    Late *late = late_of(*region);
    for (size_t i = begin; i < end; i++) { /* also where the value is the old one */
        view->shared[i] = view->before[i] = memory[i];
        if (late != NULL)
            late->is[i] = false; /* older */
    }
}

void cudasim_loading(const volatile void *address, size_t bytes)
{
    on_bytes(address, bytes, false);
}

void cudasim_stored(const volatile void *address, size_t bytes)
{
    on_bytes(address, bytes, true);
}
