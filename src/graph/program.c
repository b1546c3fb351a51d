/* Compiling a graph (lower, lay out, emit). */
#include "graph/program.h"

#include <string.h>

#include "core/config.h"
#include "core/mem.h"
#include "graph/emit/emit.h"
#include "graph/lower/lower.h"

/* -- collectives -- */

/* The participants of a collective: the devices of its instructions (SEND and RECV share one collective). */
static tsr_device_set participants_of(const tsr_lowered *low, int collective)
{
    tsr_device_set mask = 0;
    for (int i = 0; i < low->n_instrs; i++)
        if (low->instrs[i].collective == collective)
            mask |= low->instrs[i].devices;
    return mask;
}

/* The elements of a row of a sum that a norm of its rows reads, for all participants alike: what is next on
 * each of them may differ. 0: no norm. */
static int64_t normalised_row(const tsr_lowered *low, const tsr_instr *sum)
{
    for (int i = 0; i < low->n_instrs; i++)
        if (low->instrs[i].kind == TSR_OP_RMS_NORM && low->instrs[i].in[0] == sum->out)
            return low->values[sum->out].ne0;
    return 0;
}

static tsr_status create_collective(tsr_emitter *emitter, tsr_comm *comm, int i,
                                    tsr_collective **collective_out)
{
    const tsr_instr *instr = &emitter->low->instrs[i];
    const tsr_value *value = &emitter->low->values[instr->in[0]];
    int n_devices = emitter->layout->n_devices;
    void *partial[TSR_MAX_DEVICES] = {0};
    int64_t begin[TSR_MAX_DEVICES + 1] = {0};
    tsr_collective_desc desc = {.kind = instr->kind,
                                .participants = participants_of(emitter->low, instr->collective),
                                .contributors = value->contributors,
                                .reduce = emitter->reduce,
                                .n = value->ne0 * value->ne1,
                                .partial = partial,
                                .name = instr->name};
    if (desc.n == 0)
        return TSR_OK;
    TSR_FOR_DEVICES(d, instr->devices)
        partial[d] = instr->kind == TSR_OP_SEND ? tsr_emit_staging(emitter, i, d)
                                                : tsr_emit_address(emitter, instr->in[0], d);
    if (instr->kind == TSR_OP_ALL_REDUCE)
        desc.row = normalised_row(emitter->low, instr);
    if (instr->kind == TSR_OP_SEND)
        desc.contributors = instr->devices;
    if (instr->kind == TSR_OP_ALL_GATHER) {
        for (int d = 0; d <= n_devices; d++)
            begin[d] = tsr_shard_map_first(value->map, d);
        desc.begin = begin;
        desc.contributors = instr->devices;
        desc.n = value->ne0;
        desc.n_rows = value->ne1;
    }
    return comm->ops->collective_create(comm, &desc, collective_out);
}

static tsr_status create_collectives(tsr_program *program, tsr_emitter *emitter)
{
    tsr_status status = TSR_OK;
    const tsr_lowered *low = emitter->low;
    TSR_TRY(tsr_mem_array((size_t)low->n_collectives, sizeof(tsr_collective *), "collectives",
                          &program->collectives));
    program->n_collectives = low->n_collectives;
    emitter->collectives = program->collectives;
    for (int i = 0; i < low->n_instrs; i++)
        if (low->instrs[i].collective >= 0 && low->instrs[i].kind != TSR_OP_RECV &&
            low->instrs[i].kind != TSR_OP_JOIN)
            TSR_TRY(create_collective(emitter, program->rt->comm, i,
                                      &program->collectives[low->instrs[i].collective]));
out:
    return status;
}

/* -- compiling -- */

static tsr_reduce_type reduce_of(const tsr_program_config *config)
{
    return config ? tsr_reduce_type_of(config->reduction) : TSR_REDUCE_EXACT;
}

/* Lower, find lifetimes, pack. */
static tsr_status plan_graph(const tsr_graph *graph, const tsr_program_config *config, int n_lanes,
                             const tsr_layout *reserved, tsr_lowered *lowered, tsr_layout *layout)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_lower(graph, lowered));
    TSR_TRY(tsr_layout_create(graph->rt, lowered, reduce_of(config), n_lanes, layout));
    TSR_TRY(tsr_layout_pack(graph->rt, reserved, layout));
out:
    return status;
}

static tsr_program_info info_of(const tsr_lowered *low, int n_devices)
{
    return (tsr_program_info){.n_devices = n_devices,
                              .n_all_reduces = low->n_all_reduces,
                              .n_all_gathers = low->n_all_gathers,
                              .n_transfers = low->n_transfers};
}

