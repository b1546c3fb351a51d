/* Opening a runtime: the one file that creates and connects all kinds of devices. */
#include <tsr/runtime.h>

#include <stdio.h>
#include <string.h>

#include "core/config.h"
#include "core/event.h"
#include "core/mem.h"
#include "core/runtime.h"
#ifdef TSR_WITH_CUDA
#include "cuda/device/device.h"
#endif
#include "host/cpu.h"
#include "host/device.h"
#include "runtime/collectives.h"
#include "runtime/distributed.h"
#include "runtime/isa.h"
#include "runtime/device_props.h"
#include "runtime/memory.h"
#include "runtime/trace.h"
#include "topo/pin.h"
#include "topo/topo.h"

/* Threads of host devices. */
static int count_threads(const tsr_device_list *list)
{
    int n = 0;
    for (int d = 0; d < list->n_devices; d++)
        n += list->devices[d].n_threads;
    return n;
}

/* Device `i` of the list, whose index in the runtime is `index`. */
static tsr_status open_host_device(tsr_runtime *rt, const tsr_runtime_config *config,
                                   const tsr_device_list *list, int i, int index, bool pinned)
{
    tsr_device_desc *desc = &list->devices[i];
    uint64_t cap = desc->mem_cap_bytes ? desc->mem_cap_bytes : desc->memory_total_bytes;
    const char *isa = *desc->isa ? desc->isa : config->isa;
    char name[sizeof desc->name];
    tsr_distributed_name(rt, desc->name, name, sizeof name);
    if (!isa) {
        tsr_status status = tsr_isa_from_environment(&isa);
        if (status != TSR_OK)
            return tsr_fail_in(status, "device %s", desc->name);
        if (isa)
            tsr_log(&rt->logger, TSR_LOG_INFO, "device %s: %s kernels, from the environment variable TSR_ISA",
                    desc->name, isa);
    }
    tsr_host_device_config host = {.name = name,
                                   .index = index,
                                   .n_threads = desc->n_threads,
                                   .total_threads = count_threads(list),
                                   .memory_cap = cap > SIZE_MAX ? 0 : (size_t)cap,
                                   .numa_node = desc->numa_node,
                                   .duty_percent = desc->duty_percent,
                                   .isa = isa,
                                   .pin = pinned ? tsr_topo_pin_team_thread : NULL,
                                   .pin_user = desc,
                                   .watch = rt->watch,
                                   .logger = &rt->logger};
    return tsr_host_device_create(&host, &rt->devices[index]);
}

#ifdef TSR_WITH_CUDA
/* A new CUDA device shares state with the first one. */
static tsr_device *first_cuda_device(const tsr_runtime *rt)
{
    for (int d = 0; d < rt->n_devices; d++)
        if (rt->devices[d] && rt->devices[d]->ops->kind == TSR_DEVICE_CUDA)
            return rt->devices[d];
    return NULL;
}

/* How often the host thread of a GPU, and the caller that waits for it, poll before they sleep: for longer
 * than a barrier of devices in the middle of a program and than the caller's work between two tokens.
 * Sleeping and waking takes 20 to 100 us each time. An idle device's thread sleeps after POLL_NS. Polling
 * needs a processor for each host thread, for each thread of a host device, and for the caller; otherwise the
 * awaited thread could not run. */
static int cuda_polls(const tsr_device_list *list)
{
    enum { POLL_NS = 200000, CALLER = 1 };
    int n = count_threads(list) + CALLER;
    for (int d = 0; d < list->n_devices; d++)
        n += list->devices[d].kind == TSR_DEVICE_CUDA;
    return n <= tsr_cpu_allowed() ? tsr_event_polls(POLL_NS) : 0;
}

