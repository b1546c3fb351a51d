/* Weights for tests of public graphs. */
#include "support/public_weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/random.h"
#include "support/runner.h"

const float public_splits[PUBLIC_SPLITS][PUBLIC_DEVICES] = {{1, 0, 0}, {1, 1, 1}, {1, 5, 2}, {0, 2, 1}};

void public_weights_open(public_weights *p, const float *split)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    *p = (public_weights){.split = split};
    config.devices = "host:3,threads=1";
    runner_ok(tsr_runtime_open(&config, &p->rt), "runtime");
}

void public_weights_close(public_weights *p)
{
    for (int i = 0; i < p->n; i++) {
        tsr_buffer_destroy(p->buffers[i]);
        tsr_context_destroy(p->contexts[i]);
    }
    tsr_runtime_close(p->rt);
}

tsr_tensor *public_weight(public_weights *p, int axis, int64_t granule, int64_t ne0, int64_t ne1, float size,
                          uint64_t seed)
{
    tsr_split_buffer_config config = tsr_split_buffer_config_default();
    const int i = p->n++;
    char name[16];
    assert_true(i < PUBLIC_WEIGHTS_MAX);
    config.axis = axis == 0 ? 0 : 1;
    config.granule = granule;
    config.tensor_split = p->split;
    config.n_tensor_split = PUBLIC_DEVICES;
    snprintf(name, sizeof name, "w%d", (int)seed);
    runner_ok(tsr_context_create(p->rt, &p->contexts[i]), "context");
    tsr_tensor *w = tsr_tensor_2d(p->contexts[i], TSR_TYPE_F32, ne0, ne1, name);
    const tsr_buffer_type *type = axis == -1   ? tsr_replicated_buffer_type(p->rt)
                                  : axis == -2 ? tsr_device_buffer_type(p->rt, PUBLIC_DEVICES - 1)
                                               : tsr_split_buffer_type_ex(p->rt, &config);
    runner_ok(tsr_tensors_alloc(p->contexts[i], type, &p->buffers[i]), name);
    float *data = malloc((size_t)(ne0 * ne1) * sizeof *data);
    assert_non_null(data);
    for (int64_t k = 0; k < ne0 * ne1; k++)
        data[k] = size * random_normal(&seed);
    runner_ok(tsr_tensor_set(w, data, 0, tsr_tensor_bytes(w)), name);
    free(data);
    return w;
}

float *public_read(const tsr_tensor *tensor)
{
    float *data = malloc(tsr_tensor_bytes(tensor));
    assert_non_null(data);
    runner_ok(tsr_tensor_get(tensor, data, 0, tsr_tensor_bytes(tensor)), tsr_tensor_name(tensor));
    return data;
}

void public_near(const char *what, float x, double expected)
{
    if (!(fabs((double)x - expected) <= 1e-4 * fmax(1, fabs(expected))))
        fail_msg("%s is %g instead of %g", what, (double)x, expected);
}

void public_says(const char *words)
{
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}
