/* Runtimes, and what every call of the model layer does when memory runs out: with each allocation failing in
 * turn, once or for good, a call reports it, leaks nothing, leaves its objects as they were, and succeeds
 * when it is tried again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/isa.h>
#include <tsr/plan.h>

#include "core/runtime.h"
#include "support/leak_check.h"
#include "support/failing_alloc.h"
#include "support/sanitized.h"
#include "support/session_check.h"

#define DEVICES "host:2,threads=2"

static tsr_topology *topo;

static int set_up(void **state)
{
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    return session_model_write(state);
}

static int tear_down(void **state)
{
    (void)state;
    tsr_topology_destroy(topo);
    return 0;
}

/* -- every allocation fails once -- */

/* What is tried: makes something, or changes something; `undo` takes that back. */
typedef struct trial {
    const char *name;
    tsr_status (*run)(void *user);
    void (*undo)(void *user);  /* after success */
    void (*check)(void *user); /* after failure: everything as it was */
    void *user;
    bool maps_a_file; /* mmap of a file may fail too, which is TSR_ERR_IO */
} trial;

/* One allocation fails, or all from there on. Whether any did. */
static bool try_failing(const trial *t, int64_t n, bool for_good)
{
    int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
    if (for_good)
        failing_alloc_set_from(n);
    else
        failing_alloc_set(n);
    tsr_status status = t->run(t->user);
    bool fired = failing_alloc_fired();
    failing_alloc_set(0);
    if (!fired) {
        runner_ok(status, t->name);
    } else if (status != TSR_OK && status != TSR_ERR_MEMORY && !(status == TSR_ERR_IO && t->maps_a_file)) {
        fail_msg("%s, allocation %lld: %s: %s", t->name, (long long)n, tsr_status_name(status),
                 tsr_last_error());
    } else if (status != TSR_OK && t->check) {
        t->check(t->user);
    }
    if (status == TSR_OK && t->undo) /* no failure, or one that could be done without */
        t->undo(t->user);
    if (failing_alloc_live() != blocks || failing_alloc_live_maps() != maps)
        fail_msg("%s, allocation %lld: %lld blocks and %lld maps are left", t->name, (long long)n,
                 (long long)(failing_alloc_live() - blocks), (long long)(failing_alloc_live_maps() - maps));
    return fired;
}

static void fail_everywhere(const trial *t, int64_t at_least)
{
    int64_t n = 1;
    while (try_failing(t, n, false))
        n++;
    for (int64_t i = 1; i < n; i++)
        try_failing(t, i, true);
    print_message("%s: %lld allocations\n", t->name, (long long)n - 1);
    assert_true(n - 1 >= at_least);
}

/* -- opening things -- */

typedef struct things {
    tsr_runtime *rt;
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_plan *plan;
    tsr_model *model;
    tsr_session *session;
    tsr_model_config config;
    const char *devices;
} things;

static tsr_status open_runtime(void *user)
{
    things *t = user;
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = t->devices;
    config.topology = topo;
    return tsr_runtime_open(&config, &t->rt);
}

static void close_runtime(void *user)
{
    things *t = user;
    tsr_runtime_close(t->rt);
    t->rt = NULL;
}

static void no_runtime(void *user)
{
    assert_null(((things *)user)->rt);
}

static void opening_a_runtime_may_fail_anywhere(void **state)
{
    (void)state;
    things t = {.devices = "host:2,mem=64MiB,threads=2,host:1"};
    fail_everywhere(&(trial){"tsr_runtime_open", open_runtime, close_runtime, no_runtime, &t}, 5);
}

static tsr_status open_gguf(void *user)
{
    return tsr_gguf_open(session_model_path, NULL, &((things *)user)->gguf);
}

static void close_gguf(void *user)
{
    things *t = user;
    tsr_gguf_close(t->gguf);
    t->gguf = NULL;
}

static void no_gguf(void *user)
{
    assert_null(((things *)user)->gguf);
}

static void opening_a_file_may_fail_anywhere(void **state)
{
    (void)state;
    things t = {0};
    fail_everywhere(&(trial){"tsr_gguf_open", open_gguf, close_gguf, no_gguf, &t, true}, 3);
}

static tsr_status make_plan(void *user)
{
    things *t = user;
    return tsr_plan_create(t->gguf, t->list, &t->config, &t->plan);
}

