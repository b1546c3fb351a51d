/* Fits that offload: experts before layers, as few of them as suffice, and only where there is a device for
 * them that has no other part. From headers of published models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/fit.h>
#include <tsr/machine.h>

#include "support/fitted.h"
#include "support/arch_models.h"
#include "support/directory.h"
#include "support/plan_check.h"
#include "support/runner.h"

#define GIB ((size_t)1 << 30)

typedef struct fixture {
    char moe_path[DIRECTORY_PATH], dense_path[DIRECTORY_PATH];
    tsr_gguf *moe, *dense;
    int n_moe_layers, n_dense_layers;
    tsr_topology *topo;
} fixture;

static const struct arch_model *published(const char *title)
{
    for (size_t i = 0; i < n_arch_models; i++)
        if (strcmp(arch_models[i].title, title) == 0)
            return &arch_models[i];
    fail_msg("no model %s", title);
    return NULL;
}

static void open_header(const char *title, char *path, tsr_gguf **gguf, int *n_layers)
{
    const struct arch_model *model = published(title);
    tsr_gguf_config header = tsr_gguf_config_default();
    gguf_writer *w = arch_model_writer(model, TSR_TYPE_Q8_0);
    header.header_only = true;
    close(directory_new(path));
    gguf_writer_save_header(w, path, false);
    gguf_writer_destroy(w);
    *n_layers = model->n_layers;
    runner_ok(tsr_gguf_open(path, &header, gguf), path);
}

static int set_up(void **state)
{
    static fixture f;
    open_header("Mixtral-8x7B", f.moe_path, &f.moe, &f.n_moe_layers);
    open_header("Qwen2.5-7B", f.dense_path, &f.dense, &f.n_dense_layers);
    runner_ok(tsr_topology_parse("2x rtx3090 nvlink, 1x host 32 cores 256GiB", NULL, &f.topo), "machine");
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_gguf_close(f->moe);
    tsr_gguf_close(f->dense);
    tsr_topology_destroy(f->topo);
    return unlink(f->moe_path) | unlink(f->dense_path);
}

static tsr_plan_device device_of(const tsr_fit *fit, int d)
{
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(tsr_fit_plan(fit), d, &device), "device");
    return device;
}

/* Whether a choice fits that is not the fit's: everything set, nothing left to cut. */
static bool fits_with(const fixture *f, const tsr_gguf *gguf, const char *spec, tsr_model_config config)
{
    tsr_fit *fit = NULL;
    tsr_status status = fitted_over(f->topo, gguf, spec, &config, &fit);
    bool uncut = status == TSR_OK && fitted_info(fit).n_steps == 0;
    tsr_fit_destroy(fit);
    return uncut;
}

/* -- the steps of offloading -- */

/* What is needed of the host is its experts; the layers' other parts stay. */
static void experts_go_before_layers(void **state)
{
    const fixture *f = *state;
    static const char *const spec = "cuda,host:1";
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default(), other = config;
    tsr_fit *fit;
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->moe, spec, &config, &fit), spec);
    assert_int_equal(fitted_info(fit).wanted.n_gpu_layers, f->n_moe_layers + 1);
    assert_int_equal(fitted_step(fit, 0).cut, TSR_FIT_CUT_CONTEXT);
    assert_int_equal(fitted_step(fit, 0).after.n_ctx, TSR_FIT_CTX_MIN);
    assert_int_equal(fitted_step(fit, 1).cut, TSR_FIT_CUT_EXPERTS);
    assert_non_null(strstr(fitted_step(fit, 1).text, " -> host0"));
    assert_true(fitted_step(fit, 1).saved_bytes > 0);
    assert_true(fitted_step(fit, 1).device_bytes[2] < 0);
    assert_int_equal(fitted_info(fit).chosen.n_gpu_layers, f->n_moe_layers + 1);
    int n_moe = fitted_info(fit).chosen.n_cpu_moe;
    assert_true(n_moe > 0 && n_moe < f->n_moe_layers);
    assert_int_equal(device_of(fit, 2).bytes[TSR_MEMORY_KV], 0);
    assert_true(device_of(fit, 2).bytes[TSR_MEMORY_WEIGHTS] > (size_t)n_moe * GIB);
    tsr_fit_result(fit, &other);
    tsr_fit_destroy(fit);

    /* It is the least, and all of the context that was left over. */
    assert_true(fits_with(f, f->moe, spec, other));
    other.session.n_ctx += TSR_FIT_CTX_STEP;
    assert_false(fits_with(f, f->moe, spec, other));
    other.session.n_ctx = TSR_FIT_CTX_MIN;
    other.offload.n_cpu_moe--;
    assert_false(fits_with(f, f->moe, spec, other));
}

/* GPUs that not even all experts make room on. */
static void layers_go_last(void **state)
{
    const fixture *f = *state;
    static const char *const spec = "cuda:0,mem=2GiB,host:1";
    static const size_t margin = GIB / 4;
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default(), other = config;
    tsr_fit *fit;
    fit_config.margins = &margin;
    fit_config.n_margins = 1;
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->moe, spec, &config, &fit), spec);
    assert_int_equal(fitted_info(fit).chosen.n_cpu_moe, f->n_moe_layers);
    assert_int_equal(fitted_step(fit, 2).cut, TSR_FIT_CUT_LAYERS);
    assert_true(fitted_info(fit).chosen.n_gpu_layers > 0 &&
                fitted_info(fit).chosen.n_gpu_layers <= f->n_moe_layers);
    assert_true(device_of(fit, 0).total_bytes + margin <= 2 * GIB);
    tsr_fit_result(fit, &other);
    tsr_fit_destroy(fit);
    other.session.n_ctx = TSR_FIT_CTX_MIN;
    assert_true(fits_with(f, f->moe, spec, other));
    other.offload.n_gpu_layers++;
    assert_false(fits_with(f, f->moe, spec, other));
}

