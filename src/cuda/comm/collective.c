/* See collective.h. */
#include "cuda/comm/collective.h"

#include <string.h>

#include "core/mem.h"

tsr_status tsr_cuda_collective_init(tsr_cuda_collective *collective, tsr_comm *comm,
                                    const tsr_collective_desc *desc)
{
    tsr_status status = TSR_OK;
    tsr_cuda_collective *c = collective;
    size_t n = (size_t)comm->n_devices;
    c->desc = *desc;
    TSR_TRY(tsr_mem_array(n, sizeof *c->partial, "a collective's buffers", &c->partial));
    memcpy(c->partial, desc->partial, n * sizeof *c->partial);
    if (desc->begin) {
        TSR_TRY(tsr_mem_array(n + 1, sizeof *c->begin, "a collective's shards", &c->begin));
        memcpy(c->begin, desc->begin, (n + 1) * sizeof *c->begin);
    }
    c->desc.partial = c->partial;
    c->desc.begin = c->begin;
    c->base = (tsr_collective){.comm = comm, .desc = &c->desc};
out:
    return status;
}

void tsr_cuda_collective_destroy(tsr_comm *comm, tsr_collective *collective)
{
    (void)comm;
    tsr_cuda_collective *c = (tsr_cuda_collective *)collective;
    tsr_mem_free(c->begin);
    tsr_mem_free(c->partial);
    tsr_mem_free(c);
}
