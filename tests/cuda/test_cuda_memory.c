/* Memory of CUDA devices on simulated machines: what peers may reach, growing without virtual memory, managed
 * memory, and caps. */
#include <stdlib.h>

#include <tsr/runtime.h>

#include "cuda/comm/peer.h"
#include "cuda/memory_run.h"
#include "runtime/device_props.h"

/* -- allocations and peers -- */

static void large_allocations_are_whole_granules_and_small_ones_are_not(void **state)
{
    (void)state;
    plain_machine(1);
    tsr_device *device = open_device(0, 0);
    size_t before = cudasim_used(0);
    uint64_t mapped = cudasim_calls_of("cuMemMap");
    void *large = alloc(device, 5 * GRANULE + 1), *small = alloc(device, 100);
    assert_int_equal(cudasim_calls_of("cuMemMap") - mapped, 1); /* however large */
    assert_int_equal(cudasim_used(0) - before, 6 * GRANULE + 512);
    assert_int_equal(device->used[TSR_MEMORY_COMM], 5 * GRANULE + 101);
    drop(device, large, 5 * GRANULE + 1);
    drop(device, small, 100);
    assert_int_equal(cudasim_used(0), before);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void let_peers(tsr_device *const *devices, int n)
{
    uint64_t reach[8];
    ok(tsr_cuda_peers_test(devices, n, NULL, reach));
    for (int d = 0; d < n; d++)
        assert_int_equal(reach[d] | (uint64_t)1 << d, ((uint64_t)1 << n) - 1);
}

/* Memory that one device allocates, before and after peers are let in, is read and written by the others'
 * kernels and copies. */
static void peers_reach_allocations_of_every_size_and_age(void **state)
{
    (void)state;
    static const int counts[] = {2, 3, 5, 8};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = counts[c];
        enum { SMALL = 100, LARGE = 3 * GRANULE / 4 };
        tsr_device *devices[8];
        float *old[8], *fresh[8], *small[8], value = 3;
        plain_machine(n);
        for (int d = 0; d < n; d++) {
            devices[d] = open_device(d, d);
            old[d] = alloc(devices[d], LARGE * 4);
        }
        let_peers(devices, n);
        for (int d = 0; d < n; d++) {
            fresh[d] = alloc(devices[d], LARGE * 4);
            small[d] = alloc(devices[d], SMALL * 4);
        }
        for (int d = 0; d < n; d++) {
            int e = (d + 1) % n;
            float there[3] = {0};
            ok(tsr_device_upload(devices[d], old[d] + LARGE - 1, &value, 4));
            ok(tsr_device_download(devices[d], &value, old[d] + LARGE - 1, 4));     /* it has arrived */
            ok(double_it(devices[e], old[d] + LARGE - 1, fresh[d] + LARGE - 1, 1)); /* all of it elsewhere */
            ok(double_it(devices[e], fresh[d] + LARGE - 1, small[d], 1));
            ok(tsr_device_copy(devices[e], fresh[e], small[d], 4));
            ok(tsr_device_download(devices[d], &there[0], fresh[d] + LARGE - 1, 4));
            ok(tsr_device_download(devices[d], &there[1], small[d], 4));
            ok(tsr_device_download(devices[e], &there[2], fresh[e], 4));
            assert_true(there[0] == 6 && there[1] == 12 && there[2] == 12);
        }
        for (int d = 0; d < n; d++) {
            drop(devices[d], old[d], LARGE * 4);
            drop(devices[d], fresh[d], LARGE * 4);
            drop(devices[d], small[d], SMALL * 4);
            tsr_device_destroy(devices[d]);
        }
        nothing_is_left();
    }
}

static void a_growing_region_is_its_devices_own(void **state)
{
    (void)state;
    plain_machine(2);
    tsr_device *devices[2] = {open_device(0, 0), open_device(1, 1)};
    float *base = NULL, *there = NULL;
    let_peers(devices, 2);
    there = alloc(devices[1], 4);
    ok(devices[0]->ops->reserve(devices[0], 4 * GRANULE, (void **)&base));
    ok(devices[0]->ops->commit(devices[0], base, 0, GRANULE));
    assert_int_equal(double_it(devices[1], base, there, 1), TSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(cudasim_violation(), "no access (cuMemSetAccess)"));
    cudasim_forget_violations();
    devices[0]->ops->release(devices[0], base, 4 * GRANULE);
    drop(devices[1], there, 4);
    tsr_device_destroy(devices[0]);
    tsr_device_destroy(devices[1]);
    assert_int_equal(cudasim_leaks(stderr), 0);
}

/* -- without virtual memory, and managed -- */

static void check_growth(tsr_device *device)
{
    size_t g = device->granularity;
    unsigned char *base = NULL, byte = 7, *page = malloc(g);
    ok(device->ops->reserve(device, 16 * g, (void **)&base));
    ok(device->ops->commit(device, base, 2 * g, 2 * g));
    ok(tsr_device_download(device, page, base + 3 * g, g));
    for (size_t i = 0; i < g; i++)
        assert_int_equal(page[i], 0);
    ok(tsr_device_upload(device, base + 2 * g, &byte, 1));
    ok(device->ops->commit(device, base, 0, 4 * g)); /* what was there keeps its bytes */
    ok(tsr_device_download(device, page, base + 2 * g, 1));
    assert_int_equal(page[0], 7);
    ok(device->ops->decommit(device, base, 2 * g, g));
    ok(device->ops->commit(device, base, 2 * g, g));
    ok(tsr_device_download(device, page, base + 2 * g, 1));
    assert_int_equal(page[0], 0);
    device->ops->release(device, base, 16 * g);
    free(page);
}

