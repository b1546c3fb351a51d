/* Starting kernels in the simulated machine, and what waiting loops call; reached through
 * src/cuda/api/launch.h and src/cuda/comm/memory_order.h. */
#ifndef CUDASIM_LAUNCH_H
#define CUDASIM_LAUNCH_H

#include <functional>

#include "cuda_runtime.h"

/* Enqueue `body`, run once per thread of the grid, in a stream. */
cudaError_t cudasim_launch_body(const char *name, const void *function, dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, std::function<void()> body);

/* In a kernel: the block's dynamic shared memory; all threads may run others now; a load that a loop may be
 * waiting on was done (the second of the same address in a row lets others run). */
void *cudasim_dynamic_shared();
void cudasim_yield();
void cudasim_loaded(const volatile void *address);

template <typename... Params>
static inline cudaError_t cudasim_launch_exact(const char *name, void (*kernel)(Params...), dim3 grid,
                                               dim3 block, size_t shared_bytes, cudaStream_t stream,
                                               Params... params)
{
    return cudasim_launch_body(name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes,
                               stream, [=]() { kernel(params...); });
}

template <typename... Params, typename... Args>
static inline cudaError_t cudasim_launch(const char *name, void (*kernel)(Params...), dim3 grid, dim3 block,
                                         size_t shared_bytes, cudaStream_t stream, Args... args)
{
    static_assert(sizeof...(Params) == sizeof...(Args), "one argument per parameter of the kernel");
    return cudasim_launch_exact<Params...>(name, kernel, grid, block, shared_bytes, stream,
                                           static_cast<Params>(args)...);
}

#endif
