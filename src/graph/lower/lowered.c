/* See lowered.h. */
#include "graph/lower/lowered.h"

#include <string.h>

#include "core/mem.h"

int64_t tsr_value_cols(const tsr_value *value, int d)
{
    if (!(value->devices >> d & 1))
        return 0;
    return value->sharding == TSR_SHARDING_SPLIT ? tsr_shard_map_count(value->map, d) : value->ne0;
}

void tsr_lowered_free(tsr_lowered *lowered)
{
    tsr_mem_free(lowered->values);
    tsr_mem_free(lowered->instrs);
    tsr_mem_free(lowered->value_of_node);
    memset(lowered, 0, sizeof *lowered);
}