tsr_status tsr_program_memory_create(const tsr_graph *graph, const tsr_graph *halves,
                                     const tsr_program_config *config, int n_lanes,
                                     tsr_program_memory **memory_out)
{
    tsr_status status = TSR_OK;
    tsr_lowered lowered = {0}, lowered_halves = {0};
    tsr_layout layout = {0}, layout_halves = {0};
    TSR_TRY(plan_graph(graph, config, n_lanes, NULL, &lowered, &layout));
    if (halves)
        TSR_TRY(plan_graph(halves, config, n_lanes, NULL, &lowered_halves, &layout_halves));
    TSR_TRY(tsr_program_memory_allocate(graph->rt, &layout, &layout_halves, memory_out));
    (*memory_out)->info = info_of(&lowered, graph->rt->n_devices);
out:
    tsr_layout_free(&layout);
    tsr_layout_free(&layout_halves);
    tsr_lowered_free(&lowered);
    tsr_lowered_free(&lowered_halves);
    return status;
}

/* A device's op list: the copy of its inputs, unless they are uploaded, and the ops of the graph. */
static tsr_status emit_device(tsr_program *program, const tsr_emitter *emitter, int d)
{
    tsr_status status = TSR_OK;
    tsr_op *ops = NULL;
    int n = 0, n_inputs = 0;
    tsr_device *device = program->rt->devices[d];
    TSR_TRY(tsr_mem_array((size_t)emitter->low->n_instrs + 1, sizeof *ops, "an op list", &ops));
    if (tsr_emit_inputs(emitter, d, &ops[0]))
        n_inputs = 1;
    for (int i = 0; i < emitter->low->n_instrs; i++)
        if (tsr_emit_op(emitter, i, d, &ops[n_inputs + n]))
            n++;
    program->device_infos[d] =
        (tsr_program_device_info){.n_ops = n,
                                  .arena_bytes = tsr_layout_arena_bytes(emitter->layout, d),
                                  .bound_bytes = tsr_layout_bound_bytes(emitter->layout, d),
                                  .comm_bytes = tsr_layout_comm_bytes(emitter->layout, d)};
    if (n > 0)
        TSR_TRY(device->ops->program_create(device, ops, n_inputs + n, &program->programs[d]));
out:
    tsr_mem_free(ops);
    return status;
}

/* Point the graph's inputs and outputs to their new addresses, for set and get. */
static void place_tensors(tsr_graph *graph, const tsr_emitter *emitter)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        tsr_tensor *node = &graph->nodes[i]->tensor;
        int index = emitter->low->value_of_node[i];
        node->placement = (tsr_placement){0};
        if (index < 0 || !(node->flags & (TSR_TENSOR_INPUT | TSR_TENSOR_OUTPUT)))
            continue;
        const tsr_value *value = &emitter->low->values[index];
        node->placement =
            (tsr_placement){.sharding = value->sharding, .devices = value->devices, .map = value->map};
        for (int d = 0; d < emitter->layout->n_devices; d++) {
            node->shards[d].data = tsr_emit_address(emitter, index, d);
            node->shards[d].row_stride = (size_t)tsr_value_cols(value, d) * 4;
            if (node->flags & TSR_TENSOR_INPUT)
                node->shards[d].pinned = tsr_emit_pinned(emitter, index, d);
        }
    }
}

/* The layout in a memory of programs like that of the graph; NULL: none. */
static const tsr_layout *reserved_for(const tsr_graph *graph, const tsr_program_memory *shared)
{
    const tsr_layout *layout = !shared ? NULL : graph->n_first > 0 ? &shared->halves : &shared->layout;
    return layout && layout->n_devices > 0 ? layout : NULL;
}

static const tsr_tracked_kind program_kind = {"program", NULL, NULL};

static tsr_status compile(tsr_graph *graph, const tsr_program_config *config, tsr_program_memory *shared,
                          int lane, tsr_program **program_out)
{
    tsr_status status = TSR_OK;
    tsr_lowered lowered = {0};
    tsr_layout layout = {0};
    tsr_program *program = NULL;
    size_t n_devices = (size_t)graph->rt->n_devices;

    TSR_TRY(plan_graph(graph, config, shared ? shared->layout.n_lanes : 1, reserved_for(graph, shared),
                       &lowered, &layout));
    TSR_TRY(TSR_NEW(&program, "a program"));
    program->rt = graph->rt;
    program->graph = graph;
    program->timeout_ns = config ? config->timeout_ns : 0;
    TSR_TRY(tsr_mem_array(n_devices, sizeof *program->device_infos, "a program", &program->device_infos));
    TSR_TRY(tsr_mem_array(n_devices, sizeof *program->programs, "a program", &program->programs));
    if (shared)
        TSR_TRY(tsr_program_memory_check(shared, &layout));
    else
        TSR_TRY(tsr_program_memory_allocate(graph->rt, &layout, &(tsr_layout){0}, &program->own_memory));
    tsr_program_memory *memory = shared ? shared : program->own_memory;
    tsr_emitter emitter = {.low = &lowered,
                           .layout = shared ? &layout : &memory->layout,
                           .memory = memory,
                           .lane = lane,
                           .reduce = reduce_of(config),
                           .x_bits = config ? config->activation_bits : 0};
    TSR_TRY(create_collectives(program, &emitter));
    for (int d = 0; d < graph->rt->n_devices; d++)
        TSR_TRY(emit_device(program, &emitter, d));
    TSR_TRY(tsr_program_prepare(program));
    program->info = info_of(&lowered, graph->rt->n_devices);
    program->maps = lowered.maps;
    program->n_maps = lowered.n_maps;
    lowered.maps = NULL;
    lowered.n_maps = 0;
    place_tensors(graph, &emitter);
    graph->program = program;
    tsr_track(&program->rt->tracked, &program->tracked, &program_kind);
    *program_out = program;
    program = NULL;
out:
    tsr_program_destroy(program);
    tsr_layout_free(&layout);
    tsr_lowered_free(&lowered);
    return status;
}