static tsr_status open_cuda_device(tsr_runtime *rt, const tsr_runtime_config *config,
                                   const tsr_topology *topo, const tsr_device_list *list, int i, int index,
                                   bool pinned)
{
    tsr_device_desc *desc = &list->devices[i];
    const tsr_gpu *gpu = &topo->gpus[desc->gpu];
    tsr_device_props planned;
    char name[sizeof desc->name];
    tsr_distributed_name(rt, desc->name, name, sizeof name);
    tsr_device_props_of_desc(desc, &planned);
    tsr_cuda_device_config cuda = {.name = name,
                                   .index = index,
                                   .ordinal = gpu->ordinal,
                                   .memory_cap = planned.memory_cap,
                                   .always_wrap = desc->wrap,
                                   .managed = desc->managed,
                                   .polls = cuda_polls(list),
                                   .link_bytes_per_s = gpu->pcie_bytes_per_s,
                                   .library_tokens = config->library_tokens,
                                   .sibling = first_cuda_device(rt),
                                   .pin = pinned && desc->n_pus > 0 ? tsr_topo_pin_team_thread : NULL,
                                   .pin_user = desc,
                                   .watch = rt->watch,
                                   .logger = &rt->logger};
    if (!topo->is_this_machine)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "device %s: '%s' is a description; its GPUs can be planned for, "
                        "not opened",
                        desc->name, topo->source);
    if (rt->processes && desc->wrap)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "device %s: 'wrap=1' reads weights in place where the driver can do so, which other processes "
            "cannot foresee; leave it out",
            name);
    char cpus[64];
    tsr_topo_format_list(desc->pus, desc->n_pus, cpus, sizeof cpus);
    tsr_log(&rt->logger, TSR_LOG_DEBUG, "device %s: host thread on %s%s", desc->name,
            cuda.pin ? "CPU " : "any CPU; its near CPUs are unknown", cuda.pin ? cpus : "");
    tsr_status status = tsr_cuda_device_create(&cuda, &rt->devices[index]);
    if (status == TSR_OK && rt->processes) /* as above */
        rt->devices[index]->prefers_copies = true;
    return status;
}
#else
static tsr_status open_cuda_device(tsr_runtime *rt, const tsr_runtime_config *config,
                                   const tsr_topology *topo, const tsr_device_list *list, int i, int index,
                                   bool pinned)
{
    (void)rt, (void)config, (void)topo, (void)index, (void)pinned;
    return tsr_fail(TSR_ERR_UNSUPPORTED, "device %s: this build has no CUDA; use host devices",
                    list->devices[i].name);
}
#endif

static tsr_status open_device(tsr_runtime *rt, const tsr_runtime_config *config, const tsr_topology *topo,
                              const tsr_device_list *list, int i, int index)
{
    const tsr_device_desc *desc = &list->devices[i];
    if (desc->kind != TSR_DEVICE_CUDA)
        return open_host_device(rt, config, list, i, index, topo->is_this_machine);
    return open_cuda_device(rt, config, topo, list, i, index, topo->is_this_machine);
}

static tsr_status open_devices(tsr_runtime *rt, const tsr_runtime_config *config, const tsr_topology *topo)
{
    tsr_status status = TSR_OK;
    tsr_device_list *list = NULL;
    tsr_distributed_counts counts;
    TSR_TRY(tsr_device_list_create(topo, config->devices, &rt->logger, &list));
    TSR_TRY(tsr_distributed_count(rt, list->n_devices, &counts));
    rt->n_devices = counts.n_all;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *rt->devices, "devices", &rt->devices));
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *rt->rates, "rates", &rt->rates));
    for (int i = 0; i < list->n_devices; i++)
        TSR_TRY(open_device(rt, config, topo, list, i, counts.first + i));
    tsr_device_rates_guess(list->devices, list->n_devices, rt->rates + counts.first);
    TSR_TRY(tsr_distributed_complete(rt, list->devices, &counts));
    TSR_TRY(tsr_distributed_link(rt, config->network, topo, list, &counts));
    snprintf(rt->collectives, sizeof rt->collectives, "%s", config->collectives ? config->collectives : "");
    TSR_TRY(tsr_runtime_connect(rt, config->collectives));
    tsr_runtime_note_free(rt);
out:
    tsr_device_list_destroy(list);
    return status;
}

/* The devices of the config's machine, or of this machine. */
static tsr_status open_on_machine(tsr_runtime *rt, const tsr_runtime_config *config)
{
    tsr_status status = TSR_OK;
    tsr_topology *found = NULL;
    if (!config->topology) {
        tsr_topology_config topo_config = tsr_topology_config_default();
        topo_config.logger = config->logger;
        TSR_TRY(tsr_topology_discover(&topo_config, &found));
    }
    TSR_TRY(open_devices(rt, config, config->topology ? config->topology : found));
out:
    tsr_topology_destroy(found);
    return status;
}

