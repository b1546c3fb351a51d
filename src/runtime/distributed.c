/* Devices in several processes; see distributed.h.
 *
 * A stand-in is a dry-run device (alloc/buffer/dry_device.h) with the properties of the device that it
 * represents. Allocations on it are counted as on the device itself, so every process keeps the same
 * accounting of all devices, and arrives at the same plans and refusals. */
#include "runtime/distributed.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/buffer/dry_device.h"
#include "core/mem.h"

enum { PU_WORDS = 16 }; /* of the processors that are compared; a machine may have more */

/* Description of a device that its process sends to the others. */
typedef struct description {
    char name[32], isa[16], machine[64];
    uint64_t pus[PU_WORDS]; /* the processors of the machine that the device uses, one bit each */
    uint64_t memory_cap, alignment, max_alloc, granularity, alloc_unit, mapped_bytes, scratch_bytes;
    int32_t n_threads, place, is_gpu, prefers_copies, reserves_whole, may_exceed;
    tsr_device_rates rates;
} description;

tsr_status tsr_distributed_count(const tsr_runtime *rt, int n_here, tsr_distributed_counts *counts_out)
{
    tsr_status status = TSR_OK;
    tsr_distributed_counts counts = {{0}};
    for (int r = 0; r < tsr_processes_count(rt->processes); r++) {
        int32_t n = n_here;
        TSR_TRY(tsr_processes_share(rt->processes, r, TSR_OK, &n, sizeof n, sizeof n, 1, "counting devices"));
        if (r < tsr_processes_rank(rt->processes))
            counts.first += n;
        counts.n_of[r] = n;
        counts.n_all += n;
    }
    if (counts.n_all > TSR_MAX_DEVICES)
        return tsr_fail(
            TSR_ERR_INVALID,
            "the processes have %d devices together; a runtime has %d at most; name fewer in each",
            counts.n_all, (int)TSR_MAX_DEVICES);
    *counts_out = counts;
out:
    return status;
}

void tsr_distributed_name(const tsr_runtime *rt, const char *name, char *full, size_t size)
{
    if (rt->processes)
        snprintf(full, size, "%.24s@%d", name, tsr_processes_rank(rt->processes));
    else
        snprintf(full, size, "%s", name);
}

static description describe(const tsr_device *device, const tsr_device_desc *desc,
                            const tsr_device_rates *rates)
{
    description d = {.memory_cap = device->memory_cap,
                     .alignment = device->alignment,
                     .max_alloc = device->max_alloc,
                     .granularity = device->granularity,
                     .alloc_unit = device->alloc_unit,
                     .mapped_bytes = device->mapped_bytes,
                     .scratch_bytes = device->scratch_bytes,
                     .n_threads = device->n_threads,
                     .place = device->place,
                     .is_gpu = device->is_gpu,
                     .prefers_copies = device->prefers_copies,
                     .reserves_whole = device->reserves_whole,
                     .may_exceed = device->may_exceed,
                     .rates = *rates};
    memcpy(d.name, device->name, sizeof d.name);
    memcpy(d.isa, device->isa, sizeof d.isa);
    (void)!gethostname(d.machine, sizeof d.machine - 1);
    for (int i = 0; i < desc->n_pus; i++)
        if (desc->pus[i] < PU_WORDS * 64)
            d.pus[desc->pus[i] / 64] |= UINT64_C(1) << desc->pus[i] % 64;
    return d;
}

/* Processes that mpirun does not bind all begin with the first core. The higher rank of the two warns. */
static void warn_of_shared_cores(const tsr_runtime *rt, const description *mine, const description *theirs)
{
    uint64_t both = 0;
    for (int w = 0; w < PU_WORDS; w++)
        both |= mine->pus[w] & theirs->pus[w];
    if (both && strncmp(mine->machine, theirs->machine, sizeof mine->machine) == 0)
        tsr_log(
            &rt->logger, TSR_LOG_WARN,
            "devices %s and %s work on the same cores of %s, each at a part of its speed: bind the processes "
            "(mpirun --bind-to core, or numa)",
            theirs->name, mine->name, mine->machine);
}

static tsr_status stand_in(tsr_runtime *rt, int index, const description *d)
{
    tsr_device *device;
    tsr_status status =
        tsr_measure_device_create(d->name, index, (size_t)d->memory_cap, (size_t)d->alignment,
                                  (size_t)d->max_alloc, (size_t)d->granularity, &rt->devices[index]);
    if (status != TSR_OK)
        return status;
    device = rt->devices[index];
    device->alloc_unit = (size_t)d->alloc_unit;
    device->mapped_bytes = (size_t)d->mapped_bytes;
    device->scratch_bytes = (size_t)d->scratch_bytes;
    device->n_threads = d->n_threads;
    device->place = d->place;
    device->is_gpu = d->is_gpu;
    device->prefers_copies = d->prefers_copies;
    device->reserves_whole = d->reserves_whole;
    device->may_exceed = d->may_exceed;
    device->elsewhere = true;
    device->watch = rt->watch;
    memcpy(device->isa, d->isa, sizeof device->isa);
    rt->rates[index] = d->rates;
    return TSR_OK;
}

/* Complete one device of process r from its description. */
static tsr_status complete_device(tsr_runtime *rt, int r, int index, description *d)
{
    tsr_status status =
        tsr_processes_share(rt->processes, r, TSR_OK, d, sizeof *d, sizeof *d, 1, "describing devices");
    if (status == TSR_OK && r != tsr_processes_rank(rt->processes))
        status = stand_in(rt, index, d);
    if (status != TSR_OK)
        return status;
    rt->devices[index]->process = r;
    rt->devices[index]->processes = rt->processes;
    return TSR_OK;
}

/* Complete the n devices of process r, the first of which has the index `first`; descriptions so far are
 * in known[]. */
static tsr_status complete_process(tsr_runtime *rt, const tsr_device_desc *list, int r, int first, int n,
                                   description *known)
{
    tsr_status status = TSR_OK;
    const bool here = r == tsr_processes_rank(rt->processes);
    for (int i = first; i < first + n; i++) {
        if (here)
            known[i] = describe(rt->devices[i], &list[i - first], &rt->rates[i]);
        TSR_TRY(complete_device(rt, r, i, &known[i]));
        for (int before = 0; here && before < first; before++)
            warn_of_shared_cores(rt, &known[i], &known[before]);
    }
out:
    return status;
}

tsr_status tsr_distributed_complete(tsr_runtime *rt, const tsr_device_desc *list,
                                    const tsr_distributed_counts *counts)
{
    tsr_status status = TSR_OK;
    description *known = NULL;
    const int n_processes = tsr_processes_count(rt->processes);
    if (!rt->processes)
        return TSR_OK;
    TSR_TRY(tsr_mem_array((size_t)rt->n_devices, sizeof *known, "descriptions of devices", &known));
    for (int r = 0, at = 0; r < n_processes; at += counts->n_of[r], r++)
        TSR_TRY(complete_process(rt, list, r, at, counts->n_of[r], known));
out:
    tsr_mem_free(known);
    return status;
}

tsr_status tsr_distributed_share_rates(tsr_runtime *rt, tsr_device_rates *rates)
{
    tsr_status status = TSR_OK;
    for (int d = 0; rt->processes && d < rt->n_devices; d++)
        TSR_TRY(tsr_processes_share(rt->processes, rt->devices[d]->process, TSR_OK, &rates[d],
                                    sizeof rates[d], sizeof rates[d], 1, "sharing rates"));
out:
    return status;
}
