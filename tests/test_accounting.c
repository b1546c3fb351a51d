/* The accounting of devices' memory: random charges against a naive model, what a loaded model holds by
 * owner, what is told as left over, and what happens when others take memory between opening and loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/runtime.h>

#include "core/track.h"
#include "runtime/memory.h"
#include "support/directory.h"
#include "support/fake_device.h"
#include "support/leak_check.h"
#include "support/log_lines.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { MIB = 1 << 20, PAGE = 4096 };

/* -- against a naive model -- */

enum { N_HELD = 40, KINDS = 3, N_GRANULES = 8 };

/* An allocation, a reservation or a view. */
typedef struct held {
    int kind; /* 0: none, 1: allocated, 2: reserved, 3: read in place */
    tsr_memory_owner owner;
    size_t bytes;
    void *pointer;
    bool committed[N_GRANULES];
} held;

static size_t committed_of(const held *h)
{
    size_t bytes = 0;
    for (int g = 0; g < N_GRANULES; g++)
        bytes += h->committed[g] ? PAGE : 0;
    return bytes;
}

static void take(tsr_device *device, held *h, uint64_t *seed)
{
    static const unsigned char file[1 << 16];
    const void *view;
    tsr_status status = TSR_OK;
    held taken = {.kind = 1 + (int)random_below(seed, KINDS),
                  .owner = (tsr_memory_owner)random_below(seed, TSR_MEMORY_COUNT),
                  .bytes = 1 + random_below(seed, sizeof file)};
    if (taken.kind == 2)
        taken.bytes = N_GRANULES * PAGE;
    fake_device_fail(device, random_below(seed, 2) ? FAKE_ALLOC : FAKE_RESERVE, random_below(seed, 6) == 0);
    if (taken.kind == 1)
        status = tsr_device_alloc(device, taken.owner, taken.bytes, "a test", &taken.pointer);
    else if (taken.kind == 2)
        status = tsr_device_reserve(device, taken.owner, taken.bytes, "a test", &taken.pointer);
    else
        status = tsr_device_wrap(device, taken.owner, file, taken.bytes, taken.bytes, "a test", &view);
    if (taken.kind == 3)
        taken.pointer = (void *)file;
    if (status == TSR_OK)
        *h = taken;
    fake_device_fail(device, FAKE_ALLOC, 0);
    fake_device_fail(device, FAKE_RESERVE, 0);
}

static void give(tsr_device *device, held *h)
{
    if (h->kind == 1)
        tsr_device_free(device, h->owner, h->pointer, h->bytes);
    else if (h->kind == 2)
        tsr_device_release(device, h->owner, h->pointer, h->bytes, committed_of(h));
    else
        tsr_device_unwrap(device, h->owner, h->pointer, h->bytes, h->bytes);
    *h = (held){0};
}

static void toggle(tsr_device *device, held *h, uint64_t *seed)
{
    size_t g = random_below(seed, N_GRANULES);
    bool was = h->committed[g];
    fake_device_fail(device, was ? FAKE_DECOMMIT : FAKE_COMMIT, random_below(seed, 6) == 0);
    tsr_status status = was ? tsr_device_decommit(device, h->pointer, g * PAGE, PAGE)
                            : tsr_device_commit(device, h->pointer, g * PAGE, PAGE);
    if (status == TSR_OK)
        h->committed[g] = !was;
    fake_device_fail(device, FAKE_DECOMMIT, 0);
    fake_device_fail(device, FAKE_COMMIT, 0);
}

