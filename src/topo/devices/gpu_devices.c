/* Devices on GPUs: the GPU of an item of a --devices text, the memory of devices that share one, and the
 * processors near it, for its host thread. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <tsr/bytes.h>
#include <tsr/memory.h>

#include "core/gpu.h"
#include "core/mem.h"
#include "topo/devices/devices.h"
#include "topo/import/builder.h"
#include "topo/topo.h"

/* -- which GPU -- */

/* By PCI bus id without or with a function ("65:00"), or by the beginning of the UUID. */
static bool is_named(const tsr_gpu *gpu, const char *name)
{
    char text[64], bus_id[16];
    snprintf(text, sizeof text, "%s%s", name, strchr(name, '.') ? "" : ".0");
    if (tsr_bus_id_parse(text, bus_id))
        return strcmp(gpu->bus_id, bus_id) == 0;
    return strncasecmp(gpu->uuid, name, strlen(name)) == 0;
}

static bool is_asked_for(const tsr_gpu *gpu, const tsr_device_item *item)
{
    if (*item->gpu_name)
        return is_named(gpu, item->gpu_name);
    return item->gpu < 0 || gpu->ordinal == item->gpu;
}

static tsr_status fail_missing(const tsr_topology *topo, const tsr_machine *machine,
                               const tsr_device_item *item)
{
    int ordinals[TSR_MAX_GPUS];
    char list[64], name[48];
    for (int g = 0; g < machine->n_gpus; g++)
        ordinals[g] = topo->gpus[machine->first_gpu + g].ordinal;
    tsr_topo_format_list(ordinals, machine->n_gpus, list, sizeof list);
    snprintf(name, sizeof name, "%d", item->gpu);
    return tsr_fail(TSR_ERR_NOT_FOUND,
                    "devices: 'cuda:%s' does not exist; the machine has %d usable GPU%s: %s%s%s",
                    *item->gpu_name ? item->gpu_name : name, machine->n_gpus, tsr_plural(machine->n_gpus),
                    list, *topo->gpu_note ? "; left out: " : "", topo->gpu_note);
}

/* A description may lack the memory of a GPU; the driver of this machine always reports it. */
static tsr_status check_known(const tsr_topology *topo, const tsr_gpu *gpu)
{
    if (topo->is_this_machine || gpu->memory_bytes)
        return TSR_OK;
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "devices: the model and memory of GPU %d%s%s of '%s' are unknown; name its card, as in "
                    "`--card %d=rtx3090` or `--card all=a100` (tsr_topology_config.cards), or name devices "
                    "without it, as in `--devices host`",
                    gpu->ordinal, *gpu->bus_id ? " at " : "", gpu->bus_id, topo->source, gpu->ordinal);
}

/* An NVIDIA GPU on a bus, or a driver for one. Most machines have neither, and nothing is missing there. */
static bool has_unusable_gpu(const tsr_topology *topo)
{
    enum { NVIDIA = 0x10de, DISPLAY_CLASS = 0x03 };
    if (!topo->is_this_machine || topo->n_gpus > 0)
        return false;
    for (int i = 0; i < topo->n_pci; i++)
        if (topo->pci[i].vendor_id == NVIDIA && topo->pci[i].class_id >> 8 == DISPLAY_CLASS)
            return true;
    return topo->cuda_driver_version > 0;
}

void tsr_topo_warn_of_no_gpu(const tsr_topology *topo, const tsr_logger *logger)
{
    if (has_unusable_gpu(topo))
        tsr_log(logger, TSR_LOG_WARN, "no GPU is usable (%s); continuing with host devices", topo->gpu_note);
}