static void without_virtual_memory_everything_works_and_the_log_says_so(void **state)
{
    (void)state;
    log_lines log = {0};
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.no_vmm = true;
    cudasim_configure(&config);
    tsr_device *device = open_with(0, 0, (tsr_cuda_device_config){0}, &log);
    assert_non_null(strstr(log.text, "cuda0"));
    assert_non_null(strstr(log.text, "no virtual memory"));
    check_growth(device);
    float *x = alloc(device, MIB), value = 2;
    ok(tsr_device_upload(device, x, &value, 4));
    ok(double_it(device, x, x + 1, 1));
    drop(device, x, MIB);
    assert_int_equal(cudasim_calls_of("cuMemCreate"), 0);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void managed_memory_may_exceed_the_gpu_and_says_what_it_costs(void **state)
{
    (void)state;
    log_lines log = {0};
    cudasim_required("memory of a given size");
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.memory = 16 * MIB;
    cudasim_configure(&config);
    tsr_cuda_device_config managed = {.managed = true, .memory_cap = 64 * MIB};
    tsr_device *device = open_with(0, 0, managed, &log);
    assert_non_null(strstr(log.text, "crosses the bus"));
    assert_int_equal(device->memory_cap, 64 * MIB);
    size_t left, total;
    float *x = alloc(device, 40 * MIB), value = 5;
    ok(tsr_device_memory_info(device, &left, &total));
    assert_int_equal(left, 24 * MIB);
    assert_int_equal(total, 64 * MIB);
    ok(tsr_device_upload(device, x + 9 * MIB, &value, 4));
    ok(double_it(device, x + 9 * MIB, x, 1));
    ok(tsr_device_download(device, &value, x, 4));
    assert_true(value == 10);
    drop(device, x, 40 * MIB);
    check_growth(device);
    assert_int_equal(cudasim_calls_of("cuMemCreate"), 0);
    tsr_device_destroy(device);
    nothing_is_left();
}

static void a_cap_is_at_most_what_is_free(void **state)
{
    (void)state;
    log_lines log = {0};
    cudasim_required("memory of a given size");
    plain_machine(1);
    tsr_device *first = open_device(0, 0);
    void *taken = alloc(first, 40 * MIB);
    tsr_device *second = open_with(0, 1, (tsr_cuda_device_config){.memory_cap = 32 * MIB}, &log);
    assert_true(second->memory_cap <= 24 * MIB && second->memory_cap > 23 * MIB);
    assert_non_null(strstr(log.text, "cuda1"));
    assert_non_null(strstr(log.text, "free"));
    tsr_device_destroy(second);
    drop(first, taken, 40 * MIB);
    tsr_device_destroy(first);
    nothing_is_left();
}

/* What a plan from descriptions counts on is what the opened devices have, also where they share a GPU. */
static void a_plan_and_a_runtime_see_the_same_cap(void **state)
{
    (void)state;
    static const char text[] =
        "cuda:0,cuda:0,mem=20MiB,cuda:0,cuda:1,cuda:2,mem=30MiB,cuda:2,managed=1,mem=1GiB";
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    uint64_t on_first = 0;
    cudasim_required("memory of a given size");
    plain_machine(3);
    ok(tsr_topology_discover(NULL, &topo));
    ok(tsr_device_list_create(topo, text, NULL, &list));
    config.devices = text;
    config.topology = topo;
    config.collectives = "staged"; /* which takes no memory on devices */
    ok(tsr_runtime_open(&config, &rt));
    assert_int_equal(tsr_runtime_n_devices(rt), 6);
    for (int d = 0; d < 6; d++) {
        tsr_device_info info;
        tsr_device_props props;
        ok(tsr_runtime_device(rt, d, &info));
        tsr_device_props_of_desc(&list->devices[d], &props);
        assert_int_equal(info.memory_cap, props.memory_cap);
        on_first += d < 3 ? info.memory_cap : 0;
        if (d == 3) /* alone on its GPU: 64 MiB and a context's, less that and a 64th */
            assert_in_range(info.memory_cap, 62 * MIB, 63 * MIB);
    }
    assert_true(on_first <= 63 * MIB && on_first > 62 * MIB);
    tsr_runtime_close(rt);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_allocations_are_whole_granules_and_small_ones_are_not),
        cmocka_unit_test(peers_reach_allocations_of_every_size_and_age),
        cmocka_unit_test(a_growing_region_is_its_devices_own),
        cmocka_unit_test(without_virtual_memory_everything_works_and_the_log_says_so),
        cmocka_unit_test(managed_memory_may_exceed_the_gpu_and_says_what_it_costs),
        cmocka_unit_test(a_cap_is_at_most_what_is_free),
        cmocka_unit_test(a_plan_and_a_runtime_see_the_same_cap),
    };
    return cmocka_run_group_tests_name("the memory of CUDA devices", tests, NULL, NULL);
}
