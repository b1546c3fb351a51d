/* Going on without a device (tsr_runtime_drop_device()): one that is lost, of which nothing is read any more,
 * and one that works. Sessions go on with the bits of one device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/tsr.h>

#include "core/runtime.h"
#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/session_check.h"

enum { N_TOKENS = 60, N_CTX = 80 };

static int32_t tokens[N_TOKENS];
static float *plain;

static int set_up(void **state)
{
    uint64_t seed = 31;
    if (session_model_write(state))
        return -1;
    session_random_tokens(&seed, tokens, N_TOKENS);
    plain = session_plain_logits(NULL, tokens, N_TOKENS);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(plain);
    return 0;
}

static void open_split(runner *r, const char *devices, const char *split, tsr_split_mode mode)
{
    tsr_model_config config = session_config(N_CTX, 3, 16, 16);
    config.split.mode = mode;
    runner_open(r, session_model_path, devices, split, &config);
}

/* Tokens [begin, end) of the text to a sequence, with the bits of one device. */
static void append(runner *r, int seq, int begin, int end)
{
    float row[SESSION_VOCAB];
    runner_ok(session_append(r->session, seq, tokens + begin, end - begin, row), "append");
    session_assert_row(row, plain, end - 1);
}

static size_t used_of(const runner *r, int device)
{
    tsr_device_info info;
    size_t bytes = 0;
    runner_ok(tsr_runtime_device(r->rt, device, &info), "device");
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        bytes += info.used[o];
    return bytes;
}

/* Sequences 1 and 2 are forks; all go on afterwards. */
static void sequences_go_on_without_a_device(void **state)
{
    (void)state;
    const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER};
    for (int lost = 0; lost < 2; lost++)
        for (int m = 0; m < 2; m++)
            for (int device = 0; device < 3; device++) {
                runner r;
                open_split(&r, "host:3,threads=1", "2,1,1", modes[m]);
                append(&r, 0, 0, 20);
                runner_ok(tsr_session_fork(r.session, 0, 1), "fork");
                append(&r, 1, 20, 45);
                append(&r, 0, 20, 33);
                runner_ok(tsr_session_fork(r.session, 0, 2), "fork");
                runner_ok(tsr_session_trim(r.session, 2, 7), "trim");
                r.rt->devices[device]->lost = lost;
                runner_ok(tsr_runtime_drop_device(r.rt, device), "drop");
                assert_int_equal(used_of(&r, device), 0);
                append(&r, 0, 33, 50);
                append(&r, 1, 45, N_TOKENS);
                append(&r, 2, 7, 9);
                runner_close(&r);
            }
}

static void one_after_another_is_dropped(void **state)
{
    (void)state;
    runner r;
    open_split(&r, "host:4,threads=1", "1,1,1,1", TSR_SPLIT_MODE_TENSOR);
    append(&r, 0, 0, 10);
    for (int i = 0; i < 3; i++) {
        r.rt->devices[3 - i]->lost = true;
        runner_ok(tsr_runtime_drop_device(r.rt, 3 - i), "drop");
        append(&r, 0, 10 * (i + 1), 10 * (i + 2));
    }
    assert_int_equal(tsr_runtime_drop_device(r.rt, 0), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "no device remains beside host0"));
    const float split[] = {1, 1};
    assert_int_equal(tsr_model_resplit(r.model, split, 2), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "device host1 was dropped; give it a share of 0"));
    runner_ok(tsr_model_resplit(r.model, NULL, 0), "resplit");
    append(&r, 0, 40, 50);
    runner_close(&r);
}

static void all_lost_devices_are_dropped(void **state)
{
    (void)state;
    runner r;
    open_split(&r, "host:4,threads=1", "1,1,1,1", TSR_SPLIT_MODE_TENSOR);
    append(&r, 0, 0, 10);
    assert_int_equal(tsr_runtime_drop_device(r.rt, TSR_LOST_DEVICES), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "no device is known to be lost"));
    r.rt->devices[0]->lost = r.rt->devices[2]->lost = true;
    runner_ok(tsr_runtime_drop_device(r.rt, TSR_LOST_DEVICES), "drop");
    for (int d = 0; d < 4; d++)
        assert_int_equal(used_of(&r, d) == 0, d % 2 == 0);
    append(&r, 0, 10, 20);
    runner_close(&r);
}

