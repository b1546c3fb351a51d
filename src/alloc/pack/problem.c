/* Freeing a solution. */
#include "alloc/pack/problem.h"

#include <string.h>

#include "core/mem.h"

void tsr_pack_solution_free(tsr_pack_solution *solution)
{
    if (!solution)
        return;
    tsr_mem_free(solution->chunk_bytes);
    tsr_mem_free(solution->places);
    memset(solution, 0, sizeof *solution);
}
