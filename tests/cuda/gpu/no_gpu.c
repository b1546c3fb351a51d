/* Linked with every program of tests/cuda that runs on GPUs: without a GPU the program ends before its
 * first test, with the exit status that ctest reports as skipped. */
#include <stdio.h>
#include <unistd.h>

#include <cuda_runtime.h>

enum { SKIPPED = 77 };

__attribute__((constructor)) static void skip_without_gpu(void)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0)
        return;
    printf("skipped: no GPU (%s)\n", error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error));
    (void)fflush(stdout);
    _exit(SKIPPED);
}
