/* Linked with every program of tests/cuda that runs on GPUs: without a GPU the program ends before its
 * first test, with the exit status that ctest reports as skipped. A child process asks, since a process that
 * has called CUDA has no children that can. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>

enum { SKIPPED = 77 };

static int look_for_gpu(void)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0)
        return 0;
    printf("skipped: no GPU (%s)\n", error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error));
    (void)fflush(stdout);
    return SKIPPED;
}

__attribute__((constructor)) static void skip_without_gpu(void)
{
    int end = 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(look_for_gpu());
    if (child > 0 && waitpid(child, &end, 0) == child && WIFEXITED(end) && WEXITSTATUS(end) == 0)
        return;
    _exit(SKIPPED);
}
