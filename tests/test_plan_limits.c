/* Plans under memory caps, plans of files that hold no weights, remarks, and configs that are refused.
 * Nothing here opens a device: lists of devices are made from a described machine of 64 cores. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/fit.h>
#include <tsr/gguf.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/plan_check.h"
#include "support/random.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

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
    config.n_ff = 1024;
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

static tsr_status plan_over(const fixture *f, const tsr_gguf *gguf, const char *spec,
                            const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_device_list *list;
    runner_ok(tsr_device_list_create(f->topo, spec, NULL, &list), spec);
    tsr_status status = tsr_plan_create(gguf, list, config, plan_out);
    tsr_device_list_destroy(list);
    return status;
}

static tsr_plan_device device_of(const tsr_plan *plan, int d)
{
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(plan, d, &device), "device");
    return device;
}

/* -- memory caps -- */

/* A device that may hold less than its share gets less, and the other one more. */
static void a_cap_moves_granules(void **state)
{
    const fixture *f = *state;
    static const tsr_split_mode modes[] = {TSR_SPLIT_MODE_TENSOR, TSR_SPLIT_MODE_LAYER};
    static const float even[] = {1, 1};
    for (size_t m = 0; m < 2; m++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *free_plan;
        config.split.tensor_split = even;
        config.split.n_tensor_split = 2;
        config.split.mode = modes[m];
        runner_ok(plan_over(f, f->gguf, "host:2", &config, &free_plan), "without caps");
        size_t whole = device_of(free_plan, 0).total_bytes;
        for (int percent = 95; percent >= 55; percent -= 10) {
            char spec[96];
            size_t cap = whole * (size_t)percent / 100;
            tsr_plan *plan;
            snprintf(spec, sizeof spec, "host:1,mem=%zu,host:1", cap);
            runner_ok(plan_over(f, f->gguf, spec, &config, &plan), spec);
            plan_check(plan, f->gguf, &config, true);
            tsr_plan_device first = device_of(plan, 0), second = device_of(plan, 1);
            assert_int_equal(first.memory_cap, cap);
            assert_true(first.total_bytes <= cap);
            if (modes[m] == TSR_SPLIT_MODE_TENSOR) { /* little more than the largest granule is idle */
                assert_true(second.used);
                assert_true(first.total_bytes > cap - cap / 5);
            }
            tsr_plan_destroy(plan);
        }
        tsr_plan_destroy(free_plan);
    }
}

