/* Cancelling a decode: it ends inside a chunk, sequences are as before it, and what is decoded afterwards has
 * the bits of a session in which nothing was cancelled. Cancelling a run of a program. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/buffer.h>
#include <tsr/graph.h>
#include <tsr/trace.h>

#include "support/random.h"
#include "support/session_check.h"
#include "support/synth_model.h"

enum { N_START = 5, N = 64, N_ALL = N_START + N };

static int32_t tokens[N_ALL];
static float *plain; /* logits of all tokens, from one device and without any cancelling */

static int set_up(void **state)
{
    uint64_t seed = 3;
    if (session_model_write(state))
        return -1;
    session_random_tokens(&seed, tokens, N_ALL);
    plain = session_plain_logits(NULL, tokens, N_ALL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(plain);
    return unlink(session_model_path);
}

/* Devices, and how the model is divided over them. */
typedef struct division {
    const char *devices, *split;
    tsr_split_mode mode;
    int n_batch;
} division;

/* With a sequence of N_START tokens. */
static void open_started(runner *r, const division *how)
{
    float logits[SESSION_VOCAB];
    tsr_model_config config = session_config(N_ALL, 1, how->n_batch, 0);
    config.split.mode = how->mode;
    runner_open(r, session_model_path, how->devices, how->split, &config);
    runner_ok(session_append(r->session, 0, tokens, N_START, logits), "the beginning");
}

static tsr_status decode(runner *r)
{
    float logits[SESSION_VOCAB];
    tsr_status status = session_append(r->session, 0, tokens + N_START, N, logits);
    if (status == TSR_OK)
        session_assert_row(logits, plain, N_ALL - 1);
    return status;
}

/* After a cancelled call: the same call has its bits. */
static void decode_again(runner *r)
{
    assert_int_equal(tsr_session_length(r->session, 0), N_START);
    runner_ok(decode(r), "decoding after a cancelled call");
}

/* -- between calls -- */

static void a_request_ends_the_next_call_unless_it_is_withdrawn(void **state)
{
    (void)state;
    static const division how = {"host:1,threads=2,host:1,threads=1", "3,1", TSR_SPLIT_MODE_TENSOR, 16};
    runner r;
    open_started(&r, &how);
    assert_false(tsr_session_withdraw_cancel(r.session));
    tsr_session_cancel(r.session);
    tsr_session_cancel(r.session);
    assert_int_equal(decode(&r), TSR_ERR_CANCELLED);
    assert_non_null(strstr(tsr_last_error(), "tsr_session_cancel"));
    assert_false(tsr_session_withdraw_cancel(r.session));
    tsr_session_cancel(r.session);
    assert_true(tsr_session_withdraw_cancel(r.session));
    decode_again(&r);
    runner_close(&r);
}

/* -- from another thread -- */

typedef struct canceller {
    tsr_session *session;
    tsr_program *program; /* NULL: cancels the session */
    atomic_bool go;
    long delay_ns;
} canceller;

static void *cancel_when_told(void *user)
{
    canceller *c = user;
    while (!atomic_load(&c->go))
        ;
    nanosleep(&(struct timespec){.tv_sec = c->delay_ns / 1000000000, .tv_nsec = c->delay_ns % 1000000000},
              NULL);
    if (c->program)
        runner_ok(tsr_program_cancel(c->program), "cancelling a program");
    else
        tsr_session_cancel(c->session);
    return NULL;
}

static tsr_status decode_and_cancel(runner *r, long delay_ns)
{
    canceller c = {.session = r->session, .delay_ns = delay_ns};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_when_told, &c), 0);
    atomic_store(&c.go, true);
    tsr_status status = decode(r);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return status;
}

