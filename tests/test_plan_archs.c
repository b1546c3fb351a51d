/* Planning models of many architectures, whether they run or not, from headers with the shapes of published
 * models: every byte of the file is planned somewhere, KV is what the models are known to take, what is
 * estimated is said to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "support/header_plan.h"
#include "support/runner.h"

static tsr_gguf *open_header(const char *path)
{
    tsr_gguf *gguf;
    tsr_gguf_config config = tsr_gguf_config_default();
    config.header_only = true;
    runner_ok(tsr_gguf_open(path, &config, &gguf), path);
    return gguf;
}

static tsr_status plan_on(const header_fixture *f, const char *devices, const tsr_gguf *gguf,
                          const tsr_model_config *config, tsr_plan **plan_out)
{
    tsr_device_list *list;
    runner_ok(tsr_device_list_create(f->topo, devices, NULL, &list), devices);
    tsr_status status = tsr_plan_create(gguf, list, config, plan_out);
    tsr_device_list_destroy(list);
    return status;
}

/* Of all tensors, and of those that every device has whole. */
static void count_file(const struct arch_model *m, const tsr_gguf *gguf, int64_t *n_params_out,
                       size_t *bytes_out, size_t *whole_out)
{
    *n_params_out = 0;
    *bytes_out = *whole_out = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, i);
        const char *suffix = strncmp(tensor->name, "blk.", 4) == 0 ? strchr(tensor->name + 4, '.') : NULL;
        *n_params_out += tensor->ne[0] * tensor->ne[1] * tensor->ne[2];
        *bytes_out += tensor->bytes;
        for (const struct arch_tensor *t = m->tensors; t->name; t++)
            if (strcmp(suffix ? suffix : tensor->name, suffix ? t->name + strlen("blk.%d") : t->name) == 0)
                *whole_out += t->whole ? tensor->bytes : 0;
    }
}

static size_t planned(const tsr_plan *plan, tsr_memory_owner owner, int *n_used_out)
{
    tsr_plan_info info;
    size_t bytes = 0;
    tsr_plan_get_info(plan, &info);
    *n_used_out = 0;
    for (int d = 0; d < info.n_devices; d++) {
        tsr_plan_device device;
        runner_ok(tsr_plan_get_device(plan, d, &device), "device");
        bytes += device.bytes[owner];
        *n_used_out += device.bytes[owner] > 0;
        assert_true(!device.used || device.bytes[TSR_MEMORY_ARENA] > 0);
    }
    return bytes;
}

/* Whether a model does is the loader's business; a plan has to agree. */
static bool runs(const tsr_gguf *gguf)
{
    tsr_model_shape shape;
    return tsr_model_shape_read(gguf, false, &shape) == TSR_OK;
}

static void check_plan(const header_fixture *f, const struct arch_model *m, const tsr_gguf *gguf,
                       const char *devices, tsr_split_mode mode)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    tsr_plan_info info;
    int64_t n_params;
    size_t bytes, whole;
    int n_used, n_kv;
    const float even[] = {1, 1, 1};
    config.session.n_ctx = 4096;    /* whole pages */
    config.session.swa_full = true; /* of all layers */
    config.split.mode = mode;
    config.split.tensor_split = even;
    config.split.n_tensor_split = devices[strlen("host:")] - '0';
    runner_ok(plan_on(f, devices, gguf, &config, &plan), m->title);
    count_file(m, gguf, &n_params, &bytes, &whole);
    assert_int_equal(n_params, m->n_params);

    size_t weights = planned(plan, TSR_MEMORY_WEIGHTS, &n_used);
    size_t kv = planned(plan, TSR_MEMORY_KV, &n_kv);
    size_t embedding = tsr_gguf_find_tensor(gguf, "token_embd.weight")->bytes;
    bool tied = !tsr_gguf_find_tensor(gguf, "output.weight");
    assert_int_equal(n_used, config.split.n_tensor_split);
    if (mode == TSR_SPLIT_MODE_TENSOR)
        assert_int_equal(weights, bytes + (size_t)(n_used - 1) * whole);
    else
        assert_int_equal(weights, bytes + (tied && n_used > 1 ? embedding : 0));

    size_t kv_bytes = (size_t)(m->kv_token_bytes * config.session.n_ctx);
    if (m->kv_whole && mode == TSR_SPLIT_MODE_TENSOR)
        kv_bytes *= (size_t)n_kv;
    assert_true(kv >= kv_bytes && kv <= kv_bytes + (size_t)n_kv * (1 << 16)); /* whole system pages */

    tsr_plan_get_info(plan, &info);
    assert_int_equal(info.runnable, runs(gguf));
    assert_int_equal(info.exact_arena, info.runnable);
    assert_int_equal(header_has_note(plan, "planned, not run"), !info.runnable);
    assert_false(header_has_note(plan, "unknown names"));
    tsr_plan_destroy(plan);
}

static void published_models_are_planned(void **state)
{
    const header_fixture *f = *state;
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_K, TSR_TYPE_MXFP4,
                                     TSR_TYPE_IQ3_S};
    for (size_t i = 0; i < n_arch_models; i++) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            gguf_writer *w = arch_model_writer(&arch_models[i], types[t]);
            gguf_writer_save_header(w, f->path, false);
            tsr_gguf *gguf = open_header(f->path);
            check_plan(f, &arch_models[i], gguf, "host:1,mem=4000GiB", TSR_SPLIT_MODE_TENSOR);
            check_plan(f, &arch_models[i], gguf, "host:3,mem=4000GiB", TSR_SPLIT_MODE_TENSOR);
            check_plan(f, &arch_models[i], gguf, "host:2,mem=4000GiB", TSR_SPLIT_MODE_LAYER);
            tsr_gguf_close(gguf);
            gguf_writer_destroy(w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_models_are_planned),
    };
    return cmocka_run_group_tests(tests, header_set_up, header_tear_down);
}
