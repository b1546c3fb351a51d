/* Measuring transfers and sums between devices: see tsr_runtime_measure_links(). All measurements use the
 * runtime's own communicator in programs of many consecutive collectives, like the steps of a model. So
 * the numbers contain the costs that a planner needs: the signal, and the copy or the sum, without the
 * start of a program.
 *
 * Each number is the least of a few medians. Other processes can only slow a collective down. */
#include <tsr/rates.h>

#include <string.h>

#include "comm/probe.h"
#include "core/mem.h"
#include "core/runtime.h"
#include "topo/links/links.h"

enum { N_SIZES = 5, GROWTH = 8, REPEATS = 3, OPS_SMALL = TSR_PROBE_MAX_OPS, OPS_LARGE = 4 };
static const uint64_t smallest_bytes = 4096, small_bytes = 65536, slow_ns = 10000000;
static const uint64_t timeout_ns = UINT64_C(60000000000); /* a busy or simulated machine is slow */

typedef struct bench {
    tsr_runtime *rt;
    tsr_links_value *values;
    int n;
} bench;

/* One size; *ns_out is the time of one operation. */
static tsr_status time_size(bench *b, tsr_op_kind kind, tsr_device_set devices, uint64_t bytes,
                            uint64_t *ns_out)
{
    tsr_status status = TSR_OK;
    tsr_probe *probe = NULL;
    uint64_t element = kind == TSR_OP_ALL_REDUCE ? sizeof(int64_t) : sizeof(float), best = UINT64_MAX, ns;
    const tsr_probe_config config = {.devices = b->rt->devices,
                                     .n_devices = b->rt->n_devices,
                                     .participants = devices,
                                     .kind = kind,
                                     .n = (int64_t)(bytes / element),
                                     .zeros = true,
                                     .timeout_ns = timeout_ns};
    TSR_TRY(tsr_probe_create(&config, &probe));
    for (int i = 0; i < REPEATS; i++) {
        TSR_TRY(tsr_probe_measure(probe, b->rt->comm, bytes <= small_bytes ? OPS_SMALL : OPS_LARGE,
                                  UINT64_MAX, &ns));
        best = TSR_MIN(best, ns);
    }
    /* The result decides what is measured next. Processes without one of the devices have timed nothing. */
    TSR_TRY(tsr_processes_share(b->rt->processes, b->rt->devices[tsr_device_set_first(devices)]->process,
                                TSR_OK, &best, sizeof best, sizeof best, 1, "timing a link"));
    *ns_out = TSR_MAX(best, 1);
out:
    tsr_probe_destroy(probe);
    return status;
}

static void add_value(bench *b, int from, tsr_device_set devices, uint64_t bytes, uint64_t ns)
{
    b->values[b->n++] = (tsr_links_value){.from = from, .devices = devices, .bytes = bytes, .ns = (double)ns};
}

static tsr_status time_all_reduces(bench *b, tsr_device_set devices)
{
    tsr_status status = TSR_OK;
    uint64_t bytes = smallest_bytes, ns = 0;
    for (int i = 0; i < N_SIZES && ns * GROWTH <= slow_ns; i++, bytes *= GROWTH) {
        TSR_TRY(time_size(b, TSR_OP_ALL_REDUCE, devices, bytes, &ns));
        add_value(b, -1, devices, bytes, ns);
    }
out:
    return status;
}

static tsr_status time_transfers(bench *b, int x, int y)
{
    tsr_status status = TSR_OK;
    uint64_t bytes = smallest_bytes, ns = 0;
    tsr_device_set one = tsr_device_set_one(x), other = tsr_device_set_one(y);
    for (int i = 0; i < N_SIZES && ns * GROWTH <= slow_ns; i++, bytes *= GROWTH) {
        TSR_TRY(time_size(b, TSR_OP_SEND, one | other, bytes, &ns));
        add_value(b, x, other, bytes, ns);
        add_value(b, y, one, bytes, ns);
    }
out:
    return status;
}

static tsr_status measure_links(tsr_runtime *rt, tsr_links *links)
{
    tsr_status status = TSR_OK;
    bench b = {.rt = rt};
    int n = rt->n_devices, n_pairs = n * (n - 1) / 2;
    tsr_device_set everyone = tsr_device_set_all(n);
    if (n != links->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "the links are between %d device%s, the runtime has %d",
                        links->n_devices, tsr_plural(links->n_devices), n);
    for (int d = 0; d < n; d++)
        if (tsr_device_is_dropped(rt->devices[d]))
            return tsr_fail(TSR_ERR_UNSUPPORTED,
                            "links are not measured after device %s was dropped; open the runtime anew",
                            rt->devices[d]->name);
    if (n < 2)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)(1 + 3 * n_pairs) * N_SIZES, sizeof *b.values, "measured values of links",
                          &b.values));
    for (int x = 0; x < n; x++)
        for (int y = x + 1; y < n; y++) {
            if (n > 2)
                TSR_TRY(time_all_reduces(&b, tsr_device_set_one(x) | tsr_device_set_one(y)));
            TSR_TRY(time_transfers(&b, x, y));
        }
    TSR_TRY(time_all_reduces(&b, everyone));
    TSR_TRY(tsr_links_reserve(links, b.n));
    for (int i = 0; i < b.n; i++)
        TSR_TRY(tsr_links_set_measured(links, &b.values[i]));
out:
    tsr_mem_free(b.values);
    return status;
}

tsr_status tsr_runtime_measure_links(tsr_runtime *rt, tsr_links *links)
{
    return tsr_processes_agree(rt->processes, measure_links(rt, links), "tsr_runtime_measure_links");
}
