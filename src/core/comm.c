/* Functions common to all communicators; see comm.h. */
#include "core/comm.h"

#include <stdio.h>

void tsr_comm_destroy(tsr_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
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
