/* A model of 70 billion parameters planned, from its header alone, for two machines on a network, and for
 * every machine in ../shared/topo. */
#include <dirent.h>
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

#include <tsr/links.h>
#include <tsr/machine.h>

#include "support/directory.h"
#include "support/plan_check.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

#define SHARED "../shared/topo"

typedef struct fixture {
    char path[DIRECTORY_PATH];
    tsr_gguf *gguf;
    int n_planned, n_short, n_unreadable;
    double slowest_s;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    tsr_gguf_config header = tsr_gguf_config_default();
    config.n_layers = 80;
    config.n_embd = 8192;
    config.n_heads = 64;
    config.n_kv_heads = 8;
    config.head_dim = 128;
    config.n_ff = 28672;
    config.n_vocab = 128256;
    config.n_ctx = 8192;
    config.weight_type = TSR_TYPE_Q4_K;
    config.tokenizer = false;
    config.header_only = true;
    header.header_only = true;
    close(directory_new(f.path));
    synth_model_write(&config, f.path);
    runner_ok(tsr_gguf_open(f.path, &header, &f.gguf), f.path);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    tsr_gguf_close(f->gguf);
    return unlink(f->path);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One line, and about something. */
static void check_message(const char *path)
{
    const char *text = tsr_last_error();
    if (strlen(text) < 20 || strchr(text, '\n'))
        fail_msg("%s: \"%s\" is no good message", path, text);
}

/* A plan for two nodes of four GPUs, of which one is too small, and the time of a token's way between. */
static tsr_plan *plan_nodes(const fixture *f, const char *network, tsr_split_mode mode, double *copy_ns_out)
{
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_links *links = NULL;
    tsr_plan *plan = NULL;
    tsr_model_config config = tsr_model_config_default();
    char machine[128];
    snprintf(machine, sizeof machine, "2 nodes of 4x a100 10GiB nvlink, %s", network);
    runner_ok(tsr_topology_parse(machine, NULL, &topo), machine);
    runner_ok(tsr_device_list_create(topo, NULL, NULL, &list), machine);
    runner_ok(tsr_links_create(topo, list, &links), machine);
    config.plan.links = links;
    config.split.mode = mode;
    config.session.n_ctx = 4096;
    runner_ok(tsr_plan_create(f->gguf, list, &config, &plan), machine);
    plan_check(plan, f->gguf, &config, true);
    *copy_ns_out = tsr_links_copy_ns(links, 0, 4, 8192 * sizeof(float));
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return plan;
}

/* Over a fast network all GPUs divide every layer; over a slow one no group of GPUs is on both nodes, and
 * activations cross the network once. */
static void a_slow_network_is_crossed_between_layers(void **state)
{
    const fixture *f = *state;
    tsr_plan_info fast_info, slow_info;
    tsr_plan_times fast_times, tensor_times, slow_times;
    tsr_plan_stage stage;
    bool was_first = false;
    uint64_t used = 0;
    double copy_ns;
    tsr_plan *fast = plan_nodes(f, "8x ib 400Gb/s", TSR_SPLIT_MODE_AUTO, &copy_ns);
    tsr_plan_get_info(fast, &fast_info);
    tsr_plan_predict(fast, &fast_times);
    assert_int_equal(fast_info.mode, TSR_SPLIT_MODE_TENSOR);
    assert_int_equal(fast_info.n_devices, 8);
    tsr_plan_destroy(fast);

    tsr_plan *tensor = plan_nodes(f, "ethernet 1Gb/s", TSR_SPLIT_MODE_TENSOR, &copy_ns);
    tsr_plan_predict(tensor, &tensor_times);
    tsr_plan_destroy(tensor);
    tsr_plan *slow = plan_nodes(f, "ethernet 1Gb/s", TSR_SPLIT_MODE_AUTO, &copy_ns);
    tsr_plan_get_info(slow, &slow_info);
    tsr_plan_predict(slow, &slow_times);
    assert_int_equal(slow_info.mode, TSR_SPLIT_MODE_AUTO);
    int n_crossings = 0;
    for (int i = 0; tsr_plan_stage_at(slow, i, &stage); i++) {
        const bool first = (stage.devices & 0xf) != 0;
        assert_true((stage.devices & (first ? 0xf0 : 0xf)) == 0); /* on one node */
        n_crossings += i > 0 && first != was_first;
        was_first = first;
        used |= stage.devices;
    }
    assert_int_equal(n_crossings, 1);
    assert_int_equal(used, 0xff);
    /* A token's activations go to one GPU of the other node, or to all of them one after another. */
    assert_true(slow_times.decode.transfer_ns >= copy_ns && slow_times.decode.transfer_ns < 4.1 * copy_ns);
    assert_true(slow_times.workload_ns < tensor_times.workload_ns);
    assert_true(fast_times.workload_ns < slow_times.workload_ns);
    tsr_plan_device device;
    runner_ok(tsr_plan_get_device(slow, 4, &device), "device 4");
    assert_string_equal(device.name, "cuda0@1");
    tsr_plan_destroy(slow);
}

static void plan_machine(fixture *f, const char *path)
{
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_links *links = NULL;
    tsr_plan *plan = NULL;
    tsr_model_config config = tsr_model_config_default();
    double start = now();
    if (tsr_topology_load(path, NULL, &topo) != TSR_OK) {
        check_message(path);
        f->n_unreadable++;
        return;
    }
    /* a GPU of unknown model takes no device */
    runner_ok(tsr_device_list_create(topo, *topo->gpu_note ? "host" : NULL, NULL, &list), path);
    runner_ok(tsr_links_create(topo, list, &links), path);
    config.plan.links = links;
    tsr_status status = tsr_plan_create(f->gguf, list, &config, &plan);
    if (now() - start > 1)
        print_message("%s took %.1f s\n", path, now() - start);
    f->slowest_s = now() - start > f->slowest_s ? now() - start : f->slowest_s;
    if (status == TSR_OK) {
        plan_check(plan, f->gguf, &config, true);
        f->n_planned++;
    } else {
        assert_int_equal(status, TSR_ERR_MEMORY);
        check_message(path);
        f->n_short++;
    }
    tsr_plan_destroy(plan);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

static void every_machine_is_planned_or_refused(void **state)
{
    fixture *f = *state;
    static const char *const folders[] = {SHARED "/hwloc", SHARED "/nccl", SHARED "/hwloc-fsroot"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *dir = opendir(folders[i]);
        if (!dir) {
            print_message("skipped: %s is not there\n", folders[i]);
            skip();
        }
        for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
            char path[512];
            snprintf(path, sizeof path, "%s/%s", folders[i], entry->d_name);
            if (entry->d_name[0] != '.')
                plan_machine(f, path);
        }
        closedir(dir);
    }
    print_message("%d planned, %d too small, %d unreadable; the slowest took %.0f ms\n", f->n_planned,
                  f->n_short, f->n_unreadable, 1e3 * f->slowest_s);
    assert_true(f->n_planned >= 10);
    if (!TSR_TEST_SANITIZED)
        assert_true(f->slowest_s < 20); /* an idle machine takes well under a second */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slow_network_is_crossed_between_layers),
                                       cmocka_unit_test(every_machine_is_planned_or_refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
