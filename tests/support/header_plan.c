/* See header_plan.h. */
#include "support/header_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/directory.h"
#include "support/runner.h"

int header_set_up(void **state)
{
    static header_fixture f;
    close(directory_new(f.path));
    runner_ok(tsr_topology_discover(NULL, &f.topo), "topology");
    *state = &f;
    return 0;
}

int header_tear_down(void **state)
{
    header_fixture *f = *state;
    tsr_topology_destroy(f->topo);
    return unlink(f->path);
}

/* The plan of what a writer holds, for n devices of 400 GiB; the writer's end. */
tsr_status header_plan(const header_fixture *f, gguf_writer *w, int n_devices, const tsr_model_config *config,
                       tsr_plan **plan_out)
{
    tsr_gguf *gguf;
    tsr_device_list *list;
    tsr_gguf_config header = tsr_gguf_config_default();
    char devices[32];
    header.header_only = true;
    gguf_writer_save_header(w, f->path, false);
    gguf_writer_destroy(w);
    snprintf(devices, sizeof devices, "host:%d,mem=400GiB", n_devices);
    runner_ok(tsr_gguf_open(f->path, &header, &gguf), f->path);
    runner_ok(tsr_device_list_create(f->topo, devices, NULL, &list), devices);
    tsr_status status = tsr_plan_create(gguf, list, config, plan_out);
    tsr_device_list_destroy(list);
    tsr_gguf_close(gguf);
    return status;
}

tsr_plan *header_planned(const header_fixture *f, gguf_writer *w, int n_devices, int64_t n_ctx)
{
    static const float even[] = {1, 1, 1, 1};
    tsr_model_config config = tsr_model_config_default();
    tsr_plan *plan;
    config.session.n_ctx = n_ctx;
    config.split.tensor_split = even;
    config.split.n_tensor_split = n_devices;
    runner_ok(header_plan(f, w, n_devices, &config, &plan), "plan");
    return plan;
}

size_t header_bytes(const tsr_plan *plan, int device, tsr_memory_owner owner)
{
    tsr_plan_device d;
    runner_ok(tsr_plan_get_device(plan, device, &d), "device");
    return d.bytes[owner];
}

bool header_has_note(const tsr_plan *plan, const char *part)
{
    for (int i = 0; tsr_plan_note(plan, i); i++)
        if (strstr(tsr_plan_note(plan, i), part))
            return true;
    return false;
}

const struct arch_model *header_published(const char *title)
{
    for (size_t i = 0; i < n_arch_models; i++)
        if (strcmp(arch_models[i].title, title) == 0)
            return &arch_models[i];
    fail_msg("there is no %s", title);
    return NULL;
}

void header_check_message(const char *object)
{
    const char *text = tsr_last_error();
    if (!strstr(text, object) || strchr(text, '\n'))
        fail_msg("this should name %s and be one line: %s", object, text);
}