/* Everything that is reported, counted anew. */
static void compare(const fake_runtime *fake, const held *all, size_t peak[TSR_MEMORY_COUNT],
                    size_t *peak_total)
{
    size_t used[TSR_MEMORY_COUNT] = {0}, total = 0, taken = 0, viewed = 0, uncommitted = 0;
    tsr_device_memory m;
    for (int i = 0; i < N_HELD; i++) {
        const held *h = &all[i];
        used[h->owner] += h->bytes;
        total += h->bytes;
        taken += h->kind == 1 ? h->bytes : committed_of(h);
        viewed += h->kind == 3 ? h->bytes : 0;
        uncommitted += h->kind == 2 ? h->bytes - committed_of(h) : 0;
    }
    *peak_total = total > *peak_total ? total : *peak_total;
    runner_ok(tsr_runtime_memory(&fake->rt, 0, &m), "memory");
    for (int o = 0; o < TSR_MEMORY_COUNT; o++) {
        peak[o] = used[o] > peak[o] ? used[o] : peak[o];
        assert_int_equal(m.used[o], used[o]);
        assert_int_equal(m.peak[o], peak[o]);
    }
    assert_int_equal(m.used_total, total);
    assert_int_equal(m.peak_total, *peak_total);
    assert_int_equal(m.taken, taken);
    assert_int_equal(m.viewed, viewed);
    assert_int_equal(fake->devices[0]->accounting.uncommitted, uncommitted);
    assert_int_equal(m.taken, total - viewed - uncommitted); /* as tsr/memory.h has it, nothing is rounded */
    assert_int_equal(m.device_total - m.device_free, taken); /* by the device's own count */
    assert_int_equal(m.elsewhere, 0);
}

static void random_charges_are_counted_as_by_hand(void **state)
{
    (void)state;
    for (uint64_t round = 1; round <= 5; round++) {
        uint64_t seed = round;
        fake_runtime fake;
        held all[N_HELD] = {0};
        size_t peak[TSR_MEMORY_COUNT] = {0}, peak_total = 0;
        fake_runtime_open(&fake, 1, NULL);
        fake.devices[0]->memory_cap = MIB; /* some are refused */
        for (int step = 0; step < 2000; step++) {
            held *h = &all[random_below(&seed, N_HELD)];
            if (h->kind == 0)
                take(fake.devices[0], h, &seed);
            else if (h->kind == 2 && random_below(&seed, 4))
                toggle(fake.devices[0], h, &seed);
            else
                give(fake.devices[0], h);
            compare(&fake, all, peak, &peak_total);
            if (step % 500 == 499) {
                tsr_runtime_reset_peaks(&fake.rt);
                memset(peak, 0, sizeof peak);
                peak_total = 0;
                compare(&fake, all, peak, &peak_total);
            }
        }
        for (int i = 0; i < N_HELD; i++)
            if (all[i].kind)
                give(fake.devices[0], &all[i]);
        fake_runtime_close(&fake);
    }
}

/* -- a loaded model -- */

static void check_sums(const tsr_runtime *rt, bool copied)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_memory m;
        size_t page = (size_t)sysconf(_SC_PAGESIZE), sum = 0;
        runner_ok(tsr_runtime_memory(rt, d, &m), "memory");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++) {
            sum += m.used[o];
            assert_true(m.peak[o] >= m.used[o]);
        }
        assert_int_equal(sum, m.used_total);
        assert_int_equal(m.viewed, copied ? 0 : m.used[TSR_MEMORY_WEIGHTS]);
        sum = sum - m.viewed - (m.used[TSR_MEMORY_KV] - m.kv_committed) + m.runtime;
        assert_in_range(m.taken, sum, sum + 8 * page);
        assert_true(m.device_total > 0 && m.device_free <= m.device_total);
    }
}

static void has_holder(const tsr_runtime *rt, const char *name, bool with_bytes)
{
    tsr_object_info objects[32];
    int n = tsr_runtime_objects(rt, objects, 32);
    assert_in_range(n, 1, 32);
    assert_int_equal(tsr_runtime_objects(rt, NULL, 0), n);
    for (int i = 0; i < n; i++)
        if (strstr(objects[i].name, name) && (objects[i].bytes > 0) == with_bytes)
            return;
    fail_msg("there is no holder '%s'", name);
}

