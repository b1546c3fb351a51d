/* What every test on a simulated machine says: a call succeeded, and nothing is left at the end; and which
 * calls of CUDA it has made. */
#ifndef TSR_TESTS_SIMULATED_H
#define TSR_TESTS_SIMULATED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <cudasim.h>

#include <tsr/status.h>

static inline void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_name(status), tsr_last_error());
}

static inline void nothing_is_left(void)
{
    assert_int_equal(cudasim_leaks(stderr), 0);
    assert_string_equal(cudasim_violation(), "");
}

/* The different calls from number `begin` on, in the order in which they are first made. Returns how many. */
static inline int distinct_calls(uint64_t begin, const char **names, int capacity)
{
    int n = 0;
    for (uint64_t i = begin; i < cudasim_calls(); i++) {
        const char *name = cudasim_call_name(i);
        int k = 0;
        while (k < n && strcmp(names[k], name) != 0)
            k++;
        assert_true(k < capacity);
        if (k == n)
            names[n++] = name;
    }
    return n;
}

#endif