static void drop_plan(void *user)
{
    things *t = user;
    tsr_plan_destroy(t->plan);
    t->plan = NULL;
}

static void no_plan(void *user)
{
    assert_null(((things *)user)->plan);
}

static void planning_may_fail_anywhere(void **state)
{
    (void)state;
    static const char *const specs[] = {"host:2", "host:5",
                                        "host:1,mem=400KiB,host:1" /* too little for a half */};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        things t = {.config = session_config(64, 2, 16, 0)};
        t.config.split.mode = i == 1 ? TSR_SPLIT_MODE_LAYER : TSR_SPLIT_MODE_TENSOR;
        runner_ok(open_gguf(&t), "file");
        runner_ok(tsr_device_list_create(topo, specs[i], NULL, &t.list), specs[i]);
        fail_everywhere(&(trial){"tsr_plan_create", make_plan, drop_plan, no_plan, &t}, 50);
        tsr_device_list_destroy(t.list);
        close_gguf(&t);
    }
}

static void assert_nothing_used(const tsr_runtime *rt)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        runner_ok(tsr_runtime_device(rt, d, &info), "device");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            assert_int_equal(info.used[o], 0);
    }
}

static tsr_status open_model(void *user)
{
    things *t = user;
    return tsr_model_open(t->rt, session_model_path, &t->config, &t->model);
}

static void close_model(void *user)
{
    things *t = user;
    tsr_model_close(t->model);
    t->model = NULL;
}

static void no_model(void *user)
{
    assert_null(((things *)user)->model);
    assert_nothing_used(((things *)user)->rt);
}

static void opening_a_model_may_fail_anywhere(void **state)
{
    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        things t = {.devices = DEVICES, .config = session_config(64, 2, 16, 0)};
        t.config.load.copy_weights = copy;
        runner_ok(open_runtime(&t), "runtime");
        fail_everywhere(&(trial){"tsr_model_open", open_model, close_model, no_model, &t, true}, 50);
        close_runtime(&t);
    }
}

static tsr_status create_session(void *user)
{
    things *t = user;
    return tsr_session_create(t->model, &t->session);
}

static void destroy_session(void *user)
{
    things *t = user;
    tsr_session_destroy(t->session);
    t->session = NULL;
}

static void no_session(void *user)
{
    assert_null(((things *)user)->session);
}

static void creating_a_session_may_fail_anywhere(void **state)
{
    (void)state;
    things t = {.devices = DEVICES, .config = session_config(64, 2, 16, 0)};
    tsr_device_info before, after;
    runner_ok(open_runtime(&t), "runtime");
    runner_ok(open_model(&t), "model");
    runner_ok(tsr_runtime_device(t.rt, 0, &before), "device");
    fail_everywhere(&(trial){"tsr_session_create", create_session, destroy_session, no_session, &t}, 20);
    runner_ok(tsr_runtime_device(t.rt, 0, &after), "device");
    assert_memory_equal(before.used, after.used, sizeof before.used);
    close_model(&t);
    close_runtime(&t);
}

/* -- decoding -- */

enum { N_CTX = 128, N_BATCH = 48 };

typedef struct decoding {
    runner r;
    int32_t tokens[N_CTX];
    float *plain;
    float logits[SESSION_VOCAB];
} decoding;

static void open_decoding(decoding *d, int64_t n_plain)
{
    tsr_model_config config = session_config(N_CTX, 2, N_BATCH, 0);
    uint64_t seed = 51;
    session_random_tokens(&seed, d->tokens, N_CTX);
    d->plain = session_plain_logits(NULL, d->tokens, n_plain);
    runner_open(&d->r, session_model_path, DEVICES, NULL, &config);
}

static void close_decoding(decoding *d)
{
    runner_close(&d->r);
    free(d->plain);
}

/* A session that has `before` tokens (0: none) gets `n` more in shapes that it has not seen, while allocation
 * `at` fails. Whether any failed. */