static void a_models_memory_is_told_by_owner(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH];
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    tsr_device_memory before, after;
    close(directory_new(path));
    synth_model_write(&synth, path);
    for (int copied = 0; copied < 2; copied++) {
        runner r;
        tsr_model_config config = tsr_model_config_default();
        int32_t tokens[40] = {1, 2, 3};
        config.load.copy_weights = copied;
        config.session.n_ctx = 512;
        runner_open(&r, path, "host:3,threads=1", "2,1,1", &config);
        float *logits = calloc((size_t)r.n_vocab, sizeof *logits);
        check_sums(r.rt, copied);
        runner_ok(tsr_runtime_memory(r.rt, 0, &before), "before");
        runner_decode(&r, tokens, 40, 0, false, logits);
        check_sums(r.rt, copied);
        runner_ok(tsr_runtime_memory(r.rt, 0, &after), "after");
        assert_int_equal(before.kv_committed, 0);
        assert_true(after.kv_committed > 0 && after.kv_committed < after.used[TSR_MEMORY_KV]);
        assert_int_equal(after.used_total, before.used_total);
        has_holder(r.rt, strrchr(path, '/'), false);
        has_holder(r.rt, "session of ", false);
        has_holder(r.rt, "model ", false);
        has_holder(r.rt, "KV region of 512 tokens", true);
        has_holder(r.rt, "memory of programs", true);
        has_holder(r.rt, "buffer with tensors ", true);
        free(logits);
        tsr_session_destroy(r.session);
        r.session = NULL;
        tsr_runtime_reset_peaks(r.rt);
        runner_ok(tsr_runtime_memory(r.rt, 0, &after), "without a session");
        assert_int_equal(after.used[TSR_MEMORY_KV], 0);
        assert_int_equal(after.peak[TSR_MEMORY_ARENA], 0);
        assert_int_equal(after.peak_total, after.used[TSR_MEMORY_WEIGHTS]);
        tsr_model_close(r.model);
        r.model = NULL;
        assert_int_equal(tsr_runtime_objects(r.rt, NULL, 0), 0);
        runner_close(&r);
    }
    unlink(path);
}

static void wrong_questions_are_refused(void **state)
{
    (void)state;
    fake_runtime fake;
    tsr_device_memory m;
    fake_runtime_open(&fake, 2, NULL);
    assert_int_equal(tsr_runtime_memory(&fake.rt, 2, &m), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "the runtime has 2"));
    assert_int_equal(tsr_runtime_memory(&fake.rt, -1, &m), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_memory(&fake.rt, 0, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_memory(NULL, 0, &m), TSR_ERR_INVALID);
    fake_runtime_close(&fake);
}

/* -- left over -- */

static void what_is_left_over_is_told_by_name(void **state)
{
    (void)state;
    log_lines t = {0};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_context *first, *second;
    config.devices = "host:1,threads=1";
    config.logger = (tsr_logger){log_lines_note, &t, TSR_LOG_WARN};
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    runner_ok(tsr_context_create(rt, &first), "first");
    runner_ok(tsr_context_create(rt, &second), "second");
    tsr_context_destroy(first);
    leak_check_expect(rt);
    tsr_runtime_close(rt);
    assert_int_equal(t.n, 1);
    assert_string_equal(t.text, "not destroyed before the runtime closes: context of tensors\n");
    tsr_context_destroy(second); /* forgotten by the runtime, so this does no harm */
}

/* Any order of coming and going. */
static void the_list_of_what_exists_keeps_its_links(void **state)
{
    (void)state;
    static const tsr_tracked_kind kind = {"thing", NULL, NULL};
    enum { N = 20 };
    tsr_runtime rt = {0};
    tsr_tracked things[N] = {{0}};
    bool there[N] = {false};
    uint64_t seed = 3;
    for (int step = 0; step < 2000; step++) {
        size_t i = random_below(&seed, N);
        int n = 0, n_there = 0;
        if (there[i])
            tsr_untrack(&things[i]);
        else
            tsr_track(&rt.tracked, &things[i], &kind);
        there[i] = !there[i];
        for (const tsr_tracked *tracked = rt.tracked; tracked; tracked = tracked->next, n++)
            assert_true(there[tracked - things] && *tracked->link == tracked);
        for (int j = 0; j < N; j++)
            n_there += there[j];
        assert_int_equal(n, n_there);
        assert_int_equal(tsr_runtime_objects(&rt, NULL, 0), n);
    }
    tsr_untrack(&things[0]);
    tsr_untrack(&things[0]); /* twice is fine */
}

/* -- others' use -- */

