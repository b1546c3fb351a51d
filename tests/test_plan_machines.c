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

/* A plan for two nodes of four GPUs, of which one is too small. */
typedef struct nodes_plan {
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *links;
    tsr_plan *plan;
    tsr_plan_info info;
    tsr_plan_times times;
} nodes_plan;

static nodes_plan plan_nodes(const fixture *f, const char *network, tsr_split_mode mode)
{
    nodes_plan p = {0};
    tsr_model_config config = tsr_model_config_default();
    char machine[128];
    snprintf(machine, sizeof machine, "2 nodes of 4x a100 10GiB nvlink, %s", network);
    runner_ok(tsr_topology_parse(machine, NULL, &p.topo), machine);
    runner_ok(tsr_device_list_create(p.topo, NULL, NULL, &p.list), machine);
    runner_ok(tsr_links_create(p.topo, p.list, &p.links), machine);
    config.plan.links = p.links;
    config.split.mode = mode;
    config.session.n_ctx = 4096;
    runner_ok(tsr_plan_create(f->gguf, p.list, &config, &p.plan), machine);
    plan_check(p.plan, f->gguf, &config, true);
    tsr_plan_get_info(p.plan, &p.info);
    tsr_plan_predict(p.plan, &p.times);
    return p;
}

static void free_plan(nodes_plan *p)
{
    tsr_plan_destroy(p->plan);
    tsr_links_destroy(p->links);
    tsr_device_list_destroy(p->list);
    tsr_topology_destroy(p->topo);
}

/* A token's activations from the first device of a stage to all devices of the next: once over the network,
 * to the first device of the other node, which passes them on. */
static double transfer_ns(const nodes_plan *p, uint64_t from, uint64_t to)
{
    const uint64_t bytes = 8192 * sizeof(float), far = to & ((from & 0xf) ? 0xf0 : 0xf);
    const int sender = __builtin_ctzll(from), first = far ? __builtin_ctzll(far) : -1;
    const double crossing = far ? tsr_links_copy_ns(p->links, sender, first, bytes) : 0;
    double ns = crossing;
    for (int d = 0; d < 8; d++)
        if (to >> d & 1)
            ns = fmax(ns, far >> d & 1 ? crossing + tsr_links_copy_ns(p->links, first, d, bytes)
                                       : tsr_links_copy_ns(p->links, sender, d, bytes));
    return ns;
}

/* Every stage is on one node, both nodes are used, and activations cross the network once. */
static void check_stages(const nodes_plan *p)
{
    tsr_plan_stage stage, before = {0};
    uint64_t used = 0;
    int n_crossings = 0;
    double ns = 0;
    for (int i = 0; tsr_plan_stage_at(p->plan, i, &stage); i++) {
        assert_true((stage.devices & 0xf) == 0 || (stage.devices & 0xf0) == 0);
        if (i > 0) {
            n_crossings += (stage.devices > 0xf) != (before.devices > 0xf);
            ns += transfer_ns(p, before.devices, stage.devices);
        }
        used |= stage.devices;
        before = stage;
    }
    assert_true((used & 0xf) && (used & 0xf0));
    assert_int_equal(n_crossings, 1);
    assert_true(fabs(p->times.decode.transfer_ns / ns - 1) < 1e-6);
}

/* Over a fast network all GPUs divide every layer; over a slow one no group of GPUs is on both nodes. */
static void a_slow_network_is_crossed_between_layers(void **state)
{
    const fixture *f = *state;
    tsr_plan_device device;
    nodes_plan fast = plan_nodes(f, "8x ib 400Gb/s", TSR_SPLIT_MODE_AUTO);
    nodes_plan slow = plan_nodes(f, "ethernet 10Gb/s", TSR_SPLIT_MODE_AUTO);
    nodes_plan slower = plan_nodes(f, "ethernet 1Gb/s", TSR_SPLIT_MODE_AUTO);
    nodes_plan tensor = plan_nodes(f, "ethernet 10Gb/s", TSR_SPLIT_MODE_TENSOR);
    assert_int_equal(fast.info.mode, TSR_SPLIT_MODE_TENSOR);
    assert_int_equal(fast.info.n_devices, 8);
    assert_int_equal(slow.info.mode, TSR_SPLIT_MODE_AUTO);
    check_stages(&slow);
    check_stages(&slower);
    assert_true(fast.times.workload_ns < slow.times.workload_ns);
    assert_true(slow.times.workload_ns < slower.times.workload_ns);
    assert_true(slow.times.workload_ns < tensor.times.workload_ns);
    runner_ok(tsr_plan_get_device(slow.plan, 4, &device), "device 4");
    assert_string_equal(device.name, "cuda0@1");
    free_plan(&fast);
    free_plan(&slow);
    free_plan(&slower);
    free_plan(&tensor);
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
