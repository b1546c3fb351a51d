/* What the compiler made of the kernels is what they are launched with: registers and launch bounds of
 * tests/cudasim/kernel_resources.txt reach every kernel of the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include "cuda/api/launch.h"
#include "cudasim.h"
#include "cudasim_hook.h"

static void all_kernels_are_in_the_table(void **)
{
    enum { UNKNOWN = 1 }; /* registers that no kernel has */
    int n = 0, n_bounded = 0, n_unknown = 0;
    cudasim_configure(NULL);
    for (const tsr_kernel_entry *entry = tsr_kernel_entry::all; entry != NULL; entry = entry->next)
        cudasim_set_resources(entry->function, UNKNOWN, 1024);
    cudasim_read_resources("tests/cudasim/kernel_resources.txt");
    for (const tsr_kernel_entry *entry = tsr_kernel_entry::all; entry != NULL; entry = entry->next) {
        cudaFuncAttributes attributes;
        int blocks;
        assert_int_equal(cudaFuncGetAttributes(&attributes, entry->function), cudaSuccess);
        assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                             &blocks, entry->function,
                             attributes.maxThreadsPerBlock < 1024 ? attributes.maxThreadsPerBlock : 256, 0),
                         cudaSuccess);
        if (blocks < 1)
            fail_msg("kernel %d has no room on a multiprocessor", n);
        n++;
        n_bounded += attributes.maxThreadsPerBlock < 1024;
        n_unknown += attributes.numRegs == UNKNOWN;
    }
    assert_true(n > 100);
    assert_true(n_bounded > 20);
    assert_int_equal(n_unknown, 0); /* scripts/make-kernel-resources */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_kernels_are_in_the_table)};
    return cmocka_run_group_tests_name("resources of kernels", tests, NULL, NULL);
}
