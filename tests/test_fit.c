/* Fits: what is cut, in which order and how exactly, what is left alone, and what is said when nothing helps.
 * That a fit is exact is checked from outside: its plan is planned again, loaded, and one step more of
 * context is refused. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/fit.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/fitted.h"
#include "support/plan_check.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_CTX = 16384, MODEL_CTX_MIN = 1024 };

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_topology *topo;
    tsr_gguf *gguf;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.n_layers = 4;
    config.n_ctx = N_CTX;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    runner_ok(tsr_topology_load("synthetic:numa:2(memory=2199023255552) core:32 pu:1", NULL, &f.topo),
              "topology");
    runner_ok(tsr_gguf_open(f.path, NULL, &f.gguf), f.path);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_gguf_close(f->gguf);
    tsr_topology_destroy(f->topo);
    return unlink(f->path);
}

/* What the model takes on one device with this config, all in one piece. */
static size_t bytes_of(const fixture *f, tsr_model_config config)
{
    tsr_device_list *list;
    tsr_plan *plan;
    tsr_plan_device device;
    config.plan.fit = NULL;
    config.split.tensor_split = NULL;
    runner_ok(tsr_device_list_create(f->topo, "host:1", NULL, &list), "host:1");
    runner_ok(tsr_plan_create(f->gguf, list, &config, &plan), "one device");
    runner_ok(tsr_plan_get_device(plan, 0, &device), "host0");
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    return device.total_bytes;
}

/* -- what is cut -- */

static void what_fits_is_left_alone(void **state)
{
    const fixture *f = *state;
    static const size_t margin = 0;
    tsr_model_config config = tsr_model_config_default();
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_fit *fit;
    tsr_plan *plan;
    tsr_device_list *list;
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->gguf, "host:2", &config, &fit), "no cap");
    assert_int_equal(fitted_info(fit).n_steps, 0);
    assert_int_equal(fitted_info(fit).chosen.n_ctx, N_CTX);
    assert_false(tsr_fit_step_at(fit, 0, &(tsr_fit_step){0}));

    config.plan.fit = NULL;
    runner_ok(tsr_device_list_create(f->topo, "host:2", NULL, &list), "host:2");
    runner_ok(tsr_plan_create(f->gguf, list, &config, &plan), "without a fit");
    plan_check_equal(plan, tsr_fit_plan(fit));
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);
    tsr_fit_destroy(fit);
    tsr_fit_destroy(NULL);
}

/* One device, whose bytes are known: the cap of just a context holds it, a byte less holds one step less. */
static void the_context_is_cut_to_the_byte(void **state)
{
    const fixture *f = *state;
    static const size_t margin = 12345;
    tsr_fit_config fit_config = tsr_fit_config_default();
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    fit_config.n_ctx_min = MODEL_CTX_MIN;
    for (int64_t n_ctx = N_CTX; n_ctx > MODEL_CTX_MIN;
         n_ctx = n_ctx / 2 - n_ctx / 2 % TSR_FIT_CTX_STEP + 256) {
        tsr_model_config config = tsr_model_config_default();
        char spec[64];
        tsr_fit *fit;
        config.session.n_ctx = n_ctx;
        size_t bytes = bytes_of(f, config) + margin;
        config.session.n_ctx = 0;
        config.plan.fit = &fit_config;
        for (int short_by = 0; short_by < 2; short_by++) {
            snprintf(spec, sizeof spec, "host:1,mem=%zu", bytes - (size_t)short_by);
            runner_ok(fitted_over(f->topo, f->gguf, spec, &config, &fit), spec);
            assert_int_equal(fitted_info(fit).chosen.n_ctx, n_ctx - short_by * TSR_FIT_CTX_STEP);
            assert_int_equal(fitted_info(fit).n_steps, n_ctx - short_by * TSR_FIT_CTX_STEP < N_CTX);
            tsr_fit_destroy(fit);
        }
    }
}