static bool step_failing(decoding *d, int64_t before, int64_t n, int64_t at, bool for_good)
{
    int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
    tsr_session_stats stats[2];
    tsr_session *session;
    runner_ok(tsr_session_create(d->r.model, &session), "session");
    if (before) {
        runner_ok(session_append(session, 1, d->tokens, before, d->logits), "before");
        runner_ok(tsr_session_fork(session, 1, 0), "fork");
    }
    tsr_session_get_stats(session, &stats[0]);
    if (for_good)
        failing_alloc_set_from(at);
    else
        failing_alloc_set(at);
    tsr_status status = session_append(session, 0, d->tokens + before, n, d->logits);
    bool fired = failing_alloc_fired();
    failing_alloc_set(0);
    if (!fired)
        runner_ok(status, "decode");
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_int_equal(tsr_session_length(session, 0), before);
        assert_int_equal(tsr_session_length(session, 1), before);
        tsr_session_get_stats(session, &stats[1]);
        assert_in_range(stats[1].kv_pages_used, stats[0].kv_pages_used,
                        stats[0].kv_pages_used + 1); /* the fork may have its own last page already */
        runner_ok(session_append(session, 0, d->tokens + before, n, d->logits), "again");
    }
    session_assert_row(d->logits, d->plain, before + n - 1);
    tsr_session_destroy(session);
    assert_int_equal(failing_alloc_live(), blocks);
    assert_int_equal(failing_alloc_live_maps(), maps);
    return fired;
}

static void decoding_new_shapes_may_fail_anywhere(void **state)
{
    (void)state;
    enum { N_CASES = 3 };
    static const int64_t before[N_CASES] = {0, 0, 40}, n[N_CASES] = {37, 60, 60}; /* 60: two chunks */
    decoding d;
    open_decoding(&d, 100);
    for (int k = 0; k < N_CASES; k++) {
        const int64_t first = 1 + TSR_TEST_FIRST(7), stride = TSR_TEST_EVERY(7);
        int64_t at = first;
        while (step_failing(&d, before[k], n[k], at, false))
            at += stride;
        print_message("%lld tokens after %lld: %lld allocations\n", (long long)n[k], (long long)before[k],
                      (long long)at - 1);
        assert_true(at > 50);
        for (int64_t i = first; i < at; i += stride)
            assert_true(step_failing(&d, before[k], n[k], i, true));
    }
    close_decoding(&d);
}

/* Once a shape is compiled and its pages are committed, nothing allocates: not a step, a fork or a trim. */
static void steady_decoding_allocates_nothing(void **state)
{
    (void)state;
    decoding d;
    open_decoding(&d, 100);
    for (int round = 0; round < 3; round++) {
        failing_alloc_set(0);
        runner_ok(session_append(d.r.session, 0, d.tokens, 40, d.logits), "prompt");
        runner_ok(tsr_session_fork(d.r.session, 0, 1), "fork");
        for (int i = 40; i < 100; i++) {
            runner_ok(session_append(d.r.session, 0, d.tokens + i, 1, d.logits), "step");
            session_assert_row(d.logits, d.plain, i);
        }
        runner_ok(tsr_session_trim(d.r.session, 1, 7), "trim");
        runner_ok(tsr_session_trim(d.r.session, 1, 0), "trim");
        runner_ok(tsr_session_trim(d.r.session, 0, 0), "trim");
        if (round > 0)
            assert_int_equal(failing_alloc_count(), 0);
        else
            assert_true(failing_alloc_count() > 0); /* the counter works */
    }
    close_decoding(&d);
}

/* -- runtimes -- */