/* Random caps: either a plan that keeps them, or an error that names a device and bytes. */
static void caps_are_kept_or_named(void **state)
{
    const fixture *f = *state;
    uint64_t seed = 41;
    int n_fit = 0, n_tight = 0;
    tsr_plan *whole;
    runner_ok(plan_over(f, f->gguf, "host:1", NULL, &whole), "one device");
    size_t total = device_of(whole, 0).total_bytes;
    tsr_plan_destroy(whole);
    for (int round = 0; round < 60; round++) {
        char spec[256];
        int n = 2 + (int)random_below(&seed, 3);
        size_t used = 0, sum = 0;
        tsr_model_config config = tsr_model_config_default();
        config.split.mode = random_below(&seed, 3) ? TSR_SPLIT_MODE_TENSOR : TSR_SPLIT_MODE_LAYER;
        for (int d = 0; d < n; d++) {
            size_t cap = total / (size_t)n / 2 + random_below(&seed, 3 * total / (size_t)n / 2);
            used += (size_t)snprintf(spec + used, sizeof spec - used, "%shost:1,mem=%zu", d ? "," : "", cap);
            sum += cap;
        }
        tsr_plan *plan = NULL;
        int64_t blocks = failing_alloc_live();
        tsr_status status = plan_over(f, f->gguf, spec, &config, &plan);
        if (status == TSR_OK) {
            plan_check(plan, f->gguf, &config, true);
            n_fit++;
        } else {
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_null(plan);
            assert_non_null(strstr(tsr_last_error(), "host"));
            assert_non_null(strstr(tsr_last_error(), " bytes"));
            n_tight += sum > 2 * total; /* so much room must be enough */
        }
        tsr_plan_destroy(plan);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    print_message("%d of 60 fit\n", n_fit);
    assert_true(n_fit >= 10);
    assert_int_equal(n_tight, 0);
}

/* Without caps a plan states what each device lacks. Shares follow the caps, so that all devices lack about
 * the same part, and shares that are given stay. Where there is room, nothing is missing. */
static void a_plan_without_caps_states_what_is_missing(void **state)
{
    const fixture *f = *state;
    static const char *const specs[] = {"host:1,mem=2MiB,host:1,mem=1MiB", "host:2,mem=1MiB",
                                        "host:1,mem=1GiB,host:1"};
    float split[] = {1, 3};
    const size_t margin = 256 << 10;
    for (size_t i = 0; i < 6; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan = NULL;
        tsr_plan_info info;
        bool short_of_room = false;
        config.split.tensor_split = i < 3 ? NULL : split;
        config.split.n_tensor_split = i < 3 ? 0 : 2;
        config.margin.bytes = &margin;
        config.margin.n = 1;
        tsr_device_list *list;
        runner_ok(tsr_device_list_create(f->topo, specs[i % 3], NULL, &list), specs[i % 3]);
        runner_ok(tsr_plan_create_uncapped(f->gguf, list, &config, &plan), specs[i % 3]);
        tsr_device_list_destroy(list);
        tsr_plan_get_info(plan, &info);
        for (int d = 0; d < 2; d++) {
            tsr_plan_device device = device_of(plan, d);
            size_t room = device.memory_cap - margin;
            size_t missing = device.total_bytes > room ? device.total_bytes - room : 0;
            assert_int_equal(device.missing_bytes, missing);
            short_of_room = short_of_room || missing > 0;
        }
        assert_int_equal(info.fits, !short_of_room);
        assert_int_equal(info.fits, i % 3 == 2);
        if (i == 0)
            assert_float_equal(device_of(plan, 0).requested, 1792.0 / (1792 + 768), 1e-9);
        if (i >= 3)
            assert_float_equal(device_of(plan, 0).requested, 0.25, 1e-9);
        tsr_plan_destroy(plan);
    }
}

static void what_cannot_fit_names_device_and_bytes(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *spec, *device;
        tsr_split_mode mode;
        int main_device;
    } cases[] = {{"host:2,mem=100KiB", "host", TSR_SPLIT_MODE_TENSOR, 0},
                 {"host:1,host:1,mem=1MiB,host:1", "host1", TSR_SPLIT_MODE_NONE, 1},
                 {"host:3,mem=1", "host", TSR_SPLIT_MODE_LAYER, 0},
                 {"host:2,mem=1MiB", "host", TSR_SPLIT_MODE_TENSOR, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan = NULL;
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        config.split.mode = cases[i].mode;
        config.split.main_device = cases[i].main_device;
        assert_int_equal(plan_over(f, f->gguf, cases[i].spec, &config, &plan), TSR_ERR_MEMORY);
        print_message("%s: %s\n", cases[i].spec, tsr_last_error());
        assert_null(plan);
        assert_non_null(strstr(tsr_last_error(), cases[i].device));
        assert_true(strstr(tsr_last_error(), "missing") || strstr(tsr_last_error(), "short"));
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
}

/* The largest numbers that a config may hold are planned or refused, and quickly. */
static void the_largest_configs_do_not_overflow(void **state)
{
    const fixture *f = *state;
    static const struct {
        int64_t n_ctx;
        int n_seq_max, n_batch;
    } cases[] = {{INT32_MAX / 2, 1, 512},
                 {INT32_MAX / 2, 2, 1},
                 {1, 1 << 16, 1 << 16},
                 {1 << 20, 1 << 16, 1 << 16},
                 {INT32_MAX / 2, 1 << 16, 1 << 16}};
    size_t n_cases = sizeof cases / sizeof *cases;
    if (TSR_TEST_SANITIZED)
        n_cases -= 2; /* page tables of gigabytes end a sanitized program */
    for (size_t i = 0; i < n_cases; i++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan = NULL;
        config.session.n_ctx = cases[i].n_ctx;
        config.session.n_seq_max = cases[i].n_seq_max;
        config.session.n_batch = cases[i].n_batch;
        tsr_status status = plan_over(f, f->gguf, "host:3", &config, &plan);
        print_message("n_ctx %lld, n_seq_max %d, n_batch %d: %s\n", (long long)cases[i].n_ctx,
                      cases[i].n_seq_max, cases[i].n_batch, status == TSR_OK ? "fits" : tsr_last_error());
        if (status == TSR_OK)
            plan_check(plan, f->gguf, &config, false);
        else
            assert_true(status == TSR_ERR_MEMORY || status == TSR_ERR_INVALID);
        tsr_plan_destroy(plan);
    }
}

/* -- files without weights, devices without work -- */

static void a_header_is_enough_for_a_plan(void **state)
{
    const fixture *f = *state;
    char path[DIRECTORY_PATH];
    struct synth_model_config synth = SYNTH_MODEL_CONFIG_INIT;
    tsr_gguf_config header = tsr_gguf_config_default();
    static const float split[] = {3, 1, 0, 2};
    synth.n_layers = 4;
    synth.n_ff = 1024;
    synth.header_only = true; /* else the model of the fixture */
    close(directory_new(path));
    synth_model_write(&synth, path);
    header.header_only = true;
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        tsr_model_config config = tsr_model_config_default();
        tsr_plan *plan, *of_header;
        tsr_gguf *gguf = NULL;
        config.split.tensor_split = split;
        config.split.n_tensor_split = 4;
        config.split.mode = mode;
        assert_int_equal(tsr_gguf_open(path, NULL, &gguf), TSR_ERR_FORMAT); /* its weights are not there */
        runner_ok(tsr_gguf_open(path, &header, &gguf), path);
        runner_ok(plan_over(f, f->gguf, "host:4", &config, &plan), "whole file");
        runner_ok(plan_over(f, gguf, "host:4", &config, &of_header), "header");
        plan_check(plan, f->gguf, &config, false);
        plan_check_equal(plan, of_header);
        tsr_plan_destroy(plan);
        tsr_plan_destroy(of_header);
        tsr_gguf_close(gguf);
    }
    unlink(path);
}

static void devices_beyond_the_granules_are_remarked_on(void **state)
{
    const fixture *f = *state;
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    int n_notes = 0, n_idle = 0;
    static const float even[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    config.split.tensor_split = even;
    config.split.n_tensor_split = 9;
    runner_ok(plan_over(f, f->gguf, "host:9", &config, &plan), "9 devices");
    plan_check(plan, f->gguf, &config, false);
    for (int d = 0; d < 9; d++)
        for (int k = 0; k < TSR_CLASS_COUNT; k++)
            n_idle += device_of(plan, d).granules[k] == 0;
    while (tsr_plan_note(plan, n_notes)) {
        print_message("%s\n", tsr_plan_note(plan, n_notes));
        assert_non_null(strstr(tsr_plan_note(plan, n_notes), "host"));
        n_notes++;
    }
    assert_int_equal(n_idle, 5 + 1); /* 4 granules of attention, 8 of FFN */
    assert_int_equal(n_notes, n_idle);
    assert_null(tsr_plan_note(plan, -1));
    tsr_plan_destroy(plan);

    /* A share that rounds to nothing at all: that device is not used, and the plan says so. */
    static const float split[] = {1, 1e-12f};
    config.split.tensor_split = split;
    config.split.n_tensor_split = 2;
    runner_ok(plan_over(f, f->gguf, "host:2", &config, &plan), "a crumb");
    assert_false(device_of(plan, 1).used);
    assert_non_null(strstr(tsr_plan_note(plan, 0), "host1 gets nothing"));
    tsr_plan_destroy(plan);
    tsr_plan_destroy(NULL);
}

/* -- configs that are refused -- */

/* Either of two devices on one node fits into its memory; both together do not. */
static void more_than_a_node_has_is_remarked_on(void **state)
{
    const fixture *f = *state;
    fixture small = *f;
    tsr_plan *plan;
    size_t total = 0;
    runner_ok(tsr_topology_load("synthetic:numa:1 core:4 pu:1", NULL, &small.topo), "machine");
    runner_ok(plan_over(&small, f->gguf, "host:2", NULL, &plan), "room enough");
    for (int d = 0; d < 2; d++)
        total += device_of(plan, d).total_bytes;
    assert_null(tsr_plan_note(plan, 0));
    tsr_plan_destroy(plan);
    small.topo->numa_nodes[0].memory_bytes = total / 4 * 3;
    runner_ok(plan_over(&small, f->gguf, "host:2", NULL, &plan), "each fits");
    assert_non_null(tsr_plan_note(plan, 0));
    assert_non_null(strstr(tsr_plan_note(plan, 0), "host0 and 1 more share"));
    assert_null(tsr_plan_note(plan, 1));
    tsr_plan_destroy(plan);
    static const size_t no_margin = 0;
    tsr_fit_config fit = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    fit.margins = &no_margin;
    fit.n_margins = 1;
    config.plan.fit = &fit;
    runner_ok(plan_over(&small, f->gguf, "host:2", &config, &plan), "each is fitted");
    assert_non_null(strstr(tsr_plan_note(plan, 0), "host0 and 1 more share"));
    tsr_plan_destroy(plan);
    tsr_topology_destroy(small.topo);
}

static void names_of_modes_and_classes(void **state)
{
    (void)state;
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        tsr_split_mode parsed = (tsr_split_mode)-1;
        runner_ok(tsr_split_mode_parse(tsr_split_mode_name(mode), &parsed), "its own name");
        assert_int_equal(parsed, mode);
    }
    tsr_split_mode untouched = TSR_SPLIT_MODE_LAYER;
    assert_int_equal(tsr_split_mode_parse("row", &untouched), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "\"row\""));
    assert_int_equal(tsr_split_mode_parse("", &untouched), TSR_ERR_INVALID);
    assert_int_equal(untouched, TSR_SPLIT_MODE_LAYER);
    assert_string_equal(tsr_split_mode_name((tsr_split_mode)9), "?");
    assert_string_equal(tsr_split_class_name(TSR_CLASS_OUTPUT), "output");
    assert_string_equal(tsr_split_class_name((tsr_split_class_id)-1), "?");
}

