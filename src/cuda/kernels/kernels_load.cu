/* Loading the code of all kernels onto a GPU.
 *
 * With CUDA_MODULE_LOADING=LAZY, the default, a kernel's code is loaded when it is first launched, and
 * loading may wait until nothing runs on the GPU (CUDA Programming Guide, "Lazy Loading", "Concurrent
 * Execution"). A kernel that waits for another device would then never end, if that device's next kernel is a
 * new one on the same GPU. Querying a kernel's attributes loads it ("Preloading" there). It also fails
 * immediately on a GPU that the library was not built for. */
#include "cuda/api/check.h"
#include "cuda/api/launch.h"
#include "cuda/kernels/kernels.h"

/* nvcc's list of what it compiles for (800 = 8.0). Other compilers have none, and take that of simulated
 * machines. */
#ifndef __CUDA_ARCH_LIST__
#define __CUDA_ARCH_LIST__ 800, 900
#endif

/* Jetson's GPUs. */
static bool is_tegra(int compute_capability)
{
    return compute_capability == 87 || compute_capability == 110;
}

/* Native code runs on GPUs of the same major version with the same or a later minor one; to and from Tegra it
 * runs on its own version only ("CUDA Programming Guide", binary compatibility). */
extern "C" bool tsr_cuda_kernels_are_native(int compute_capability)
{
    static const int built_for[] = {__CUDA_ARCH_LIST__};
    for (int arch : built_for)
        if (arch / 10 == compute_capability ||
            (arch / 100 == compute_capability / 10 && arch / 10 < compute_capability &&
             !is_tegra(arch / 10) && !is_tegra(compute_capability)))
            return true;
    return false;
}

/* griddepcontrol is there from this architecture on (PTX ISA). */
enum { EARLY_ARCHITECTURE = 90 };

extern "C" tsr_status tsr_cuda_kernels_load(bool *early_out)
{
    *early_out = true;
    for (const tsr_kernel_entry *entry = tsr_kernel_entry::all; entry; entry = entry->next) {
        cudaFuncAttributes attributes;
        tsr_status status = TSR_CUDA(cudaFuncGetAttributes(&attributes, entry->function));
        if (status != TSR_OK)
            return tsr_fail_in(status, "loading the kernels");
        *early_out = *early_out && attributes.ptxVersion >= EARLY_ARCHITECTURE;
    }
    return TSR_OK;
}
