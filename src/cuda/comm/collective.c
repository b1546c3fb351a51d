/* See collective.h. */
#include "cuda/comm/collective.h"

#include "core/mem.h"

tsr_status tsr_cuda_collective_init(tsr_cuda_collective *collective, tsr_comm *comm,
                                    const tsr_collective_desc *desc)
{
    tsr_cuda_collective *c = collective;
    c->base = (tsr_collective){.comm = comm, .desc = &c->desc};
    return tsr_collective_copy_desc(desc, comm->n_devices, &c->desc, &c->begin, &c->partial);
}

bool tsr_cuda_collective_reaches(tsr_cuda_device *const *devices, tsr_device_set participants)
{
    TSR_FOR_DEVICES(d, participants)
        TSR_FOR_DEVICES(e, participants)
            if (devices[e]->ordinal < TSR_CUDA_MAX_GPUS && devices[d]->lost_peers >> devices[e]->ordinal & 1)
                return false;
    return true;
}

tsr_status tsr_cuda_collective_refuse(const tsr_collective_desc *desc, const char *why)
{
    return tsr_fail(TSR_ERR_UNSUPPORTED, "collective '%s' (%s): %s", desc->name ? desc->name : "?",
                    tsr_op_kind_name(desc->kind), why);
}

void tsr_cuda_collective_destroy(tsr_comm *comm, tsr_collective *collective)
{
    (void)comm;
    tsr_cuda_collective *c = (tsr_cuda_collective *)collective;
    tsr_mem_free(c->begin);
    tsr_mem_free(c->partial);
    tsr_mem_free(c);
}
