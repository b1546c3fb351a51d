/* GPUs as JSON; see json_gpus.h. */
#include "json_gpus.h"

#include "text.h"

static json_t *integer(uint64_t value)
{
    return value > 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *real(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *answer(tsr_tristate value)
{
    return value == TSR_UNKNOWN ? json_null() : json_boolean(value == TSR_YES);
}

static json_t *pcie_link(const tsr_pcie_link *link)
{
    return json_pack("{s:o, s:o}", "generation", integer((uint64_t)link->generation), "width",
                     integer((uint64_t)link->width));
}

static json_t *nvlink_ends(const tsr_gpu *gpu)
{
    static const char *const kinds[] = {"unknown", "gpu", "switch", "cpu"};
    json_t *array = json_array();
    for (int i = 0; i < gpu->n_nvlink_ends; i++) {
        const tsr_nvlink_end *end = &gpu->nvlink_ends[i];
        json_array_append_new(
            array, json_pack("{s:s, s:i, s:o, s:i, s:o, s:o}", "kind", kinds[end->kind], "gpu", end->gpu,
                             "bus_id", tool_text_json(end->bus_id), "n_links", end->n_links, "version",
                             integer((uint64_t)end->version), "bytes_per_s", real(end->bytes_per_s)));
    }
    return array;
}

static json_t *guessed(const tsr_gpu *gpu)
{
    static const struct {
        tsr_gpu_fact fact;
        const char *name;
    } facts[] = {{TSR_GPU_MEMORY, "memory"},
                 {TSR_GPU_BANDWIDTH, "bandwidth"},
                 {TSR_GPU_COMPUTE, "compute"},
                 {TSR_GPU_PCIE, "pcie"},
                 {TSR_GPU_NVLINK, "nvlink"}};
    json_t *array = json_array();
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (gpu->guessed & (unsigned)facts[i].fact)
            json_array_append_new(array, json_string(facts[i].name));
    return array;
}

/* In several calls, since one format string with all keys would be unreadable. */
static json_t *gpu_object(const tsr_gpu *gpu)
{
    json_t *object = json_pack("{s:i, s:o, s:o, s:o, s:i, s:b, s:b, s:b, s:o}", "ordinal", gpu->ordinal,
                               "name", tool_text_json(gpu->name), "uuid", tool_text_json(gpu->uuid), "bus_id",
                               tool_text_json(gpu->bus_id), "numa_node", gpu->numa_node, "is_mig",
                               gpu->is_mig, "integrated", gpu->integrated, "pageable_access",
                               gpu->pageable_access, "guessed", guessed(gpu));
    json_t *rates = json_pack(
        "{s:o, s:o, s:o, s:o, s:o}", "n_sms", integer((uint64_t)gpu->n_sms), "compute_capability",
        integer((uint64_t)gpu->compute_capability), "sm_clock_khz", integer((uint64_t)gpu->sm_clock_khz),
        "tensor_flops", real(gpu->tensor_flops), "power_limit_mw", integer((uint64_t)gpu->power_limit_mw));
    json_t *memory = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "memory_bytes", integer(gpu->memory_bytes), "memory_free_bytes",
        integer(gpu->memory_free_bytes), "commit_bytes", integer(gpu->commit_bytes), "memory_clock_khz",
        integer((uint64_t)gpu->memory_clock_khz), "memory_bus_bits", integer((uint64_t)gpu->memory_bus_bits),
        "memory_bytes_per_s", real(gpu->memory_bytes_per_s));
    json_t *links = json_pack("{s:o, s:o, s:o, s:o}", "pcie", pcie_link(&gpu->pcie), "pcie_max",
                              pcie_link(&gpu->pcie_max), "pcie_bytes_per_s", real(gpu->pcie_bytes_per_s),
                              "nvlink_ends", nvlink_ends(gpu));
    if (!object || json_object_update(object, rates) != 0 || json_object_update(object, memory) != 0 ||
        json_object_update(object, links) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(rates);
    json_decref(memory);
    json_decref(links);
    return object;
}

json_t *tool_json_gpus(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int i = 0; i < topo->n_gpus; i++)
        json_array_append_new(array, gpu_object(&topo->gpus[i]));
    return array;
}

json_t *tool_json_gpu_pairs(const tsr_topology *topo)
{
    json_t *array = json_array();
    for (int a = 0; a < topo->n_gpus; a++) {
        json_t *row = json_array();
        for (int b = 0; b < topo->n_gpus; b++) {
            const tsr_gpu_pair *pair = &topo->gpu_pairs[a][b];
            json_t *path =
                pair->path == TSR_GPU_PATH_UNKNOWN ? json_null() : json_string(tsr_gpu_path_name(pair->path));
            json_t *rank = pair->performance_rank < 0 ? json_null() : json_integer(pair->performance_rank);
            json_array_append_new(row, json_pack("{s:o, s:i, s:o, s:o, s:o, s:o}", "path", path, "n_nvlinks",
                                                 pair->n_nvlinks, "nvlink_bytes_per_s",
                                                 real(pair->nvlink_bytes_per_s), "peer_access",
                                                 answer(pair->peer_access), "native_atomics",
                                                 answer(pair->native_atomics), "performance_rank", rank));
        }
        json_array_append_new(array, row);
    }
    return array;
}
