/* Several processes that measure together (--mpi). Each makes the same calls on the runtime, so what decides
 * about the next call must be the same in each: times, Ctrl-C, and the descriptions of all devices, by which
 * splits are planned. Times are those of the first process; all end a step together. */
#include <stdlib.h>

#include "bench/bench.h"
#include "interrupt.h"
#include "machine_options.h"
#include "tsr.h"

static int process_of(const tsr_runtime *rt, int device)
{
    tsr_device_info info = {.process = 0};
    (void)!tsr_runtime_device(rt, device, &info); /* cannot fail: the device exists */
    return info.process;
}

int bench_first_device(const tsr_runtime *rt, const tool_processes *processes)
{
    int first = 0;
    while (process_of(rt, first) < tool_processes_rank(processes))
        first++;
    return first;
}

bool bench_share_devices(const bench_engine *engine, void *items, size_t bytes)
{
    bool good = true;
    for (int d = 0; d < tsr_runtime_n_devices(engine->rt) && good; d++)
        good = tool_processes_share(engine->processes, process_of(engine->rt, d),
                                    (char *)items + (size_t)d * bytes, bytes);
    return good;
}

bool bench_share_interrupt(const tool_processes *processes)
{
    int32_t wanted = tool_interrupt_wanted;
    if (!tool_processes_share(processes, 0, &wanted, sizeof wanted))
        return false;
    if (wanted)
        tool_interrupted = 1;
    return true;
}

tsr_status bench_share_times(bench_engine *engine, double *seconds)
{
    const bool good = tool_processes_share(engine->processes, 0, seconds, sizeof *seconds) &&
                      tool_processes_share(engine->processes, 0, &engine->finish_s, sizeof engine->finish_s);
    return good && bench_share_interrupt(engine->processes) ? TSR_OK : TSR_ERR_DEVICE_LOST;
}

/* As the runtime has it, which knows what NCCL takes. Cores are numbers of the device's own machine. */
static tsr_device_desc describe(const tsr_device_desc *own, const tsr_device_info *info)
{
    tsr_device_desc desc = *own;
    snprintf(desc.name, sizeof desc.name, "%s", info->name);
    desc.cores = desc.pus = desc.thread_pus = NULL;
    desc.n_cores = desc.n_pus = 0;
    desc.numa_node = -1;
    if (info->memory_cap != SIZE_MAX && desc.kind == TSR_DEVICE_CUDA)
        desc.memory_usable_bytes = info->memory_cap;
    else if (info->memory_cap != SIZE_MAX)
        desc.mem_cap_bytes = info->memory_cap;
    return desc;
}

static tsr_status list_together(tsr_runtime *rt, const tool_processes *processes, const tsr_device_list *own,
                                tsr_device_list *list_out)
{
    const int n = tsr_runtime_n_devices(rt), first = bench_first_device(rt, processes);
    const bench_engine engine = {.rt = rt, .processes = processes};
    list_out->devices = calloc((size_t)n, sizeof *list_out->devices);
    if (!list_out->devices) {
        fprintf(stderr, "tsr bench: out of memory for devices\n");
        return TSR_ERR_MEMORY;
    }
    list_out->n_devices = n;
    for (int d = 0; d < own->n_devices; d++) {
        tsr_device_info info;
        tsr_status status = tsr_runtime_device(rt, first + d, &info);
        if (status != TSR_OK)
            return status;
        list_out->devices[first + d] = describe(&own->devices[d], &info);
    }
    return bench_share_devices(&engine, list_out->devices, sizeof *list_out->devices) ? TSR_OK
                                                                                      : TSR_ERR_DEVICE_LOST;
}

int bench_machine_find(const char *command, bool verbose, bench_machine *machine_out)
{
    const tool_machine_options here = {0};
    const tsr_logger logger = tool_logger(verbose);
    *machine_out = (bench_machine){0};
    const tsr_status status = tool_machine_topology(&here, &logger, &machine_out->topo);
    return status == TSR_OK ? TOOL_GO_ON : tool_fail(command, status);
}

tsr_status bench_machine_list(bench_machine *machine, tsr_runtime *rt, const tool_processes *processes,
                              const char *devices)
{
    const tsr_status status = tsr_device_list_create(machine->topo, devices, NULL, &machine->own);
    machine->list = processes->transport ? &machine->together : machine->own;
    if (status != TSR_OK || !processes->transport)
        return status;
    return list_together(rt, processes, machine->own, &machine->together);
}

void bench_machine_free(bench_machine *machine)
{
    free(machine->together.devices);
    tsr_device_list_destroy(machine->own);
    tsr_topology_destroy(machine->topo);
    *machine = (bench_machine){0};
}
