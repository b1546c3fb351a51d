/* Lowered graphs (lowered.h). */
#include "graph/lower/lowered.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"

int64_t tsr_value_cols(const tsr_value *value, int d)
{
    if (!tsr_device_set_has(value->devices, d))
        return 0;
    return value->sharding == TSR_SHARDING_SPLIT ? tsr_shard_map_count(value->map, d) : value->ne0;
}

tsr_status tsr_value_bytes(const tsr_runtime *rt, const tsr_value *value, int d, size_t *bytes_out)
{
    size_t bytes;
    if (!tsr_mul_size((size_t)tsr_value_cols(value, d), (size_t)value->ne1, &bytes) ||
        !tsr_mul_size(bytes, 4, &bytes) || bytes > SIZE_MAX / 2)
        return tsr_fail(TSR_ERR_INVALID, "%s: [%lld, %lld] is too large", value->name, (long long)value->ne0,
                        (long long)value->ne1);
    *bytes_out = tsr_align_up(bytes, rt->devices[d]->alignment);
    return TSR_OK;
}

void tsr_instr_in_place(const tsr_instr *instr, int *first_out, int *end_out)
{
    int first = 0, end = 0;
    switch (instr->kind) {
    case TSR_OP_RMS_NORM:
    case TSR_OP_RMS_SCALE:
    case TSR_OP_ROPE:
    case TSR_OP_SCALE:
    case TSR_OP_SOFTCAP:
    case TSR_OP_GATE:
    case TSR_OP_CONV:
    case TSR_OP_SOFTMAX:
    case TSR_OP_STREAM_WEIGHTS:
    case TSR_OP_ADD: /* its second operand may be a single row */
        end = 1;
        break;
    case TSR_OP_GLU:
        end = 2;
        break;
    case TSR_OP_ALL_REDUCE: /* the residual */
        first = 1;
        end = 2;
        break;
    default:
        break;
    }
    *first_out = first;
    *end_out = TSR_MIN(end, instr->n_in);
}

void tsr_lowered_maps_free(tsr_shard_map **maps, int n)
{
    for (int i = 0; i < n; i++)
        tsr_mem_free(maps[i]);
    tsr_mem_free(maps);
}

void tsr_lowered_free(tsr_lowered *lowered)
{
    tsr_lowered_maps_free(lowered->maps, lowered->n_maps);
    tsr_mem_free(lowered->values);
    tsr_mem_free(lowered->instrs);
    tsr_mem_free(lowered->value_of_node);
    memset(lowered, 0, sizeof *lowered);
}
