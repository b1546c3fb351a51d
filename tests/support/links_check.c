/* See links_check.h. */
#include "support/links_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <tsr/rates.h>

#include "support/runner.h"

static void check_pair(const tsr_links *links, int from, int to)
{
    tsr_all_reduce_cost cost;
    tsr_link there, back;
    runner_ok(tsr_links_pair(links, from, to, &there), "pair");
    runner_ok(tsr_links_pair(links, to, from, &back), "pair");
    assert_true(there.measured && there.latency_ns > 0 && there.bytes_per_s > 0);
    assert_true(there.bytes_per_s == back.bytes_per_s); /* measured together */
    tsr_links_all_reduce(links, UINT64_C(1) << from | UINT64_C(1) << to, 10000, &cost);
    assert_int_equal(cost.algorithm, TSR_ALL_REDUCE_MEASURED);
    assert_true(cost.ns > 0);
}

void links_check_measured(const char *devices)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *links;
    tsr_runtime *rt;
    tsr_all_reduce_cost cost;
    config.devices = devices;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, devices, NULL, &list), devices);
    runner_ok(tsr_links_create(topo, list, &links), devices);
    runner_ok(tsr_runtime_open(&config, &rt), devices);
    runner_ok(tsr_runtime_measure_links(rt, links), devices);
    int n = list->n_devices;
    for (int from = 0; from < n; from++)
        for (int to = from + 1; to < n; to++)
            check_pair(links, from, to);
    tsr_links_all_reduce(links, (UINT64_C(1) << n) - 1, 10000, &cost);
    assert_int_equal(cost.algorithm, n > 1 ? TSR_ALL_REDUCE_MEASURED : TSR_ALL_REDUCE_NONE);
    for (int d = 0; d < n; d++) {
        tsr_device_info info;
        runner_ok(tsr_runtime_device(rt, d, &info), "device");
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            assert_int_equal(info.used[o], 0);
    }
    tsr_runtime_close(rt);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}