static void memory_that_others_took_is_noticed(void **state)
{
    (void)state;
    log_lines t = {0};
    fake_runtime fake;
    size_t wanted[2] = {10 * MIB, 0};
    void *ours;
    fake_runtime_open(&fake, 2, NULL);
    tsr_device *device = fake.devices[0];
    fake.rt.logger = (tsr_logger){log_lines_note, &t, TSR_LOG_WARN};
    fake_device_others(device, 64 * MIB, 8 * MIB);
    tsr_runtime_note_free(&fake.rt);

    /* What we take ourselves does not count as others'. */
    runner_ok(tsr_device_alloc(device, TSR_MEMORY_WEIGHTS, 20 * MIB, "a test", &ours), "ours");
    runner_ok(tsr_runtime_check_free(&fake.rt, wanted), "nothing happened");
    assert_int_equal(t.n, 0);

    /* Less than a 64th comes and goes. */
    fake_device_others(device, 64 * MIB, 9 * MIB);
    runner_ok(tsr_runtime_check_free(&fake.rt, wanted), "hardly anything happened");
    assert_int_equal(t.n, 0);

    /* It still fits. */
    fake_device_others(device, 64 * MIB, 20 * MIB);
    runner_ok(tsr_runtime_check_free(&fake.rt, wanted), "fits");
    assert_int_equal(t.n, 1);
    assert_non_null(strstr(t.text, "device fake:0: 24 MiB are free, not 36 MiB as when it was opened"));

    /* It does not. */
    fake_device_others(device, 64 * MIB, 40 * MIB);
    assert_int_equal(tsr_runtime_check_free(&fake.rt, wanted), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(),
                           "device fake:0: the plan needs 10 MiB (10485760 bytes) where 36 MiB "
                           "were free when it was opened; 4 MiB are free now"));
    tsr_device_free(device, TSR_MEMORY_WEIGHTS, ours, 20 * MIB);
    runner_ok(tsr_runtime_check_free(&fake.rt, wanted), "with ours given back");

    /* Nothing is wanted there, or it never was free: no error. */
    fake_device_others(device, 64 * MIB, 63 * MIB);
    runner_ok(tsr_runtime_check_free(&fake.rt, (size_t[]){0, 5}), "not wanted");
    tsr_runtime_note_free(&fake.rt);
    t = (log_lines){0};
    runner_ok(tsr_runtime_check_free(&fake.rt, wanted), "never was there");
    assert_int_equal(t.n, 1);
    assert_non_null(strstr(t.text, "the plan needs 10 MiB and 1 MiB are free"));
    fake_runtime_close(&fake);
}

/* Two devices in one memory want more than it has, though each would find enough. */
static void devices_in_one_memory_are_summed_up(void **state)
{
    (void)state;
    fake_runtime fake;
    fake_runtime_open(&fake, 2, NULL);
    fake.devices[1]->place = fake.devices[0]->place;
    for (int d = 0; d < 2; d++)
        fake_device_others(fake.devices[d], 64 * MIB, 0);
    tsr_runtime_note_free(&fake.rt);
    for (int d = 0; d < 2; d++)
        fake_device_others(fake.devices[d], 64 * MIB, 40 * MIB);
    runner_ok(tsr_runtime_check_free(&fake.rt, (size_t[]){20 * MIB, 0}), "one of them");
    assert_int_equal(tsr_runtime_check_free(&fake.rt, (size_t[]){20 * MIB, 20 * MIB}), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "the plan needs 40 MiB"));
    fake_runtime_close(&fake);
}

/* The host's own figures: more was free when it was opened than a plan needs, less is now. */
static void a_host_device_is_asked_too(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_device_memory m;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    runner_ok(tsr_runtime_memory(rt, 0, &m), "memory");
    runner_ok(tsr_runtime_check_free(rt, (size_t[]){m.device_free / 4}), "a quarter");
    rt->devices[0]->accounting.free_before = SIZE_MAX;
    assert_int_equal(tsr_runtime_check_free(rt, (size_t[]){m.device_total + 1}), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "device host0: the plan needs "));
    tsr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_charges_are_counted_as_by_hand),
        cmocka_unit_test(a_models_memory_is_told_by_owner),
        cmocka_unit_test(wrong_questions_are_refused),
        cmocka_unit_test(what_is_left_over_is_told_by_name),
        cmocka_unit_test(the_list_of_what_exists_keeps_its_links),
        cmocka_unit_test(memory_that_others_took_is_noticed),
        cmocka_unit_test(devices_in_one_memory_are_summed_up),
        cmocka_unit_test(a_host_device_is_asked_too),
    };
    return cmocka_run_group_tests_name("accounting", tests, NULL, NULL);
}
