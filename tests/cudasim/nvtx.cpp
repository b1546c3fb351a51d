/* A profiler that records the ranges of NVTX. */
#include <mutex>
#include <string>
#include <vector>

#include "cudasim.h"
#include "nvtx3/nvToolsExt.h"

static std::mutex lock;
static std::vector<std::string> names;
static int n_open;
static thread_local int depth;

int nvtxRangePushA(const char *message)
{
    const std::lock_guard<std::mutex> guard(lock);
    names.push_back(message);
    n_open++;
    return depth++;
}

int nvtxRangePop(void)
{
    const std::lock_guard<std::mutex> guard(lock);
    if (depth == 0)
        return -1;
    n_open--;
    return --depth;
}

int cudasim_nvtx_ranges(const char *name)
{
    const std::lock_guard<std::mutex> guard(lock);
    int n = 0;
    for (const std::string &recorded : names)
        n += recorded.compare(0, std::char_traits<char>::length(name), name) == 0;
    return n;
}

int cudasim_nvtx_open(void)
{
    const std::lock_guard<std::mutex> guard(lock);
    return n_open;
}
