/* See runner.h. */
#include "support/runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/config.h>
#include <tsr/runtime.h>
#include <tsr/split.h>

void runner_ok(tsr_status status, const char *what)
{
    if (status != TSR_OK)
        fail_msg("%s: %s: %s", what, tsr_status_name(status), tsr_last_error());
}

void runner_open_on(runner *r, const tsr_topology *machine, const char *path, const char *devices,
                    const char *collectives, const char *split, const tsr_model_config *config)
{
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config model_config = tsr_model_config_default();
    float proportions[TSR_MAX_DEVICES];
    runtime_config.topology = machine;
    runtime_config.devices = devices;
    runtime_config.collectives = collectives;
    *r = (runner){0};
    runner_ok(tsr_runtime_open(&runtime_config, &r->rt), devices);
    if (config)
        model_config = *config;
    if (split) {
        runner_ok(tsr_split_parse(split, proportions, TSR_MAX_DEVICES, &model_config.split.n_tensor_split),
                  split);
        model_config.split.tensor_split = proportions;
    } else if (!model_config.split.tensor_split) {
        model_config.split.n_tensor_split = tsr_runtime_n_devices(r->rt);
        for (int d = 0; d < model_config.split.n_tensor_split; d++)
            proportions[d] = 1;
        model_config.split.tensor_split = proportions;
    }
    runner_ok(tsr_model_open(r->rt, path, &model_config, &r->model), path);
    runner_ok(tsr_session_create(r->model, &r->session), path);
    tsr_model_info info;
    tsr_model_get_info(r->model, &info);
    r->n_vocab = info.n_vocab;
}

void runner_open_with(runner *r, const char *path, const char *devices, const char *collectives,
                      const char *split, const tsr_model_config *config)
{
    runner_open_on(r, NULL, path, devices, collectives, split, config);
}

void runner_open(runner *r, const char *path, const char *devices, const char *split,
                 const tsr_model_config *config)
{
    runner_open_with(r, path, devices, NULL, split, config);
}

void runner_close(runner *r)
{
    tsr_session_destroy(r->session);
    tsr_model_close(r->model);
    tsr_runtime_close(r->rt);
    *r = (runner){0};
}

/* A failure may depend on what was measured when the runtime was opened. */
static void print_collectives(const runner *r)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    for (int i = 0, n = tsr_runtime_collectives(r->rt, rows); i < n; i++)
        print_error("collectives of up to %zu bytes: %s\n", rows[i].bytes, rows[i].implementation);
}

void runner_decode(runner *r, const int32_t *tokens, int64_t n, int64_t chunk, bool all, float *logits)
{
    bool *outputs = calloc((size_t)n, sizeof *outputs);
    assert_non_null(outputs);
    for (int64_t i = 0; i < n; i++)
        outputs[i] = all || i == n - 1;
    for (int64_t i = 0; i < n;) {
        int64_t count = chunk && n - i > chunk ? chunk : n - i;
        tsr_batch batch = {.n_tokens = count, .tokens = tokens + i, .outputs = outputs + i};
        const tsr_status status =
            tsr_session_decode(r->session, &batch, all ? logits + i * r->n_vocab : logits);
        if (status != TSR_OK)
            print_collectives(r);
        runner_ok(status, "decode");
        i += count;
    }
    free(outputs);
}

int64_t runner_argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}