/* The ops that device 0 has run. */
static size_t n_ops(const runner *r)
{
    tsr_device_trace trace;
    size_t n = 0;
    runner_ok(tsr_trace_read(r->rt, 0, &trace), "reading a trace");
    assert_int_equal(trace.n_dropped, 0);
    for (size_t i = 0; i < trace.n_spans; i++)
        n += trace.spans[i].kind == TSR_SPAN_COMPUTE;
    return n;
}

/* One chunk, cancelled after a quarter of its time; again where the other thread was late. */
static void a_chunk_ends_after_the_op_that_runs(void **state)
{
    (void)state;
    static const division hows[] = {
        {"host:1,threads=2,duty=25%", NULL, TSR_SPLIT_MODE_TENSOR, N},
        {"host:1,threads=1,duty=25%,host:1,threads=1", "1,3", TSR_SPLIT_MODE_TENSOR, N}};
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        runner r;
        tsr_status status = TSR_OK;
        size_t n = 0;
        open_started(&r, &hows[i]);
        runner_ok(tsr_trace_start(r.rt, 100000), "starting a trace");
        const uint64_t begin = tsr_trace_now(r.rt);
        runner_ok(decode(&r), "a whole call");
        const uint64_t whole_ns = tsr_trace_now(r.rt) - begin;
        const size_t n_whole = n_ops(&r);
        for (int tries = 0; tries < 50 && (status == TSR_OK || n == n_whole); tries++) {
            const size_t before = n_ops(&r);
            runner_ok(tsr_session_trim(r.session, 0, N_START), "trimming");
            status = decode_and_cancel(&r, (long)(whole_ns / 4));
            n = n_ops(&r) - before;
            assert_int_equal(tsr_session_withdraw_cancel(r.session), status == TSR_OK);
        }
        assert_int_equal(status, TSR_ERR_CANCELLED);
        assert_true(n < n_whole);
        decode_again(&r);
        runner_close(&r);
    }
}

/* At any time: alone, with collectives, with chunks in flight through stages. */
static void wherever_it_comes_the_next_call_has_its_bits(void **state)
{
    (void)state;
    static const division hows[] = {{"host:1,threads=2", NULL, TSR_SPLIT_MODE_TENSOR, 32},
                                    {"host:3,threads=1", "2,1,1", TSR_SPLIT_MODE_TENSOR, 32},
                                    {"host:2,threads=1", "1,1", TSR_SPLIT_MODE_LAYER, 8}};
    uint64_t seed = 4;
    int n_cancelled = 0;
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        runner r;
        open_started(&r, &hows[i]);
        for (int round = 0; round < 6; round++) {
            const tsr_status status = decode_and_cancel(&r, (long)random_below(&seed, 8000000));
            n_cancelled += status == TSR_ERR_CANCELLED;
            assert_true(status == TSR_OK || status == TSR_ERR_CANCELLED);
            assert_int_equal(tsr_session_withdraw_cancel(r.session), status == TSR_OK);
            if (status == TSR_OK)
                runner_ok(tsr_session_trim(r.session, 0, N_START), "trimming");
            decode_again(&r);
            runner_ok(tsr_session_trim(r.session, 0, N_START), "trimming");
        }
        runner_close(&r);
    }
    print_message("%d of 18 calls were cancelled\n", n_cancelled);
    assert_true(n_cancelled > 0);
}

/* -- progress -- */

typedef struct calls {
    tsr_session *session;
    int64_t n_tokens, n_batch, last;
    int n, cancel_at;
} calls;

static void count(int64_t n_done, int64_t n_tokens, void *user)
{
    calls *c = user;
    assert_int_equal(n_tokens, c->n_tokens);
    assert_int_equal(n_done, c->last + c->n_batch);
    c->last = n_done;
    if (++c->n == c->cancel_at)
        tsr_session_cancel(c->session);
}

