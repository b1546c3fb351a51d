/* Measuring what host devices exchange (tsr_runtime_measure_links), and plans that count with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/rates.h>

#include "core/status.h"
#include "support/failing_alloc.h"
#include "support/links_check.h"
#include "support/runner.h"
#include "support/thread_transport.h"

static void every_pair_and_the_whole_set_are_measured(void **state)
{
    (void)state;
    links_check_measured("host:1");
    links_check_measured("host:2,threads=1");
    links_check_measured("host:1,threads=2,host:2,threads=1");
}

static double pair_ns[2]; /* an all-reduce of process 1's devices, as each process knows it */

static void measure_pair(process *self)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_topology *topo = NULL;
    tsr_device_list *list = NULL;
    tsr_links *links = NULL;
    tsr_runtime *rt = NULL;
    tsr_all_reduce_cost cost;
    tsr_status status = TSR_OK;
    config.devices = self->rank == 0 ? "host:1,threads=1" : "host:2,threads=1";
    config.transport = &self->transport;
    TSR_TRY(tsr_topology_discover(NULL, &topo));
    TSR_TRY(tsr_device_list_create(topo, "host:3,threads=1", NULL, &list));
    TSR_TRY(tsr_links_create(topo, list, &links));
    TSR_TRY(tsr_runtime_open(&config, &rt));
    TSR_TRY(tsr_runtime_measure_links(rt, links));
    tsr_links_all_reduce(links, 0x6, 4096, &cost);
    pair_ns[self->rank] = cost.ns;
out:
    process_note(self, status);
    tsr_runtime_close(rt);
    tsr_links_destroy(links);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
}

/* What is between two devices of one process is timed there: elsewhere nothing runs, which takes 3 ns. */
static void the_process_with_the_devices_times_them(void **state)
{
    (void)state;
    process processes[2];
    processes_run(2, measure_pair, NULL, NULL, processes);
    for (int r = 0; r < 2; r++)
        if (processes[r].status != TSR_OK || pair_ns[r] < 40)
            fail_msg("process %d: %.0f ns; %s", r, pair_ns[r], processes[r].text);
    assert_true(pair_ns[0] == pair_ns[1]);
}

typedef struct pair {
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_links *links;
    tsr_runtime *rt;
} pair;

static void open_pair(pair *p)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    config.devices = "host:2,threads=1";
    runner_ok(tsr_topology_discover(NULL, &p->topo), "topology");
    runner_ok(tsr_device_list_create(p->topo, config.devices, NULL, &p->list), "devices");
    runner_ok(tsr_links_create(p->topo, p->list, &p->links), "links");
    runner_ok(tsr_runtime_open(&config, &p->rt), "runtime");
}

static void close_pair(pair *p)
{
    tsr_runtime_close(p->rt);
    tsr_links_destroy(p->links);
    tsr_device_list_destroy(p->list);
    tsr_topology_destroy(p->topo);
}

static void links_of_other_devices_are_refused(void **state)
{
    (void)state;
    pair p;
    tsr_device_list *three;
    tsr_links *links;
    open_pair(&p);
    runner_ok(tsr_device_list_create(p.topo, "host:3", NULL, &three), "devices");
    runner_ok(tsr_links_create(p.topo, three, &links), "links");
    assert_int_equal(tsr_runtime_measure_links(p.rt, links), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "3"));
    tsr_links_destroy(links);
    tsr_device_list_destroy(three);
    close_pair(&p);
}

static void links_are_not_measured_without_a_device(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    runner_ok(tsr_runtime_drop_device(p.rt, 1), "drop");
    assert_int_equal(tsr_runtime_measure_links(p.rt, p.links), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "after device host1 was dropped; open the runtime anew"));
    close_pair(&p);
}

static void a_failing_allocation_leaves_the_links_as_they_were(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    for (int n = 1;; n += 1 + n / 4) { /* a whole measurement takes its time */
        int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        failing_alloc_set(n);
        tsr_status status = tsr_runtime_measure_links(p.rt, p.links);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live_maps(), maps);
        if (!fired) {
            runner_ok(status, "measuring");
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(tsr_links_n_measured(p.links), 0);
    }
    assert_true(tsr_links_n_measured(p.links) > 0);
    close_pair(&p);
}

/* What was measured of these devices takes the place of the rates' own figure for an exchange. */
static void plans_count_with_measured_links(void **state)
{
    (void)state;
    static const char path[] = "examples/models/glossary-7m-Q8_0.gguf";
    tsr_model_config config = tsr_model_config_default();
    tsr_device_rates rates[2];
    const float split[] = {1, 1};
    const double ns[] = {50000, 70000};
    tsr_plan_times times;
    tsr_gguf *gguf;
    pair p;
    open_pair(&p);
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    tsr_device_rates_guess(p.list->devices, 2, rates);
    config.plan.rates = rates;
    config.plan.links = p.links;
    config.split.tensor_split = split;
    config.split.n_tensor_split = 2;
    for (int i = 0; i < 2; i++) {
        tsr_plan *plan;
        const tsr_links_value value = {.from = -1, .devices = 3, .bytes = 4096, .ns = ns[i]};
        runner_ok(tsr_links_set_measured(p.links, &value), "measured");
        rates[0].measured = rates[1].measured = i;
        runner_ok(tsr_plan_create(gguf, p.list, &config, &plan), "plan");
        tsr_plan_predict(plan, &times);
        assert_true(times.decode.sync_ns[0] == ns[i]); /* 256 wide: 2 KiB */
        tsr_plan_destroy(plan);
    }
    tsr_gguf_close(gguf);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_and_the_whole_set_are_measured),
        cmocka_unit_test(the_process_with_the_devices_times_them),
        cmocka_unit_test(links_of_other_devices_are_refused),
        cmocka_unit_test(links_are_not_measured_without_a_device),
        cmocka_unit_test(a_failing_allocation_leaves_the_links_as_they_were),
        cmocka_unit_test(plans_count_with_measured_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