static void a_cap_holds_while_things_are_open(void **state)
{
    (void)state;
    things t = {.devices = "host:1,threads=1", .config = session_config(64, 1, 16, 0)};
    tsr_plan_device planned;
    char devices[64];
    int32_t tokens[3] = {1, 2, 3};
    float logits[SESSION_VOCAB];
    runner_ok(open_runtime(&t), "runtime");
    runner_ok(open_model(&t), "model");
    runner_ok(tsr_plan_get_device(tsr_model_plan(t.model), 0, &planned), "plan");
    close_model(&t);
    close_runtime(&t);

    /* Exactly what is planned is enough for one session, and not for a second one or a second model. */
    snprintf(devices, sizeof devices, "host:1,threads=1,mem=%zu", planned.total_bytes);
    t.devices = devices;
    runner_ok(open_runtime(&t), devices);
    runner_ok(open_model(&t), "model");
    runner_ok(create_session(&t), "session");
    tsr_session *second = NULL;
    tsr_model *other = NULL;
    assert_int_equal(tsr_session_create(t.model, &second), TSR_ERR_MEMORY);
    assert_null(second);
    assert_non_null(strstr(tsr_last_error(), "host0"));
    assert_non_null(strstr(tsr_last_error(), "bytes"));
    assert_int_equal(tsr_model_open(t.rt, session_model_path, &t.config, &other), TSR_ERR_MEMORY);
    assert_null(other);
    assert_non_null(strstr(tsr_last_error(), "host0"));
    runner_ok(session_append(t.session, 0, tokens, 3, logits), "the first goes on");
    destroy_session(&t);
    runner_ok(create_session(&t), "there is room again");
    destroy_session(&t);
    close_model(&t);
    close_runtime(&t);

    snprintf(devices, sizeof devices, "host:1,threads=1,mem=%zu", planned.total_bytes - 1);
    runner_ok(open_runtime(&t), devices);
    assert_int_equal(open_model(&t), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "device host0"));
    assert_non_null(strstr(tsr_last_error(), " 1 bytes short"));
    assert_nothing_used(t.rt);
    close_runtime(&t);
}

static void a_device_may_have_other_kernels(void **state)
{
    (void)state;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    tsr_device_info best, first, second;
    config.devices = "host:1";
    runner_ok(tsr_runtime_open(&config, &rt), config.devices);
    runner_ok(tsr_runtime_device(rt, 0, &best), "device");
    tsr_runtime_close(rt);
    config.devices = "host:1,threads=1,isa=generic,host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), config.devices);
    runner_ok(tsr_runtime_device(rt, 0, &first), "device");
    runner_ok(tsr_runtime_device(rt, 1, &second), "device");
    assert_string_equal(first.isa, "generic");
    assert_string_equal(second.isa, best.isa);
    tsr_runtime_close(rt);
    rt = NULL;
    config.devices = "host:1,isa=sse9";
    assert_int_equal(tsr_runtime_open(&config, &rt), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "sse9"));
    assert_null(rt);
}

/* TSR_ISA stands for isa= where nothing else names a level; what cannot run is refused, not replaced. */
static void the_environment_names_the_default_kernels(void **state)
{
    (void)state;
    tsr_isa_list isa;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    tsr_device_info first, second;
    setenv("TSR_ISA", "generic", 1);
    runner_ok(tsr_isa_discover(&isa), "isa");
    assert_true(isa.by_environment);
    assert_string_equal(isa.levels[isa.chosen].name, "generic");
    unsetenv("TSR_ISA");
    runner_ok(tsr_isa_discover(&isa), "isa");
    assert_false(isa.by_environment);
    const char *best = isa.levels[isa.chosen].name;
    assert_string_equal(isa.levels[isa.n_levels - 1].name, "generic");
    assert_string_equal(isa.levels[isa.n_levels - 1].lacking, "");

    char devices[64];
    snprintf(devices, sizeof devices, "host:1,threads=1,isa=%s,host:1,threads=1", best);
    config.devices = devices;
    setenv("TSR_ISA", "generic", 1);
    runner_ok(tsr_runtime_open(&config, &rt), config.devices);
    runner_ok(tsr_runtime_device(rt, 0, &first), "device");
    runner_ok(tsr_runtime_device(rt, 1, &second), "device");
    assert_string_equal(first.isa, best);
    assert_string_equal(second.isa, "generic");
    tsr_runtime_close(rt);
    config.isa = best;
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), config.devices);
    runner_ok(tsr_runtime_device(rt, 0, &first), "device");
    assert_string_equal(first.isa, best);
    tsr_runtime_close(rt);
    unsetenv("TSR_ISA");
}