static void refuse(const fixture *f, const char *field, const tsr_model_config *config)
{
    tsr_plan *plan = NULL;
    tsr_status status = plan_over(f, f->gguf, "host:2", config, &plan);
    if (status != TSR_ERR_INVALID || plan || !strstr(tsr_last_error(), field))
        fail_msg("%s: %s: %s", field, tsr_status_name(status), tsr_last_error());
}

/* A default config changed by the statements, and what the message must name. */
#define REFUSED(field, ...)                              \
    do {                                                 \
        tsr_model_config c = tsr_model_config_default(); \
        __VA_ARGS__;                                     \
        refuse(f, field, &c);                            \
    } while (0)

static void bad_configs_name_the_field(void **state)
{
    const fixture *f = *state;
    static const float negative[] = {1, -1}, nan_entry[] = {NAN, 1}, infinite[] = {1, INFINITY},
                       many[] = {1, 1, 1};
    REFUSED("tensor_split entry 2", c.split.tensor_split = negative; c.split.n_tensor_split = 2);
    REFUSED("tensor_split entry 1", c.split.tensor_split = nan_entry; c.split.n_tensor_split = 2);
    REFUSED("tensor_split entry 2", c.split.tensor_split = infinite; c.split.n_tensor_split = 2);
    REFUSED("tensor_split entry 3", c.split.tensor_split = many; c.split.n_tensor_split = 3);
    REFUSED("tensor_split", c.split.tensor_split = many; c.split.n_tensor_split = -1);
    REFUSED("main_device", c.split.mode = TSR_SPLIT_MODE_NONE; c.split.main_device = 2);
    REFUSED("main_device", c.split.mode = TSR_SPLIT_MODE_NONE; c.split.main_device = -1);
    REFUSED("split.mode", c.split.mode = (tsr_split_mode)4);
    REFUSED("split.mode", c.split.mode = (tsr_split_mode)-1);
    REFUSED("n_ctx", c.session.n_ctx = -1);
    REFUSED("n_ctx", c.session.n_ctx = INT64_MIN);
    REFUSED("n_ctx", c.session.n_ctx = INT64_MAX);
    REFUSED("n_ctx", c.session.n_ctx = (int64_t)1 << 31);
    REFUSED("n_seq_max", c.session.n_seq_max = 0);
    REFUSED("n_seq_max", c.session.n_seq_max = -1);
    REFUSED("n_seq_max", c.session.n_seq_max = 1 << 30);
    REFUSED("n_batch", c.session.n_batch = 0);
    REFUSED("n_batch", c.session.n_batch = -5);
    REFUSED("n_batch", c.session.n_batch = 1 << 30);
    REFUSED("n_outputs_max", c.session.n_outputs_max = -1);
    REFUSED("type_k", c.session.type_k = TSR_TYPE_Q4_K);
    REFUSED("type_v", c.session.type_v = TSR_TYPE_Q6_K);
    REFUSED("type_v", c.session.type_v = TSR_TYPE_I32);
    REFUSED("type_k", c.session.type_k = (tsr_type)9999);
    REFUSED("type_v", c.session.type_v = (tsr_type)-1);
    REFUSED("reduction", c.compute.reduction = (tsr_reduction)7);
    REFUSED("activation_bits", c.compute.activation_bits = 12);
    REFUSED("tsr_model_config.size", c.size = 8);
    REFUSED("tsr_model_config.size", c.size = sizeof(tsr_model_config) + 8);
    tsr_plan *plan = NULL;
    tsr_device_list none = {0};
    assert_int_equal(tsr_plan_create(NULL, &none, NULL, &plan), TSR_ERR_INVALID);
    assert_int_equal(tsr_plan_create(f->gguf, NULL, NULL, &plan), TSR_ERR_INVALID);
    assert_int_equal(tsr_plan_create(f->gguf, &none, NULL, &plan), TSR_ERR_INVALID);
    runner_ok(plan_over(f, f->gguf, "host:2", NULL, &plan), "the defaults");
    tsr_plan_device device;
    assert_int_equal(tsr_plan_get_device(plan, 2, &device), TSR_ERR_INVALID);
    assert_int_equal(tsr_plan_get_device(plan, -1, &device), TSR_ERR_INVALID);
    tsr_plan_destroy(plan);
}

