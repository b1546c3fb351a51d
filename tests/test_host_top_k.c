/* The candidates of rows of logits on the host: in the order of the definition, for every kernel set and
 * number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_run.h"
#include "support/top_k_reference.h"

static void check(const float *x, int64_t n, int64_t n_rows, int64_t k)
{
    const size_t bytes = (size_t)(n_rows * k) * sizeof(tsr_candidate);
    tsr_candidate *found = malloc(bytes), *expected = malloc(bytes);
    const tsr_op op = {.kind = TSR_OP_TOP_K, .top_k = {x, found, n, n_rows, k, 1000}};
    const tsr_kernel_set *set;
    for (int64_t r = 0; r < n_rows; r++)
        top_k_reference(x + r * n, n, k, 1000, expected + r * k);
    for (int i = 0; (set = kernel_run_set(i)) != NULL; i++)
        for (int threads = 1; threads <= 3; threads++) {
            memset(found, 0xff, bytes);
            kernel_run(set, &op, threads);
            assert_memory_equal(found, expected, bytes);
        }
    free(found);
    free(expected);
}

static void candidates_are_those_of_the_definition(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},   {7, 2, 256},  {16, 1, 1},   {33, 3, 5},
                                        {40, 2, 40}, {100, 4, 10}, {3001, 2, 40}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < TOP_K_KINDS; kind++) {
            const int64_t n = shapes[i][0] * shapes[i][1];
            float *x = malloc((size_t)n * sizeof *x);
            top_k_fill(x, n, kind, (uint64_t)i + 1);
            check(x, shapes[i][0], shapes[i][1], shapes[i][2]);
            free(x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(candidates_are_those_of_the_definition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
