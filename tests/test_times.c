/* Where devices' time goes: counted on request, from zero, and waiting is a part of the time in collectives.
 * Spans of a trace are in order and sum up to these times. A device that is held back changes no bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/trace.h>

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

static tsr_device_trace trace_of(const runner *r, int device)
{
    tsr_device_trace trace;
    runner_ok(tsr_trace_read(r->rt, device, &trace), "reading a trace");
    return trace;
}

/* Spans do not overlap, and end before `now`. Returns the sum of spans of a kind, of collectives or of the
 * remaining ops. */
static uint64_t sum_of(const tsr_device_trace *trace, tsr_span_kind kind, bool of_collectives, uint64_t now)
{
    uint64_t sum = 0, end = 0;
    for (size_t i = 0; i < trace->n_spans; i++) {
        const tsr_span *s = &trace->spans[i];
        const bool collective = strcmp(s->op, "all_reduce") == 0 || strcmp(s->op, "all_gather") == 0;
        assert_true(s->begin_ns >= end && s->end_ns >= s->begin_ns && s->end_ns <= now);
        end = s->end_ns;
        assert_true(s->kind == TSR_SPAN_COPY || strlen(s->name) > 0);
        if (s->kind == kind && collective == of_collectives)
            sum += s->end_ns - s->begin_ns;
    }
    return sum;
}

/* The same clock readings make both. */
static void spans_are_in_order_and_sum_up_to_the_times(void **state)
{
    (void)state;
    runner r;
    runner_open(&r, MODEL, "host:1,threads=2,host:1,threads=1", "3,1", NULL);
    float *expected = decode(&r);
    runner_ok(tsr_trace_start(r.rt, 100000), "starting a trace");
    tsr_runtime_time_collectives(r.rt, true);
    float *got = decode(&r);
    const uint64_t now = tsr_trace_now(r.rt);
    assert_memory_equal(got, expected, (size_t)r.n_vocab * sizeof *got);
    for (int d = 0; d < 2; d++) {
        const tsr_device_times times = times_of(&r, d);
        const tsr_device_trace trace = trace_of(&r, d);
        const uint64_t wait = sum_of(&trace, TSR_SPAN_WAIT, true, now);
        const uint64_t reduce = sum_of(&trace, TSR_SPAN_REDUCE, true, now);
        const uint64_t compute = sum_of(&trace, TSR_SPAN_COMPUTE, false, now);
        assert_int_equal(wait, times.wait_ns);
        assert_int_equal(wait + reduce, times.collective_ns);
        assert_true(reduce > 0 && compute > 0 && compute + times.collective_ns <= now);
        assert_int_equal(sum_of(&trace, TSR_SPAN_REDUCE, false, now), 0);
        assert_int_equal(sum_of(&trace, TSR_SPAN_WAIT, false, now) > 0, d == 0); /* a team of two */
        assert_true(sum_of(&trace, TSR_SPAN_COPY, false, now) > 0);
        assert_int_equal(trace.n_dropped, 0);
    }
    free(got);
    free(expected);
    runner_close(&r);
}

static void a_trace_ends_at_its_size_and_on_request(void **state)
{
    (void)state;
    runner r;
    tsr_device_trace trace;
    runner_open(&r, MODEL, "host:2,threads=1", "3,1", NULL);
    assert_int_equal(tsr_trace_read(r.rt, 0, &trace), TSR_ERR_INVALID);
    assert_int_equal(tsr_trace_start(r.rt, 0), TSR_ERR_INVALID);
    assert_int_equal(tsr_trace_now(r.rt), 0);
    runner_ok(tsr_trace_start(r.rt, 10), "starting a trace");
    assert_int_equal(trace_of(&r, 0).n_spans, 0);
    free(decode(&r));
    trace = trace_of(&r, 1);
    assert_int_equal(trace.n_spans, 10);
    assert_true(trace.n_dropped > 100);
    tsr_runtime_time_collectives(r.rt, true);
    tsr_runtime_time_collectives(r.rt, false);
    free(decode(&r));
    assert_int_equal(times_of(&r, 0).collective_ns, 0); /* only the trace runs */
    assert_true(trace_of(&r, 1).n_dropped > 200);
    assert_int_equal(tsr_trace_read(r.rt, 2, &trace), TSR_ERR_INVALID);
    tsr_trace_stop(r.rt);
    assert_int_equal(tsr_trace_read(r.rt, 0, &trace), TSR_ERR_INVALID);
    free(decode(&r));
    tsr_trace_stop(r.rt);
    runner_ok(tsr_trace_start(r.rt, 10), "starting a trace that the runtime ends");
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
        cmocka_unit_test(spans_are_in_order_and_sum_up_to_the_times),
        cmocka_unit_test(a_trace_ends_at_its_size_and_on_request),
        cmocka_unit_test(devices_that_do_not_exist_are_refused),
        cmocka_unit_test(a_device_that_is_held_back_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