static void progress_is_told_between_chunks_and_may_cancel(void **state)
{
    (void)state;
    static const division how = {"host:2,threads=1", "1,1", TSR_SPLIT_MODE_TENSOR, 16};
    runner r;
    open_started(&r, &how);
    calls all = {r.session, N, 16, 0, 0, 0}, some = {r.session, N, 16, 0, 0, 3};
    tsr_session_set_progress(r.session, count, &some);
    assert_int_equal(decode(&r), TSR_ERR_CANCELLED);
    assert_int_equal(some.n, 3);
    tsr_session_set_progress(r.session, count, &all);
    decode_again(&r);
    assert_int_equal(all.n, N / 16 - 1);
    tsr_session_set_progress(r.session, NULL, NULL);
    runner_ok(tsr_session_trim(r.session, 0, N_START), "trimming");
    decode_again(&r);
    assert_int_equal(all.n, N / 16 - 1);
    runner_close(&r);
}

/* -- windows -- */

enum { BEFORE = 64, CHUNK = 32, N_LONG = BEFORE + 5 * CHUNK, N_VOCAB = 512 };

static void write_arch(const char *title, char path[DIRECTORY_PATH])
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    for (size_t i = 0; i < n_synth_archs; i++)
        if (strcmp(synth_archs[i].title, title) == 0)
            config.arch = &synth_archs[i];
    assert_non_null(config.arch);
    close(directory_new(path));
    synth_model_write(&config, path);
}

/* With a sequence of BEFORE tokens. */
static void open_arch(runner *r, const char *path, const char *devices, const int32_t *text, float *logits)
{
    tsr_model_config config = session_config(N_LONG, 1, CHUNK, 0);
    runner_open(r, path, devices, NULL, &config);
    assert_int_equal(r->n_vocab, N_VOCAB);
    runner_decode(r, text, BEFORE, 0, false, logits);
}

/* The other tokens in one call, which is cancelled after n_chunks chunks and continued from what is left. */
static void check_cancelled_after(int n_chunks, int64_t length, const char *path, const int32_t *text,
                                  const float *expected)
{
    runner r;
    float logits[N_VOCAB];
    open_arch(&r, path, "host:2,threads=1", text, logits);
    calls c = {r.session, N_LONG - BEFORE, CHUNK, 0, 0, n_chunks};
    const tsr_batch batch = {.n_tokens = N_LONG - BEFORE, .tokens = text + BEFORE};
    tsr_session_set_progress(r.session, count, &c);
    assert_int_equal(tsr_session_decode(r.session, &batch, logits), TSR_ERR_CANCELLED);
    tsr_session_set_progress(r.session, NULL, NULL);
    assert_int_equal(tsr_session_length(r.session, 0), length);
    runner_decode(&r, text + length, N_LONG - length, 0, false, logits);
    assert_memory_equal(logits, expected, sizeof logits);
    runner_close(&r);
}

/* Windows that have moved past the beginning of the call keep the chunks that were computed. */
static void windows_go_back_as_after_any_failure(void **state)
{
    (void)state;
    static const char *const titles[] = {"phi3", "gemma3"};
    uint64_t seed = 6;
    int32_t text[N_LONG];
    float expected[N_VOCAB];
    for (int i = 0; i < N_LONG; i++)
        text[i] = (int32_t)random_below(&seed, N_VOCAB);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) {
        char path[DIRECTORY_PATH];
        runner r;
        write_arch(titles[i], path);
        open_arch(&r, path, "host:1,threads=1", text, expected);
        runner_decode(&r, text + BEFORE, N_LONG - BEFORE, 0, false, expected);
        runner_close(&r);
        check_cancelled_after(1, BEFORE, path, text, expected);
        check_cancelled_after(3, BEFORE + 3 * CHUNK, path, text, expected);
        unlink(path);
    }
}

/* -- programs -- */

enum { ROWS = 512, COLUMNS = 8, PRODUCTS = 64 };

typedef struct chain {
    tsr_runtime *rt;
    tsr_context *ctx;
    tsr_buffer *buffer;
    tsr_graph *graph;
    tsr_tensor *y;
    tsr_program *program;
    float expected[ROWS * COLUMNS];
} chain;

