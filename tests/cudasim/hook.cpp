/* Launches seen, and blocks executed, from outside of the simulation; see include/cudasim_hook.h. */
#include "sim.h"

#include <cudasim_hook.h>

namespace cudasim
{

static const cudasim_launch_hook *hook;

static cudasim_launched launched(const Body &body)
{
    return {body.name.c_str(), body.function,     body.device, body.grid,
            body.block,        body.shared_bytes, &body.params};
}

bool hooked()
{
    return hook != NULL;
}

void hook_begin(const Grid &grid)
{
    if (hook != NULL)
        hook->begin(launched(*grid.op->body));
}

void hook_end(const Grid &grid)
{
    if (hook != NULL)
        hook->end(launched(*grid.op->body), grid.aborted);
}

int hook_block(Worker *worker, Grid &grid, uint64_t index)
{
    if (hook == NULL)
        return 0;
    const Device &device = machine().devices[(size_t)grid.op->body->device];
    return hook->block(launched(*grid.op->body), index, [&] {
        park(worker);
        grant(-1);
        return !grid.aborted && device.sticky == cudaSuccess;
    });
}

} // namespace cudasim

using namespace cudasim;

void cudasim_set_hook(const cudasim_launch_hook *hook_)
{
    hook = hook_;
}

std::vector<cudasim_memory> cudasim_memories()
{
    std::vector<cudasim_memory> all;
    for (const auto &[va, region] : machine().regions) {
        size_t length = 0;
        unsigned char *bytes = host_view((const void *)va, region.size, &length);
        if (bytes != NULL && region.size != 0)
            all.push_back({va, region.size, bytes});
    }
    return all;
}

void cudasim_lose(const cudasim_launched &of, const char *why)
{
    violate("%s", why);
    poison(of.device, cudaErrorLaunchFailure);
}
