/* Functions common to all communicators; see comm.h. */
#include "core/comm.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

tsr_status tsr_collective_copy_desc(const tsr_collective_desc *desc, int n_devices, tsr_collective_desc *copy,
                                    int64_t **begin_out, void ***partial_out)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)n_devices;
    *copy = *desc;
    TSR_TRY(tsr_mem_array(n, sizeof **partial_out, "a collective's buffers", partial_out));
    memcpy(*partial_out, desc->partial, n * sizeof **partial_out);
    if (desc->begin) {
        TSR_TRY(tsr_mem_array(n + 1, sizeof **begin_out, "a collective's shards", begin_out));
        memcpy(*begin_out, desc->begin, (n + 1) * sizeof **begin_out);
    }
    copy->partial = *partial_out;
    copy->begin = *begin_out;
out:
    return status;
}

void tsr_comm_destroy(tsr_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

void tsr_comm_reset(tsr_comm *comm, const tsr_watch *watch)
{
    if (!tsr_watch_is_lost(watch))
        comm->ops->reset(comm);
}

void tsr_collective_destroy(tsr_comm *comm, tsr_collective *collective, const tsr_watch *watch)
{
    if (collective && !tsr_watch_has_abandoned(watch))
        comm->ops->collective_destroy(comm, collective);
}

void tsr_comm_describe_missing(tsr_device_set missing, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    TSR_FOR_DEVICES(i, missing) {
        int n = snprintf(text + used, bytes - used, "%s device %d", used ? " and" : ";", i);
        if (n < 0 || (size_t)n >= bytes - used)
            return;
        used += (size_t)n;
    }
    if (used)
        snprintf(text + used, bytes - used, " did not arrive");
}