size_t tsr_runtime_config_init(tsr_runtime_config *config_out, size_t size)
{
    const tsr_runtime_config defaults = {0};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

/* A config that is newer than this library fails, and has a transport nevertheless. */
static tsr_status read_config(const tsr_runtime_config *config, tsr_runtime_config *own)
{
    const tsr_status status = tsr_config_read("tsr_runtime_config", config,
                                              offsetof(tsr_runtime_config, library_tokens), own, sizeof *own);
    if (status != TSR_OK && config->size > sizeof *own) {
        own->transport = config->transport;
        own->transport_timeout_ns = config->transport_timeout_ns;
    }
    return status;
}

static tsr_status begin(const tsr_runtime_config *config, tsr_runtime **rt_out, tsr_runtime **made_out)
{
    if (!rt_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_runtime_open: rt_out must not be NULL");
    tsr_status status = TSR_NEW(made_out, "a runtime");
    if (status != TSR_OK)
        return status;
    (*made_out)->logger = config->logger;
    return tsr_watch_create(config->stall_timeout_ns, &(*made_out)->watch);
}

tsr_status tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out)
{
    tsr_status status = TSR_OK;
    tsr_runtime_config own = tsr_runtime_config_default();
    tsr_processes *processes = NULL;
    tsr_runtime *rt = NULL;

    status = read_config(config, &own);
    if (status == TSR_OK)
        status = begin(&own, rt_out, &rt);
    if (own.transport) /* also after a failure, which the other processes do not know */
        status = tsr_processes_create(own.transport, own.transport_timeout_ns, rt ? rt->watch : NULL, status,
                                      &processes);
    TSR_TRY(status);
    rt->processes = processes;
    status = open_on_machine(rt, &own);
    TSR_TRY(tsr_processes_agree(rt->processes, status, "tsr_runtime_open"));
    *rt_out = rt;
    rt = NULL;
out:
    tsr_runtime_close(rt);
    return status;
}

void tsr_runtime_close(tsr_runtime *rt)
{
    if (!rt)
        return;
    if (tsr_processes_close(rt->processes) != TSR_OK)
        tsr_log(&rt->logger, TSR_LOG_WARN, "%s", tsr_last_error());
    if (rt->buffer_types_destroy)
        rt->buffer_types_destroy(rt->buffer_types);
    if (!tsr_watch_has_abandoned(rt->watch))
        tsr_comm_destroy(rt->comm);
    for (int d = 0; rt->devices && d < rt->n_devices; d++)
        if (rt->devices[d])
            tsr_device_trim(rt->devices[d]);
    tsr_runtime_report_leaks(rt);
    tsr_runtime_drop_trace(rt);
    for (int d = 0; rt->devices && d < rt->n_devices; d++)
        tsr_device_destroy(rt->devices[d]);
    if (tsr_watch_has_abandoned(rt->watch))
        return; /* an abandoned thread may still use the rest */
    tsr_processes_destroy(rt->processes);
    tsr_watch_destroy(rt->watch);
    tsr_links_destroy(rt->links);
    tsr_mem_free(rt->rates);
    tsr_mem_free(rt->devices);
    tsr_mem_free(rt);
}

int tsr_runtime_n_devices(const tsr_runtime *rt)
{
    return rt->n_devices;
}

tsr_status tsr_runtime_device(const tsr_runtime *rt, int device, tsr_device_info *info_out)
{
    if (device < 0 || device >= rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d does not exist; the runtime has %d", device,
                        rt->n_devices);
    tsr_device *d = rt->devices[device];
    tsr_device_info info = {.kind = tsr_device_kind_of(d),
                            .process = d->process,
                            .n_threads = d->n_threads,
                            .memory_cap = d->memory_cap,
                            .lost = tsr_device_is_lost(d),
                            .dropped = tsr_device_is_dropped(d),
                            .gone = tsr_processes_is_gone(rt->processes, d->process)};
    memcpy(info.name, d->name, sizeof info.name);
    memcpy(info.isa, d->isa, sizeof info.isa);
    memcpy(info.used, d->used, sizeof info.used);
    *info_out = info;
    return TSR_OK;
}