size_t tsr_program_config_init(tsr_program_config *config_out, size_t size)
{
    const tsr_program_config defaults = {.reduction = TSR_REDUCTION_EXACT, .activation_bits = 16};
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

static tsr_status check_config(const tsr_program_config *config)
{
    if (config->reduction < TSR_REDUCTION_EXACT || config->reduction > TSR_REDUCTION_BF16)
        return tsr_fail(TSR_ERR_INVALID, "tsr_program_config.reduction is %d; use EXACT, F32 or BF16",
                        (int)config->reduction);
    if (!tsr_activation_bits_known(config->activation_bits))
        return tsr_fail(TSR_ERR_INVALID, "tsr_program_config.activation_bits is %d; use 16 or 8",
                        config->activation_bits);
    return TSR_OK;
}

tsr_status tsr_program_compile_into(tsr_graph *graph, const tsr_program_config *config,
                                    tsr_program_memory *memory, int lane, tsr_program **program_out)
{
    return compile(graph, config, memory, lane, program_out);
}

tsr_status tsr_program_compile(tsr_graph *graph, const tsr_program_config *config, tsr_program **program_out)
{
    if (!graph)
        return tsr_fail(TSR_ERR_INVALID, "tsr_program_compile: graph must not be NULL");
    tsr_program *program = NULL;
    tsr_program_config own = tsr_program_config_default();
    tsr_status status = tsr_config_read("tsr_program_config", config,
                                        offsetof(tsr_program_config, activation_bits), &own, sizeof own);
    if (status == TSR_OK)
        status = check_config(&own);
    if (status == TSR_OK && !program_out)
        status = tsr_fail(TSR_ERR_INVALID, "tsr_program_compile: program_out must not be NULL");
    if (status == TSR_OK)
        status = compile(graph, &own, NULL, 0, &program);
    status = tsr_processes_agree(graph->rt->processes, status, "tsr_program_compile");
    if (status == TSR_OK)
        *program_out = program;
    else
        tsr_program_destroy(program);
    return status;
}

/* Inputs and outputs lose their addresses, unless a later program has set new ones. */
static void displace_tensors(tsr_program *program)
{
    tsr_graph *graph = program->graph;
    if (!graph || graph->program != program)
        return;
    for (int i = 0; i < graph->n_nodes; i++) {
        graph->nodes[i]->tensor.placement = (tsr_placement){0};
        memset(graph->nodes[i]->tensor.shards, 0, (size_t)program->rt->n_devices * sizeof(tsr_shard));
    }
    graph->program = NULL;
}

void tsr_program_destroy(tsr_program *program)
{
    if (!program)
        return;
    tsr_untrack(&program->tracked);
    displace_tensors(program);
    for (int d = 0; program->programs && d < program->rt->n_devices; d++)
        if (program->programs[d])
            program->rt->devices[d]->ops->program_destroy(program->rt->devices[d], program->programs[d]);
    for (int c = 0; c < program->n_collectives; c++)
        tsr_collective_destroy(program->rt->comm, program->collectives[c], program->rt->watch);
    tsr_lowered_maps_free(program->maps, program->n_maps);
    tsr_mem_free(program->programs);
    tsr_mem_free(program->collectives);
    tsr_mem_free(program->device_infos);
    tsr_program_memory_destroy(program->own_memory);
    tsr_mem_free(program);
}

void tsr_program_get_info(const tsr_program *program, tsr_program_info *info_out)
{
    *info_out = program->info;
}

tsr_status tsr_program_get_device(const tsr_program *program, int device, tsr_program_device_info *info_out)
{
    if (device < 0 || device >= program->rt->n_devices)
        return tsr_fail(TSR_ERR_INVALID, "device %d of %d does not exist", device, program->rt->n_devices);
    *info_out = program->device_infos[device];
    return TSR_OK;
}