tsr_status tsr_topo_add_gpus(const tsr_device_item *item, tsr_topo_placement *p)
{
    const tsr_topology *topo = p->topo;
    const tsr_machine machine = tsr_topo_machine(topo, p->machine);
    int n_found = 0;
    if (machine.n_gpus == 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "devices: 'cuda': no GPU is usable on this machine%s%s; use host devices",
                        *topo->gpu_note ? ": " : "", topo->gpu_note);
    for (int g = machine.first_gpu; g < machine.first_gpu + machine.n_gpus; g++) {
        int at = p->n_devices + p->n_gpu_devices;
        if (!is_asked_for(&topo->gpus[g], item))
            continue;
        if (++n_found > 1 && *item->gpu_name)
            return tsr_fail(TSR_ERR_INVALID,
                            "devices: 'cuda:%s' matches several GPUs; write more of the UUID",
                            item->gpu_name);
        if (at == TSR_MAX_DEVICES)
            return tsr_fail(TSR_ERR_INVALID, "devices: more than %d devices; name fewer", TSR_MAX_DEVICES);
        tsr_status status = check_known(topo, &topo->gpus[g]);
        if (status != TSR_OK)
            return status;
        p->order[at].machine = p->machine;
        p->order[at].gpu = g;
        p->order[at].item = item;
        p->n_gpu_devices++;
    }
    return n_found > 0 ? TSR_OK : fail_missing(topo, &machine, item);
}

/* -- its memory -- */

/* Whether mem= includes memory outside the GPU. */
static bool may_exceed(const tsr_device_item *item)
{
    return item->managed || item->wrap;
}

/* Counts the devices on a GPU, those without mem= among them, and the bytes that the others request
 * together. */
static void count_sharers(const tsr_topo_placement *p, int gpu, int *n_out, int *n_open_out,
                          uint64_t *asked_out)
{
    *n_out = *n_open_out = 0;
    *asked_out = 0;
    for (int i = 0; i < p->n_devices + p->n_gpu_devices; i++) {
        if (p->order[i].gpu != gpu)
            continue;
        const tsr_device_item *item = p->order[i].item;
        uint64_t cap = may_exceed(item) ? 0 : item->mem_cap_bytes;
        *asked_out = *asked_out + cap < cap ? UINT64_MAX : *asked_out + cap;
        *n_open_out += item->mem_cap_bytes == 0;
        ++*n_out;
    }
}

static tsr_status check_memory(const tsr_topo_placement *p, int gpu)
{
    const tsr_gpu *g = &p->topo->gpus[gpu];
    char asked_text[TSR_BYTES_TEXT], has_text[TSR_BYTES_TEXT];
    int n, n_open;
    uint64_t asked;
    count_sharers(p, gpu, &n, &n_open, &asked);
    if (g->memory_bytes == 0 || asked < g->memory_bytes || (asked == g->memory_bytes && n_open == 0))
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID,
                    "devices: mem= asks for %s on GPU %d%s, which has %s%s; use a smaller mem=",
                    tsr_bytes_text(asked, asked_text), g->ordinal, n > 1 ? " altogether" : "",
                    tsr_bytes_text(g->memory_bytes, has_text),
                    n_open ? " and nothing is left for the other devices" : "");
}

/* Bytes of the GPU that a device can use. `asked` bytes are reserved by mem= (of others or its own), and
 * n_open devices share the rest. At least a byte, since 0 would mean unknown. */
static uint64_t usable_bytes(const tsr_gpu *gpu, const tsr_device_item *item, uint64_t asked, int n_open)
{
    uint64_t usable = tsr_gpu_usable_bytes(gpu);
    if (item->mem_cap_bytes)
        return may_exceed(item) ? item->mem_cap_bytes : TSR_MIN(item->mem_cap_bytes, TSR_MAX(usable, 1u));
    usable = (usable - TSR_MIN(asked, usable)) / (uint64_t)n_open;
    return TSR_MAX(usable, 1u);
}

/* -- its processors -- */

static bool in_ranges(const tsr_device_item *item, int cpu)
{
    for (int i = 0; i < item->n_cpu_ranges; i++)
        if (cpu >= item->cpus[i].first && cpu <= item->cpus[i].last)
            return true;
    return false;
}

static tsr_status check_cpus(const tsr_topology *topo, int machine, const tsr_device_item *item)
{
    const tsr_machine m = tsr_topo_machine(topo, machine);
    const int first = topo->cores[m.first_core].first_pu;
    const tsr_core *last = &topo->cores[m.first_core + m.n_cores - 1];
    const int end = last->first_pu + last->n_pus;
    for (int i = 0; i < item->n_cpu_ranges; i++) {
        for (int cpu = item->cpus[i].first; cpu <= item->cpus[i].last; cpu++) {
            int at = first;
            while (at < end && topo->pus[at].os_index != cpu)
                at++;
            if (at == end)
                return tsr_fail(
                    TSR_ERR_INVALID,
                    "devices: cpus= names CPU %d, which the machine does not have or this process "
                    "may not use; `tsr topo` lists them",
                    cpu);
        }
    }
    return TSR_OK;
}

