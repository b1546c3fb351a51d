/* The environment of a benchmark: the facts needed to judge or repeat it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tsr/version.h>

#include "bench/bench.h"
#include "bench/build_id.h"
#include "text.h"

static void describe_machine(const bench *b, bench_environment *e)
{
    const tsr_topology *topo = b->machine.topo;
    const char *cpu = topo->n_packages ? topo->packages[0].cpu_model : "";
    char processes[48] = "";
    if (tool_processes_count(&b->processes) > 1)
        snprintf(processes, sizeof processes, "%d processes, the first on ",
                 tool_processes_count(&b->processes));
    tool_text_print(e->machine, sizeof e->machine, "%s%d package%s, %d NUMA node%s, %d core%s, %d CPU%s%s%s",
                    processes, topo->n_packages, topo->n_packages == 1 ? "" : "s", topo->n_numa_nodes,
                    topo->n_numa_nodes == 1 ? "" : "s", topo->n_cores, topo->n_cores == 1 ? "" : "s",
                    topo->n_pus, topo->n_pus == 1 ? "" : "s", *cpu ? ", " : "", cpu);
    if (topo->n_gpus)
        tool_text_print(e->driver, sizeof e->driver, "driver %s, CUDA %d.%d",
                        *topo->driver_version ? topo->driver_version : "unknown", topo->cuda_version / 1000,
                        topo->cuda_version % 1000 / 10);
    e->n_cpus = topo->n_pus;
    if (getloadavg(&e->load_average, 1) != 1)
        e->load_average = -1;
}

static bool is_pinned(const tsr_device_desc *desc)
{
    for (int t = 0; t < desc->n_threads; t++)
        if (desc->thread_pus[t] < 0)
            return false;
    return desc->n_threads > 0;
}

static void describe_host_device(const tsr_device_desc *desc, const tsr_device_info *info, bench_device *to)
{
    char duty[48] = "";
    if (desc->duty_percent < 100) /* the report must show that a device is throttled */
        snprintf(duty, sizeof duty, ", throttled to %d %% of the time", desc->duty_percent);
    snprintf(to->what, sizeof to->what, "%d thread%s, %s kernels%s%s", info->n_threads,
             info->n_threads == 1 ? "" : "s", info->isa, is_pinned(desc) ? ", pinned" : "", duty);
}

/* A process describes its own. */
static tsr_status describe_devices(const bench *b, bench_report *report)
{
    const int first = bench_first_device(b->engine.rt, &b->processes);
    report->n_devices = b->machine.list->n_devices;
    for (int d = 0; d < b->machine.own->n_devices; d++) {
        const tsr_device_desc *desc = &b->machine.own->devices[d];
        bench_device *to = &report->devices[first + d];
        tsr_device_info info = {0};
        snprintf(to->name, sizeof to->name, "%s", b->machine.list->devices[first + d].name);
        snprintf(to->kind, sizeof to->kind, "%s", tsr_device_kind_name(desc->kind));
        if (desc->gpu >= 0)
            tool_text_print(to->what, sizeof to->what, "%s", b->machine.topo->gpus[desc->gpu].name);
        else if (tsr_runtime_device(b->engine.rt, first + d, &info) == TSR_OK)
            describe_host_device(desc, &info, to);
    }
    return bench_share_devices(&b->engine, report->devices, sizeof *report->devices) ? TSR_OK
                                                                                     : TSR_ERR_DEVICE_LOST;
}

static void describe_collectives(const bench *b, bench_environment *e)
{
    tsr_collectives_row rows[TSR_COLLECTIVES_MAX_ROWS];
    int n = tsr_runtime_collectives(b->engine.rt, rows), used = 0;
    const bool several = tool_processes_count(&b->processes) > 1;
    snprintf(e->collectives, sizeof e->collectives, "%s",
             several                          ? "MPI"
             : b->machine.list->n_devices > 1 ? "shared memory"
                                              : "none");
    for (int r = 0; r < n && used < (int)sizeof e->collectives; r++)
        if (r == 0 || strcmp(rows[r].implementation, rows[r - 1].implementation) != 0)
            used += snprintf(e->collectives + used, sizeof e->collectives - (size_t)used, "%s%s",
                             r ? ", " : "", rows[r].implementation);
}

/* The type of most weights; "Q4_K 81 %" if there are others. */
static void describe_types(const tsr_gguf *gguf, bench_environment *e)
{
    uint64_t bytes[64] = {0}, all = 0;
    int most = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(gguf, i);
        if ((unsigned)t->type < 64 && t->n_dims > 1) {
            bytes[t->type] += t->bytes;
            all += t->bytes;
        }
    }
    for (int type = 0; type < 64; type++)
        most = bytes[type] > bytes[most] ? type : most;
    const char *name = tsr_type_name((tsr_type)most);
    if (bytes[most] == all)
        snprintf(e->weight_type, sizeof e->weight_type, "%s", name);
    else
        snprintf(e->weight_type, sizeof e->weight_type, "%s %.0f %%", name,
                 100.0 * (double)bytes[most] / (double)all);
}

static void describe_model(const bench *b, bench_environment *e)
{
    tsr_gguf_string name;
    const tsr_model_config *config = &b->engine.config;
    tool_text_print(e->model_path, sizeof e->model_path, "%s", b->engine.path);
    if (tsr_gguf_get_string(b->engine.gguf, "general.architecture", &name) == TSR_OK)
        tool_text_copy(e->architecture, sizeof e->architecture, name.data, name.bytes);
    if (tsr_gguf_get_string(b->engine.gguf, "general.name", &name) == TSR_OK)
        tool_text_copy(e->model_name, sizeof e->model_name, name.data, name.bytes);
    for (int64_t i = 0; i < tsr_gguf_n_tensors(b->engine.gguf); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(b->engine.gguf, i);
        e->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        e->weight_bytes += t->bytes;
    }
    uint64_t layers = 0;
    char key[64];
    snprintf(key, sizeof key, "%s.block_count", e->architecture);
    if (tsr_gguf_get_u64(b->engine.gguf, key, &layers) == TSR_OK)
        e->n_layers = (int64_t)layers;
    describe_types(b->engine.gguf, e);
    e->n_ctx = config->session.n_ctx;
    e->n_batch = config->session.n_batch;
    snprintf(e->type_k, sizeof e->type_k, "%s", tsr_type_name(config->session.type_k));
    snprintf(e->type_v, sizeof e->type_v, "%s", tsr_type_name(config->session.type_v));
    snprintf(e->reduction, sizeof e->reduction, "%s",
             b->options->model.reduction ? b->options->model.reduction : "exact");
    e->activation_bits = config->compute.activation_bits;
    snprintf(e->mode, sizeof e->mode, "%s", tsr_split_mode_name(config->split.mode));
}

tsr_status bench_describe_environment(bench *b)
{
    bench_environment *e = &b->report.environment;
    time_t now = time(NULL);
    struct tm utc;
    snprintf(e->version, sizeof e->version, "%s", TSR_VERSION_STRING);
    bench_build_id(e->build, sizeof e->build);
    if (gmtime_r(&now, &utc))
        strftime(e->date, sizeof e->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    describe_machine(b, e);
    tsr_status status = describe_devices(b, &b->report);
    describe_collectives(b, e);
    describe_model(b, e);
    if (e->load_average > 0.25 * e->n_cpus)
        bench_report_note(&b->report, "the machine was busy: load average %.2f on %d CPUs before the start",
                          e->load_average, e->n_cpus);
    return status;
}