/* The types first, then the context, no further than needed with these types. */
static void steps_are_taken_in_their_order(void **state)
{
    const fixture *f = *state;
    static const size_t margin = 0;
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    char spec[64];
    tsr_fit *fit;
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    fit_config.n_ctx_min = MODEL_CTX_MIN + 100; /* no whole step */
    fit_config.type_k = TSR_TYPE_Q8_0;
    config.session.n_ctx = fit_config.n_ctx_min;
    snprintf(spec, sizeof spec, "host:1,mem=%zu", bytes_of(f, config) - 1);
    config.session.n_ctx = 0;
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->gguf, spec, &config, &fit), spec);
    assert_int_equal(fitted_info(fit).n_steps, 2);
    assert_int_equal(fitted_step(fit, 0).cut, TSR_FIT_CUT_KV_TYPE);
    assert_int_equal(fitted_step(fit, 0).after.n_ctx, N_CTX);
    assert_int_equal(fitted_step(fit, 0).after.type_k, TSR_TYPE_Q8_0);
    assert_int_equal(fitted_step(fit, 0).after.type_v, TSR_TYPE_F16); /* F32 is larger: not allowed */
    assert_int_equal(fitted_step(fit, 1).cut, TSR_FIT_CUT_CONTEXT);
    assert_int_equal(fitted_step(fit, 1).before.n_ctx, N_CTX);
    assert_true(fitted_info(fit).chosen.n_ctx > fit_config.n_ctx_min);
    assert_int_equal(fitted_info(fit).chosen.n_ctx % TSR_FIT_CTX_STEP, 0);
    for (int i = 0; i < 2; i++) {
        int64_t sum = 0;
        for (int d = 0; d < TSR_MAX_DEVICES; d++)
            sum += fitted_step(fit, i).device_bytes[d];
        assert_int_equal(sum, fitted_step(fit, i).saved_bytes);
        assert_true(sum > 0);
        assert_non_null(strstr(fitted_step(fit, i).text, " -> "));
    }
    tsr_fit_destroy(fit);

    /* With the context given, the types are the first to give way, and the context does not move. */
    config.session.n_ctx = fit_config.n_ctx_min;
    runner_ok(fitted_over(f->topo, f->gguf, spec, &config, &fit), spec);
    assert_int_equal(fitted_info(fit).n_steps, 1);
    assert_int_equal(fitted_step(fit, 0).cut, TSR_FIT_CUT_KV_TYPE);
    assert_int_equal(fitted_info(fit).chosen.n_ctx, fit_config.n_ctx_min);
    tsr_fit_destroy(fit);
}

/* A model that was trained with less than the least context is not cut. */
static void a_short_context_is_not_cut(void **state)
{
    const fixture *f = *state;
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_fit *fit = NULL;
    fit_config.n_ctx_min = 2 * N_CTX;
    config.plan.fit = &fit_config;
    assert_int_equal(fitted_over(f->topo, f->gguf, "host:1,mem=1025MiB", &config, &fit), TSR_ERR_MEMORY);
    assert_null(fit);
    assert_non_null(strstr(tsr_last_error(), "16384 tokens"));
}

/* -- what is kept -- */

static void every_device_keeps_its_own_margin(void **state)
{
    const fixture *f = *state;
    static const size_t margins[] = {3 << 20, 0, 1 << 20};
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    char spec[128];
    tsr_fit *fit;
    fit_config.margins = margins;
    fit_config.n_margins = 3;
    fit_config.n_ctx_min = TSR_FIT_CTX_STEP;
    size_t cap = bytes_of(f, config) / 3;
    snprintf(spec, sizeof spec, "host:3,mem=%zu", cap);
    config.plan.fit = &fit_config;
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        config.split.mode = mode;
        runner_ok(fitted_over(f->topo, f->gguf, spec, &config, &fit), spec);
        assert_true(fitted_info(fit).n_steps > 0);
        for (int d = 0; d < 3; d++) {
            tsr_plan_device device;
            runner_ok(tsr_plan_get_device(tsr_fit_plan(fit), d, &device), "device");
            assert_int_equal(device.memory_cap, cap);
            assert_int_equal(device.margin_bytes, margins[d]);
            assert_true(device.total_bytes + margins[d] <= cap);
        }
        tsr_fit_destroy(fit);
    }
}

/* What is wanted, and what of it is missing, before anything is cut. */
static void wants_are_told_per_device(void **state)
{
    const fixture *f = *state;
    static const size_t margin = 1000;
    static const float even[] = {1, 1};
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_plan_device first, second, planned;
    size_t missing_first, missing_second;
    tsr_device_list *list;
    tsr_plan *plan;
    char spec[128];
    tsr_fit *fit;
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    config.split.tensor_split = even;
    config.split.n_tensor_split = 2;
    runner_ok(tsr_device_list_create(f->topo, "host:2", NULL, &list), "host:2");
    runner_ok(tsr_plan_create(f->gguf, list, &config, &plan), "no caps");
    runner_ok(tsr_plan_get_device(plan, 0, &planned), "host0");
    tsr_plan_destroy(plan);
    tsr_device_list_destroy(list);

    size_t cap = planned.total_bytes * 3 / 4;
    snprintf(spec, sizeof spec, "host:1,mem=%zu,host:1,mem=%zu", cap, 2 * planned.total_bytes);
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->gguf, spec, &config, &fit), spec);
    runner_ok(tsr_fit_wanted(fit, 0, &first, &missing_first), "host0");
    runner_ok(tsr_fit_wanted(fit, 1, &second, &missing_second), "host1");
    assert_memory_equal(first.bytes, planned.bytes, sizeof planned.bytes);
    assert_int_equal(first.total_bytes, planned.total_bytes);
    assert_int_equal(missing_first, planned.total_bytes + margin - cap);
    assert_int_equal(missing_second, 0);
    assert_int_equal(tsr_fit_wanted(fit, 2, &first, &missing_first), TSR_ERR_INVALID);
    assert_int_equal(tsr_fit_wanted(fit, -1, &first, &missing_first), TSR_ERR_INVALID);
    assert_int_equal(fitted_info(fit).n_steps, 0); /* the second device takes what the first cannot */
    tsr_fit_destroy(fit);
}