/* Products with one weight, whose rows are divided, so that devices wait for each other; run once. */
static void open_chain(chain *c)
{
    static float data[ROWS * ROWS];
    static const float split[] = {1, 2};
    uint64_t seed = 8;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1";
    runner_ok(tsr_runtime_open(&config, &c->rt), "opening a runtime");
    runner_ok(tsr_context_create(c->rt, &c->ctx), "a context");
    tsr_tensor *w = tsr_tensor_2d(c->ctx, TSR_TYPE_F32, ROWS, ROWS, "w");
    runner_ok(tsr_tensors_alloc(c->ctx, tsr_split_buffer_type(c->rt, 0, split, 2), &c->buffer), "a weight");
    for (int i = 0; i < ROWS * ROWS; i++)
        data[i] = random_normal(&seed) / sqrtf(ROWS);
    runner_ok(tsr_tensor_set(w, data, 0, sizeof data), "a weight");
    runner_ok(tsr_graph_create(c->rt, &c->graph), "a graph");
    tsr_tensor *x = c->y = tsr_graph_input(c->graph, TSR_TYPE_F32, ROWS, COLUMNS, "x");
    for (int i = 0; i < PRODUCTS; i++)
        c->y = tsr_mul_mat(c->graph, w, c->y);
    tsr_graph_output(c->graph, c->y);
    runner_ok(tsr_program_compile(c->graph, NULL, &c->program), "compiling");
    runner_ok(tsr_tensor_set(x, data, 0, sizeof c->expected), "an input");
    runner_ok(tsr_program_run(c->program), "running");
    runner_ok(tsr_tensor_get(c->y, c->expected, 0, sizeof c->expected), "an output");
}

static void close_chain(chain *c)
{
    tsr_program_destroy(c->program);
    tsr_graph_destroy(c->graph);
    tsr_buffer_destroy(c->buffer);
    tsr_context_destroy(c->ctx);
    tsr_runtime_close(c->rt);
}

static void run_again(const chain *c)
{
    float got[ROWS * COLUMNS];
    runner_ok(tsr_program_run(c->program), "running after a cancelled run");
    runner_ok(tsr_tensor_get(c->y, got, 0, sizeof got), "an output");
    assert_memory_equal(got, c->expected, sizeof got);
}

static void a_run_of_a_program_is_cancelled(void **state)
{
    (void)state;
    chain c;
    uint64_t seed = 9;
    open_chain(&c);
    runner_ok(tsr_program_cancel(c.program), "cancelling");
    assert_int_equal(tsr_program_run(c.program), TSR_ERR_CANCELLED);
    assert_non_null(strstr(tsr_last_error(), "tsr_program_cancel"));
    run_again(&c);
    runner_ok(tsr_program_cancel(c.program), "cancelling");
    assert_true(tsr_program_withdraw_cancel(c.program));
    run_again(&c);
    for (int round = 0; round < 8; round++) {
        canceller other = {.program = c.program, .delay_ns = (long)random_below(&seed, 10000000)};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_when_told, &other), 0);
        atomic_store(&other.go, true);
        const tsr_status status = tsr_program_run(c.program);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(status == TSR_OK || status == TSR_ERR_CANCELLED);
        assert_int_equal(tsr_program_withdraw_cancel(c.program), status == TSR_OK);
        run_again(&c);
    }
    close_chain(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_ends_the_next_call_unless_it_is_withdrawn),
        cmocka_unit_test(a_chunk_ends_after_the_op_that_runs),
        cmocka_unit_test(wherever_it_comes_the_next_call_has_its_bits),
        cmocka_unit_test(progress_is_told_between_chunks_and_may_cancel),
        cmocka_unit_test(windows_go_back_as_after_any_failure),
        cmocka_unit_test(a_run_of_a_program_is_cancelled),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
