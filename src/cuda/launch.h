/* How kernels are started and how they name dynamic shared memory: the two places where CUDA C++ has syntax
 * that a host compiler does not know. Everything else in a .cu file compiles twice, by nvcc for the GPU and
 * by the host compiler (TSR_CUDASIM) against tests/cudasim, which runs kernels without one.
 *
 *     __global__ void scale(float *y, int64_t n, float factor);
 *
 *     cudaError_t error = TSR_LAUNCH(scale, dim3(blocks), dim3(256), 0, stream, y, n, 0.5f);
 *
 * The kernel is a function or a template with all its arguments given; put the latter in parentheses:
 * TSR_LAUNCH((dequantize<half, 32>), ...). Arguments are converted to the kernel's parameter types as in a
 * call; too few or too many do not compile. The value is the launch's own error (bad configuration, a lost
 * context), also left for cudaGetLastError() as by <<<>>>; pass it to TSR_CUDA (check.h). */
#ifndef TSR_CUDA_LAUNCH_H
#define TSR_CUDA_LAUNCH_H

#include <cuda_runtime.h>

#ifdef __cplusplus

#ifdef TSR_CUDASIM

#include <cudasim_launch.h>

#define TSR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    cudasim_launch(#kernel, kernel, grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)

#define TSR_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(cudasim_dynamic_shared())

#else

#define TSR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    tsr_launch(kernel, grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)

/* `name` points to the block's dynamic shared memory, 16-byte aligned. All uses in a kernel name the same
 * bytes. */
#define TSR_DYNAMIC_SHARED(type, name)                                         \
    extern __shared__ __align__(16) unsigned char tsr_dynamic_shared_memory[]; \
    type *const name = reinterpret_cast<type *>(tsr_dynamic_shared_memory)

template <typename... Params>
static inline cudaError_t tsr_launch_exact(void (*kernel)(Params...), dim3 grid, dim3 block,
                                           size_t shared_bytes, cudaStream_t stream, Params... params)
{
    void *pointers[sizeof...(Params) + 1] = {const_cast<void *>(static_cast<const void *>(&params))...};
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, pointers, shared_bytes,
                            stream);
}

template <typename... Params, typename... Args>
static inline cudaError_t tsr_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream, Args... args)
{
    static_assert(sizeof...(Params) == sizeof...(Args), "one argument per parameter of the kernel");
    return tsr_launch_exact<Params...>(kernel, grid, block, shared_bytes, stream,
                                       static_cast<Params>(args)...);
}

#endif /* TSR_CUDASIM */

#endif /* __cplusplus */

#endif