tsr_status tsr_topo_check_gpus(const tsr_topo_placement *p)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < p->n_devices + p->n_gpu_devices; i++) {
        if (p->order[i].gpu < 0)
            continue;
        TSR_TRY(check_memory(p, p->order[i].gpu));
        TSR_TRY(check_cpus(p->topo, p->order[i].machine, p->order[i].item));
    }
out:
    return status;
}

size_t tsr_topo_gpu_numbers(const tsr_topo_placement *p)
{
    return (size_t)p->n_gpu_devices * (size_t)(p->topo->n_cores + p->topo->n_pus);
}

/* The cores near the GPU, or those of cpus=; of these cores, all hardware threads or the named ones. */
static void describe_processors(const tsr_topology *topo, const tsr_device_item *item, const tsr_gpu *gpu,
                                int **numbers, tsr_device_desc *desc)
{
    int *cores = *numbers, *pus = cores + topo->n_cores;
    const tsr_machine machine = tsr_topo_machine(topo, tsr_topo_machine_of_gpu(topo, desc->gpu));
    for (int c = machine.first_core; c < machine.first_core + machine.n_cores; c++) {
        const tsr_core *core = &topo->cores[c];
        int before = desc->n_pus;
        bool near = gpu->numa_node >= 0 && core->numa_node == gpu->numa_node;
        for (int i = 0; i < core->n_pus; i++) {
            int cpu = topo->pus[core->first_pu + i].os_index;
            if (item->n_cpu_ranges ? in_ranges(item, cpu) : near)
                pus[desc->n_pus++] = cpu;
        }
        if (desc->n_pus > before)
            cores[desc->n_cores++] = c;
    }
    desc->cores = cores;
    desc->pus = pus;
    *numbers = pus + topo->n_pus;
}

void tsr_topo_describe_gpu_device(const tsr_topo_placement *p, int at, int **numbers, tsr_device_desc *desc)
{
    int index = p->order[at].gpu, before = 0, n, n_open;
    const tsr_device_item *item = p->order[at].item;
    const tsr_gpu *gpu = &p->topo->gpus[index];
    uint64_t asked;
    char name[32];
    for (int i = 0; i < at; i++)
        before += p->order[i].gpu == index;
    if (before == 0)
        snprintf(name, sizeof name, "cuda%d", gpu->ordinal);
    else
        snprintf(name, sizeof name, "cuda%d.%d", gpu->ordinal, before);
    tsr_topo_name_device(p->topo, p->order[at].machine, name, desc);
    desc->kind = TSR_DEVICE_CUDA;
    desc->gpu = index;
    desc->numa_node = gpu->numa_node;
    desc->commit_bytes = gpu->commit_bytes ? gpu->commit_bytes : TSR_GPU_COMMIT_BYTES;
    desc->memory_total_bytes = gpu->memory_bytes;
    desc->memory_bytes_per_s = gpu->memory_bytes_per_s;
    desc->flops_per_s = gpu->tensor_flops;
    desc->sm_cycles_per_s = 1e3 * gpu->sm_clock_khz * gpu->n_sms;
    desc->link_bytes_per_s = gpu->pcie_bytes_per_s;
    desc->mem_cap_bytes = item->mem_cap_bytes;
    count_sharers(p, index, &n, &n_open, &asked);
    if (n > 1 && desc->mem_cap_bytes == 0)
        desc->mem_cap_bytes = (gpu->memory_bytes - TSR_MIN(asked, gpu->memory_bytes)) / (uint64_t)n_open;
    desc->memory_usable_bytes = gpu->memory_bytes ? usable_bytes(gpu, item, asked, n_open) : 0;
    desc->context_bytes = gpu->has_context ? 0 : tsr_gpu_context_bytes(gpu);
    desc->integrated = gpu->integrated;
    desc->managed = item->managed;
    desc->wrap = item->wrap;
    describe_processors(p->topo, item, gpu, numbers, desc);
}