/* -- when nothing helps -- */

static void the_error_names_devices_and_bytes(void **state)
{
    const fixture *f = *state;
    static const size_t margin = 777;
    static const float even[] = {1, 1};
    tsr_fit_config fit_config = tsr_fit_config_default();
    char spec[64], expected[64];
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    fit_config.n_ctx_min = MODEL_CTX_MIN;
    tsr_model_config config = tsr_model_config_default();
    config.session.n_ctx = MODEL_CTX_MIN;
    size_t bytes = bytes_of(f, config);
    config.session.n_ctx = 0;
    config.plan.fit = &fit_config;
    tsr_fit *fit = NULL;
    snprintf(spec, sizeof spec, "host:1,mem=%zu", bytes + margin - 4096);
    assert_int_equal(fitted_over(f->topo, f->gguf, spec, &config, &fit), TSR_ERR_MEMORY);
    assert_null(fit);
    snprintf(expected, sizeof expected, "host0 lacks 4096 bytes (it has %zu, 777 stay free",
             bytes + margin - 4096);
    if (!strstr(tsr_last_error(), expected))
        fail_msg("\"%s\" is not in: %s", expected, tsr_last_error());

    config.split.tensor_split = even;
    config.split.n_tensor_split = 2;
    assert_int_equal(fitted_over(f->topo, f->gguf, "host:2,mem=100KiB", &config, &fit), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host0 lacks "));
    assert_non_null(strstr(tsr_last_error(), "host1 lacks "));
    assert_null(strchr(tsr_last_error(), '\n'));
    /* A list of many devices is cut, not overrun. */
    float many[40];
    for (int i = 0; i < 40; i++)
        many[i] = 1;
    config.split.tensor_split = many;
    config.split.n_tensor_split = 40;
    config.split.mode = TSR_SPLIT_MODE_LAYER;
    assert_int_equal(fitted_over(f->topo, f->gguf, "host:40,mem=1KiB", &config, &fit), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host3 lacks "));
}

#define REFUSED(phrase, ...)                                                        \
    do {                                                                            \
        tsr_fit_config fc = tsr_fit_config_default();                               \
        tsr_model_config c = tsr_model_config_default();                            \
        tsr_fit *none = NULL;                                                       \
        c.plan.fit = &fc;                                                           \
        __VA_ARGS__;                                                                \
        tsr_status got = fitted_over(f->topo, f->gguf, "host:2", &c, &none);        \
        if (got != TSR_ERR_INVALID || none || !strstr(tsr_last_error(), phrase))    \
            fail_msg("%s: %s: %s", phrase, tsr_status_name(got), tsr_last_error()); \
    } while (0)

static void bad_configs_are_refused(void **state)
{
    const fixture *f = *state;
    static const size_t margins[3] = {0};
    REFUSED("tsr_fit_config.size", fc.size = 8);
    REFUSED("n_ctx_min", fc.n_ctx_min = 0);
    REFUSED("n_ctx_min", fc.n_ctx_min = -4096);
    REFUSED("type_k", fc.type_k = (tsr_type)9999);
    REFUSED("type_v", fc.type_v = (tsr_type)-1);
    REFUSED("3 margins for 2 devices", fc.margins = margins; fc.n_margins = 3);
    REFUSED("0 margins", fc.margins = margins; fc.n_margins = 0);
    REFUSED("n_ctx", c.session.n_ctx = -1);
    REFUSED("tsr_model_config.size", c.size = 8);
    tsr_fit *fit = NULL;
    tsr_device_list none = {0};
    assert_int_equal(tsr_fit_create(NULL, &none, NULL, &fit), TSR_ERR_INVALID);
    assert_int_equal(tsr_fit_create(f->gguf, NULL, NULL, &fit), TSR_ERR_INVALID);
    assert_int_equal(tsr_fit_create(f->gguf, &none, NULL, &fit), TSR_ERR_INVALID);
    assert_int_equal(tsr_fit_create(f->gguf, &none, NULL, NULL), TSR_ERR_INVALID);
    runner_ok(fitted_over(f->topo, f->gguf, "host:2", NULL, &fit), "the defaults");
    tsr_fit_destroy(fit);
    for (tsr_fit_cut cut = 0; cut < TSR_FIT_CUT_COUNT; cut++)
        assert_string_not_equal(tsr_fit_cut_name(cut), "?");
    assert_string_equal(tsr_fit_cut_name(TSR_FIT_CUT_COUNT), "?");
}

/* -- at once, and out of memory -- */

static const char *const tight = "host:1,mem=8MiB,host:1,mem=5MiB";

static tsr_model_config tight_config(tsr_fit_config *fit_config)
{
    static const size_t margins[] = {1 << 20, 1 << 19};
    tsr_model_config config = tsr_model_config_default();
    *fit_config = tsr_fit_config_default();
    fit_config->margins = margins;
    fit_config->n_margins = 2;
    fit_config->n_ctx_min = 256;
    fit_config->type_k = fit_config->type_v = TSR_TYPE_Q8_0;
    config.plan.fit = fit_config;
    return config;
}

typedef struct worker {
    const fixture *f;
    const tsr_device_list *list;
    tsr_fit *fit;
    tsr_status status;
} worker;

static void *fit_alone(void *user)
{
    worker *w = user;
    tsr_fit_config fit_config;
    tsr_model_config config = tight_config(&fit_config);
    w->status = tsr_fit_create(w->f->gguf, w->list, &config, &w->fit);
    return NULL;
}

static void threads_fit_side_by_side(void **state)
{
    const fixture *f = *state;
    enum { N = 4 };
    worker workers[N];
    pthread_t threads[N];
    tsr_device_list *list;
    runner_ok(tsr_device_list_create(f->topo, tight, NULL, &list), tight);
    for (int i = 0; i < N; i++) {
        workers[i] = (worker){.f = f, .list = list};
        assert_int_equal(pthread_create(&threads[i], NULL, fit_alone, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(workers[i].status, TSR_OK);
        assert_int_equal(fitted_info(workers[i].fit).chosen.n_ctx, fitted_info(workers[0].fit).chosen.n_ctx);
        plan_check_equal(tsr_fit_plan(workers[i].fit), tsr_fit_plan(workers[0].fit));
    }
    for (int i = 0; i < N; i++)
        tsr_fit_destroy(workers[i].fit);
    tsr_device_list_destroy(list);
}

/* Host memory that runs out is no reason to cut anything. */
static void a_failing_allocation_is_an_error(void **state)
{
    const fixture *f = *state;
    tsr_fit_config fit_config;
    tsr_model_config config = tight_config(&fit_config);
    tsr_device_list *list;
    runner_ok(tsr_device_list_create(f->topo, tight, NULL, &list), tight);
    int64_t n = 1, stride = 1;
    for (;; n += stride) {
        int64_t blocks = failing_alloc_live();
        tsr_fit *fit = NULL;
        failing_alloc_set(n);
        tsr_status status = tsr_fit_create(f->gguf, list, &config, &fit);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (!fired) {
            runner_ok(status, "every allocation has been tried");
            tsr_fit_destroy(fit);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_null(fit);
        assert_int_equal(failing_alloc_live(), blocks);
        stride = 1 + n / 400; /* each of the first planning, then samples */
    }
    print_message("up to allocation %lld\n", (long long)n);
    tsr_device_list_destroy(list);
}

/* -- planned again, and loaded -- */

static void random_fits_are_exact_and_loaded(void **state)
{
    (void)state;
    enum { N_ROUNDS = 60, MAX_HOSTS = 4 };
    uint64_t seed = 91;
    fitted_models models;
    fitted_look look = {0};
    tsr_topology *topo;
    fitted_models_write(&models);
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    for (int i = 0; i < N_ROUNDS; i++)
        fitted_check(&models, &seed, topo, "host:1,threads=1", 1 + (int)random_below(&seed, MAX_HOSTS),
                     &look);
    print_message("%d of %d cut, %d with layers offloaded; %d did not fit\n", look.n_cut, N_ROUNDS,
                  look.n_offloaded, look.n_short);
    assert_true(look.n_offloaded > 0);
    assert_true(look.n_cut > N_ROUNDS / 4);
    assert_true(look.n_short < N_ROUNDS / 2);
    tsr_topology_destroy(topo);
    fitted_models_remove(&models);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_is_left_alone),
        cmocka_unit_test(the_context_is_cut_to_the_byte),
        cmocka_unit_test(steps_are_taken_in_their_order),
        cmocka_unit_test(a_short_context_is_not_cut),
        cmocka_unit_test(every_device_keeps_its_own_margin),
        cmocka_unit_test(wants_are_told_per_device),
        cmocka_unit_test(the_error_names_devices_and_bytes),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(threads_fit_side_by_side),
        cmocka_unit_test(a_failing_allocation_is_an_error),
        cmocka_unit_test(random_fits_are_exact_and_loaded),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