static void a_model_without_a_split_goes_to_another_device(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        runner r;
        open_split(&r, "host:2,threads=1", NULL, TSR_SPLIT_MODE_NONE);
        append(&r, 0, 0, 10);
        r.rt->devices[0]->lost = lost;
        runner_ok(tsr_runtime_drop_device(r.rt, 0), "drop");
        append(&r, 0, 10, 20);
        runner_close(&r);
    }
}

/* Its tokens are unknown; sequences that were not lost stay. */
static void a_sequence_from_a_file_is_to_be_loaded_again(void **state)
{
    (void)state;
    runner r;
    open_split(&r, "host:2,threads=1", "1,1", TSR_SPLIT_MODE_TENSOR);
    append(&r, 0, 0, 20);
    runner_ok(tsr_session_save(r.session, NULL, 0, directory_file("text")), "save");
    const int to = 1;
    runner_ok(tsr_session_load(r.session, &to, 1, directory_file("text")), "load");
    append(&r, 1, 20, 25);
    r.rt->devices[1]->lost = true;
    runner_ok(tsr_runtime_drop_device(r.rt, 1), "drop");
    assert_int_equal(tsr_session_length(r.session, 0), 20);
    assert_int_equal(tsr_session_length(r.session, 1), 0);
    runner_ok(tsr_session_load(r.session, &to, 1, directory_file("text")), "load");
    append(&r, 1, 20, 25);
    append(&r, 0, 20, 30);
    runner_close(&r);
}

static void what_belongs_to_the_caller_is_refused(void **state)
{
    (void)state;
    runner r;
    tsr_context *context;
    tsr_buffer *buffer;
    open_split(&r, "host:2,threads=1", "1,1", TSR_SPLIT_MODE_TENSOR);
    append(&r, 0, 0, 5);
    runner_ok(tsr_context_create(r.rt, &context), "context");
    tsr_tensor_2d(context, TSR_TYPE_F32, 8, 8, "mine");
    runner_ok(tsr_tensors_alloc(context, tsr_device_buffer_type(r.rt, 1), &buffer), "buffer");
    assert_int_equal(tsr_runtime_drop_device(r.rt, 1), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "buffer"));
    append(&r, 0, 5, 10);
    tsr_buffer_destroy(buffer);
    tsr_context_destroy(context);
    assert_int_equal(tsr_runtime_drop_device(r.rt, 2), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "device 2 does not exist; the runtime has 2"));
    runner_ok(tsr_runtime_drop_device(r.rt, 1), "drop");
    append(&r, 0, 10, 15);
    runner_close(&r);
}

/* The message has the bytes; the runtime can open another model. */
static void without_room_the_model_is_lost_and_nothing_else(void **state)
{
    (void)state;
    runner r;
    float row[SESSION_VOCAB];
    open_split(&r, "host:1,threads=1,mem=1MiB,host:1,threads=1", "1,8", TSR_SPLIT_MODE_TENSOR);
    append(&r, 0, 0, 5);
    r.rt->devices[1]->lost = true;
    assert_int_equal(tsr_runtime_drop_device(r.rt, 1), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host0"));
    assert_int_equal(session_append(r.session, 0, tokens + 5, 1, row), TSR_ERR_DEVICE);
    runner_close(&r);
}

/* The n-th allocation fails: the device is dropped or it is not, and nothing is left behind. */
static void allocations_fail(void **state)
{
    (void)state;
    bool fired = true;
    for (int64_t n = 1; fired; n += 1 + n / 5) {
        const int64_t blocks = failing_alloc_live();
        runner r;
        open_split(&r, "host:2,threads=1", "1,1", TSR_SPLIT_MODE_TENSOR);
        append(&r, 0, 0, 5);
        r.rt->devices[1]->lost = n % 2;
        failing_alloc_set(n);
        const tsr_status status = tsr_runtime_drop_device(r.rt, 1);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (status == TSR_OK)
            append(&r, 0, 5, 10);
        else
            assert_int_equal(status, TSR_ERR_MEMORY);
        runner_close(&r);
        assert_int_equal(failing_alloc_live(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_go_on_without_a_device),
        cmocka_unit_test(one_after_another_is_dropped),
        cmocka_unit_test(all_lost_devices_are_dropped),
        cmocka_unit_test(a_model_without_a_split_goes_to_another_device),
        cmocka_unit_test(a_sequence_from_a_file_is_to_be_loaded_again),
        cmocka_unit_test(what_belongs_to_the_caller_is_refused),
        cmocka_unit_test(without_room_the_model_is_lost_and_nothing_else),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