/* -- a large one -- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Llama 3 70B in Q4_K: 80 layers over 8 devices in under a second of processor time, and every device's
 * arena below that of one device alone. */
static void planning_a_70b_model_is_quick(void **state)
{
    const fixture *f = *state;
    char path[DIRECTORY_PATH];
    struct synth_model_config synth = {.n_layers = 80,
                                       .n_embd = 8192,
                                       .n_heads = 64,
                                       .n_kv_heads = 8,
                                       .head_dim = 128,
                                       .n_ff = 28672,
                                       .n_vocab = 128256,
                                       .n_ctx = 8192,
                                       .weight_scale = 1,
                                       .weight_type = TSR_TYPE_Q4_K,
                                       .rope_freq_base = 500000,
                                       .seed = 1,
                                       .header_only = true};
    tsr_gguf_config header = tsr_gguf_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_gguf *gguf;
    tsr_plan *one, *eight;
    header.header_only = true;
    close(directory_new(path));
    synth_model_write(&synth, path);
    runner_ok(tsr_gguf_open(path, &header, &gguf), path);
    runner_ok(plan_over(f, gguf, "host:1", &config, &one), "one device");
    double begin = now();
    runner_ok(plan_over(f, gguf, "host:8", &config, &eight), "eight devices");
    double seconds = now() - begin;
    print_message("80 layers over 8 devices: %.0f ms, arenas %.1f MiB and %.1f MiB on one\n", 1e3 * seconds,
                  (double)device_of(eight, 0).bytes[TSR_MEMORY_ARENA] / (1 << 20),
                  (double)device_of(one, 0).bytes[TSR_MEMORY_ARENA] / (1 << 20));
    assert_true(TSR_TEST_SANITIZED || seconds < 1);
    plan_check(one, gguf, &config, false);
    plan_check(eight, gguf, &config, false);
    for (int d = 0; d < 8; d++)
        assert_true(device_of(eight, d).bytes[TSR_MEMORY_ARENA] < device_of(one, 0).bytes[TSR_MEMORY_ARENA]);
    tsr_plan_destroy(one);
    tsr_plan_destroy(eight);
    tsr_gguf_close(gguf);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cap_moves_granules),
        cmocka_unit_test(caps_are_kept_or_named),
        cmocka_unit_test(what_cannot_fit_names_device_and_bytes),
        cmocka_unit_test(a_plan_without_caps_states_what_is_missing),
        cmocka_unit_test(the_largest_configs_do_not_overflow),
        cmocka_unit_test(a_header_is_enough_for_a_plan),
        cmocka_unit_test(devices_beyond_the_granules_are_remarked_on),
        cmocka_unit_test(more_than_a_node_has_is_remarked_on),
        cmocka_unit_test(names_of_modes_and_classes),
        cmocka_unit_test(bad_configs_name_the_field),
        cmocka_unit_test(planning_a_70b_model_is_quick),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