/* A model without experts, in every mode and under the user's proportions. */
static void layers_go_in_every_mode(void **state)
{
    const fixture *f = *state;
    static const char *const spec = "cuda:0,mem=3GiB,cuda:1,mem=4GiB,host:1";
    static const float split[] = {1, 2};
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        for (int by_hand = 0; by_hand < 2; by_hand++) {
            tsr_fit_config fit_config = tsr_fit_config_default();
            tsr_model_config config = tsr_model_config_default(), other = config;
            tsr_fit *fit;
            config.plan.fit = &fit_config;
            config.split.mode = mode;
            config.split.tensor_split = by_hand ? split : NULL;
            config.split.n_tensor_split = by_hand ? 2 : 0;
            runner_ok(fitted_over(f->topo, f->dense, spec, &config, &fit), spec);
            int n = fitted_info(fit).chosen.n_gpu_layers;
            if (n < 1 || n > f->n_dense_layers)
                fail_msg("mode %s: %d layers stay", tsr_split_mode_name(mode), n);
            for (int d = 0; d < 2; d++)
                assert_true(device_of(fit, d).total_bytes <= (size_t)(2 + d) * GIB);
            assert_int_equal(device_of(fit, 2).n_layers, f->n_dense_layers - n);
            tsr_fit_result(fit, &other);
            tsr_fit_destroy(fit);
            other.session.n_ctx = TSR_FIT_CTX_MIN;
            other.offload.n_gpu_layers++;
            assert_false(fits_with(f, f->dense, spec, other));
        }
    }
}

/* -- what is not cut -- */

static void what_is_set_stays(void **state)
{
    const fixture *f = *state;
    static const tsr_offload_rule override = {"blk\\.31\\.ffn", "CPU"};
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default(), other = config;
    tsr_fit *fit;
    config.plan.fit = &fit_config;
    config.offload.n_gpu_layers = 20;
    config.offload.rules = &override;
    config.offload.n_rules = 1;
    runner_ok(fitted_over(f->topo, f->moe, "cuda,host:1", &config, &fit), "20 layers");
    tsr_fit_result(fit, &other);
    assert_int_equal(other.offload.n_gpu_layers, 20);
    assert_ptr_equal(other.offload.rules, &override);
    tsr_fit_destroy(fit);

    /* With the experts set, too few for these GPUs, only layers are left. */
    config.offload.n_gpu_layers = -1;
    config.offload.n_cpu_moe = 1;
    runner_ok(fitted_over(f->topo, f->moe, "cuda:0,host:1", &config, &fit), "experts of one layer");
    assert_int_equal(fitted_info(fit).chosen.n_cpu_moe, 1);
    assert_true(fitted_info(fit).chosen.n_gpu_layers <= f->n_moe_layers);
    tsr_fit_destroy(fit);
}

/* While it is not needed, nothing is on the host device; a share for it in tensor_split makes it one like the
 * others. */
static void the_host_device_is_apart(void **state)
{
    const fixture *f = *state;
    static const float shares[] = {1, 1, 1};
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_fit *fit;
    config.plan.fit = &fit_config;
    runner_ok(fitted_over(f->topo, f->dense, "cuda,host:1", &config, &fit), "room for all");
    assert_int_equal(fitted_info(fit).n_steps, 0);
    assert_false(device_of(fit, 2).used);
    tsr_fit_destroy(fit);
    config.split.tensor_split = shares;
    config.split.n_tensor_split = 3;
    runner_ok(fitted_over(f->topo, f->dense, "cuda,host:1", &config, &fit), "a share for the host");
    assert_true(device_of(fit, 2).used);
    assert_int_equal(fitted_info(fit).chosen.n_gpu_layers, -1);
    tsr_fit_destroy(fit);
}

static void the_error_says_who_is_short(void **state)
{
    const fixture *f = *state;
    tsr_fit_config fit_config = tsr_fit_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_fit *fit = NULL;
    config.plan.fit = &fit_config;
    assert_int_equal(fitted_over(f->topo, f->moe, "cuda:0,host:1,mem=4GiB", &config, &fit), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "host0 lacks "));
    assert_null(strstr(tsr_last_error(), "cuda0 lacks "));
    assert_int_equal(fitted_over(f->topo, f->moe, "cuda:0", &config, &fit), TSR_ERR_MEMORY);
    assert_non_null(strstr(tsr_last_error(), "cuda0 lacks "));
    assert_non_null(strstr(tsr_last_error(), "-dev cuda,host:1"));
    assert_null(fit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_go_before_layers), cmocka_unit_test(layers_go_last),
        cmocka_unit_test(layers_go_in_every_mode),  cmocka_unit_test(what_is_set_stays),
        cmocka_unit_test(the_host_device_is_apart), cmocka_unit_test(the_error_says_who_is_short),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
