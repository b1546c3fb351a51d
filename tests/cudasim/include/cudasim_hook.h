/* A way into kernel launches, for a second execution of the same kernels (tests/ptx). */
#ifndef CUDASIM_HOOK_H
#define CUDASIM_HOOK_H

#include <functional>
#include <string>
#include <vector>

#include "cuda_runtime.h"

struct cudasim_launched {
    const char *name;
    const void *function;
    int device;
    dim3 grid, block;
    size_t shared_bytes;                      /* dynamic */
    const std::vector<unsigned char> *params; /* as a kernel's parameters are in memory */
};

/* While a hook is set, launches run one after another: nothing else is done on any device between `begin` and
 * `end`, except what blocks of other kernels do while one waits. The machine's lock is held in all calls. */
struct cudasim_launch_hook {
    void (*begin)(const cudasim_launched &launched); /* before its first block */
    /* Execute a block instead of the simulation: 1 done, 0 not wanted, -1 the kernel must end. `pause` lets
     * others run; false: the kernel must end. */
    int (*block)(const cudasim_launched &launched, uint64_t index, const std::function<bool()> &pause);
    void (*end)(const cudasim_launched &launched, bool aborted); /* after its last */
};
void cudasim_set_hook(const cudasim_launch_hook *hook);

/* All memory that kernels may reach, as the simulation sees it. */
struct cudasim_memory {
    uint64_t address;
    size_t size;
    unsigned char *bytes;
};
std::vector<cudasim_memory> cudasim_memories();

/* The program's functions and thread-local variables, by their mangled names. */
struct cudasim_symbol {
    std::string name;
    bool is_thread_local;
    uintptr_t value; /* address; of a variable: offset from where a thread keeps them */
    size_t size;
};
const std::vector<cudasim_symbol> &cudasim_symbols();

/* What the compiler says of a kernel: registers of a thread, threads of its launch bounds. */
void cudasim_set_resources(const void *function, int registers, int max_threads);

/* The same for the kernels of a table such as kernel_resources.txt, which has been read already. */
void cudasim_read_resources(const char *path);

/* A rule is broken: the launch's device is lost. */
void cudasim_lose(const cudasim_launched &launched, const char *why);

#endif
