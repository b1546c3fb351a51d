/* Starting kernels in the simulated machine, and what waiting loops call; reached through
 * src/cuda/api/launch.h and src/cuda/comm/memory_order.h. */
#ifndef CUDASIM_LAUNCH_H
#define CUDASIM_LAUNCH_H

#include <string.h>

#include <functional>
#include <vector>

#include "cuda_runtime.h"

/* Enqueue `body`, run once per thread of the grid, in a stream. `params`: the arguments, each at a multiple
 * of its alignment. */
cudaError_t cudasim_launch_body(const char *name, const void *function, dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, std::function<void()> body,
                                std::vector<unsigned char> params = {});

template <typename T> static inline void cudasim_append(std::vector<unsigned char> *params, const T &value)
{
    const size_t at = (params->size() + alignof(T) - 1) / alignof(T) * alignof(T);
    params->resize(at + sizeof value);
    memcpy(params->data() + at, &value, sizeof value);
}

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
    std::vector<unsigned char> block_of_params;
    (cudasim_append(&block_of_params, params), ...);
    return cudasim_launch_body(
        name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, stream,
        [=]() { kernel(params...); }, std::move(block_of_params));
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