static void a_wrong_level_in_the_environment_is_refused(void **state)
{
    (void)state;
    tsr_isa_list isa;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    runner_ok(tsr_isa_discover(&isa), "isa");
    config.devices = "host:1,threads=1";
    for (int i = -1; i < isa.n_levels; i++) {
        if (i >= 0 && !*isa.levels[i].lacking)
            continue;
        setenv("TSR_ISA", i < 0 ? "sse9" : isa.levels[i].name, 1);
        const tsr_status expected = i < 0 ? TSR_ERR_INVALID : TSR_ERR_UNSUPPORTED;
        assert_int_equal(tsr_runtime_open(&config, &rt), expected);
        assert_null(rt);
        assert_non_null(strstr(tsr_last_error(), "TSR_ISA"));
        assert_non_null(strstr(tsr_last_error(), i < 0 ? "this build has none" : isa.levels[i].lacking));
        assert_non_null(strstr(tsr_last_error(), "generic")); /* what there is */
        tsr_isa_list again;
        assert_int_equal(tsr_isa_discover(&again), expected);
    }
    setenv("TSR_ISA", "", 1); /* as if unset */
    runner_ok(tsr_runtime_open(&config, &rt), "empty TSR_ISA");
    tsr_runtime_close(rt);
    unsetenv("TSR_ISA");
}

typedef struct told {
    int n;
    char text[512];
} told;

static void hear(tsr_log_level level, const char *text, void *user)
{
    told *t = user;
    if (level != TSR_LOG_WARN)
        return;
    t->n++;
    snprintf(t->text, sizeof t->text, "%s", text);
}

static void memory_that_is_left_over_is_told(void **state)
{
    (void)state;
    told t = {0};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    config.devices = "host:2,threads=1";
    config.logger = (tsr_logger){hear, &t, TSR_LOG_WARN};
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    t.n = 0; /* opening may tell that the machine has one core */
    tsr_runtime_close(rt);
    assert_int_equal(t.n, 0);
    runner_ok(tsr_runtime_open(&config, &rt), "open");
    t.n = 0;
    runner_ok(tsr_device_charge(rt->devices[1], TSR_MEMORY_KV, 3 << 20, "a region that is never closed"),
              "charge");
    leak_check_expect(rt);
    tsr_runtime_close(rt);
    assert_int_equal(t.n, 1);
    assert_non_null(strstr(t.text, "device host1: 3 MiB of kv are still in use"));
}

static void wrong_configs_are_refused(void **state)
{
    (void)state;
    static const char *const devices[] = {"host:0",      "cuda:0",   "nonsense",        "host:65",
                                          "host:1,mem=", "host:2,,", "host:1,threads=0"};
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt = NULL;
    tsr_device_info info;
    config.topology = topo;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        config.devices = devices[i];
        tsr_status status = tsr_runtime_open(&config, &rt);
        assert_true(status == TSR_ERR_INVALID || status == TSR_ERR_UNSUPPORTED);
        assert_true(strlen(tsr_last_error()) > 0);
        assert_null(rt);
    }
    config.devices = "host:1";
    config.isa = "sse9";
    assert_int_equal(tsr_runtime_open(&config, &rt), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "sse9"));
    config.isa = "generic";
    config.size = 3;
    assert_int_equal(tsr_runtime_open(&config, &rt), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_open(&config, NULL), TSR_ERR_INVALID);
    config.size = sizeof config;
    runner_ok(tsr_runtime_open(&config, &rt), "generic kernels");
    assert_int_equal(tsr_runtime_n_devices(rt), 1);
    runner_ok(tsr_runtime_device(rt, 0, &info), "device");
    assert_string_equal(info.isa, "generic");
    assert_string_equal(info.name, "host0");
    assert_int_equal(tsr_runtime_device(rt, 1, &info), TSR_ERR_INVALID);
    assert_int_equal(tsr_runtime_device(rt, -1, &info), TSR_ERR_INVALID);
    tsr_runtime_close(rt);
    tsr_runtime_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_may_have_other_kernels),
        cmocka_unit_test(the_environment_names_the_default_kernels),
        cmocka_unit_test(a_wrong_level_in_the_environment_is_refused),
        cmocka_unit_test(opening_a_runtime_may_fail_anywhere),
        cmocka_unit_test(opening_a_file_may_fail_anywhere),
        cmocka_unit_test(planning_may_fail_anywhere),
        cmocka_unit_test(opening_a_model_may_fail_anywhere),
        cmocka_unit_test(creating_a_session_may_fail_anywhere),
        cmocka_unit_test(decoding_new_shapes_may_fail_anywhere),
        cmocka_unit_test(steady_decoding_allocates_nothing),
        cmocka_unit_test(a_cap_holds_while_things_are_open),
        cmocka_unit_test(memory_that_is_left_over_is_told),
        cmocka_unit_test(wrong_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
