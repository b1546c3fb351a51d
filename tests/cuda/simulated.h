/* What every test on a simulated machine says: a call succeeded, and nothing is left at the end. */
#ifndef TSR_TESTS_SIMULATED_H
#define TSR_TESTS_SIMULATED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

#endif
