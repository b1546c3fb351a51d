/* How kernels are launched and how they name dynamic shared memory: the two places where CUDA C++ has syntax
 * that a host compiler does not accept. Everything else in a .cu file compiles twice, by nvcc for the GPU and
 * by the host compiler (TSR_CUDASIM) against tests/cudasim, which runs kernels without a GPU.
 *
 *     static __global__ void scale(float *y, int64_t n, float factor);
 *
 *     cudaError_t error = TSR_LAUNCH(scale, dim3(blocks), dim3(256), 0, stream, y, n, 0.5f);
 *
 * The kernel is a function or a template with all its arguments given; put the latter in parentheses:
 * TSR_LAUNCH((dequantize<half, 32>), ...). Arguments are converted to the kernel's parameter types as in a
 * call; too few or too many do not compile. The value is the launch's own error (bad configuration, a lost
 * context), also left for cudaGetLastError() as by <<<>>>; pass it to TSR_CUDA (check.h).
 *
 * TSR_LAUNCH_EARLY is for kernels that call tsr_wait_for_previous() (common.cuh) before they read or write
 * what another kernel touches: where the code was compiled for 9.0 or a later architecture, their blocks may
 * start while the kernel before them in the stream still runs ("Programmatic Dependent Launch" in the CUDA
 * C++ Programming Guide). It takes the launcher's tsr_cuda_stream instead of a stream.
 *
 * Both also register the kernel in the list that tsr_cuda_kernels_load() (kernels.h) loads onto a GPU before
 * anything runs there. */
#ifndef TSR_CUDA_API_LAUNCH_H
#define TSR_CUDA_API_LAUNCH_H

#include <cuda_runtime.h>

#ifdef __cplusplus

#include <type_traits>

#ifdef TSR_CUDASIM
#include <cudasim_launch.h>
#define TSR_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(cudasim_dynamic_shared())
#else
/* `name` points to the block's dynamic shared memory, 16-byte aligned. All uses in a kernel name the same
 * bytes. */
#define TSR_DYNAMIC_SHARED(type, name)                                         \
    extern __shared__ __align__(16) unsigned char tsr_dynamic_shared_memory[]; \
    type *const name = reinterpret_cast<type *>(tsr_dynamic_shared_memory)
#endif

#define TSR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    tsr_launch<(kernel)>(#kernel, grid, block, shared_bytes, stream, false __VA_OPT__(, ) __VA_ARGS__)

#define TSR_LAUNCH_EARLY(kernel, grid, block, shared_bytes, s, ...)       \
    tsr_launch<(kernel)>(#kernel, grid, block, shared_bytes, (s)->stream, \
                         (s)->props->early __VA_OPT__(, ) __VA_ARGS__)

/* The list of kernels, built before main() by the constructors of its entries and never changed
 * afterwards. */
struct tsr_kernel_entry {
    const void *function;
    const tsr_kernel_entry *next;
    static inline const tsr_kernel_entry *all = NULL;

    explicit tsr_kernel_entry(const void *function_) : function(function_), next(all)
    {
        all = this;
    }
};

template <auto KERNEL> struct tsr_kernel_use {
    static inline const tsr_kernel_entry entry{reinterpret_cast<const void *>(KERNEL)};
};

template <typename... Params>
static inline cudaError_t tsr_launch_exact(const char *name, void (*kernel)(Params...), dim3 grid, dim3 block,
                                           size_t shared_bytes, cudaStream_t stream, bool early,
                                           std::common_type_t<Params>... params)
{
#ifdef TSR_CUDASIM
    (void)early;
    return cudasim_launch(name, kernel, grid, block, shared_bytes, stream, params...);
#else
    void *pointers[sizeof...(Params) + 1] = {const_cast<void *>(static_cast<const void *>(&params))...};
    (void)name;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early;
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), pointers);
#endif
}

template <auto KERNEL, typename... Args>
static inline cudaError_t tsr_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream, bool early, Args... args)
{
    (void)&tsr_kernel_use<KERNEL>::entry; /* instantiates the entry */
    return tsr_launch_exact(name, KERNEL, grid, block, shared_bytes, stream, early, args...);
}

#endif /* __cplusplus */

#endif
