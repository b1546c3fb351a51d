/* Where devices' time goes: counted on request, from zero, and waiting is a part of the time in collectives.
 * A device that is held back changes no bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/runtime.h>

#include "support/runner.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

enum { N_TOKENS = 6 };
static const int32_t tokens[N_TOKENS] = {5, 291, 1027, 3, 44, 600};

static tsr_device_times times_of(const runner *r, int device)
{
    tsr_device_times times;
    runner_ok(tsr_runtime_times(r->rt, device, &times), "reading times");
    return times;
}

static float *decode(runner *r)
{
    float *logits = malloc((size_t)r->n_vocab * sizeof *logits);
    assert_non_null(logits);
    runner_ok(tsr_session_trim(r->session, 0, 0), "trimming");
    runner_decode(r, tokens, N_TOKENS, 1, false, logits);
    return logits;
}

static void times_are_counted_on_request(void **state)
{
    (void)state;
    runner r;
    runner_open(&r, MODEL, "host:2,threads=1", "3,1", NULL);
    free(decode(&r));
    assert_int_equal(times_of(&r, 0).collective_ns, 0);
    tsr_runtime_time_collectives(r.rt, true);
    free(decode(&r));
    for (int d = 0; d < 2; d++) {
        tsr_device_times once = times_of(&r, d);
        assert_true(once.known);
        assert_true(once.wait_ns > 0);
        assert_true(once.collective_ns >= once.wait_ns);
    }
    uint64_t before = times_of(&r, 0).collective_ns;
    free(decode(&r));
    assert_true(times_of(&r, 0).collective_ns > before);
    tsr_runtime_time_collectives(r.rt, false);
    assert_int_equal(times_of(&r, 0).collective_ns, 0);
    free(decode(&r));
    assert_int_equal(times_of(&r, 1).wait_ns, 0);
    runner_close(&r);
}

static void devices_that_do_not_exist_are_refused(void **state)
{
    (void)state;
    runner r;
    tsr_device_times times;
    runner_open(&r, MODEL, "host:1,threads=2", "1", NULL);
    assert_int_equal(tsr_runtime_times(r.rt, 1, &times), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_times(r.rt, -1, &times), TSR_ERR_INVALID);
    runner_close(&r);
}

static void a_device_that_is_held_back_gives_the_same_bits(void **state)
{
    (void)state;
    runner free_one, held;
    runner_open(&free_one, MODEL, "host:2,threads=1", "1,1", NULL);
    runner_open(&held, MODEL, "host:1,threads=2,host:1,threads=1,duty=40%", "1,1", NULL);
    float *expected = decode(&free_one), *got = decode(&held);
    assert_memory_equal(got, expected, (size_t)held.n_vocab * sizeof *got);
    free(got);
    free(expected);
    runner_close(&held);
    runner_close(&free_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_counted_on_request),
        cmocka_unit_test(devices_that_do_not_exist_are_refused),
        cmocka_unit_test(a_device_that_is_held_back_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
